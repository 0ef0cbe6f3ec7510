"""Files in the place of others: every version is exact or its error is named, verify tells, and repair hides nothing.

A walk takes two files of one archive, or one of its own and one of another archive or of an older state, and swaps
them, moves one to the other or copies it there; or it damages one. Then it reads, verifies and repairs.
"""

import os
import random
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from pltz.archive.errors import LostError, StoreError
from pltz.archive.format import index_file
from pltz.archive.format.byte_source import Held
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SESSIONS, FileIndex, MemoryIndex, build, by_section
from pltz.archive.format.object_names import folder_of
from pltz.plt_codec.errors import CorruptError, PltzError
from tests.archive.kit import RAW, DirectoryStore, NewSession, Repairer, SimDisk, TowerArchive, ZlibCodec
from tests.failing import raising

CODEC = ZlibCodec(1, b"zlib with tower.")
SEEDS = range(2000) if os.environ.get("PLTZ_ALL_FAULTS") else range(24)
WAYS = {"open": None, "sealed": RAW}  # keys

Files = dict[str, bytes]
Versions = Mapping[tuple[str, str, int], list[int]]


def opened(disk: SimDisk, way: str) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), [CODEC], key=WAYS[way])


def disk_of(files: Files) -> SimDisk:
    disk = SimDisk(seed=11)
    disk.clock += 1000
    for path, data in files.items():
        disk.make_directory(folder_of(path))
        disk.write_new(path, data)
    return disk


@cache
def made(way: str, seed: int) -> tuple[list[Files], Versions]:
    """Return the files of an archive at several times, the last one last, and all that was acknowledged."""
    disk, states, known = SimDisk(seed=seed), list[Files](), dict[tuple[str, str, int], list[int]]()
    store = DirectoryStore(disk)
    archive = TowerArchive.create(store, [CODEC], key=WAYS[way])

    def put(name: str, tenant: str, *turns: int) -> None:
        segments = [np.arange(30), *(np.array([seed, turn, 5]) for turn in turns)]
        [done] = archive.put([NewSession(name, segments, tenant, shared=1, tags={"turn": str(turns)})])
        known[tenant, name, done.version] = np.concatenate(segments).tolist()

    for turns in range(1, 4):
        put("s", "acme", *range(turns))
        put(f"t{turns}", "bell", turns)
        states.append(disk.seen.files())
    archive.write_index()
    put("s", "acme", *range(4))
    states.append(disk.seen.files())
    for _ in range(2):
        disk.clock += 100
        archive.collect(grace=0)
    states.append(disk.seen.files())
    for turns in range(5, 8):
        put("s", "acme", *range(turns))
        disk.clock += 1
    put("eve", "bell", 99)
    states.append(disk.seen.files())
    return [dict(files) for files in states], known


def wrong(files: Files, way: str, dice: random.Random) -> tuple[Files, str]:
    """Return the files of an archive of which one or two have wrong bytes, and what was done."""
    paths = sorted(p for p in files if not p.startswith("manifest/"))
    first = dice.choice(paths)
    alike = [p for p in paths if folder_of(p) == folder_of(first) and p != first]
    second = dice.choice(alike if alike and dice.random() < 0.7 else [p for p in paths if p != first])
    how = dice.choice(("swap", "move", "copy", "copy", "other", "older", "cut", "grow", "vanish"))
    if how in ("move", "vanish") and way == "listed, no parity":  # before an index names a pack nothing else does
        how = "swap"
    out, damaged = dict(files), {"cut": files[first][:-9], "grow": files[first] + b"garbage"}
    if how in damaged:
        return {**files, first: damaged[how]}, f"{how}: {first}"
    if how == "vanish":
        del out[first]
        return out, f"{how}: {first}"
    if how in ("other", "older"):
        others = made(way, 2)[0][-1] if how == "other" else dice.choice(made(way, 1)[0])
        second = dice.choice(sorted(p for p in others if folder_of(p) == folder_of(first)) or sorted(others))
        out[first] = others[second]
    elif how == "swap":
        out[first], out[second] = files[second], files[first]
    else:
        out[first] = files[second]
        if how == "move":
            del out[second]
    return out, f"{how}: {second} at {first}"


def whole(disk: SimDisk, way: str, known: Versions) -> bool:
    """Return whether all can be read. What cannot has an error that says so, and is not called absent."""
    good = True
    newest: dict[tuple[str, str], int] = {}
    for tenant, name, number in known:
        newest[tenant, name] = max(number, newest.get((tenant, name), 0))
    for (tenant, name, number), wanted in known.items():
        for version in (number, None) if newest[tenant, name] == number else (number,):
            try:
                found = opened(disk, way).get(name, tenant, version).tokens.tolist()
            except PltzError as exc:
                codes = (3, 4, 7)  # 4: by the archive.json of another archive
                assert exc.exit_code in codes, f"{name} version {version}: {type(exc).__name__} {exc}"
                good = False
            else:
                assert found == wanted, f"{name} version {version} is another"
    return good


