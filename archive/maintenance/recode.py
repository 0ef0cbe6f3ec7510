"""Recode: write segments that have a neighbour once more without one, so that the neighbour is not needed any more.

    records that name a neighbour --read--> tokens --encode alone or after their tower--> records without a neighbour

A segment keeps its id, so towers and versions stay as they are. Readers and collectors prefer a record without a
neighbour to one with it, so from then on the old record is dead. The new record is decoded and compared before it is
put, and read back afterwards. A crash leaves some of the new records, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains
from pltz.archive.catalog.listing import Found
from pltz.archive.codecs.codec import Coded, Plain, SegmentCodec, codec_of, layout_mode
from pltz.archive.errors import ArchiveError, KeyMismatch
from pltz.archive.format.context import ALONE, TOWER, Context
from pltz.archive.format.ids import NONE, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import Record
from pltz.archive.writing.writer import ArchiveWriter
from pltz.plt_codec.errors import BundleMismatch, PltzError

COMMIT_TOKENS = 1 << 20  # tokens of segments put at once


class Recoder:
    """Recodes segments of one archive. Several may run at once beside readers, writers and collectors.

    ``load``: loads the codecs, if they are not loaded yet.
    """

    def __init__(
        self,
        catalog: Catalog,
        writer: ArchiveWriter,
        codecs: list[SegmentCodec],
        load: Callable[[], object] = lambda: None,
    ) -> None:
        self.catalog, self.writer, self.codecs, self._load = catalog, writer, codecs, load

    def coded_after(self, segments: Collection[bytes]) -> set[bytes]:
        """Return the segments of which a record that opens names one of these as its neighbour.

        Every record of every pack is read. Raises StoreError.
        """
        found = set[bytes]()
        for item in self._records():
            record = item.record
            if record.neighbour in segments and record.id is not None and not self._gone(item):
                found.add(record.id)
        return found

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
        return all(codec_of(self.codecs, item.context) for item in self._places(segment))

    def stands_alone(self, segment: bytes, roots: Collection[bytes] = ()) -> bool:
        """Return whether a segment has a record without a neighbour, under none of these roots of keys."""
        return any(i.record.neighbour == NONE and i.context.root not in roots for i in self._places(segment))

    def run(self, segments: Collection[bytes], roots: Collection[bytes] = ()) -> int:
        """Put these segments without a neighbour and return how many were put.

        Those are left out that have such a record, and those of which nothing can be read.

        Args:
            segments: ids, of segments that are not in a run.
            roots: roots of keys that are about to lose these segments; records under them do not count.

        Raises:
            ArchiveError: a segment needs a bundle or key that the archive was not opened with.
            StoreError, WriterFailed: the store failed.
        """
        rows, tokens, done = list[tuple[Context, Record]](), 0, 0
        for segment in sorted(segments):
            if not self.stands_alone(segment, roots) and (row := self._row(segment)):
                rows.append(row)
                tokens, done = tokens + row[1].tokens, done + 1
            if tokens >= COMMIT_TOKENS:
                self._put(rows)
                rows, tokens = [], 0
        self._put(rows)
        return done

    def _records(self) -> Iterator[Found]:
        for pack in sorted(self.catalog.listing.packs):
            try:
                for item in self.catalog.listing.scan(pack):
                    if not isinstance(item, Damage):
                        yield item
            except FileNotFoundError:
                self.catalog.listing.note_stale()

    def _gone(self, item: Found) -> bool:
        return self.catalog.keys.gone(item.context, item.record.id or NONE)

    def _places(self, segment: bytes) -> list[Found]:
        return self.catalog.lookup.find(SEGMENTS, segment)

    def _row(self, segment: bytes) -> tuple[Context, Record] | None:
        """Return the record of a segment without a neighbour; None where it cannot be read. Raises ArchiveError."""
        places = self._places(segment)
        try:
            tower = Chains(self.catalog, self.codecs).tower(segment)
        except (BundleMismatch, KeyMismatch) as exc:
            raise ArchiveError(f"a session is coded after one that goes, and cannot be coded anew: {exc}") from exc
        except PltzError:  # damaged, which verify reports, or of a session that was never acknowledged
            return None
        kept = places[0].context
        codec = codec_of(self.codecs, kept)
        assert codec is not None  # it has just decoded the segment
        own = self.catalog.keys.context(kept.domain_kind, self.catalog.keys.domain_name(kept))
        tokens = tower[-1][1]
        mode, data = encoded_alone(codec, tokens, np.concatenate([NOTHING, *(part for _, part in tower[:-1])]))
        context = replace(own, tokenizer=kept.tokenizer, bundle=kept.bundle, contract=kept.contract, mode=mode)
        return context, Record(0, places[0].record.parent, segment, len(tokens), data)

    def _put(self, rows: Sequence[tuple[Context, Record]]) -> None:
        """Put records and read each segment back through them. Raises ArchiveError."""
        if not rows:
            return
        self.writer.copy((context, self.catalog.keys.seal(context, record)) for context, record in rows)
        chains = Chains(self.catalog, self.codecs, plain=True)
        chains.load([record.id or NONE for _, record in rows])
        for _, record in rows:
            chains.tower(record.id or NONE)


def encoded_alone(codec: SegmentCodec, tokens: Tokens, above: Tokens) -> tuple[int, bytes]:
    """Return the mode and the shorter encoding of a segment, alone or after the tokens above, (m,), once proved.

    Raises ArchiveError where it does not decode to ``tokens``, (T,).
    """
    above = above[-codec.reach :] if codec.reach else NOTHING
    ways = [(ALONE, NOTHING), (TOWER, above)] if len(above) else [(ALONE, NOTHING)]
    encoded = codec.encode([Plain(tokens, context) for _, context in ways])
    data, (mode, context) = min(zip(encoded, ways, strict=True), key=lambda way: len(way[0]))
    mode |= layout_mode(codec, tokens)
    if not np.array_equal(codec.decode([Coded(data, len(tokens), context, mode)])[0], tokens):
        raise ArchiveError("a segment just encoded does not decode to its tokens: nothing was written")
    return mode, data
