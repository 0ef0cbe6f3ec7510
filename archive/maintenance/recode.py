"""Recode: write segments that have a neighbour once more without one, so that the neighbour is not needed any more.

    records that name a neighbour --read--> tokens --encode alone or after their tower--> records without a neighbour

A segment keeps its id, so towers and versions stay as they are. Readers and collectors prefer a record without a
neighbour to one with it, so from then on the old record is dead. The new record is decoded and compared before it is
put, and read back afterwards. A crash leaves some of the new records, or none.

Segments within a run that is about to be erased are put again in the same way (`take_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.errors import ArchiveError, KeyMismatch
from pltz.archive.format.context import RUN, WITHIN, Context
from pltz.archive.format.ids import TENANT, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import Record
from pltz.archive.format.run import MAX_RUN
from pltz.archive.writing.batch import Row
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, layout_mode, ways_of
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import BundleMismatch, PltzError
from pltz.plt_codec.identity import NONE

COMMIT_TOKENS = 1 << 20  # tokens of segments put at once


class _Cut(NamedTuple):
    """A segment to put alone: its id, its tokens, (T,), its parent, the tokens above, (m,), and a context like it."""

    segment: bytes
    tokens: Tokens
    parent: bytes
    above: Tokens
    context: Context


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
        if not all(map(self.can_decode, segments)):
            raise ArchiveError(
                "another session is coded after this one by a bundle that the archive was not opened with: "
                "open it with that bundle too (--bundle); nothing was changed"
            )

    def can_decode(self, segment: bytes) -> bool:
        """Return whether the archive was opened with the codecs of all records of a segment."""
        self._load()
        run = self._run_of(segment)
        return all(self.codecs.for_context(item.context) for item in [*self._places(segment), *([run] if run else [])])

    def stands_alone(self, segment: bytes, roots: Collection[bytes] = ()) -> bool:
        """Return whether a segment has a record without a neighbour, under none of these roots of keys."""
        return any(i.record.neighbour == NONE and i.context.root not in roots for i in self._places(segment))

    def has(self, segment: bytes) -> bool:
        """Return whether a segment has a record that readers see: it has none where all are of orphans."""
        return bool(self._places(segment))

    def run(self, segments: Collection[bytes], roots: Collection[bytes] = ()) -> int:
        """Put these segments without a neighbour and return how many were put.

        Those are left out that have such a record, those of which nothing can be read, and those of orphans.

        Args:
            segments: ids, of segments that are not in a run.
            roots: roots of keys that are about to lose these segments; records under them do not count.

        Raises:
            ArchiveError: a segment needs a bundle or key that the archive was not opened with.
            StoreError, WriterFailed: the store failed.
        """
        wanted = [s for s in sorted(segments) if self.has(s) and not self.stands_alone(s, roots)]
        done, begin = 0, 0
        while begin < len(wanted):
            end, tokens = begin, 0
            while end < len(wanted) and tokens < COMMIT_TOKENS:
                tokens, end = tokens + self._tokens(wanted[end]), end + 1
            rows = self._rows(wanted[begin:end])
            self._put(rows)
            begin, done = end, done + len(rows)
        return done

    def take_out(self, segments: Collection[bytes]) -> set[bytes]:
        """Put segments within runs again, with those above them in the run, each in a record of its own; return all.

        Until the run goes, readers and collectors prefer it. Those that are in no run, those of orphans, and those of
        which nothing can be read, are left out. Raises the errors of `run`.
        """
        chains, rows = Chains(self.catalog, self.codecs), dict[bytes, Row]()
        for segment in filter(self.has, sorted(segments)):
            if (run := self._run_of(segment)) is None or (tower := self._tower(chains, segment)) is None:
                continue
            path = [NONE, *(name for name, _ in tower)]
            first = path.index(run.record.parent) if run.record.parent in path else len(tower)
            for number in range(first, len(tower)):
                if path[number + 1] not in rows:
                    above = np.concatenate([NOTHING, *(part for _, part in tower[:number])])
                    cut = _Cut(*tower[number], path[number], above, run.context)
                    rows[cut.segment] = self._rows_of([cut])[0]
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
        return (
            item.context.mode < RUN
            and item.record.neighbour == NONE
            and item.context.root == newest
            and item.location.pack not in self.catalog.listing.condemned
        )

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

    def _tokens(self, segment: bytes) -> int:
        """Return the tokens of a segment, as its records claim."""
        return max((item.record.tokens for item in self._places(segment)), default=0)

    def _rows(self, segments: Sequence[bytes]) -> list[Row]:
        """Return the records of segments without a neighbour, but for those that cannot be read.

        Their towers are decoded side by side, and what these share once. Raises ArchiveError.
        """
        chains, cuts = Chains(self.catalog, self.codecs), list[_Cut]()
        chains.load(segments)
        for segment in segments:
            if tower := self._tower(chains, segment):
                place = self._places(segment)[0]
                above = np.concatenate([NOTHING, *(part for _, part in tower[:-1])])
                cuts.append(_Cut(segment, tower[-1][1], place.record.parent, above, place.context))
        return self._rows_of(cuts)

    def _tower(self, chains: Chains, segment: bytes) -> Segments | None:
        """Return the tower of a segment, None where it cannot be read. Raises ArchiveError without its bundle."""
        try:
            return chains.tower(segment)
        except (BundleMismatch, KeyMismatch) as exc:
            raise ArchiveError(f"a session is coded after one that goes, and cannot be coded anew: {exc}") from exc
        except PltzError:  # damaged, which verify reports, or of a session that was never acknowledged
            return None

    def _rows_of(self, cuts: Sequence[_Cut]) -> list[Row]:
        """Return a record of each segment. Raises ArchiveError."""
        codecs = [self.codecs.for_context(cut.context) for cut in cuts]
        rows = list[Row]()
        for codec in {id(codec): codec for codec in codecs}.values():
            assert codec is not None  # it has just decoded the segment
            mine = [cut for cut, other in zip(cuts, codecs, strict=True) if other is codec]
            encoded = encoded_alone(codec, [cut.tokens for cut in mine], [cut.above for cut in mine])
            for cut, (mode, data) in zip(mine, encoded, strict=True):
                kept = cut.context
                own = self.catalog.keys.context(kept.domain_kind, self.catalog.keys.domain_name(kept))
                context = replace(own, tokenizer=kept.tokenizer, bundle=kept.bundle, contract=kept.contract, mode=mode)
                rows.append((context, Record(0, cut.parent, cut.segment, len(cut.tokens), data)))
        return rows

    def _put(self, rows: Sequence[Row]) -> None:
        """Put records and read each segment back through them. Raises ArchiveError."""
        if not rows:
            return
        self.writer.copy((context, self.catalog.keys.seal(context, record)) for context, record in rows)
        read = set[bytes]()

        def heard(item: Found, _: bytes) -> None:
            if item.record.neighbour == NONE:
                read.add(item.record.id or NONE)

        chains = Chains(self.catalog, self.codecs, heard=heard)
        chains.load([record.id or NONE for _, record in rows])
        if lacking := {record.id or NONE for _, record in rows} - read:
            raise ArchiveError(f"segment {min(lacking).hex()} was coded anew and does not read back: repair first")


def encoded_alone(codec: SegmentCodec, tokens: Sequence[Tokens], above: Sequence[Tokens]) -> list[tuple[int, bytes]]:
    """Return mode and shorter encoding of each segment, (T,), alone or after the tokens above it, (m,), once proved.

    Raises ArchiveError where one does not decode to its tokens.
    """
    ways = [(n, *way) for n in range(len(tokens)) for way in ways_of(codec, above[n])]
    best = dict[int, tuple[bytes, int, Tokens]]()
    for (n, mode, context), data in zip(ways, codec.encode([Plain(tokens[n], c) for n, _, c in ways]), strict=True):
        if n not in best or len(data) < len(best[n][0]):
            best[n] = data, mode | layout_mode(codec, len(tokens[n])), context
    coded = [Coded(data, len(tokens[n]), context, mode) for n, (data, mode, context) in sorted(best.items())]
    if not all(map(np.array_equal, codec.decode(coded), tokens)):
        raise ArchiveError("a segment just encoded does not decode to its tokens: nothing was written")
    return [(one.mode, one.data) for one in coded]
