"""LogNeighbours: name the earlier log of its tenant that each new log is coded after, before it is coded.

    new log --passages--> the nearest logs of its tenant --tower, proved--> fast zstd, alone and after each--> neighbour

Other segments are coded alone and after a neighbour, and the shorter record is put. A log takes seconds, so it is coded
once: the passages that it quotes (coding/log/passages.py) and a fast zstd tell beforehand whether the neighbour pays.
Only the first segment of a log has one. What is added later is coded after the log itself.

Reading a log takes that of its neighbour and of those before it, at most `most_before` of its bytes. A put decodes a
stored log only where time allows: 0.45 of the work of its own logs. Beyond that a process reads up to `SPARE` for each
tenant, for logs that share much with a stored one, at most `LONGER` times their own bytes. So a process that puts one
log gains by what an earlier process put, whose sketches it finds in candidate files (`CandidateKeeper`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from pltz.archive.catalog.chain import reading_of
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import StoreError
from pltz.archive.format.ids import TENANT
from pltz.archive.writing.batch import PendingSegment, PendingVersion
from pltz.archive.writing.candidate_keeper import LEAST_LOG, CandidateKeeper
from pltz.archive.writing.candidates import RULE, Candidate, Candidates, Place, read_groups
from pltz.archive.writing.neighbours import NeighbourEncoder
from pltz.archive.writing.verified_segments import Proofs
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.log.passages import (
    LEAST_SHARED,
    LONGER,
    PASSAGES,
    most_before,
    passages_of,
    sketch_of_passages,
    worth_most,
)
from pltz.coding.neighbour_rule import PROOF

TRIED = 3  # of the nearest logs
SPARE = PROOF * (1 << 21)  # work of reading stored logs that a process may do for a tenant beyond that: half a minute
MUCH = 0.05  # of the passages of a log: what it shares with a stored one that is worth that
KNOWN = 1 << 18  # logs of which it is remembered how much is read to read them


class _Earlier(NamedTuple):
    """An earlier log that a new one may be coded after.

    Attributes:
        tower: its segments.
        proofs: of those that are stored, and of those that they are read with.
        deep: neighbours in a row that it is read with.
        read: tokens that are decoded to read it.
    """

    tower: Segments
    proofs: Proofs
    deep: int
    read: int


class LogNeighbours:
    """Names the neighbours of new logs. One per writer."""

    def __init__(self, encoder: NeighbourEncoder, keys: Encryption) -> None:
        self.encoder, self.candidates = encoder, Candidates(keys)
        self.keeper = CandidateKeeper(encoder.catalog)
        self._spare: dict[Place, float] = {}  # what is left of `SPARE`
        self._has_read = False  # those of the candidate files
        self._reads: dict[bytes, int | None] = {}  # tokens decoded to read each candidate; None: it cannot serve

    def choose(
        self, drafts: Sequence[PendingVersion], fresh: Mapping[bytes, PendingSegment]
    ) -> tuple[Proofs, list[Candidate]]:
        """Name the neighbours of the new logs of a put.

        Returns the proofs of the neighbours that are stored, and the candidates among the new logs, for `add` once
        they are durable.
        """
        proofs: Proofs = {}
        logs = {s.id: d for d in drafts if d.tower and (s := _root(d, fresh))}
        if logs and not self._has_read:
            self._read()
        credit: dict[Place, float] = {}
        for d in logs.values():
            place = _place(d)
            credit[place] = credit.get(place, 0.0) + RULE.granted * sum(len(s.tokens) for s in d.tower)
        new, made, known = Candidates(), list[Candidate](), dict[bytes, _Earlier]()
        for d in logs.values():
            root, place = fresh[d.tower[0].id], _place(d)
            passages = passages_of(_bytes(d.tower[0].tokens))
            # the nearest logs, those of this put and stored ones
            least = LEAST_SHARED * len(passages)
            found = [one for c in (new, self.candidates) for one in c.nearest_to(place, passages, least, TRIED)]
            earlier = list[_Earlier]()
            for shared, leaf in sorted(found, reverse=True)[:TRIED]:
                beyond = PROOF * LONGER * len(root.tokens) if shared >= MUCH * len(passages) else 0.0
                if leaf not in known and (one := self._stored(leaf, place, credit, beyond)):
                    known[leaf] = one
                if leaf in known and self._fits(known[leaf], root):
                    earlier.append(known[leaf])
            chosen = worth_most(_bytes(root.tokens), earlier, _content)
            if chosen:
                root.neighbour_tower = chosen.tower
                proofs |= chosen.proofs
            # it may serve others, as a whole
            own = sum(len(s.tokens) for s in d.tower)
            one = _Earlier([(s.id, s.tokens) for s in d.tower], {}, 0, own)
            if chosen:
                one = one._replace(proofs=chosen.proofs, deep=1 + chosen.deep, read=own + chosen.read)
            if one.deep <= RULE.most_behind() and all(s.id in fresh for s in d.tower):
                known[d.leaf] = one
                made.append(Candidate(place, d.leaf, sketch_of_passages(passages)))
                new.add(*made[-1])
        return proofs, made

    def _read(self) -> None:
        """Take up the candidates of the files that are there, which are hints: a store that fails is met elsewhere."""
        self._has_read = True
        with suppress(StoreError):
            for group, boxes in read_groups(self.encoder.catalog, self.encoder.catalog.ledger.archive):
                if group.tokenizer == PASSAGES:
                    self.candidates.add_group(group, boxes)

    def _fits(self, earlier: _Earlier, root: PendingSegment) -> bool:
        """Return whether a log may be coded after an earlier one."""
        within = earlier.deep <= RULE.most_behind() and earlier.read <= most_before(len(root.tokens))
        return within and root.id not in {name for name, _ in earlier.tower} | earlier.proofs.keys()

    def _stored(self, leaf: bytes, place: Place, credit: dict[Place, float], beyond: float) -> _Earlier | None:
        """Return a stored log, read and proved, as far as the time granted to its tenant allows; None where not.

        ``beyond``: work that may be taken from what the process has to spare.
        """
        deep, encoder = self.encoder.deep_of(leaf), self.encoder
        if leaf not in self._reads:
            if len(self._reads) >= KNOWN:
                self._reads.clear()
            self._reads[leaf] = reading_of(encoder.catalog, leaf)
        read = self._reads[leaf]
        if deep is None or deep > RULE.most_behind() or read is None:
            return None
        if encoder.towers.get(leaf) is None:
            work, spare = PROOF * read, self._spare.get(place, SPARE)
            if credit[place] + min(beyond, spare) < work:
                return None
            self._spare[place] = spare - max(0.0, work - credit[place])
            credit[place] = max(0.0, credit[place] - work)
        found = encoder.stored_tower(leaf, RULE.in_a_row - deep)
        if found is None or not encoder.proved.has_record(leaf):
            return None
        encoder.towers.add(found[0])
        return _Earlier(*found, deep, read)

    def add(self, made: Iterable[Candidate], drafts: Sequence[PendingVersion]) -> None:
        """Add logs that are durable by now."""
        towers = {d.leaf: d for d in drafts}
        for one in made:
            tower = towers[one.segment].tower
            self.candidates.add(*one)
            self.encoder.towers.add([(s.id, s.tokens) for s in tower])
            if sum(len(s.tokens) for s in tower) >= LEAST_LOG and one.sketch.grams >= RULE.least_grams:
                self.keeper.add(tower[-1].own, one)

    def clear(self) -> None:
        """Forget all candidates: some are about to be erased."""
        self.candidates.clear()
        self.keeper.clear()
        self._reads.clear()


def _root(draft: PendingVersion, fresh: Mapping[bytes, PendingSegment]) -> PendingSegment | None:
    """Return the first segment of a log that is new, None of any other session."""
    root = draft.tower[0]
    is_new_log = isinstance(draft.codec, LogCodec) and root.id in fresh and not fresh[root.id].coded
    return root if is_new_log and root.own.domain_kind == TENANT else None


def _place(draft: PendingVersion) -> Place:
    return Place(draft.tower[0].own.domain, PASSAGES)


def _content(earlier: _Earlier) -> bytes:
    return b"".join(_bytes(tokens) for _, tokens in earlier.tower)


def _bytes(tokens: np.ndarray) -> bytes:
    return tokens.astype(np.uint8).tobytes()
