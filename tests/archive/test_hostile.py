"""Hostile files with valid checksums, made by an attacker with write access, are refused or cost little."""

import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import LostError, ManifestLost
from pltz.archive.format.ids import NO_SEGMENT, segment_of
from pltz.archive.format.index_file import Entries, MemoryIndex, build, name_of
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.pack import COUNT, FOOTER, HEADER, PERSON, Builder, Damage, Pack, name_in
from pltz.archive.format.parity import END as PARITY_END, HEAD, TAIL, Parity, ParityLayout
from pltz.archive.format.record import Context, Record
from pltz.archive.storage.disk import OsDisk
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import NONE, digest
from pltz.plt_codec.varint import write_varint
from tests.archive.kit import DirectoryStore, NewSession, SegmentCodec, SimDisk, TowerArchive, reopen, repaired
from tests.archive.peek import peek, records
from tests.watch import memory_below


def smuggle(disk: SimDisk, builder: Builder) -> bytes:
    """Put a crafted pack, let repair name it, and return its name."""
    data = builder.finish()
    name = name_in(data)
    assert DirectoryStore(disk).put(f"packs/{name.hex()}", data)
    disk.write_new(f"parity/{name.hex()}", b"")
    repaired(disk)
    return name


SOME = segment_of(b"i" * 16)


@pytest.mark.parametrize("mode", [0, 1])
def test_a_crafted_record_never_puts_a_segment_below_another_tower(
    disk: SimDisk, codec: SegmentCodec, tower_codec: SegmentCodec, mode: int
) -> None:
    """Craft a record with the id of a session's leaf and another parent: no other text is read, in either order.

    The session is read by its own record. Who asks for the segment by its id is told that it is lost, or reads it.
    """
    one = tower_codec if mode else codec
    archive = TowerArchive.create(DirectoryStore(disk), [one])
    archive.put([NewSession("a", [np.arange(40), np.arange(50)]), NewSession("b", [np.arange(9)])])
    leaf, other = archive.version("a").leaf, archive.version("b").leaf
    item, answers = records(archive, leaf)[0], set()
    for salt in range(256):
        copy = disk.clone()
        builder = Builder(0, bytes([salt]) * 8, archive.settings.archive)
        number = builder.context(item.context)
        name = smuggle(copy, builder.add(Record(number, other, leaf, 50, item.record.bitstring + b"?")))
        fresh = TowerArchive.open(DirectoryStore(copy), [one])
        first = name < item.location.pack
        assert fresh.get("a").tokens.tolist() == [*range(40), *range(50)]
        try:
            assert [tokens.tolist() for _, tokens in fresh.segment(leaf)] == [[*range(40)], [*range(50)]]
            answers.add((first, "read"))
        except LostError:
            answers.add((first, "lost"))
        assert fresh.get("b").tokens.tolist() == list(range(9)) and not fresh.verify(decode=True).sound
        if len(answers) == 2:
            break
    assert answers == {(True, "lost"), (False, "read")}


def name_anew(cold: Path) -> None:
    """Let repair name the packs that are there, after others took the place of some."""
    for folder in "manifest", "parity":
        for path in (cold / folder).iterdir():
            if path.name != "archive.json":
                path.unlink()
    repaired(OsDisk(cold))


def crafted(data: bytes, *, time: int | None = None, second_table: int | None = None) -> bytes:
    """Return a pack with another time in both headers, or another table size in the second, and correct checksums."""
    at = len(data) - FOOTER.size - HEADER.size
    fields = list(HEADER.unpack(data[: HEADER.size]))
    table = data[HEADER.size : HEADER.size + fields[5]]
    headers = []
    for number in (0, 1):
        fields[2] = fields[2] if time is None else time
        fields[5] = second_table if number and second_table else len(table)
        head = HEADER.pack(*fields)[:-4]
        headers.append(head + zlib.crc32(table, zlib.crc32(head)).to_bytes(4, "little"))
    body = headers[0] + data[HEADER.size : at] + headers[1] + data[at + HEADER.size :][: COUNT.size]
    foot = body[-COUNT.size :] + digest(PERSON, body)
    return body + foot[COUNT.size :] + zlib.crc32(foot).to_bytes(4, "little")


