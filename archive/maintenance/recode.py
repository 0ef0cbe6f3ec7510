"""Recode: put segments within a run that is about to be erased again, each in a record of its own.

    record within a run --read--> tokens --encode alone or after their tower--> record without a run

A segment keeps its id, so towers and versions stay as they are. The new record is decoded and compared before it is
put. A crash leaves some of the new records, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.errors import ArchiveError, KeyMismatch
from pltz.archive.format.context import RUN, WITHIN, Context
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import Record
from pltz.archive.format.run import MAX_RUN
from pltz.archive.maintenance.join import encoded
from pltz.archive.writing.batch import Row
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import BundleMismatch, PltzError
from pltz.plt_codec.identity import NONE


class Recoder:
    """Recodes segments of one archive. Several may run at once beside readers, writers and collectors.

    ``load``: loads the codecs, if they are not loaded yet.
    """

    def __init__(
        self,
        catalog: Catalog,
        writer: ArchiveWriter,
        codecs: CodecRegistry,
        load: Callable[[], object] = lambda: None,
    ) -> None:
        self.catalog, self.writer, self.codecs, self._load = catalog, writer, codecs, load

    def want_codecs(self, segments: Collection[bytes]) -> None:
        """Raise ArchiveError where a segment needs a bundle that the archive was not opened with."""
        if not all(map(self._can_decode, segments)):
            raise ArchiveError(
                "another session is within a run coded by a bundle that the archive was not opened with: "
                "open it with that bundle too (--bundle); nothing was changed"
            )

    def _can_decode(self, segment: bytes) -> bool:
        """Return whether the archive was opened with the codecs of all records of a segment."""
        self._load()
        run = self._run_of(segment)
        return all(self.codecs.for_context(item.context) for item in [*self._places(segment), *([run] if run else [])])

    def take_out(self, segments: Collection[bytes]) -> set[bytes]:
        """Put segments within runs again, with those above them in the run, each in a record of its own; return all.

        Until the run goes, readers and collectors prefer it. Those that are in no run, those of orphans, and those of
        which nothing can be read, are left out.

        Raises:
            ArchiveError: a segment needs a bundle or key that the archive was not opened with.
            StoreError, WriterFailed: the store failed.
        """
        chains, rows = Chains(self.catalog, self.codecs), dict[bytes, Row]()
        for segment in sorted(segments):
            if (run := self._run_of(segment)) is None or (tower := self._tower(chains, segment)) is None:
                continue
            path = [NONE, *(name for name, _ in tower)]
            first = path.index(run.record.parent) if run.record.parent in path else len(tower)
            for number in range(first, len(tower)):
                if path[number + 1] not in rows:
                    rows[path[number + 1]] = self._row(tower[: number + 1], path[number], run.context)
        if rows:
            self.writer.copy((context, self.catalog.keys.seal(context, record)) for context, record in rows.values())
        if not self.stands_out(rows):
            raise ArchiveError("segments were put out of a run and do not read back: repair first")
        return set(rows)

    def stands_out(self, segments: Collection[bytes]) -> bool:
        """Return whether all these have a record in no run, under the newest keys, that no collector is to delete."""
        return all(any(map(self._stays_alone, self._places(segment))) for segment in segments)

    def _stays_alone(self, item: Found) -> bool:
        newest = self.catalog.keys.context(TENANT, self.catalog.keys.domain_name(item.context)).root
        stays = item.location.pack not in self.catalog.listing.condemned
        return item.context.mode < RUN and item.context.root == newest and stays

    def _run_of(self, segment: bytes) -> Found | None:
        """Return the run that a segment is read through, None where no record of it is within one."""
        for _ in range(MAX_RUN):
            item = next(iter(self._places(segment)), None)
            if item is None or not item.context.mode & (RUN | WITHIN):
                return None
            if item.context.mode != WITHIN:
                return item
            segment = item.record.parent
        return None

    def _places(self, segment: bytes) -> list[Found]:
        """Return the records of a segment, but for those of orphans, which nobody else reads."""
        orphans = self.catalog.listing.orphans
        return [item for item in self.catalog.lookup.find(SEGMENTS, segment) if item.location.pack not in orphans]

    def _tower(self, chains: Chains, segment: bytes) -> Segments | None:
        """Return the tower of a segment, None where it cannot be read. Raises ArchiveError without its bundle."""
        try:
            return chains.tower(segment)
        except (BundleMismatch, KeyMismatch) as exc:
            raise ArchiveError(f"a session is within a run of one that goes, and cannot be coded anew: {exc}") from exc
        except PltzError:  # damaged, which verify reports, or of a session that was never acknowledged
            return None

    def _row(self, tower: Segments, parent: bytes, kept: Context) -> Row:
        """Return a record of the last segment of a tower, in a context like that of its run. Raises ArchiveError."""
        codec = self.codecs.for_context(kept)
        assert codec is not None  # it has just decoded the segment
        name, tokens = tower[-1]
        mode, data = encoded(codec, tokens, np.concatenate([NOTHING, *(part for _, part in tower[:-1])]))
        own = self.catalog.keys.context(kept.domain_kind, self.catalog.keys.domain_name(kept))
        context = replace(own, tokenizer=kept.tokenizer, bundle=kept.bundle, contract=kept.contract, mode=mode)
        return context, Record(0, parent, name, len(tokens), data)
