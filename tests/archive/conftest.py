"""A small codec and a small archive for the archive's tests. A codec here is zlib over 32-bit ids: exact, quick, no weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.codec import Coded, Plain
from pltz.archive.identity import Tokens
from pltz.archive.pack import ALONE
from pltz.archive.simulate import SimDisk
from pltz.archive.store import DirectoryStore
from pltz.plt_codec.errors import CorruptError


class ZlibCodec:
    """Tokens as little-endian u32, deflated; with mode TOWER what stands above is the dictionary."""

    contract = 1
    tokenizer = b"zlib tokenizer.."

    def __init__(self, mode: int = ALONE, bundle_id: bytes = b"zlib bundle....."):
        self.mode, self.bundle_id = mode, bundle_id
        self.reach = 8192 if mode else 0  # zlib looks 32 KiB back

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [self._encode(p) for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [self._decode(c) for c in batch]

    def _encode(self, plain: Plain) -> bytes:
        coder = zlib.compressobj(9, zdict=self._dictionary(plain.above))
        return coder.compress(np.asarray(plain.tokens, "<u4").tobytes()) + coder.flush()

    def _decode(self, coded: Coded) -> Tokens:
        try:
            data = zlib.decompressobj(zdict=self._dictionary(coded.above)).decompress(
                coded.data, 4 * coded.count + 1
            )
        except zlib.error as exc:
            raise CorruptError(f"not deflated: {exc}") from exc
        if len(data) != 4 * coded.count:
            raise CorruptError(f"expected {coded.count} tokens, found {len(data)} bytes")
        return np.frombuffer(data, "<u4").astype(np.int64)

    def _dictionary(self, above: Tokens) -> bytes:
        return np.asarray(above, "<u4").tobytes() if self.mode else b""


@pytest.fixture
def codec() -> ZlibCodec:
    return ZlibCodec()


@pytest.fixture
def tower_codec() -> ZlibCodec:
    """Codes a segment with its ancestors as context."""
    return ZlibCodec(1, b"zlib with tower.")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def archive(disk: SimDisk, codec: ZlibCodec) -> Archive:
    """Empty, on a simulated disk."""
    return Archive.create(DirectoryStore(disk), [codec])
