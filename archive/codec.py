"""What an archive asks of a codec, and those that come with it.

The archive never sees a weight file: it hands a `SegmentCodec` token ids and gets bytes. `BundleCodec` is the decoder bundle of `models`; `BytesCodec`
stores what has no tokens (opaque content) or repeats itself over hundreds of kilobytes: bytes as tokens 0 to 255, coded by zstd, with a tokenizer
fingerprint of its own, so it needs nothing special in the format.

A codec's `mode` says what it may look at beside the segment: ALONE nothing, TOWER the tokens of the segments above, of which the last `reach`
count. `BundleCodec` codes with the tower, so that a shared prompt is free bits for its children; `BytesCodec` codes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pltz.archive.identity import Tokens, digest
from pltz.archive.pack import ALONE, TOWER, Context
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.fallback import Fallback

if TYPE_CHECKING:
    from pltz.models.bundle import Bundle


@dataclass(slots=True)
class Plain:
    """A segment to encode: its tokens (T,), and the last tokens of all segments above it, (m,), as many as the codec reaches."""

    tokens: Tokens
    above: Tokens


@dataclass(slots=True)
class Coded:
    """A segment to decode: its bitstring, how many tokens, and what stood above it when it was encoded, (m,)."""

    data: bytes
    count: int
    above: Tokens


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
        """`pack.ALONE` or `pack.TOWER`. One of mode TOWER reads what was coded alone, too: with nothing above."""

    @property
    def reach(self) -> int:
        """How many of the tokens above it looks at, at most; 0 with mode ALONE."""

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """A bitstring each. Raises ContentError for ids out of range."""

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """(count,) ids each. Raises CorruptError; never works more than the bytes that are there allow."""


def codec_of(codecs: Sequence[SegmentCodec], context: Context) -> SegmentCodec | None:
    """The codec that decodes the segments of a context."""
    wanted = context.bundle, context.contract, context.tokenizer
    return next(
        (c for c in codecs if (c.bundle_id, c.contract, c.tokenizer) == wanted and c.mode >= context.mode),
        None,
    )


class BundleCodec:
    """A decoder bundle's coder (`pltz.models.bundle.Bundle.coder`), after the last tokens of the tower (FORMAT.md, "Bitstrings")."""

    mode = TOWER

    def __init__(self, bundle: Bundle, *, device: str = "cpu", threads: int | None = None):
        self.reach = bundle.weights.shape.memory
        self.bundle_id, self.contract, self.tokenizer = (
            bundle.id,
            bundle.contract,
            bundle.tokenizer.fingerprint,
        )
        self._coder = bundle.coder(device, threads)

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        tokens = [np.asarray(p.tokens, np.int64) for p in batch]
        return [e.data for e in self._coder.encode(tokens, contexts=[p.above for p in batch])]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        from pltz.plt_codec.item import FrameItem

        try:
            return list(self._coder.decode([FrameItem(c.data, c.count, context=c.above) for c in batch]))
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
    reach = 0
    contract = 1
    bundle_id = digest(b"pltz bundle", b"zstd 1")
    tokenizer = digest(b"pltz tokenizer", b"bytes")

    def __init__(self) -> None:
        self._fallback = Fallback()

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [self._fallback.compress(_as_bytes(p.tokens)) for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [np.frombuffer(self._plain(c), np.uint8).astype(np.int64) for c in batch]

    def _plain(self, coded: Coded) -> bytes:
        if len(coded.data) > coded.count:
            raise CorruptError(f"expected at most {coded.count} bytes, found {len(coded.data)}: damaged")
        return self._fallback.decompress(coded.data, coded.count)


def _as_bytes(tokens: Tokens) -> bytes:
    if len(tokens) and (tokens.min() < 0 or tokens.max() > 255):
        raise ContentError("expected bytes as tokens, found an id over 255")
    return np.asarray(tokens, np.uint8).tobytes()
