"""Recode: write segments that have a neighbour once more without one, so that the neighbour is not needed any more.

    records that name a neighbour --read--> tokens --encode alone or after their tower--> records without a neighbour

A segment keeps its id, so towers and versions stay as they are. Readers and collectors prefer a record without a
neighbour to one with it, so from then on the old record is dead. The new record is decoded and compared before it is
put, and read back afterwards. A crash leaves some of the new records, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains
from pltz.archive.catalog.listing import Found
from pltz.archive.errors import ArchiveError, KeyMismatch
from pltz.archive.format.ids import Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import Record
from pltz.archive.writing.batch import Row
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, layout_mode, ways_of
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import BundleMismatch, PltzError
from pltz.plt_codec.identity import NONE

COMMIT_TOKENS = 1 << 20  # tokens of segments put at once


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
        return all(self.codecs.for_context(item.context) for item in self._places(segment))

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
        chains, above = Chains(self.catalog, self.codecs), list[Tokens]()
        chains.load(segments)
        read = list[tuple[bytes, Tokens]]()
        for segment in segments:
            try:
                tower = chains.tower(segment)
            except (BundleMismatch, KeyMismatch) as exc:
                raise ArchiveError(f"a session is coded after one that goes, and cannot be coded anew: {exc}") from exc
            except PltzError:  # damaged, which verify reports, or of a session that was never acknowledged
                continue
            read.append((segment, tower[-1][1]))
            above.append(np.concatenate([NOTHING, *(part for _, part in tower[:-1])]))
        places = [self._places(segment)[0] for segment, _ in read]
        codecs = [self.codecs.for_context(place.context) for place in places]
        rows = list[Row]()
        for codec in {id(codec): codec for codec in codecs}.values():
            assert codec is not None  # it has just decoded the segment
            mine = [n for n, other in enumerate(codecs) if other is codec]
            encoded = encoded_alone(codec, [read[n][1] for n in mine], [above[n] for n in mine])
            for n, (mode, data) in zip(mine, encoded, strict=True):
                kept, (segment, tokens) = places[n].context, read[n]
                own = self.catalog.keys.context(kept.domain_kind, self.catalog.keys.domain_name(kept))
                context = replace(own, tokenizer=kept.tokenizer, bundle=kept.bundle, contract=kept.contract, mode=mode)
                rows.append((context, Record(0, places[n].record.parent, segment, len(tokens), data)))
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
