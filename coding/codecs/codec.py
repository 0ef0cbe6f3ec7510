"""Segment codecs: the interface that an archive expects, and the codecs that come with it.

The archive never sees a weight file: it gives a `SegmentCodec` token ids and gets bytes. `BundleCodec` is the
decoder bundle of `models`. `BytesCodec` stores content without tokens (opaque content), or content that
repeats itself over hundreds of kilobytes. It takes bytes as tokens 0 to 255 and codes them by zstd, with a
tokenizer fingerprint of its own, so the format needs no special case.

A codec's `mode` says which context it uses beside the segment. ALONE is none. TOWER is the tokens of the
segments above, of which the last `reach` count. `BundleCodec` codes with the tower, so a shared prompt
informs its children for free; `BytesCodec` codes alone. `logs.LogCodec` codes with what decoding the segment above and
those above that left. A codec of layout "fast" codes segments in more lanes (mode FAST): a GPU decodes them sooner, and
they are a few per cent longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from pltz.coding.workers import cores
from pltz.plt_codec import ppmd, repeats
from pltz.plt_codec.container.frame import (
    ALONE,
    COPIES,
    FAST,
    MAX_TOKENS_PER_BYTE,
    PPMD,
    TOWER,
    Frame,
    Method,
    tokenizer_of_bytes,
)
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.lanes import LayoutName, Tokens, layout_of
from pltz.plt_codec.repeats import Copy
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.coding.log.above import Above
    from pltz.coding.log.log_coder import Decoded
    from pltz.coding.log.recall import Recalled, Source
    from pltz.coding.parts import Coder, Parts, Progress
    from pltz.coding.workers import Workers
    from pltz.models.bundle.bundle import Bundle
    from pltz.plt_codec.engines.cuda.coder import CudaCoder
    from pltz.plt_codec.types import FrameItem


NO_MARK: Tokens = np.zeros(0, np.int64)
ID_WIDTH = 4  # bytes of an id at most
PRIMER, ROLES = 1 << 18, range(1, 7)  # bytes of a dictionary that PPMd sees first, and those that are specials
LEAST_ROWS = 16  # that a thread of `PpmdCodec` does at once
WORTH_SENDING = 1 << 16  # bytes of one call that processes pack sooner
NO_SIZE = 1 << 62  # stands for the size of a session that no frame or record holds


class Identity(Protocol):
    """The part of a stored context that says which codec reads it."""

    @property
    def method(self) -> int:
        """Return the method."""

    @property
    def tokenizer(self) -> bytes:
        """Return the fingerprint of the tokenizer, 16 bytes, or `tokenizer_of_bytes`."""

    @property
    def bundle(self) -> bytes:
        """Return the id of the bundle, 16 bytes; zeros: none."""


@dataclass(slots=True)
class Plain:
    """A segment to encode.

    Attributes:
        tokens: its tokens, (T,).
        above: the last tokens of all segments above it, (m,), as many as the codec reaches.
        copies: copies to take out, some of them perhaps of tokens above; of a codec of mode COPIES only.
        fast: whether it is in the fast layout, as all of a codec that is `fast` are.
        up: of a codec that carries, the segment that it is coded after; None: alone.
        recalled: of a log, what is left of it without the passages that it recalls; None: all.
    """

    tokens: Tokens
    above: Tokens
    copies: Sequence[Copy] = ()
    fast: bool = False
    up: Above | None = None
    recalled: Recalled | None = None

    @property
    def literals(self) -> int:
        """Return the number of tokens that its copies leave."""
        return len(self.tokens) - sum(copy.length for copy in self.copies)


@dataclass(slots=True)
class Coded:
    """A segment to decode.

    Attributes:
        data: its bitstring.
        count: its number of tokens.
        above: the tokens above it when it was encoded, (m,).
        mode: the mode in which it was encoded.
        up: of a codec that carries, the segment that it was coded after, to be decoded or as a writer has it.
        decoded: of a codec that carries, what has the part that a segment below is decoded after, once it is begun.
        source: of a log, what it recalls passages from.
    """

    data: bytes
    count: int
    above: Tokens
    mode: int = ALONE
    up: Coded | Above | None = None
    decoded: Decoded | None = None
    source: Source | None = None


class SegmentCodec:
    """A coder of tokens to bytes and back, many segments at once. Same input, same bytes, on every machine.

    Attributes:
        method: whether a model, a table or zstd codes. It, the bundle and the tokenizer determine every bit.
        bundle_id: id of the bundle, 16 bytes; zeros: none.
        tokenizer: fingerprint, 16 bytes, of the tokenizer whose ids it takes, or `tokenizer_of_bytes`.
        mode: the modes it reads, as bits. One of mode TOWER also reads segments coded alone, with nothing above. One
            of mode COPIES takes copies out.
        fast: whether it codes segments in the fast layout.
        reach: most tokens above that it uses; 0 with mode ALONE.
        carries: whether it codes a segment after what decoding the one above it left, wherever it has one. `Plain.up`
            and `Coded.up` tell which that is, and nothing is reached.
        vouching: whether its bitstrings hold a digest of their tokens.
        weight: number that the memory of a call may grow by, since as many processes have a part of the work.
    """

    method: int = Method.MODEL
    bundle_id: bytes
    tokenizer: bytes
    mode: int = ALONE
    fast: bool = False
    reach: int = 0
    carries: bool = False
    vouching: bool = False
    weight: int = 1

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return a bitstring for each segment. Raises ContentError for ids out of range."""
        raise NotImplementedError

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """Return the ids of each segment, (count,). Raises CorruptError.

        The work is bounded by the bytes that are present.
        """
        raise NotImplementedError

    def begin_chain(self, batch: Sequence[Coded]) -> Callable[[], Iterable[Tokens]] | None:
        """Begin to decode segments that stand behind each other, and return what yields the ids of each, (count,).

        Only the first one's ``above`` counts: each other segment was coded after the tokens of those before it, or
        alone, as its mode says. None: they are decoded as fast one by one. Each of both raises CorruptError.
        """
        return None

    def vouches(self, data: bytes, tokens: Tokens) -> bool:
        """Return whether a bitstring holds a digest that says it holds these tokens, (T,). Nothing is decoded."""
        return False


