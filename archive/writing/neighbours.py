"""Neighbours of a put: code new segments after earlier ones of their domain, where records get smaller by it.

    new segments --sketches--> candidates --tower, proved--> encode after it --shorter?--> record that names it

Spec: FORMAT.md, "Neighbours". A neighbour is read from records that have none themselves. So a segment that serves as
one stays without, and one that has one does not serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains
from pltz.archive.catalog.recent_towers import RecentTowers, Segments
from pltz.archive.codecs.codec import Plain, SegmentCodec, layout_mode
from pltz.archive.format.context import ALONE, TOWER
from pltz.archive.format.ids import NONE, TENANT
from pltz.archive.format.index_file import Location
from pltz.archive.writing.batch import PendingSegment, PendingVersion, batches
from pltz.archive.writing.candidates import Candidate, Candidates, Place, tower_sketch
from pltz.archive.writing.verified_segments import VerifiedSegments
from pltz.plt_codec.errors import PltzError

NEIGHBOUR_BYTES = 10  # that a neighbour takes in a record; about two where both are put together
TOGETHER_BYTES = 2
NEAR_DEPTH = 2  # segments from the root of a tower that are coded after a neighbour

Proofs = dict[bytes, tuple[Location, bytes]]  # where each segment was proved, and its domain


class NeighbourEncoder:
    """Codes the new segments of puts after neighbours. One per writer.

    Attributes:
        candidates: segments that may be neighbours; None: segments are coded after their own towers alone.
        towers: recent towers of candidates and of neighbours.
    """

    def __init__(self, catalog: Catalog, codecs: list[SegmentCodec], proved: VerifiedSegments) -> None:
        self.catalog, self.codecs, self.proved = catalog, codecs, proved
        self.candidates: Candidates | None = None
        self.towers = RecentTowers()

    def lean_on(
        self, fresh: dict[bytes, PendingSegment], segments: Sequence[PendingSegment], relied: dict[bytes, Location]
    ) -> Proofs:
        """Return proofs of the towers of the neighbours that stored segments relied on have.

        A segment whose neighbour cannot be relied on is put again: it goes from ``relied`` to ``fresh``.
        """
        proofs: Proofs = {}
        for segment in segments:
            if segment.id not in relied or (leaf := self.proved.neighbour(segment.id)) == NONE:
                continue
            if stored := self._stored_tower(leaf):
                segment.near = stored[0]
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
        segments, for `add` once they are durable.
        """
        if self.candidates is None:
            return []
        new, towers, made = Candidates(), dict[bytes, Segments](), list[Candidate]()
        proposed: dict[bytes, tuple[PendingSegment, bytes]] = {}
        plain: set[bytes] = set()  # segments of new candidates, which stay without a neighbour
        for d in drafts:
            if not d.tower or not d.tower[0].codec.reach:
                continue
            upmost = [fresh[s.id] for s in d.tower[:NEAR_DEPTH] if s.id in fresh and s.own.domain_kind == TENANT]
            for s in upmost:
                if s.id not in plain and s.id not in proposed and (leaf := self._proposed(s, new)):
                    proposed[s.id] = s, leaf
            ids = [s.id for s in d.tower]
            if upmost and not proposed.keys() & ids and self.proved.plain_places(set(ids) - fresh.keys()) is not None:
                leaf, sketch = tower_sketch([(s.id, s.tokens) for s in d.tower], d.tower[0].codec.reach)
                towers[leaf] = [(s.id, s.tokens) for s in d.tower[: ids.index(leaf) + 1]]
                plain.update(ids)
                made.append(Candidate(_place(upmost[0]), leaf, sketch))
                new.add(*made[-1])
        places: dict[bytes, Proofs] = {}
        for leaf in {leaf for _, leaf in proposed.values()} - towers.keys():
            if stored := self._stored_tower(leaf):
                towers[leaf], places[leaf] = stored
        costs = {leaf: NEIGHBOUR_BYTES if leaf in places else TOGETHER_BYTES for leaf in towers}
        self._encode_after([(s, towers[leaf], costs[leaf]) for s, leaf in proposed.values() if leaf in towers])
        used = {s.neighbour for s, _ in proposed.values()} - {NONE}
        for leaf in used:
            self.towers.add(towers[leaf])
            proofs |= places.get(leaf, {})
        return made

    def add(self, made: Sequence[Candidate]) -> None:
        """Add candidates that are durable by now."""
        if self.candidates is not None:
            for one in made:
                self.candidates.add(*one)

    def clear(self) -> None:
        """Forget all tokens and candidates: some are about to be erased."""
        self.towers.clear()
        if self.candidates is not None:
            self.candidates.clear()

    def _proposed(self, segment: PendingSegment, new: Candidates) -> bytes | None:
        """Return the candidate that a segment is to be coded after, of the stored and the new ones."""
        assert self.candidates is not None
        found = [c.nearest(_place(segment), segment.tokens) for c in (new, self.candidates)]
        _, leaf = max(filter(None, found), default=(0.0, None))
        return None if any(s.id == leaf for s in segment.ancestors()) else leaf

    def _stored_tower(self, leaf: bytes) -> tuple[Segments, Proofs] | None:
        """Return the tower of a stored candidate with its proofs; None where it cannot serve."""
        tower = self.towers.get(leaf)
        proofs = self.proved.plain_places(name for name, _ in tower) if tower else None
        if proofs is None:
            try:
                tower = Chains(self.catalog, self.codecs, heard=self.proved.heard, plain=True).tower(leaf)
            except PltzError:  # forgotten and collected, erased, or damaged: it is only a hint
                return None
            proofs = self.proved.plain_places(name for name, _ in tower)
        return (tower, proofs) if tower and proofs is not None else None

    def _encode_after(self, pairs: Sequence[tuple[PendingSegment, Segments, int]]) -> None:
        """Encode segments after the towers of their neighbours, and keep what makes a record smaller.

        Each comes with the bytes that naming its neighbour takes.
        """
        segments = [s for s, _, _ in pairs]
        for codec, numbers in batches(segments):
            plain = []
            for segment, tower, _ in (pairs[n] for n in numbers):
                segment.near = tower
                plain.append(Plain(segment.tokens, segment.before(codec.reach, TOWER if segment.up else ALONE)))
            for n, data in zip(numbers, codec.encode(plain), strict=True):
                segment = segments[n]
                if len(data) + pairs[n][2] < len(segment.data):
                    mode = (TOWER if segment.up else ALONE) | layout_mode(codec, segment.tokens)
                    segment.data, segment.context = data, replace(segment.own, mode=mode) if mode else segment.own
                else:
                    segment.near = []


def _place(segment: PendingSegment) -> Place:
    return Place(segment.own.domain, segment.codec.tokenizer)
