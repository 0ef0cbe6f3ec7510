"""What an archive asks of a codec, and those that come with it.

The archive never sees a weight file: it hands a `SegmentCodec` token ids and gets bytes. `BundleCodec` is the decoder bundle of `models`; `BytesCodec`
stores what has no tokens (opaque content) or repeats itself over hundreds of kilobytes: bytes as tokens 0 to 255, coded by zstd, with a tokenizer
fingerprint of its own, so it needs nothing special in the format.

A codec's `mode` says what it may look at beside the segment: ALONE nothing, TOWER the tokens of the segments above, of which the last `reach`
count. `BundleCodec` codes with the tower, so that a shared prompt is free bits for its children; `BytesCodec` codes alone. A codec of layout
"fast" codes segments in more lanes (modes FAST and TURN): sooner decoded by a GPU, a few per cent longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from pltz.archive.format.context import ALONE, FAST, TOWER, TURN, Context
from pltz.archive.format.ids import Tokens, digest
from pltz.models.session.expected_time import expected_seconds
from pltz.plt_codec.errors import BundleMismatch, ContentError, CorruptError
from pltz.plt_codec.lanes import (
    FAST_ABOVE,
    TURN_ABOVE,
    Layout,
    LayoutName,
    by_layout,
    layout_of,
    turn_layout,
)
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.models.bundle.bundle import Bundle
    from pltz.plt_codec.engines.cuda.coder import CudaCoder
    from pltz.plt_codec.engines.native.coder import NativeCoder
    from pltz.plt_codec.engines.token_coder import TokenCoder
    from pltz.plt_codec.types import FrameItem


@dataclass(slots=True)
class Plain:
    """A segment to encode: its tokens (T,), and the last tokens of all segments above it, (m,), as many as the codec reaches."""

    tokens: Tokens
    above: Tokens


@dataclass(slots=True)
class Coded:
    """A segment to decode: its bitstring, how many tokens, what stood above it when it was encoded, (m,), and in which ``mode`` it was, whose layout counts."""

    data: bytes
    count: int
    above: Tokens
    mode: int = ALONE


class SegmentCodec(Protocol):
    """Tokens to bytes and back, many segments at once. Same input, same bytes, on every machine."""

    @property
    def bundle_id(self) -> bytes:
        """16 bytes: everything that decides a bit, but the contract."""

    @property
    def contract(self) -> int:
        """Version of the numeric contract."""

    @property
    def tokenizer(self) -> bytes:
        """16 bytes: fingerprint of the tokenizer whose ids it takes."""

    @property
    def mode(self) -> int:
        """The modes it reads: bits. One of mode TOWER reads what was coded alone, too: with nothing above."""

    @property
    def fast(self) -> bool:
        """Whether it codes segments in more lanes (`layout_mode`)."""

    @property
    def reach(self) -> int:
        """How many of the tokens above it looks at, at most; 0 with mode ALONE."""

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """A bitstring each. Raises ContentError for ids out of range."""

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """(count,) ids each. Raises CorruptError; never works more than the bytes that are there allow."""


@runtime_checkable
class Kin(Protocol):
    """A codec that may be had for another bundle of the same vocabulary."""

    def kin(self, bundle_id: bytes) -> SegmentCodec | None:
        """The same with the embedded bundle of this id; None where there is none, or its vocabulary is another."""


def codec_of(codecs: list[SegmentCodec], context: Context) -> SegmentCodec | None:
    """The codec that decodes the segments of a context.

    Where none of those given does, one of an embedded bundle is added to them: what an earlier version of pltz froze with its bundle is read for ever.
    """

    def fits(codec: SegmentCodec) -> bool:
        has = codec.bundle_id, codec.contract, codec.tokenizer
        return has == (context.bundle, context.contract, context.tokenizer) and not context.mode & ~codec.mode

    found = next(filter(fits, codecs), None)
    if found:
        return found
    if IdsCodec.fits(context):
        codecs.append(IdsCodec(context.tokenizer))
        return codecs[-1]
    alike = next((c for c in codecs if isinstance(c, Kin) and c.tokenizer == context.tokenizer), None)
    other = alike.kin(context.bundle) if isinstance(alike, Kin) else None
    if other is None or not fits(other):
        return None
    codecs.append(other)
    return other


def ids_codec(codecs: list[SegmentCodec], tokenizer: bytes) -> int:
    """Return the number of the `IdsCodec` of a tokenizer; it is added where it is not there."""
    for number, codec in enumerate(codecs):
        if isinstance(codec, IdsCodec) and codec.tokenizer == tokenizer:
            return number
    codecs.append(IdsCodec(tokenizer))
    return len(codecs) - 1


def embedded(bundle_id: bytes, vocabulary: bytes) -> Bundle | None:
    """The embedded bundle of this id and this tokenizer."""
    from pltz.models.bundle.bundle import Bundle

    try:
        bundle = Bundle.find(bundle_id)
    except BundleMismatch:
        return None
    return bundle if bundle.tokenizer.fingerprint == vocabulary else None


def layout_mode(codec: SegmentCodec, tokens: Tokens) -> int:
    """The bit of the mode for the layout in which a codec codes a segment of these tokens: `prefix.FAST`, `prefix.TURN` or 0."""
    if not codec.fast or len(tokens) <= TURN_ABOVE:
        return 0
    return FAST if len(tokens) > FAST_ABOVE else TURN


def frame_layout(tokens: int, mode: int) -> Layout:
    """The layout of a frame of so many tokens that was coded in a mode."""
    return turn_layout(tokens) if mode & TURN else layout_of(tokens, bool(mode & FAST))


def encode_frames(
    coder: TokenCoder | NativeCoder | CudaCoder,
    sequences: Sequence[Tokens],
    contexts: Sequence[Tokens],
    modes: Sequence[int],
) -> list[bytes]:
    """The frame of each sequence, (T,) ids, after its context, in the layout that its mode says."""
    out = [b""] * len(sequences)
    layouts = [frame_layout(len(s), mode) for s, mode in zip(sequences, modes, strict=True)]
    for layout, numbers in by_layout(layouts).items():
        given = [sequences[n] for n in numbers]
        found = coder.encode(
            given, contexts=[contexts[n] for n in numbers], lanes=layout.lanes, steps=layout.steps
        )
        for n, one in zip(numbers, found, strict=True):
            out[n] = one.data
    return out


def frame_item(data: bytes, count: int, above: Tokens, mode: int) -> FrameItem:
    """What a coder decodes such a frame from."""
    from pltz.plt_codec.types import FrameItem

    layout = frame_layout(count, mode)
    return FrameItem(data, count, layout.lanes, layout.steps, context=above)


class BundleCodec:
    """A decoder bundle's coder (`pltz.models.bundle.bundle.Bundle.coder`), after the last tokens of the tower (FORMAT.md, "Bitstrings").

    layout: of the segments that it codes; it reads either.
    """

    mode = TOWER | FAST | TURN

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
    ):
        self.fast = layout == "fast"
        self.reach = bundle.weights.shape.memory
        self.bundle_id, self.contract, self.tokenizer = (
            bundle.id,
            bundle.contract,
            bundle.tokenizer.fingerprint,
        )
        self._coder = bundle.coder(device, threads)
        self._again = partial(BundleCodec, device=device, threads=threads, layout=layout)

    def kin(self, bundle_id: bytes) -> BundleCodec | None:
        """As `Kin` says."""
        bundle = embedded(bundle_id, self.tokenizer)
        return self._again(bundle) if bundle else None

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        tokens = [np.asarray(p.tokens, np.int64) for p in batch]
        modes = [layout_mode(self, t) for t in tokens]
        return encode_frames(self._coder, tokens, [p.above for p in batch], modes)

    def expected(self, batch: Sequence[Plain]) -> float | None:
        """Return the seconds to encode these segments and to decode them again; None where they are few."""
        return expected_seconds(self._coder, [np.asarray(p.tokens, np.int64) for p in batch])

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        try:
            return list(self._coder.decode([frame_item(c.data, c.count, c.above, c.mode) for c in batch]))
        except ContentError as exc:
            raise CorruptError(f"the segments above are not of this bundle's tokenizer: {exc}") from exc


class BytesCodec:
    """Bytes as tokens, by zstd without a dictionary (plt_codec/FORMAT.md, "Fallback bytes").

    >>> codec = BytesCodec()
    >>> plain = Plain(np.frombuffer(b"again and " * 50, np.uint8), np.zeros(0))
    >>> data = codec.encode([plain])[0]
    >>> len(data) < 30, bytes(codec.decode([Coded(data, 500, np.zeros(0))])[0].astype(np.uint8)[:10])
    (True, b'again and ')
    """

    mode = ALONE
    fast = False
    reach = 0
    contract = 1
    bundle_id = digest(b"pltz bundle", b"zstd 1")
    tokenizer = digest(b"pltz tokenizer", b"bytes")

    def __init__(self) -> None:
        self._fallback = Fallback()

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [self._fallback.compress(_as_bytes(p.tokens)) for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [np.frombuffer(self._plain(c), np.uint8).astype("<u4") for c in batch]

    def _plain(self, coded: Coded) -> bytes:
        if len(coded.data) > coded.count:
            raise CorruptError(f"expected at most {coded.count} bytes, found {len(coded.data)}: damaged")
        return self._fallback.decompress(coded.data, coded.count)


class IdsCodec:
    """Token ids of any tokenizer, by zstd: for sessions that are too large for the model. It needs no bundle.

    >>> codec = IdsCodec(bytes(16))
    >>> data = codec.encode([Plain(np.full(500, 70_000), np.zeros(0))])[0]
    >>> len(data) < 30, int(codec.decode([Coded(data, 500, np.zeros(0))])[0][-1])
    (True, 70000)
    """

    mode = ALONE
    fast = False
    reach = 0
    contract = 1
    bundle_id = digest(b"pltz bundle", b"zstd ids 1")

    def __init__(self, tokenizer: bytes) -> None:
        self.tokenizer = tokenizer
        self._fallback = Fallback()

    @classmethod
    def fits(cls, context: Context) -> bool:
        """Return whether segments of this context were coded by such a codec."""
        return (context.bundle, context.contract, context.mode) == (cls.bundle_id, cls.contract, cls.mode)

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [self._fallback.compress(np.asarray(p.tokens, "<u4").tobytes()) for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [np.frombuffer(self._fallback.decompress(c.data, 4 * c.count), "<u4") for c in batch]


def _as_bytes(tokens: Tokens) -> bytes:
    if len(tokens) and (tokens.min() < 0 or tokens.max() > 255):
        raise ContentError("expected bytes as tokens, found an id over 255")
    return np.asarray(tokens, np.uint8).tobytes()