def ways_of(codec: SegmentCodec, tokens: Tokens, above: Tokens) -> list[tuple[int, Plain]]:
    """Return the modes in which a segment of tokens, (T,), is tried, each with what is encoded then.

    They are alone and after the tokens above it. ``above``: all of these, (n,).
    """
    ways = [(ALONE, Plain(tokens, NO_MARK))]
    if len(above) and codec.reach:
        ways.append((TOWER, Plain(tokens, above[-codec.reach :])))
    return ways


def coded_of(frame: Frame, above: Tokens = NO_MARK, up: Coded | Above | None = None) -> Coded:
    """Return what a codec decodes of a frame that was coded after ``above``, (m,), a log after ``up``."""
    return Coded(frame.data, frame.count, above, frame.copied * COPIES | frame.fast * FAST, up)


def copies_fit(tokens: int, data: bytes) -> bool:
    """Return whether a bitstring with copies may hold so many tokens. Those of copies take memory and no bytes."""
    return tokens <= MAX_TOKENS_PER_BYTE * (len(data) + 1)


def copies_of(coded: Coded) -> tuple[list[Copy], bytes]:
    """Return the copies in a bitstring, and the frame behind them. Raises CorruptError."""
    if not coded.mode & COPIES:
        return [], coded.data
    if not copies_fit(coded.count, coded.data):
        raise CorruptError(f"copies in {len(coded.data)} bytes claim {coded.count} tokens: damaged")
    return repeats.split(coded.data, coded.count, len(coded.above))


def shortest(codec: SegmentCodec, ways: Sequence[tuple[int, Plain]]) -> dict[int, tuple[bytes, Plain]]:
    """Return the shortest bitstring of each segment, by its number, and its way; of equal ones the first.

    One with copies counts only where a reader takes it (`copies_fit`). Raises ContentError.
    """
    best: dict[int, tuple[bytes, Plain]] = {}
    coded = codec.encode([plain for _, plain in ways]) if ways else []
    for (number, plain), data in zip(ways, coded, strict=True):
        known = best.get(number)
        if known and len(data) >= len(known[0]):
            continue
        if not plain.copies or copies_fit(len(plain.tokens), data):
            best[number] = data, plain
    return best


