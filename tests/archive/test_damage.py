"""Damage: every flipped bit is detected and never gives other tokens, and parsers accept any bytes.

Damaged archives are named by their defect.
"""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from pltz.archive.format.ids import NO_SEGMENT, segment_of
from pltz.archive.format.index_file import FileIndex
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.pack import VERSION, Builder, Pack
from pltz.archive.format.record import Context, Record
from pltz.archive.format.settings import Settings
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import FormatError, PltzError, VersionError
from pltz.plt_codec.identity import digest
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive
from tests.examples import examples

PROMPT = np.arange(30)


@pytest.fixture
def small(archive: TowerArchive, disk: SimDisk) -> DiskState:
    """Make two sessions below a prompt, one with two versions of which one is forgotten, and an index."""
    sessions = [("a", [3] * 9, {}), ("b", [4] * 9, {}), ("a", [7], {"k": "v"})]
    archive.put([NewSession(n, [PROMPT, np.array(t)], shared=1, tags=label) for n, t, label in sessions])
    archive.write_index()
    archive.forget([archive.version("a", version=1)])
    archive.collect(small=0, dead_share=0.01)
    return disk.seen


def with_file(state: DiskState, path: str, data: bytes) -> SimDisk:
    changed = state.copy()
    changed.data[changed.names[path]] = data
    return SimDisk(changed, seed=9)


# of files with a test of every bit: format/test_pack.py and others
STEPS = {"packs": 9, "parity": 53, "index": 9, "manifest": 37}


@pytest.mark.parametrize("kind", ["archive.json", "packs", "parity", "index", "manifest"])
def test_flipped_bits_are_detected(small: DiskState, codec: SegmentCodec, kind: str) -> None:
    """Flip every bit of each file, or one of STEPS."""
    truth = TowerArchive.open(DirectoryStore(SimDisk(small)), [codec])
    tokens = {(v.name, v.version): truth.tower(v).tokens.tolist() for v in truth.ls(history=True)}
    files = {path: data for path, data in small.files().items() if path.split("/")[0] == kind}
    files.pop("manifest/before", None)  # for repair
    for path, data in files.items():
        for bit in range(0, 8 * len(data), STEPS.get(kind, 1)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            disk = with_file(small, path, bytes(flipped))
            try:
                archive = TowerArchive.open(DirectoryStore(disk), [codec])
            except PltzError:
                continue
            assert not archive.verify().sound, (path, bit)
            if bit % 8 == 0:
                for (name, number), wanted in tokens.items():
                    try:
                        assert archive.get(name, version=number).tokens.tolist() == wanted
                    except PltzError:
                        continue


def first(state: DiskState, folder: str) -> tuple[str, bytes]:
    path = min(p for p in state.files() if p.startswith(folder))
    return path, state.files()[path]


DEFECTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda d: b"", "one-byte": lambda d: d[:1], "cut-in-half": lambda d: d[: len(d) // 2],
    "last-byte-missing": lambda d: d[:-1], "byte-appended": lambda d: d + b"\0", "zeroed": lambda d: bytes(len(d)),
    "head-zeroed": lambda d: bytes(64) + d[64:], "tail-zeroed": lambda d: d[:-64] + bytes(64),
    "middle-zeroed": lambda d: d[: len(d) // 2 - 20] + bytes(40) + d[len(d) // 2 + 20 :],
    "first-byte-removed": lambda d: d[1:], "doubled": lambda d: d + d, "reversed": lambda d: d[::-1],
}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("folder", ["packs", "index", "archive.json", "manifest"])
def test_damaged_archives(small: DiskState, codec: SegmentCodec, folder: str, defect: str) -> None:
    path, data = first(small, folder)
    disk = with_file(small, path, DEFECTS[defect](data))
    if folder == "manifest":
        with pytest.raises(PltzError):
            TowerArchive.open(DirectoryStore(disk), [codec])
        return
    archive = TowerArchive.open(DirectoryStore(disk), [codec])
    report = archive.verify(decode=True)
    assert not report.sound
    for v in archive.ls(history=True):
        try:
            assert len(archive.tower(v).tokens) in (31, 39)
        except PltzError:
            assert folder == "packs"
    if folder == "index":
        assert not report.lost and len(list(archive.ls())) == 2
        archive.rebuild()
        assert archive.verify(decode=True).sound


def pack_of(count: int, salt: bytes = b"s" * 16) -> bytes:
    builder = Builder(100 << 20, salt)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16))
    parent = NO_SEGMENT
    for n in range(count):
        name = segment_of(digest(b"test", bytes([n])))
        builder.add(Record(context, parent, name, 5, b"payload %d" % n, f"s{n}", 100 << 20, 100))
        parent = name
    return builder.finish()


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
@example(b"")
def test_parsers_take_anything(data: bytes) -> None:
    for parse in (Pack.of, FileIndex.of, Manifest.decode, Settings.decode):
        with pytest.raises(FormatError):
            parse(data)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_packs_of_other_versions_are_refused_by_name(version: int) -> None:
    data = bytearray(pack_of(250))
    size = struct.unpack_from("<I", data, 56)[0]
    for at in (0, len(data) - 36 - 64):
        data[at + 4] = version
        table = data[64 : 64 + size]
        struct.pack_into("<I", data, at + 60, zlib.crc32(table, zlib.crc32(data[at : at + 60])))
    with pytest.raises(VersionError, match="use a newer pltz"):
        Pack.of(bytes(data))
