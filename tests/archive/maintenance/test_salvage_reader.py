"""What is left of a file, and that repair holds no more of a pack than it must."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import UnreadableError
from pltz.archive.format.byte_source import Held
from pltz.archive.format.ids import NO_SEGMENT, TENANT, segment_of
from pltz.archive.format.record import Record
from pltz.archive.maintenance.repair import SECTOR, SalvageReader
from pltz.archive.storage.disk import OsDisk
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import BytesCodec
from pltz.plt_codec.identity import digest
from tests.archive.kit import DirectoryStore, Repaired, Repairer, TowerArchive
from tests.watch import memory_below

SIZE = 24 << 20  # bytes of records


class BadFile(Held):
    """Cannot be read between two bytes."""

    bad = range(0)

    def read(self, offset: int, size: int) -> memoryview:
        if max(offset, self.bad.start) < min(offset + size, self.bad.stop):
            raise UnreadableError("no")
        return super().read(offset, size)


def test_zeros_stand_for_what_the_disk_cannot_give() -> None:
    data = np.random.default_rng(0).integers(1, 256, 5 * SECTOR + 7, np.uint8).tobytes()
    file = BadFile(data)
    file.bad = range(SECTOR + 9, 2 * SECTOR + 1)
    left = SalvageReader(file, 1 << 30)
    hurt = data[:SECTOR] + bytes(2 * SECTOR) + data[3 * SECTOR :]
    assert len(left) == len(data) and left.whole() == hurt
    assert left[:SECTOR] == data[:SECTOR] and left[4 * SECTOR : 1 << 40] == data[4 * SECTOR :]
    assert left[3 * SECTOR : 5] == b"" and left[1 << 40 :] == b"" and SalvageReader(file, 100).whole() == data[:100]


def test_a_file_that_is_cut_off_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    store = DirectoryStore(OsDisk(tmp_path))
    left = SalvageReader.of(store, "file", 1000)
    (tmp_path / "file").write_bytes(b"x" * 10)
    assert left is not None and left.whole() == b"x" * 10 + bytes(90)
    assert SalvageReader.of(store, "nothing", 1000) is None


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """The one pack of an archive, large."""
    codec, dice = BytesCodec(), np.random.default_rng(0)
    archive = TowerArchive.create(tmp_path / "cold", [codec])
    context = replace(
        archive.keys.context(TENANT, "acme"), tokenizer=codec.tokenizer, bundle=codec.bundle_id, method=codec.method
    )
    ids = [segment_of(digest(b"test", bytes([n]))) for n in range(24)]
    records = [Record(0, NO_SEGMENT, i, 9, dice.bytes(SIZE // 24), f"s{n}", 1, 9) for n, i in enumerate(ids)]
    ArchiveWriter(archive.catalog, CodecRegistry()).publisher.put([(context, record) for record in records])
    [path] = (tmp_path / "cold/packs").iterdir()
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("what", "most"), [("sound", 0.8), ("parity gone", 0.9), ("damaged", 2.6), ("gone", 2.6), ("lost", 3.5)]
)
def test_repair_holds_little_of_a_pack_that_is_sound_and_two_of_one_that_is_not(
    pack: Path, tmp_path: Path, what: str, most: float
) -> None:
    """In packs, of 24 MiB here; of a sound one at most some MiB, however large it is."""
    data, parity = pack.read_bytes(), tmp_path / "cold/parity" / pack.name
    if what == "parity gone":
        parity.unlink()
    elif what == "gone":
        pack.write_bytes(data[: 23 << 20])
    elif what != "sound":
        hurt = 100 if what == "damaged" else 9 << 20
        pack.write_bytes(data[: 5 << 20] + bytes(hurt) + data[(5 << 20) + hurt :])
    with memory_below(most * SIZE):
        done: Repaired = Repairer(DirectoryStore(OsDisk(tmp_path / "cold"))).run()
    assert done.whole == (what != "lost") and len(done.restored) == (what in ("damaged", "gone"))
    assert what == "lost" or pack.read_bytes() == data
