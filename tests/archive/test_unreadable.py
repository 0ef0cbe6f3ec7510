"""Bytes that the disk cannot read: a bad sector, or a file that was truncated while it was read.

They give named errors and never end the process.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import LostError, StoreError, UnreadableError
from pltz.archive.format.pack import Pack
from pltz.archive.storage.disk import OsDisk
from pltz.coding.codecs.codec import BytesCodec
from tests.archive.kit import DirectoryStore, NewSession, Repairer, TowerArchive
from tests.failing import raising

DICE = np.random.default_rng(0)
SIZE = 4000  # tokens per session, each a byte of its bitstring, without repeats
CUT = """
import os, sys
from pathlib import Path
from tests.archive.towers import TowerArchive
from pltz.coding.codecs.codec import BytesCodec
from pltz.archive.format.index_file import SEGMENTS
from pltz.plt_codec.errors import CorruptError
place, what = Path(sys.argv[1]), sys.argv[2]
archive = TowerArchive.open(place, [BytesCodec()])
[path] = (place / ("index" if what == "index" else "packs")).iterdir()
if what == "index":
    ids = [os.urandom(16) for _ in range(2000)]
    path.chmod(0o600)
    os.truncate(path, 100)
    print(len(archive.catalog.lookup.known(SEGMENTS, ids)), [p.kind for p in archive.catalog.problems])
    print(len(list(archive.ls())))
else:
    scan = archive.catalog.listing.scan(bytes.fromhex(path.name))
    next(scan)
    os.truncate(path, 100)
    try:
        print(len(list(scan)), "read")
    except CorruptError as exc:
        print(exc)
    print(archive.verify().sound)
"""


def filled(place: Path, sessions: int) -> TowerArchive:
    archive = TowerArchive.create(place, [BytesCodec()])
    archive.put([NewSession(f"s{n}", [DICE.integers(0, 256, SIZE)]) for n in range(sessions)])
    return archive


def test_a_pack_that_is_cut_off_while_it_is_scanned(tmp_path: Path) -> None:
    filled(tmp_path / "cold", 3000)
    done = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path / "cold", "pack"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    assert "cut off while it was read" in done.stdout and done.stdout.splitlines()[-1] == "False"


def test_an_index_that_is_cut_off_before_it_is_touched(tmp_path: Path) -> None:
    archive = filled(tmp_path / "cold", 1)
    archive.put([NewSession(f"t{n}", [np.array([n >> 8, n & 255])]) for n in range(5000)])
    archive.write_index()
    for path in (tmp_path / "cold" / "packs").iterdir():
        path.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path / "cold", "index"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    assert done.stdout.splitlines() == ["0 ['index']", "5001"]


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Make a range of 512 bytes of the files whose path contains a word unreadable."""
    pread = os.pread

    def spoil(word: str, at: int) -> None:
        def read(handle: int, size: int, offset: int) -> bytes:
            name = os.readlink(f"/proc/self/fd/{handle}")
            if word in name and offset < at + 512 and offset + size > at:
                raise OSError(errno.EIO, "Input/output error")
            return pread(handle, size, offset)

        monkeypatch.setattr(os, "pread", read)

    return spoil


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks the system for the names of open files")
class TestBadSectors:
    def test_in_a_pack(self, tmp_path: Path, bad: Callable[[str, int], None]) -> None:
        """Name what cannot be read; repair restores it from parity."""
        archive = filled(tmp_path / "cold", 200)
        wanted = {v.name: archive.tower(v).tokens.tolist() for v in archive.ls()}
        hit = archive.version("s100").location.offset + 1000
        bad("/packs/", hit)
        fresh = TowerArchive.open(tmp_path / "cold", [BytesCodec()])
        [pack] = fresh.catalog.listing.packs
        with pytest.raises(UnreadableError, match="cannot read"):
            list(fresh.catalog.listing.scan(pack))
        done = Repairer(DirectoryStore(OsDisk(tmp_path / "cold"))).run()
        assert done.whole and [name.split("/")[0] for name in done.restored] == ["packs"]
        bad("/damaged/", hit)
        again = TowerArchive.open(tmp_path / "cold", [BytesCodec()])
        assert {v.name: again.tower(v).tokens.tolist() for v in again.ls()} == wanted

    def test_in_a_pack_under_an_index(self, tmp_path: Path, bad: Callable[[str, int], None]) -> None:
        archive = filled(tmp_path / "cold", 20)
        archive.write_index()
        place = archive.version("s10").location
        block = Pack.of((tmp_path / "cold" / "packs" / place.pack.hex()).read_bytes()).block(place.offset)
        piece = block.piece(place.row)
        assert piece is not None and (piece.first, piece.last) == (10, 12)
        bad("/packs/", place.offset + block.size + piece.begin + 100)
        fresh = TowerArchive.open(tmp_path / "cold", [BytesCodec()])
        for n in range(20):
            if n in (10, 11):
                with pytest.raises(LostError, match="damaged"):
                    fresh.get(f"s{n}")
            else:
                assert len(fresh.get(f"s{n}").tokens) == SIZE

    def test_in_an_index(self, tmp_path: Path, bad: Callable[[str, int], None]) -> None:
        """Skip an unreadable index and scan the packs instead."""
        filled(tmp_path / "cold", 3).write_index()
        bad("/index/", 60)
        fresh = TowerArchive.open(tmp_path / "cold", [BytesCodec()])
        assert len(fresh.get("s1").tokens) == SIZE and {p.kind for p in fresh.problems} == {"index"}

    def test_in_archive_json(self, tmp_path: Path, bad: Callable[[str, int], None]) -> None:
        filled(tmp_path / "cold", 3)
        bad("cold/archive.json", 0)
        fresh = TowerArchive.open(tmp_path / "cold", [BytesCodec()])
        assert len(fresh.get("s1").tokens) == SIZE and not fresh.verify().sound

    def test_other_failures_are_no_damage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        archive = filled(tmp_path / "cold", 1)
        monkeypatch.setattr(os, "pread", raising(OSError(errno.EACCES, "Permission denied")))
        with pytest.raises(StoreError, match="no permission"):
            list(archive.catalog.listing.scan(next(iter(archive.catalog.listing.packs))))
