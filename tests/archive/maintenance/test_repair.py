"""Repair: every flipped bit and every truncation is restored to identical bytes.

Beyond that the report names exactly what is lost, and nothing is deleted.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.encryption.key_files import KeyFile, KeyFolder
from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import LostError, StoreError
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import FileIndex
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.object_names import key_copies
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.parity import Parity
from pltz.archive.format.settings import Settings
from pltz.archive.maintenance.repair import Repaired, Repairer
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.plt_codec.errors import CorruptError, FormatError, PltzError, UsageError
from pltz.plt_codec.identity import digest
from tests.archive.kit import DiskState, NewSession, SimDisk, TowerArchive, ZlibCodec, create, reopen, repaired
from tests.archive.towers import open_keys
from tests.examples import examples

PROMPT = np.arange(30)
KEY = Secret(b"sixteen bytes or more", 0)


def build(key: Secret | None) -> DiskState:
    """Three packs, an index, two sessions of which one has two versions, one forgotten."""
    disk = SimDisk()
    archive = create(disk, key=key)
    archive.put([NewSession("a", [PROMPT, np.array([3] * 9)], shared=1)])
    archive.put([NewSession("b", [PROMPT, np.array([4] * 9)], shared=1)])
    archive.write_index()
    archive.put([NewSession("a", [PROMPT, np.array([7])], shared=1)])
    archive.forget([archive.version("a", version=1)])
    archive.collect(small=0, dead_share=0.01)
    return disk.seen


@pytest.fixture(params=[None, KEY], ids=["clear", "sealed"])
def small(request: pytest.FixtureRequest) -> DiskState:
    return build(request.param)


def with_file(state: DiskState, path: str, data: bytes | None) -> SimDisk:
    changed = state.copy()
    if data is None:
        del changed.names[path]
    else:
        changed.data[changed.names[path]] = data
    return SimDisk(changed, seed=9)


def same_files(disk: SimDisk, state: DiskState) -> bool:
    """Return whether all files are as before, except those moved aside, indexes and the manifest."""
    but = ("damaged/", "index/", "tmp/", "manifest/", "parity/index-")
    now, then = ({p: d for p, d in s.files().items() if not p.startswith(but)} for s in (disk.seen, state))
    return now == then


def test_flipped_bits_are_put_back(small: DiskState) -> None:
    for path, data in small.files().items():
        for bit in range(0, 8 * len(data), 149):
            disk = SimDisk(small, seed=9)
            disk.flip(path, bit // 8, 1 << bit % 8)
            assert repaired(disk).whole and same_files(disk, small), (path, bit)


def test_every_cut_length_and_a_missing_file_is_put_back(small: DiskState) -> None:
    """Cut the smallest file of each kind at every third length, the others at every 29th."""
    files = small.files()
    smallest = {path.split("/")[0]: path for path in sorted(files, key=lambda path: -len(files[path]))}
    for path, data in files.items():
        for cut in [None, *range(0, len(data), 3 if path in smallest.values() else 29)]:
            disk = with_file(small, path, None if cut is None else data[:cut])
            if cut is None and path.startswith("index/"):
                continue
            assert repaired(disk).whole, (path, cut)
            assert same_files(disk, small), (path, cut)


DEFECTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda d: b"", "one-byte": lambda d: d[:1], "cut-in-half": lambda d: d[: len(d) // 2],
    "last-byte-missing": lambda d: d[:-1], "byte-appended": lambda d: d + b"\0", "zeroed": lambda d: bytes(len(d)),
    "head-zeroed": lambda d: bytes(64) + d[64:], "tail-zeroed": lambda d: d[:-64] + bytes(64),
    "middle-zeroed": lambda d: d[: len(d) // 2 - 20] + bytes(40) + d[len(d) // 2 + 20 :],
    "first-byte-removed": lambda d: d[1:], "doubled": lambda d: d + d, "reversed": lambda d: d[::-1],
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_damaged_archives_come_back(small: DiskState, defect: str) -> None:
    for path, data in small.files().items():
        disk = with_file(small, path, DEFECTS[defect](data))
        assert repaired(disk).whole and same_files(disk, small), path
        again = repaired(disk)
        assert not (again.restored or again.aside or again.broken), path


def test_damage_in_every_file_at_once(small: DiskState) -> None:
    disk = SimDisk(small.copy(), seed=4)
    for path, data in small.files().items():
        if not path.startswith("parity/0") and path not in ("parity/archive.json",) and not path.endswith("-1"):
            middle = len(data) // (4 if path.startswith("parity/") else 2)  # a small pack and its copy have a bit each
            disk.seen.data[disk.seen.names[path]] = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    assert not any(disk.seen.files()[p] == d for p, d in small.files().items() if p.startswith("packs/"))
    # every parity file lost a bit as well, in its middle
    assert repaired(disk).whole and same_files(disk, small)


def test_what_was_damaged_is_kept_aside(small: DiskState) -> None:
    path = next(p for p in small.files() if p.startswith("packs/"))
    hurt = bytes(100) + small.files()[path][100:]
    disk = with_file(small, path, hurt)
    report = repaired(disk)
    assert report.restored == [path] and len(report.aside) == 1
    assert disk.seen.files()[report.aside[0]] == hurt and report.aside[0].startswith("damaged/packs-")


def test_a_dry_run_changes_nothing(small: DiskState) -> None:
    path = next(p for p in small.files() if p.startswith("packs/"))
    disk = with_file(small, path, b"")
    before = disk.seen.files()
    assert Repairer(DirectoryStore(disk), dry_run=True).run().restored == [path] and disk.seen.files() == before


def big() -> DiskState:
    """One pack of more than its floor of parity, six sessions with noise, below one shared prompt."""
    disk = SimDisk()
    archive, dice = create(disk), np.random.default_rng(0)
    archive.put([NewSession(f"s{n}", [PROMPT, dice.integers(0, 1 << 30, 1200)], shared=1) for n in range(6)])
    archive.put([NewSession("s0", [PROMPT, np.array([1])], shared=1)])
    archive.write_index()
    return disk.seen


def bitstrings(data: bytes) -> dict[str | None, int]:
    """Return the byte at which the bitstring of each session begins, in a pack of one block."""
    [(block, rows)] = [item for item in Pack.of(data).blocks() if not isinstance(item, Damage)]
    ends = accumulate((len(r.bitstring) for _, r in rows), initial=block.offset + block.size)
    return {r.name: at for at, (_, r) in zip(ends, rows, strict=False)}


def test_beyond_the_budget_exactly_what_is_lost_is_said() -> None:
    state = big()
    path, data = max(((p, d) for p, d in state.files().items() if p.startswith("packs/")), key=lambda f: len(f[1]))
    starts = bitstrings(data)
    begin, end = starts["s2"] + 100, starts["s4"] + 3000  # most of s2, all of s3, most of s4
    [block] = [item[0] for item in Pack.of(data).blocks() if not isinstance(item, Damage)]
    assert [(p.first, p.last) for p in block.pieces] == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    disk = with_file(state, path, data[:begin] + bytes(end - begin) + data[end:])
    report = repaired(disk)
    assert not report.whole and report.missing == 3 and report.salvaged == 4
    assert sorted((u.name, u.place.offset) for u in report.unnamed) == [
        (name, block.offset) for name in ("s2", "s3", "s4")
    ]
    assert path not in disk.seen.files() and any(a.startswith("damaged/packs-") for a in report.aside)
    archive = reopen(disk)
    assert [v.name for v in archive.ls(history=True)] == ["s0", "s0", "s1", "s5"]
    assert all(len(archive.tower(v).tokens) in (1230, 31) for v in archive.ls(history=True))
    check = archive.verify(decode=True)
    assert not check.lost and [p.kind for p in check.problems] == ["loss"]
    again = repaired(disk)
    assert not (again.salvaged or again.restored or again.aside) and again.recorded == [path[6:]]
    [loss] = archive.losses()
    assert loss.missing == 3 and loss.complete and len(loss.sessions) == 3
    archive.acknowledge()
    archive.put([NewSession("s3", [PROMPT, np.array([5])], shared=1)])
    archive.collect()
    archive.collect()
    assert reopen(disk).verify(decode=True).sound


def test_a_lost_pack_costs_the_sessions_that_need_its_segments() -> None:
    disk = SimDisk()
    archive, dice = create(disk), np.random.default_rng(0)
    base, turn = dice.integers(0, 1 << 30, 3000), dice.integers(0, 1 << 30, 4000)
    archive.put([NewSession("x", [base, turn], shared=1)])
    archive.put(
        [NewSession("y", [base, turn, np.array([1])], shared=1), NewSession("z", [base, np.array([2])], shared=1)]
    )
    archive.write_index()
    path = max((p for p in disk.seen.files() if p.startswith("packs/")), key=lambda p: len(disk.seen.files()[p]))
    lost = with_file(disk.seen, path, None)
    report = repaired(lost)
    assert [v.name for v in report.lost] == ["y", "z"] and len(report.unnamed) == 1
    assert [v.name for v in reopen(lost).verify(decode=True).lost] == ["y", "z"]


def test_no_sound_copy_of_archive_json(small: DiskState) -> None:
    disk = SimDisk(small.copy())
    for path in [p for p in disk.seen.names if p.endswith("archive.json") or p.startswith("manifest/")]:
        disk.seen.data[disk.seen.names[path]] = b"{}"
    with pytest.raises(CorruptError, match="backup"):
        repaired(disk)
    with pytest.raises(UsageError, match="no archive"):
        empty = DirectoryStore(SimDisk())
        empty.make()
        Repairer(empty).run()


@pytest.mark.parametrize("data", [None, b"{}"])
def test_archive_json_comes_back_from_the_manifest(data: bytes | None) -> None:
    disk = SimDisk()
    create(disk).put([NewSession("a", [PROMPT])])
    files, names = disk.seen.files(), ("archive.json", "parity/archive.json")
    for name in names:
        disk = with_file(disk.seen, name, data)
    report = repaired(disk)
    assert report.whole and set(report.restored) == set(names)
    assert {name: disk.seen.files()[name] for name in names} == {name: files[name] for name in names}
    assert reopen(disk).get("a").tokens.tolist() == PROMPT.tolist()


def test_the_names_of_lost_sessions_need_the_key() -> None:
    disk = SimDisk()
    archive, dice = create(disk, key=KEY), np.random.default_rng(0)
    archive.put([NewSession("secret-name", [dice.integers(0, 1 << 30, 3000)])])
    archive.put([NewSession("secret-name", [dice.integers(0, 1 << 30, 3000), np.array([1])])])
    archive.write_index()
    path = next(p for p in disk.seen.files() if p.startswith("packs/"))
    for name in (path, path.replace("packs", "parity")):
        del disk.seen.names[name]
    locked = Repairer(DirectoryStore(disk.clone()), dry_run=True).run()
    assert "secret-name" not in str(locked)
    store = DirectoryStore(disk)
    assert [u.name for u in Repairer(store, lambda s: open_keys(store, s, KEY)).run().unnamed] == ["secret-name"]


def test_every_crash_of_a_repair_goes_on(small: DiskState) -> None:
    files = small.files()
    for path in sorted(p for p in files if not p.startswith(("index/", "tmp/")))[::2]:
        disk = with_file(small, path, files[path][: len(files[path]) // 2] + b"rot")
        for state in disk.left_by(partial(repaired, disk)):
            left = SimDisk(state, seed=7)
            assert repaired(left).whole and same_files(left, small), path


@pytest.mark.parametrize("at", [-1, -20, -24])
def test_a_footer_alone_is_made_anew_without_parity(at: int) -> None:
    """It was a loss of unknown size: check, name and count are bytes that all others tell."""
    disk = SimDisk()
    create(disk).put([NewSession("a", [PROMPT]), NewSession("b", [PROMPT, PROMPT + 1])])
    before = disk.seen.files()
    [path] = (path for path in before if path.startswith("packs/"))
    data = bytearray(before[path])
    data[at] ^= 1
    disk.overwrite(path, bytes(data))
    assert repaired(disk).whole and disk.seen.files()[path] == before[path]


@pytest.mark.parametrize("at", [[9], [9, -1]])
def test_no_crash_of_a_salvage_loses_what_could_be_read(at: list[int]) -> None:
    """Salvage records before the manifest tells that their pack is over: nothing looks for them again."""
    disk = SimDisk()
    archive = create(disk)
    noise = np.random.default_rng(2).integers(0, 1024, 4096)  # a small pack has one header
    archive.put([NewSession("a", [PROMPT, noise]), NewSession("b", [PROMPT, PROMPT + 1])])
    [path] = (path for path in disk.seen.files() if path.startswith("packs/"))
    data = bytearray(disk.seen.files()[path])
    for byte in at:  # in the first head, of which there is a second one, and in the footer, which counts the records
        data[byte] ^= 1
    disk.overwrite(path, bytes(data))
    disk.vanish(path.replace("packs", "parity"))
    done = list[Repaired]()
    states = disk.left_by(lambda: done.append(repaired(disk)))
    assert done[0].salvaged == 3 and len(states) > 7
    for state in states:
        left = SimDisk(state, seed=7)
        repaired(left)
        found = reopen(left)
        read = {v.name: found.tower(v).tokens.tolist() for v in found.ls(history=True)}
        assert read == {"a": [*PROMPT, *noise], "b": [*PROMPT, *PROMPT + 1]}


def test_no_crash_of_a_collector_leaves_parity_without_its_pack() -> None:
    """Or repair would bring back what was forgotten and collected."""
    disk = SimDisk()
    archive = create(disk)
    for n in range(3):
        archive.put([NewSession(f"s{n}", [np.array([n] * 20)])])
    archive.forget([archive.version("s0")])
    archive.collect(dead_share=0)
    states = disk.left_by(lambda: archive.collect(dead_share=0))
    for state in states:
        names = [p.split("/") for p in state.files() if "/" in p]
        parity = {n for folder, n in names if folder == "parity" and len(n) == 32}
        assert parity <= {n for folder, n in names if folder == "packs"}
    assert len(states) > 10 and not [path for path in disk.seen.names if path.startswith("packs/")][1:]


def test_a_pack_in_the_place_of_another_is_put_back(small: DiskState) -> None:
    """It is whole, and has another name."""
    packs = sorted(path for path in small.files() if path.startswith("packs/"))
    for path, other in zip(packs, packs[1:] + packs[:1], strict=True):
        disk = with_file(small, path, small.files()[other])
        assert repaired(disk).whole and same_files(disk, small)


def test_a_pack_is_given_up_while_others_are_damaged(small: DiskState) -> None:
    """Each pack in turn is beyond repair, while those that could name its sessions wait for theirs."""
    files = small.files()
    parity = [path for path in files if path.startswith("parity/") and len(path) == 39]
    assert len(parity) > 1
    for given_up in parity:
        disk = SimDisk(small.copy(), seed=2)
        disk.unlink(given_up)
        for path in (path.replace("parity/", "packs/") for path in parity):
            disk.overwrite(path, files[path][1 if given_up[7:] in path else 56 :])
        report = repaired(disk)
        assert set(report.restored) >= {path.replace("parity/", "packs/") for path in parity if path != given_up}


def test_repair_over_each_store(store: Store) -> None:
    TowerArchive.create(store, [ZlibCodec()]).put([NewSession("a", [PROMPT, np.array([3] * 9)], shared=1)])
    name = f"packs/{next(iter(store.list('packs')))}"
    sound = store.read(name, 0, 1 << 20)
    for hurt in (sound[:100], bytes(50) + sound[50:], None):
        store.delete(name)
        if hurt is not None:
            store.put(name, hurt)
        assert Repairer(store).run().restored == [name] and store.read(name, 0, 1 << 20) == sound
    assert TowerArchive.open(store, [ZlibCodec()]).verify(decode=True).sound


# At once with others, and what is not to be believed


def test_an_older_key_does_not_stand_in_for_a_damaged_one() -> None:
    """The last generation may hold an erasure, of which the older one, left by a crash, knows nothing."""
    disk = SimDisk(build(KEY))
    archive = reopen(disk, key=KEY)
    keys = archive.keys.of(archive.keys.domain(TENANT, "default"))  # type: ignore[attr-defined]
    assert archive.keys.publish(keys.following())  # type: ignore[attr-defined]
    last, before = (key_copies(keys.domain, n)[0] for n in (1, 0))
    for copy in range(2):
        disk.overwrite(key_copies(keys.domain, 1)[copy], b"x" * 200)
    files, report = disk.seen.files(), repaired(disk)
    assert report.broken == [last] and not report.whole
    assert disk.seen.files()[before] == files[before] and disk.seen.files()[last] == files[last]


def test_what_is_damaged_stays_where_no_copy_of_it_can_be_kept(small: DiskState) -> None:
    disk = SimDisk(small)
    path = next(p for p in small.files() if p.startswith("packs/"))
    hurt = b"?" + small.files()[path][1:]
    disk.overwrite(path, hurt)
    name = f"damaged/{path.replace('/', '-')}-{digest(b'pltz damaged', hurt).hex()[:8]}"
    disk.write_new(name, b"somebody else's")
    with pytest.raises(StoreError, match="move it away"):
        repaired(disk)
    assert disk.seen.files()[path] == hurt


def test_keys_that_are_erased_meanwhile_are_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(build(KEY))
    other = reopen(disk, key=KEY)
    domain = other.keys.domain(TENANT, "default")
    disk.unlink(key_copies(domain, 0)[1])
    read = KeyFolder.read

    def then_erased(self: KeyFolder, whose: bytes, generation: int) -> KeyFile | None:
        found = read(self, whose, generation)
        if whose == domain:
            monkeypatch.setattr(KeyFolder, "read", read)
            other.erase("default", "b")
        return found

    monkeypatch.setattr(KeyFolder, "read", then_erased)
    repaired(disk)
    last = KeyFolder(DirectoryStore(disk)).generations()[domain]
    assert len(last) == 1 and last[0] > 0


def test_a_pack_that_a_collector_deletes_is_not_lost(small: DiskState, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, names = SimDisk(small), Repairer._pack_names

    def then_collected(self: Repairer, catalog: Catalog) -> set[bytes]:
        found = names(self, catalog)
        for _ in range(2):
            TowerArchive.open(DirectoryStore(disk), []).collect(small=1 << 20)
        return found

    monkeypatch.setattr(Repairer, "_pack_names", then_collected)
    report = repaired(disk)
    assert not report.uncounted and not report.recorded and report.whole


def test_no_parity_is_left_of_a_pack_that_is_collected(small: DiskState, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(small)
    pack = max(p for p in small.files() if p.startswith("packs/")).removeprefix("packs/")
    disk.unlink(f"parity/{pack}")
    made = Parity.encode

    def then_collected(self: Parity) -> bytes:
        if self.pack.hex() == pack:
            monkeypatch.undo()
            for _ in range(2):
                TowerArchive.open(DirectoryStore(disk), []).collect(small=1 << 20)
        return made(self)

    monkeypatch.setattr(Parity, "encode", then_collected)
    assert f"parity/{pack}" in repaired(disk).remade and f"parity/{pack}" not in disk.seen.names


def test_a_version_lost_from_the_block_of_another_is_not_called_absent() -> None:
    """An index has one entry for both. The one that was saved hid the other, in walk 611 of those with markers."""
    disk = SimDisk()
    made = create(disk)
    turns = np.random.default_rng(1).integers(0, 60_000, (2, 5000))  # more than a piece of bitstrings each
    for count in (1, 2):
        made.put([NewSession("a", [*turns[:count]])])
    for _ in range(2):
        made.collect(dead_share=0.01)
    made.write_index()
    first, last = reopen(disk).history("a")
    assert first.location.offset == last.location.offset and first.location.pack == last.location.pack
    path = f"packs/{last.location.pack.hex()}"
    data, bits = disk.seen.files()[path], made.record(last.leaf).record.bitstring
    at = data.find(bits) + len(bits) // 2
    disk.seen.data[disk.seen.names[path]] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    disk.vanish(path.replace("packs", "parity"))
    assert not repaired(disk).whole
    fresh = reopen(disk)
    assert fresh.get("a", version=first.id).tokens.tolist() == turns[0].tolist()
    for version in (None, 1, 2, last.id):
        with pytest.raises(LostError):
            fresh.get("a", version=version)


# ---- Damage: every flipped bit is detected and never gives other tokens, and parsers accept any bytes


@pytest.fixture
def one_pack(archive: TowerArchive, disk: SimDisk) -> DiskState:
    """Make two sessions below a prompt, one with two versions of which one is forgotten, and an index."""
    sessions = [("a", [3] * 9, {}), ("b", [4] * 9, {}), ("a", [7], {"k": "v"})]
    archive.put([NewSession(n, [PROMPT, np.array(t)], shared=1, tags=label) for n, t, label in sessions])
    archive.write_index()
    archive.forget([archive.version("a", version=1)])
    archive.collect(small=0, dead_share=0.01)
    return disk.seen


# of files with a test of every bit: format/test_pack.py and others
STEPS = {"packs": 9, "parity": 53, "index": 9, "manifest": 37}


@pytest.mark.parametrize("kind", ["archive.json", "packs", "parity", "index", "manifest"])
def test_flipped_bits_are_detected(one_pack: DiskState, kind: str) -> None:
    """Flip every bit of each file, or one of STEPS."""
    truth = reopen(SimDisk(one_pack))
    tokens = {(v.name, v.version): truth.tower(v).tokens.tolist() for v in truth.ls(history=True)}
    files = {path: data for path, data in one_pack.files().items() if path.split("/")[0] == kind}
    files.pop("manifest/before", None)  # for repair
    for path, data in files.items():
        for bit in range(0, 8 * len(data), STEPS.get(kind, 1)):
            disk = SimDisk(one_pack, seed=9)
            disk.flip(path, bit // 8, 1 << bit % 8)
            try:
                archive = reopen(disk)
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


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("folder", ["packs", "index", "archive.json", "manifest"])
def test_damaged_archives(one_pack: DiskState, folder: str, defect: str) -> None:
    path, data = first(one_pack, folder)
    disk = with_file(one_pack, path, DEFECTS[defect](data))
    if folder == "manifest":
        with pytest.raises(PltzError):
            reopen(disk)
        return
    archive = reopen(disk)
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


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
@example(b"")
def test_parsers_take_anything(data: bytes) -> None:
    for parse in (Pack.of, FileIndex.of, Manifest.decode, Settings.decode):
        with pytest.raises(FormatError):
            parse(data)