def unproved(
    decode: Callable[[Sequence[Coded]], Sequence[Tokens]], coded: Sequence[Coded], wanted: Sequence[Tokens]
) -> list[int]:
    """Decode segments by their codec, and return the numbers of those that do not give the tokens wanted, (T,) each."""
    try:
        found: list[Tokens | None] = [*decode(coded)]
    except CorruptError:  # which one it is
        found = [None] * len(coded)
        for n, one in enumerate(coded):
            with suppress(CorruptError):
                [found[n]] = decode([one])
    return different(found, wanted)


def different(found: Sequence[Tokens | None], wanted: Sequence[Tokens]) -> list[int]:
    """Return the numbers of the rows that differ; all where they are not as many."""
    if len(found) != len(wanted):
        return [*range(len(wanted))]
    pairs = enumerate(zip(found, wanted, strict=True))
    return [n for n, (one, tokens) in pairs if one is None or not np.array_equal(one, tokens)]


class BundleCodec(SegmentCodec):
    """A decoder bundle's coder, after the last tokens of the tower (archive/format/FORMAT.md, "Bitstrings").

    Args:
        bundle: whose tokens these are.
        device, threads: of its coder, where none is given.
        layout: of the segments that it codes; it reads both.
        coder: of the bundle's tokens.
        reach: most tokens above that count; None: those that the model remembers.
    """

    mode = TOWER | FAST | COPIES

    def __init__(
        self,
        bundle: Parts,
        *,
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        coder: Coder | None = None,
        reach: int | None = None,
    ):
        self.coder = coder or cast("Bundle", bundle).coder(device, threads)
        self.reach = cast("Bundle", bundle).weights.shape.memory if reach is None else reach
        self.bundle_id, self.tokenizer = bundle.id, bundle.tokenizer.fingerprint
        self.fast, self._chains = layout == "fast", hasattr(self.coder, "decode_chain")

    def encode(self, batch: Sequence[Plain], *, progress: Progress | None = None) -> list[bytes]:
        """Return a bitstring for each segment. Raises ContentError for ids out of range.

        ``progress``: called with the number of tokens done since the last call.
        """
        tokens = [np.asarray(p.tokens, np.int64) for p in batch]
        rows = [repeats.literals(t, p.copies) if p.copies else t for t, p in zip(tokens, batch, strict=True)]
        layouts = [layout_of(len(r), fast=self.fast or p.fast) for p, r in zip(batch, rows, strict=True)]
        frames = self.coder.encode(rows, layouts=layouts, contexts=[p.above for p in batch], progress=progress)
        heads = [repeats.pack(p.copies) if p.copies else b"" for p in batch]
        return [head + frame.data for head, frame in zip(heads, frames, strict=True)]

    def decode(self, batch: Sequence[Coded], *, progress: Progress | None = None) -> list[Tokens]:
        """Return the ids of each segment, (count,). Raises CorruptError. ``progress``: as in `encode`."""
        return self._decode(partial(self.coder.decode, progress=progress), batch)

    def begin_chain(self, batch: Sequence[Coded]) -> Callable[[], list[Tokens]] | None:
        """Return what decodes a chain by one call of an engine that is faster so. It raises CorruptError."""
        return partial(self._decode_chain, batch) if self._chains and len(batch) > 1 else None

    def _decode_chain(self, batch: Sequence[Coded]) -> list[Tokens]:
        coder = cast("CudaCoder", self.coder)

        def decode(items: Sequence[FrameItem]) -> Sequence[Tokens]:
            behind = [replace(i, context=None) if c.mode & TOWER else i for i, c in zip(items, batch, strict=True)]
            return coder.decode_chain([*items[:1], *behind[1:]])

        return self._decode(decode, batch)

    def _decode(self, by: Callable[[Sequence[FrameItem]], Sequence[Tokens]], batch: Sequence[Coded]) -> list[Tokens]:
        taken = [copies_of(c) for c in batch]
        lengths = [sum(copy.length for copy in copies) for copies, _ in taken]
        rows = zip(batch, taken, lengths, strict=True)
        try:
            found = by([_frame_item(c, data, c.count - length) for c, (_, data), length in rows])
        except LimitError:  # of the caller's time
            raise
        except ContentError as exc:
            raise CorruptError(f"the segments above are not of this bundle's tokenizer: {exc}") from exc
        return [
            repeats.expand(tokens, copies, c.above) if copies else tokens
            for tokens, (copies, _), c in zip(found, taken, batch, strict=True)
        ]