def is_sound(disk: SimDisk, way: str) -> bool:
    try:
        return opened(disk, way).verify().sound
    except PltzError as exc:
        assert exc.exit_code in (3, 4, 7), exc
        return False


@pytest.mark.parametrize("way", WAYS)
def test_walks(way: str) -> None:
    states, known = made(way, 1)
    for seed in SEEDS:
        files, what = wrong(states[-1], way, random.Random(f"{way} {seed}"))
        disk = disk_of(files)
        try:
            assert whole(disk, way, known) or not is_sound(disk, way), "verify is sound, and something is hidden"
            try:
                repaired = Repairer(DirectoryStore(disk)).run().whole
            except PltzError as exc:
                assert exc.exit_code in (3, 7), exc
                repaired = False
            after, sound = whole(disk, way, known), is_sound(disk, way)
            assert sound or not repaired, "repair is whole, and verify is not sound"
            assert after or not sound, "verify is sound after a repair, and something is gone"
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {what}: {exc}") from exc


def packs_of(disk: SimDisk) -> list[str]:
    return sorted(path for path in disk.seen.files() if path.startswith("packs/"))


def place(disk: SimDisk, path: str, data: bytes) -> None:
    disk.unlink(path)
    disk.write_new(path, data)


def test_a_process_that_met_a_misplaced_pack_reads_what_repair_brought_back() -> None:
    """Keep no wrong pack of the same size open: good sessions were lost to such a process."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [CODEC])
    for name in ("a", "b"):
        archive.put([NewSession(name, [np.array([7, ord(name)])])])
    archive.write_index()
    first, second = packs_of(disk)
    files = disk.seen.files()
    assert len(files[first]) == len(files[second])
    place(disk, second, files[first])
    place(disk, first, files[second])
    reader = TowerArchive.open(DirectoryStore(disk), [CODEC])
    for name in ("a", "b"):
        with pytest.raises(LostError):
            reader.get(name)
    assert Repairer(DirectoryStore(disk)).run().whole
    assert [reader.get(name).tokens.tolist() for name in ("a", "b")] == [[7, ord("a")], [7, ord("b")]]


@pytest.mark.parametrize("number", range(1, 11))
def test_a_store_that_fails_is_no_damage(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three listings failed as damage does: a busy bucket had the badge of it."""
    verifier = opened(disk_of(made("open", 1)[0][-1]), "open")
    listed, calls = DirectoryStore.list, list[str]()

    def failing(store: DirectoryStore, folder: str) -> dict[str, int]:
        calls.append(folder)
        if len(calls) == number:
            raise StoreError("the store answered 500")
        return listed(store, folder)

    monkeypatch.setattr(DirectoryStore, "list", failing)
    with pytest.raises(StoreError):
        verifier.verify()


def test_an_index_with_the_bytes_of_another_is_refused() -> None:
    data = next(data for path, data in made("open", 1)[0][-1].items() if path.startswith("index/"))
    assert FileIndex(Held(data), index_file.name_of(data))
    with pytest.raises(CorruptError, match="bytes of index"):
        FileIndex(Held(data), bytes(16).hex())


def test_a_key_that_the_store_cannot_give_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = opened(disk_of(made("sealed", 1)[0][-1]), "sealed")
    monkeypatch.setattr(type(archive.keys), "bits", raising(StoreError("the store answered 500")))
    with pytest.raises(StoreError):
        archive.get("s", "acme")


@pytest.mark.parametrize("joined", [False, True])
def test_a_put_on_what_the_store_cannot_give_is_no_damage(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noted as damage of the record, and coded again."""
    disk, turns = disk_of(made("sealed", 1)[0][-1]), [np.arange(n, n + 9) for n in range(4)]
    archive = opened(disk, "sealed")
    for count in (2, 3, 4):
        archive.put([NewSession("grown", turns[:count], "acme")])
    if joined:
        assert archive.join()
    archive = opened(disk, "sealed")
    monkeypatch.setattr(type(archive.keys), "bits", raising(StoreError("the store answered 500")))
    with pytest.raises(StoreError):
        archive.put([NewSession("grown", [*turns, turns[0]], "acme")])
    assert not archive.catalog.problems


def test_an_entry_whose_block_has_no_such_record_is_damage() -> None:
    """It counted as a chance of 36 bits, and the session was called absent."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [CODEC])
    archive.put([NewSession("a", [np.arange(9)])])
    pack, offset, _ = archive.version("a").location
    ghost = archive.keys.session_key(archive.keys.domain(TENANT, "default"), "ghost")
    known, size = MemoryIndex(), archive.catalog.listing.packs[pack]
    known.add_pack(pack, size, by_section([(SESSIONS, ghost, offset)]))
    data = build([known], {pack: size})
    disk.write_new(f"index/{index_file.name_of(data)}", data)
    archive.catalog.listing.publish(made={index_file.name_of(data): FileIndex.of(data)})
    with pytest.raises(LostError):
        opened(disk, "open").get("ghost")
    assert not is_sound(disk, "open")
