"""CandidateKeeper: puts sketches of new logs into candidate files, by which later processes find them.

    keeper.add(context, candidate)      # of a log that is durable
    keeper.write()                      # one file of all that are new

A file of one log takes 430 bytes. Where there are `MANY` small files they become one, without the logs that are gone.
`archive cluster` replaces all of them. They are hints: a file that cannot be written, or is deleted beside a reader,
costs bytes of later logs and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.errors import StoreError
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import CandidateGroup, pack_candidates, unpack_candidates
from pltz.archive.format.context import Context
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.writing.candidates import MOST, Candidate, seal_sketch
from pltz.coding.sketch import SIZE, Sketch
from pltz.plt_codec.errors import FormatError

LEAST_LOG = 1 << 15  # bytes of a log whose sketch is kept: what others quote of a shorter one saves little more
PENDING = 64  # sketches that are written without being asked for
MANY, SMALL = 16, 1 << 16  # files that are merged, and bytes below which one is

Groups = dict[CandidateGroup, dict[bytes, bytes]]


class CandidateKeeper:
    """Writes the sketches of the new logs of one writer."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._new: Groups = {}
        self._count = 0

    def add(self, context: Context, one: Candidate) -> None:
        """Add the log of a candidate, whose leaf has this context."""
        group = CandidateGroup(TENANT, one.place.domain, one.place.tokenizer, context.root, 0)
        sketch = Sketch(one.sketch.grams, one.sketch.hashes[:SIZE].copy())
        box = seal_sketch(self._catalog.keys, replace(context, tokenizer=one.place.tokenizer), one.segment, sketch)
        self._new.setdefault(group, {})[one.segment] = box
        self._count += 1
        if self._count >= PENDING:
            self.write()

    def write(self) -> None:
        """Put a file of the sketches that were added since the last one. Raises WriterFailed."""
        groups, self._new, self._count = self._new, {}, 0
        if groups:
            with suppress(StoreError):
                self._merge(groups)

    def clear(self) -> None:
        """Forget the sketches that were added: some are about to be erased."""
        self._new, self._count = {}, 0

    def _merge(self, groups: Groups) -> None:
        store, archive = self._catalog.store, self._catalog.ledger.archive
        sizes = store.list(object_names.INDEXES)
        small = {name: size for name, size in sizes.items() if size < SMALL}
        found = sorted(map(object_names.candidates, object_names.candidates_among(small)))
        merged = list[str]()
        for name in found if len(found) >= MANY else ():
            with suppress(FormatError, FileNotFoundError):  # damaged, which readers tell, or merged by another
                for group, boxes in unpack_candidates(store.read(name, 0, SMALL), archive):
                    groups.setdefault(group, {}).update(boxes.read())
                merged.append(name)
        if merged:
            ids = [segment for boxes in groups.values() for segment in boxes]
            known = self._catalog.lookup.known(SEGMENTS, ids)
            groups = {g: {s: box for s, box in boxes.items() if s in known} for g, boxes in groups.items()}
        data = pack_candidates(archive, {group: list(boxes.items())[-MOST:] for group, boxes in groups.items()})
        made = object_names.candidates(data[-16:].hex())
        store.put(made, data)
        for name in merged:
            if name != made:
                store.delete(name)
