"""An archive on a simulated disk, by a codec that is fast: what most tests of the archive begin with.

The codec is zlib over 32-bit ids: exact, without weights. Names that these tests need beside it come from here, too.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from pltz.archive.encryption.keys import KeySource, Secret
from pltz.archive.format.ids import Tokens
from pltz.archive.maintenance.repair import Repaired, Repairer
from pltz.archive.storage.disk import Disk
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec
from pltz.plt_codec.container.frame import ALONE
from pltz.plt_codec.errors import CorruptError
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive

__all__ = ["RAW", "DirectoryStore", "DiskState", "NewSession", "Repaired", "Repairer", "Secret", "SegmentCodec"]
__all__ += ["SimDisk", "TowerArchive", "ZlibCodec", "create", "reopen", "repaired"]

RAW = Secret(b"sixteen bytes or more", 0)


class ZlibCodec(SegmentCodec):
    """A codec of tokens as little-endian u32, deflated. With mode TOWER the ancestors are the dictionary."""

    tokenizer = b"zlib tokenizer.."

    def __init__(self, mode: int = ALONE, bundle_id: bytes = b"zlib bundle....."):
        self.mode, self.bundle_id = mode, bundle_id
        self.fast = False
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
            data = zlib.decompressobj(zdict=self._dictionary(coded.above)).decompress(coded.data, 4 * coded.count + 1)
        except zlib.error as exc:
            raise CorruptError(f"not deflated: {exc}") from exc
        if len(data) != 4 * coded.count:
            raise CorruptError(f"expected {coded.count} tokens, found {len(data)} bytes")
        return np.frombuffer(data, "<u4").astype(np.int64)

    def _dictionary(self, above: Tokens) -> bytes:
        return np.asarray(above, "<u4").tobytes() if self.mode else b""


def create(disk: Disk, codec: SegmentCodec | None = None, key: KeySource | None = None) -> TowerArchive:
    return TowerArchive.create(DirectoryStore(disk), [codec or ZlibCodec()], key=key)


def reopen(disk: Disk, codec: SegmentCodec | None = None, key: KeySource | None = None) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), [codec or ZlibCodec()], key=key)


def repaired(disk: Disk) -> Repaired:
    return Repairer(DirectoryStore(disk)).run()