class BytesCodec(SegmentCodec):
    """Codes bytes as tokens, by zstd (plt_codec/FORMAT.md, "Fallback bytes").

    Args:
        bundle: whose dictionary makes short sessions smaller; None: no dictionary.
        workers: processes with `HostWork` over the same dictionary.

    >>> codec = BytesCodec()
    >>> plain = Plain(np.frombuffer(b"again and " * 50, np.uint8), np.zeros(0))
    >>> data = codec.encode([plain])[0]
    >>> len(data) < 30, bytes(codec.decode([Coded(data, 500, np.zeros(0))])[0].astype(np.uint8)[:10])
    (True, b'again and ')
    """

    method = Method.BYTES
    tokenizer = tokenizer_of_bytes(Method.BYTES)

    def __init__(self, bundle: Parts | None = None, workers: Workers | None = None) -> None:
        self._fallback, self._workers = Fallback(bundle.zstd_dict if bundle else b""), workers
        self.bundle_id = bundle.id if bundle else NONE

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return the bytes of each segment under zstd. Raises ContentError for an id over 255."""
        if self._workers and sum(len(plain.tokens) for plain in batch) >= WORTH_SENDING:
            return cast("list[bytes]", self._workers.map("packed", [(as_bytes(plain.tokens),) for plain in batch]))
        return [self._fallback.compress(as_bytes(plain.tokens)) for plain in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """Return the bytes of each segment, (count,). Raises CorruptError."""
        return [np.frombuffer(self.content(coded), np.uint8).astype("<u4") for coded in batch]

    def content(self, coded: Coded) -> bytes:
        """Return the bytes of one segment. Raises CorruptError."""
        return self._fallback.decompress(coded.data, coded.count)

    def fast_size(self, content: bytes) -> int:
        """Return the bytes of a content at a fast level of zstd."""
        return self._fallback.fast_size(content)


class IdsCodec(SegmentCodec):
    """Codes token ids of any tokenizer by PPMd, for sessions that the model is too slow for. It needs no bundle.

    >>> codec = IdsCodec(bytes(16))
    >>> data = codec.encode([Plain(np.full(500, 70_000), np.zeros(0))])[0]
    >>> len(data) < 30, int(codec.decode([Coded(data, 500, np.zeros(0))])[0][-1])
    (True, 70000)
    """

    method = Method.BYTES
    bundle_id = NONE

    def __init__(self, tokenizer: bytes) -> None:
        self.tokenizer = tokenizer

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return the bytes of each segment. Raises ContentError for an id of more than 32 bits."""
        return [self._encode(np.asarray(plain.tokens)) for plain in batch]

    def _encode(self, ids: Tokens) -> bytes:
        if not len(ids):
            return b""
        if ids.min() < 0 or (most := int(ids.max())) >> 8 * ID_WIDTH:
            raise ContentError("expected ids of 0 to 2^32 - 1 as tokens, found another")
        width = max(1, (most.bit_length() + 7) // 8)
        rows = ids.astype(">u4").view(np.uint8).reshape(-1, ID_WIDTH)
        return bytes([width]) + ppmd.encode(rows[:, -width:].tobytes(), primer=ppmd.NO_PRIMER)

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """Return the ids of each segment, (count,). Raises CorruptError."""
        return [self._decode(coded.data, coded.count) for coded in batch]

    def _decode(self, data: bytes, count: int) -> Tokens:
        if not count and not data:
            return np.zeros(0, "<u4")
        width = data[0] if data else 0
        if not (count and 0 < width <= ID_WIDTH):
            raise CorruptError(f"expected {count} ids of 1 to {ID_WIDTH} bytes, found {width}: the file is damaged")
        found = np.frombuffer(ppmd.decode(data[1:], width * count, primer=ppmd.NO_PRIMER), np.uint8)
        rows = np.zeros((count, ID_WIDTH), np.uint8)
        rows[:, ID_WIDTH - width :] = found.reshape(count, width)
        return rows.view(">u4").reshape(count).astype("<u4")


class PpmdCodec(SegmentCodec):
    """Codes tokens of a bundle by PPMd, at megabytes of text per second, until the model codes them (`shrink`).

    What it has seen is the end of the bundle's dictionary, and the last tokens of the tower.

    Args:
        bundle: whose tokens these are.
        threads: of one call; None: all cores.
    """

    method, mode, reach = PPMD, TOWER, 1 << 12

    def __init__(self, bundle: Parts, threads: int | None = None) -> None:
        self.bundle_id, self.tokenizer = bundle.id, bundle.tokenizer.fingerprint
        self._bundle, self.threads = bundle, threads or cores()

    @cached_property
    def _primer(self) -> bytes:
        ids = self._bundle.tokenizer.encode(self._bundle.zstd_dict[-PRIMER:])
        for byte in ROLES:
            ids[ids == self._bundle.tokenizer.encode(bytes([byte]))[0]] = byte
        return _pairs(ids)

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return the bytes of each segment. Raises ContentError for ids out of range."""
        rows = [(_pairs(plain.above), _pairs(plain.tokens)) for plain in batch]
        return self._map(lambda part: ppmd.encode_many(part, primer=self._primer), rows)

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """Return the ids of each segment, (count,). Raises CorruptError."""
        rows = [(_pairs(coded.above), coded.data, 2 * coded.count) for coded in batch]
        found = self._map(lambda part: ppmd.decode_many(part, self._primer), rows)
        return [np.frombuffer(data, ">u2").astype("<u4") for data in found]

    def coded_alone(self, rows: Sequence[Tokens]) -> list[bytes]:
        """Return the bytes of segments with nothing above, (T,) each, decoded and compared: none where that failed.

        For threads. Raises ContentError for ids out of range.
        """
        plain = [_pairs(tokens) for tokens in rows]
        coded = ppmd.encode_many([(b"", data) for data in plain], self._primer)
        found = ppmd.decode_many([(b"", *row) for row in zip(coded, map(len, plain), strict=True)], self._primer)
        return [data if one == wanted else b"" for data, one, wanted in zip(coded, found, plain, strict=True)]

    def _map(self, work: Callable[[Sequence[Any]], list[bytes]], rows: Sequence[Any]) -> list[bytes]:
        """Do rows in parts, in threads."""
        _ = self._primer  # of all threads
        share = max(LEAST_ROWS, -(-len(rows) // self.threads))
        parts = [rows[at : at + share] for at in range(0, len(rows), share)]
        if len(parts) < 2:
            return work(rows)
        with ThreadPoolExecutor(self.threads) as pool:
            return [*chain.from_iterable(pool.map(work, parts))]


def _pairs(ids: Tokens) -> bytes:
    """Return ids, (T,), of two bytes each. Raises ContentError for others."""
    if not len(ids):
        return b""
    if ids.min() < 0 or ids.max() >> 16:
        raise ContentError("expected ids of 0 to 65,535 as tokens, found another")
    return ids.astype(">u2").tobytes()


def _frame_item(coded: Coded, data: bytes, literals: int) -> FrameItem:
    """Return the item from which a coder decodes the frame of so many tokens in a bitstring."""
    from pltz.plt_codec.types import FrameItem

    return FrameItem(data, literals, layout_of(literals, fast=bool(coded.mode & FAST)), context=coded.above)


def as_bytes(tokens: Tokens) -> bytes:
    """Return tokens that are bytes, (T,), as such. Raises ContentError for an id over 255."""
    if len(tokens) and tokens.dtype != np.uint8 and (tokens.min() < 0 or tokens.max() > 255):
        raise ContentError("expected bytes as tokens, found an id over 255")
    if isinstance(tokens.base, bytes) and len(tokens.base) == tokens.nbytes:
        return tokens.base  # no copy of megabytes
    return np.asarray(tokens, np.uint8).tobytes()