def test_a_table_that_claims_to_begin_before_its_pack(tmp_path: Path, codec: SegmentCodec) -> None:
    """Make the second header useless: the first is used."""
    archive = TowerArchive.create(tmp_path / "cold", [codec])
    tokens = np.random.default_rng(2).integers(0, 1024, 4096)  # a small pack has one header
    archive.put([NewSession("a", [tokens])])
    [path] = (tmp_path / "cold" / "packs").iterdir()
    data = path.read_bytes()
    data = crafted(data, second_table=len(data) - FOOTER.size - HEADER.size + 1)
    path.unlink()
    path.with_name(name_in(data).hex()).write_bytes(data)
    named = max(path for path in (tmp_path / "cold" / "manifest").iterdir() if path.name != "before")
    manifest = Manifest.decode(named.read_bytes())
    [row] = manifest.packs.values()
    named.chmod(0o600)
    named.write_bytes(replace(manifest, packs={name_in(data): row}).encode())
    fresh = TowerArchive.open(tmp_path / "cold", [codec])
    assert fresh.get("a").tokens.tolist() == tokens.tolist() and not fresh.verify().sound


@pytest.mark.parametrize("time", [1 << 62, (1 << 63) - 1, (1 << 64) - 1])
def test_a_pack_from_the_end_of_time(disk: SimDisk, archive: TowerArchive, time: int) -> None:
    archive.put([NewSession("a", [np.arange(40)])])
    item = peek(archive, "a")[-1]
    builder = Builder(5, bytes(8), archive.settings.archive)
    data = builder.add(item.record._replace(context=builder.context(item.context), time=9, name="b")).finish()
    data = crafted(data, time=time)
    assert DirectoryStore(disk).put(f"packs/{name_in(data).hex()}", data)
    fresh = reopen(disk)
    assert [v.name for v in fresh.ls()] == ["a"] and fresh.verify().unnamed == 1
    fresh.collect()
    repaired(disk)
    fresh = reopen(disk)
    assert [v.name for v in fresh.ls()] == ["a"] and fresh.verify().unnamed == 1


def test_claims_that_overlap_are_not_each_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan a bitstring that begins a block at every sixth byte, each claiming a head of all bytes that remain."""
    salt, many = b"s" * 8, 30_000
    sizes = range(6 * many + 20_000, 20_000, -6)  # three bytes each
    claims = b"".join(salt[:2] + write_varint(size) + b"\0" for size in sizes) + bytes(20_020)
    builder = Builder(0, salt)
    number = builder.context(Context(0, NONE, "", NONE, NONE))
    data = bytearray(builder.add(Record(number, NO_SEGMENT, SOME, 9, claims)).finish())
    data[Pack.of(bytes(data)).begin + 6] ^= 1
    summed, crc32 = [0], zlib.crc32

    def counted(data: bytes | memoryview, seed: int = 0) -> int:
        summed[0] += len(data)
        return crc32(data, seed)

    monkeypatch.setattr(zlib, "crc32", counted)
    assert all(isinstance(item, Damage) for item in Pack.of(bytes(data)).scan()) and summed[0] < 70 * len(data)


def small_records(count: int, archive: bytes = NONE) -> bytes:
    """Return a pack of the shortest possible segments, each below the one before."""
    builder = Builder(0, b"s" * 8, archive)
    number = builder.context(Context(0, NONE, "", NONE, NONE))
    parent = NO_SEGMENT
    for n in range(1, count + 1):
        name = segment_of(n.to_bytes(10, "little"))
        builder.add(Record(number, parent, name, 1))
        parent = name
    return builder.finish()


def test_opening_an_archive_with_such_a_pack(tmp_path: Path, codec: SegmentCodec) -> None:
    made = TowerArchive.create(tmp_path / "cold", [codec])
    data = small_records(40_000, made.settings.archive)
    (tmp_path / "cold" / "packs" / name_in(data).hex()).write_bytes(data)
    name_anew(tmp_path / "cold")
    with memory_below(3 * len(data) + (8 << 20)):
        archive = TowerArchive.open(tmp_path / "cold", [codec])
    assert archive.stat().segments == 40_000 and not archive.problems


def test_more_records_than_a_pack_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.format.pack.MAX_RECORDS", 5000)
    items = list(Pack.of(small_records(9000)).scan())
    assert isinstance(items[-1], Damage) and "more than 5000 records" in items[-1].why and 5000 <= len(items) - 1 < 5128


def test_claims_over_the_window_do_not_move_it_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every other block claim the longest head: the buffer is searched before more is read."""
    monkeypatch.setattr("pltz.archive.format.block.ROWS", 1)
    data = bytearray(small_records(20_000))
    for at in [item[0].offset for item in Pack.of(bytes(data)).blocks() if not isinstance(item, Damage)][::2]:
        data[at + 2 : at + 5] = write_varint(1 << 18)
    read = 0

    def counted(offset: int, size: int) -> bytes:
        nonlocal read
        found = bytes(data[offset : offset + size])
        read += len(found)
        return found

    assert sum(isinstance(item, Damage) for item in Pack(counted, len(data)).scan()) > 5000 and read < 3 * len(data)


