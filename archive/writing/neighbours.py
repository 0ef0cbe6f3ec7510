"""Neighbours of a put: code new segments after earlier ones of their domain, where records get smaller by it.

    new segments --sketches--> candidates --tower, proved--> encode after it --shorter?--> record that names it

Spec: FORMAT.md, "Neighbours". Who may serve, and how much time trials take, is the rule of files too
(coding/neighbour_rule.py). A base domain counts as shared. There a neighbour depends on the prompts alone, else the
sessions of one tenant would change what those of another take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains, depth_of
from pltz.archive.catalog.recent_towers import RecentTowers, Segments
from pltz.archive.format.ids import BASE
from pltz.archive.format.index_file import Location
from pltz.archive.writing.batch import PendingSegment, PendingVersion, batches
from pltz.archive.writing.candidates import RULE, Candidate, Candidates, Place, tower_sketch
from pltz.archive.writing.verified_segments import Proofs, VerifiedSegments
from pltz.coding.choose import Trial, shorter_after
from pltz.coding.codecs.codec import Plain
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.codecs.modes import ALONE, TOWER
from pltz.coding.codecs.registry import CodecRegistry
from pltz.coding.neighbour_rule import NAME_BYTES, TrialCredit
from pltz.coding.sketch import hashes_of
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.identity import NONE

NEIGHBOUR_BYTES = 10  # that naming a stored neighbour takes; one that is put together with it takes `NAME_BYTES`
NEAR_DEPTH = 2  # segments from the root of a tower that are coded after a neighbour
KNOWN = 1 << 18  # candidates whose neighbours in a row are remembered


class _Tower(NamedTuple):
    """A tower of a put that may serve others.

    Attributes:
        segments: those up to the one that others would name.
        stored: neighbours in a row that its stored segments are read with.
        most: neighbours in a row that its segments may be read with if it is to serve.
    """

    candidate: Candidate
    segments: list[PendingSegment]
    stored: int
    most: int


class _PutNeighbours:
    """The neighbours of one put.

    Attributes:
        looked: the towers among its segments that may serve others, if those of its segments that are coded after
            others have few enough neighbours in a row.
        new: candidates among these that serve whatever the trials of this put come to.
        towers: towers of neighbours, by leaf.
        deep: neighbours in a row that each segment, by its id, is read with if all trials before it succeed.
        proposed: segments, by id, with the leaf of the tower that each is to be coded after, and the 4-grams shared.
    """

    def __init__(self) -> None:
        self.looked, self.new = list[_Tower](), Candidates()
        self.towers: dict[bytes, Segments] = {}
        self.deep: dict[bytes, int] = {}
        self.proposed: dict[bytes, tuple[PendingSegment, bytes, float]] = {}


class NeighbourEncoder:
    """Codes the new segments of puts after neighbours. One per writer.

    Attributes:
        candidates: segments that may be neighbours; None: segments are coded after their own towers alone.
        towers: recent towers of candidates and of neighbours.
    """

    def __init__(self, catalog: Catalog, codecs: CodecRegistry, proved: VerifiedSegments) -> None:
        self.catalog, self.codecs, self.proved = catalog, codecs, proved
        self.candidates: Candidates | None = None
        self.towers = RecentTowers()
        self._credit = TrialCredit[Place](RULE)
        self._deep: dict[bytes, int | None] = {}  # neighbours in a row that each candidate is read with, as `depth_of`
        self._needs: dict[bytes, set[bytes]] = {}  # stored segments that each stored neighbour is read with

    def proofs_of_stored(
        self, fresh: dict[bytes, PendingSegment], segments: Sequence[PendingSegment], relied: dict[bytes, Location]
    ) -> Proofs:
        """Return proofs of the towers of the neighbours that stored segments relied on have.

        A segment whose neighbour cannot be relied on is put again: it goes from ``relied`` to ``fresh``.
        """
        self._needs.clear()
        proofs: Proofs = {}
        for segment in segments:
            if segment.id not in relied or (leaf := self.proved.neighbour(segment.id)) == NONE:
                continue
            if stored := self.stored_tower(leaf, _hops(segment)):
                segment.neighbour_tower = stored[0]
                proofs |= stored[1]
            else:
                del relied[segment.id]
                fresh[segment.id] = segment
        return proofs

    def encode(
        self, drafts: Sequence[PendingVersion], fresh: Mapping[bytes, PendingSegment], proofs: Proofs
    ) -> list[Candidate]:
        """Code new segments after a neighbour where their records get smaller by it.

        Those of the neighbours' towers that are stored are added to ``proofs``. Returns the candidates among the new
        segments, for `add` once they are durable. Not for an encoder without candidates.
        """
        batch = _PutNeighbours()
        granted: dict[Place, int] = {}
        for s in fresh.values():
            granted[_place(s)] = granted.get(_place(s), 0) + len(s.tokens)
        self._credit.grant(granted)
        for d in drafts:
            if d.tower and d.tower[0].codec.reach and not isinstance(d.codec, LogCodec):  # see `LogNeighbours`
                prompt = [s for s in d.tower if s.own.domain_kind == BASE]
                self._look(batch, d.tower[: len(prompt)], 0, fresh)
                self._look(batch, d.tower, len(prompt), fresh)
        # what time allows of what was proposed, among towers that can be read and proved
        towers, places = batch.towers, dict[bytes, Proofs]()
        trials = [((s, leaf), _place(s), len(s.tokens), shared) for s, leaf, shared in batch.proposed.values()]
        tried = self._credit.affordable(trials)
        for leaf in {leaf for _, leaf in tried} - towers.keys():
            stored = self.stored_tower(leaf, RULE.in_a_row - (self.deep_of(leaf) or 0))
            if stored and self.proved.has_record(leaf):
                towers[leaf], places[leaf] = stored
            else:
                self._deep.pop(leaf, None)
        costs = {leaf: NEIGHBOUR_BYTES if leaf in places else NAME_BYTES for leaf in towers}
        # a candidate that is read after a segment, perhaps a copy in a condemned pack, is no neighbour of that segment
        after = {leaf: {name for name, _ in tower} | self._needs.get(leaf, set()) for leaf, tower in towers.items()}
        pairs = [(s, leaf) for s, leaf in tried if leaf in towers and s.id not in after[leaf]]
        self._encode_after([(s, towers[leaf], costs[leaf]) for s, leaf in pairs])
        for tower in towers.values():
            self.towers.add(tower)
        # a trial that gained nothing needs no proof: that time may be spent on later ones
        for s, _ in tried:
            if s.neighbour_tower:
                proofs |= places.get(s.neighbour, {})
            else:
                self._credit.give_back(_place(s), len(s.tokens))
        return [tower.candidate for tower in batch.looked if self._serves(tower)]

    def _serves(self, tower: _Tower) -> bool:
        """Return whether a tower of this put, coded by now, may serve others."""
        behind = [self.deep_of(s.neighbour) for s in tower.segments if s.neighbour_tower]
        deep = max([tower.stored, *(RULE.in_a_row if n is None else 1 + n for n in behind)])
        self._deep[tower.candidate.segment] = deep
        return deep <= tower.most

    def deep_of(self, leaf: bytes) -> int | None:
        """Return the neighbours in a row that a candidate is read with; None where it cannot serve."""
        if leaf not in self._deep:
            if len(self._deep) >= KNOWN:
                self._deep.clear()
            self._deep[leaf] = depth_of(self.catalog, leaf)
        return self._deep[leaf]

    def needs(self, segment: PendingSegment) -> set[bytes]:
        """Return the stored segments that the record of a segment of this put is read with, and its own id."""
        needs = {segment.id, *(name for name, _ in segment.neighbour_tower)}
        return needs | self._needs.get(segment.neighbour, set())

    def _look(
        self, batch: _PutNeighbours, tower: Sequence[PendingSegment], first: int, fresh: Mapping[bytes, PendingSegment]
    ) -> None:
        """Find candidates for the upmost new segments of a tower of one domain, and note the tower as one.

        ``first``: number of the segments above, of another domain.
        """
        upmost = [fresh[s.id] for s in tower[first:NEAR_DEPTH] if s.id in fresh]
        for s in upmost:
            if s.id not in batch.deep:
                batch.deep[s.id] = self._propose(batch, s)
        if not upmost:
            return
        leaf, sketch = tower_sketch([(s.id, s.tokens) for s in tower], tower[0].codec.reach)
        ids = [s.id for s in tower]
        if leaf in ids[:first] or not (leaf in fresh or self.proved.has_record(leaf)):
            return
        segments = [fresh.get(s.id, s) for s in tower[: ids.index(leaf) + 1]]
        stored = self._deep_stored([s.id for s in segments if s.id not in fresh])
        if stored is None:
            return
        found = _Tower(Candidate(_place(upmost[0]), leaf, sketch), segments, stored, _most(upmost[0]))
        batch.looked.append(found)
        deep = max([stored, *(batch.deep.get(s.id, 0) for s in segments)])
        if deep <= found.most:
            batch.towers[leaf] = [(s.id, s.tokens) for s in segments]
            self._deep[leaf] = deep
            batch.new.add(*found.candidate)

    def _propose(self, batch: _PutNeighbours, segment: PendingSegment) -> int:
        """Find a candidate for a segment, and return the neighbours in a row that it is read with then; 0 for none."""
        found = self._proposed(segment, batch.new)
        deep = self.deep_of(found[1]) if found else None
        if found is None or deep is None or deep > _most(segment):
            return 0
        batch.proposed[segment.id] = segment, found[1], found[0]
        return deep + 1

    def _deep_stored(self, segments: Sequence[bytes]) -> int | None:
        """Return the neighbours in a row that stored segments are read with; None where one cannot be relied on."""
        most = RULE.in_a_row
        return next((n for n in range(most + 1) if self.proved.proofs(segments, most - n) is not None), None)

    def add(self, made: Sequence[Candidate]) -> None:
        """Add candidates that are durable by now."""
        if self.candidates is not None:
            for one in made:
                self.candidates.add(*one)

    def clear(self) -> None:
        """Forget all tokens and candidates: some are about to be erased."""
        self.towers.clear()
        self._deep.clear()
        if self.candidates is not None:
            self.candidates.clear()

    def _proposed(self, segment: PendingSegment, new: Candidates) -> tuple[float, bytes] | None:
        """Return the candidate that a segment may be coded after, stored or new, and the 4-grams shared.

        They are of its own domain, and of the base domain of the segments above it.
        """
        assert self.candidates is not None
        above = {s.id for s in segment.ancestors()}
        bases = [_place(s) for s in segment.ancestors() if s.own.domain_kind == BASE]
        places = dict.fromkeys([_place(segment), *bases])
        sources = [partial(c.nearest_to, place) for place in places for c in (new, self.candidates)]
        return RULE.nearest(segment.tokens, hashes_of(segment.tokens), sources, above)

    def stored_tower(self, leaf: bytes, hops: int) -> tuple[Segments, Proofs] | None:
        """Return the tower of a stored candidate with its proofs; None where it cannot serve.

        ``hops``: of the segments that it is to serve (`_hops`).
        """
        tower = self.towers.get(leaf)
        proofs = self.proved.proofs((name for name, _ in tower), hops) if tower else None
        if proofs is None:
            try:
                tower = Chains(self.catalog, self.codecs, heard=self.proved.heard, hops=hops).tower(leaf)
            except PltzError:  # forgotten and collected, erased, or damaged: it is only a hint
                return None
            proofs = self.proved.proofs((name for name, _ in tower), hops)
        if not tower or proofs is None:
            return None
        self._needs[leaf] = set(proofs)
        return tower, proofs

    def _encode_after(self, pairs: Sequence[tuple[PendingSegment, Segments, int]]) -> None:
        """Encode segments after the towers of their neighbours, and keep what makes a record smaller.

        Each comes with the bytes that naming its neighbour takes.
        """
        segments = [s for s, _, _ in pairs]
        for codec, numbers in batches(segments):
            trials: list[Trial] = []
            for n in numbers:
                segment, tower, name_bytes = pairs[n]
                segment.neighbour_tower = tower
                plain = Plain(segment.tokens, segment.before(TOWER if segment.up else ALONE))
                trials.append(Trial(plain, len(segment.data), name_bytes))
            shorter = shorter_after(codec, trials)
            for n, segment in enumerate(segments[n] for n in numbers):
                if n not in shorter:
                    segment.neighbour_tower = []
                    continue
                segment.take(*shorter[n], TOWER if segment.up else ALONE)


def _most(segment: PendingSegment) -> int:
    """Return the most neighbours in a row that the neighbour of a new segment is read with."""
    return RULE.most_behind(fast=segment.codec.fast, shared=segment.own.domain_kind == BASE)


def _hops(segment: PendingSegment) -> int:
    """Return the hops, as in `Chains`, up to the neighbour of a stored segment, the most that may lead to it."""
    return RULE.in_a_row - RULE.most_behind(shared=segment.own.domain_kind == BASE)


def _place(segment: PendingSegment) -> Place:
    return Place(segment.own.domain, segment.codec.tokenizer)