def test_a_long_record_is_not_read_for_each_claim_of_it(tmp_path: Path) -> None:
    """Claim 200 MB without data: no memory is allocated for an unproved claim."""
    salt = b"s" * 8
    claim = salt[:2] + write_varint(40) + write_varint(200 << 20) + bytes(40)
    builder = Builder(0, salt)
    number = builder.context(Context(0, NONE, "", NONE, NONE))
    builder.add(Record(number, NO_SEGMENT, SOME, 9, claim * 500))
    data = builder.finish()
    begin = Pack.of(data).begin
    with (tmp_path / "pack").open("wb") as file:  # a hole where the claims reach to
        file.write(data[:begin] + b"x" + data[begin + 1 : -FOOTER.size - Pack.of(data).begin])
        file.seek(250 << 20)
        file.write(data[-FOOTER.size - Pack.of(data).begin :])
    opened = OsDisk(tmp_path).open("pack")
    with memory_below(20 << 20):
        assert all(isinstance(item, Damage) for item in Pack(opened.read, opened.size).scan())


def test_an_index_over_packs_that_cannot_be(disk: SimDisk, archive: TowerArchive) -> None:
    archive.put([NewSession("a", [np.arange(40)])])
    [pack] = archive.catalog.listing.packs
    size, lies = (1 << 32) - 1, MemoryIndex()
    far = Entries(np.array([5], np.uint64), np.array([3 << 30], np.uint64))
    lies.add_pack(pack, size, {0: far, 1: far})
    data = build([lies], {pack: size})
    assert DirectoryStore(disk).put(f"index/{name_of(data)}", data)
    named = frozenset({name_of(data)})
    with suppress(ManifestLost):  # it looks at what it named
        archive.catalog.listing.publish(lambda manifest: replace(manifest, indexes=named))
    with pytest.raises(ManifestLost):
        reopen(disk)
    repaired(disk)
    fresh = reopen(disk)
    assert [v.name for versions in fresh.catalog.lookup.histories() for v in versions] == ["a"] and fresh.verify().sound


def test_problems_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, archive: TowerArchive) -> None:
    monkeypatch.setattr("pltz.archive.catalog.problems.MOST_PROBLEMS", 20, raising=False)
    for n in range(50):
        archive.catalog.problems.note("record", f"{n}", "damaged")
        archive.catalog.problems.note("record", f"{n % 3}", "damaged")
    assert len(archive.problems) == 21 and "no more are listed" in archive.problems[-1].what
    assert not archive.verify().problems


def test_parity_of_nothing_claims_no_memory() -> None:
    """Refuse columns of padding, and a pack of a gigabyte without a single row."""
    with pytest.raises(CorruptError, match="do not hold"):
        Parity.decode(head_of(ParityLayout(65536, 1, 1, 4096), 9))
    parity = Parity.decode(head_of(ParityLayout.of(1 << 30), 1 << 30))
    with memory_below(64 << 20):
        assert parity.restore([b"what is left"])[0] == b"what is left" and not parity.restore([])[0]


def head_of(shape: ParityLayout, size: int) -> bytes:
    """Return a parity file truncated after its head."""
    checks = bytes(4 * (shape.k + shape.m) * shape.columns)
    total = HEAD.size + len(checks) + 16
    layout = shape.block, shape.k, shape.m, shape.columns
    head = HEAD.pack(b"PLTr", 1, bytes(3), total, bytes(16), size, *layout) + checks
    return head + digest(b"pltz parity", head) + TAIL.pack(total, PARITY_END)
