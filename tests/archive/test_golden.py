"""Golden archives (tests/golden/archives): sound ones are read, and each defect gets the verdict listed here."""

import itertools
import json
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import MissingKeys
from pltz.archive.format.object_names import FOLDERS
from pltz.archive.format.record import NOTHING, RUN
from pltz.coding.codecs.codec import BytesCodec, Plain
from pltz.coding.codecs.logs import method_of
from pltz.plt_codec.container.frame import FAST, TOWER
from pltz.plt_codec.errors import CorruptError, PltzError, UsageError, VersionError
from tests.archive.kit import DirectoryStore, DiskState, NewSession, Repaired, Repairer, SimDisk, TowerArchive, repaired
from tests.archive.towers import open_keys
from tests.golden.archives.make import (
    FORGOTTEN,
    GREW,
    KEY,
    LOGS,
    PARTS,
    SESSIONS,
    TOLD,
    TURNS,
    defects,
    grown_codec,
    lines,
    log_codec,
    named_archives,
    turn,
)

HERE = Path(__file__).parents[1] / "golden" / "archives"
NAMES = sorted(path.stem for path in HERE.glob("*.zip"))
ALL = frozenset(SESSIONS)
LEFT = {  # sound, and what is left in them
    "good-deleted-by-collector": ALL - {FORGOTTEN},
    "good-loss-acknowledged": ALL - {("b", 1)},
}
GROWN = {"good-grown": [FAST | TOWER, FAST], "good-grown-merged": [RUN], "good-grown-merged-sealed": [RUN]}
GROWN["good-grown-ppmd"] = [TOWER]
OF_LOGS = ["good-logs", "good-logs-sealed"]
OF_PARTS = ["good-parts", "good-parts-sealed"]
GOOD = [name for name in NAMES if name.startswith("good") and name not in [*LEFT, *GROWN, *OF_LOGS, *OF_PARTS]]

REPAIRED = {  # found by verify, whole again after repair; the versions that can be read before that
    "bad-pack-missing": ALL - {("b", 1)},
    "bad-condemned-pack-missing": ALL - {("b", 1)},
    "bad-all-packs-missing-condemned": frozenset(),
    "bad-pack-empty": ALL - {("b", 1)},
    "bad-pack-bit-flipped": ALL - {("b", 1)},
    "bad-pack-cut-short": ALL - {("b", 1)},
    "bad-pack-grew": ALL - {("b", 1)},
    "bad-pack-header-zeroed": ALL - {("b", 1)},
    "bad-pack-all-zeros": ALL - {("b", 1)},
    "bad-pack-is-another": ALL - {("b", 1)},
    "bad-pack-of-another-archive": ALL,
    "bad-pack-with-marks-cut-short": ALL - {("a", 2)},
    "bad-shared-prompt-zeroed": frozenset(),
    "bad-parity-bit-flipped": ALL,
    "bad-index-bit-flipped": ALL,
    "bad-index-cut-short": ALL,
    "bad-settings-copy-zeroed": ALL,
    "bad-settings-zeroed": ALL,
    "bad-sealed-key-copy-zeroed": ALL,
}
REOPENED = [
    "bad-manifest-missing",
    "bad-manifest-bit-flipped",
    "bad-manifest-and-the-one-before-missing",
]  # not opened before repair, whole after it
LOST = {  # found by verify, and repair says so; what can be read before and after it
    "bad-pack-and-parity-missing": ALL - {("b", 1)},
    "bad-record-flipped-and-parity-gone": ALL - {("b", 1)},
    "bad-shared-prompt-and-parity-missing": frozenset(),
}
REFUSED = {  # not opened, and not repaired
    "bad-settings-of-a-newer-version": VersionError,
    "bad-manifest-of-a-newer-version": VersionError,
    "bad-sealed-keys-of-a-newer-version": VersionError,
    "bad-sealed-archive-key-missing": CorruptError,
}
SPECIAL = ["bad-loss-recorded", "bad-footer-and-parity-gone", "bad-pack-of-a-newer-version", "bad-sealed-keys-missing"]


def disk_of(name: str) -> SimDisk:
    state = DiskState(folders={"", *FOLDERS})
    with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
        for number, path in enumerate(archive.namelist()):
            state.names[path], state.data[number] = number, archive.read(path)
    return SimDisk(state, seed=5)


def opened(disk: SimDisk, name: str) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), [BytesCodec()], key=KEY if "sealed" in name else None)


def readable(archive: TowerArchive) -> frozenset[tuple[str, int]]:
    """Return the versions that can be read, and check that each is read as it was put."""
    found = set()
    for name in {name for name, _ in SESSIONS}:
        with suppress(PltzError):
            for version in archive.history(name):
                with suppress(PltzError):
                    tokens = archive.tower(version).tokens.tolist()
                    found.add(next(key for key, put in SESSIONS.items() if (key[0], put) == (name, tokens)))
    return frozenset(found)


def repair(disk: SimDisk, name: str) -> Repaired:
    store = DirectoryStore(disk)
    return Repairer(store, lambda s: open_keys(store, s, KEY if "sealed" in name else None)).run()


def whole(archive: TowerArchive) -> bool:
    report = archive.verify(decode=True)
    forgotten = {(v.name, v.version) for v in archive.ls(history=True, forgotten=True) if v.forgotten}
    return report.sound and not report.undecoded and readable(archive) == ALL and forgotten == {FORGOTTEN}


def test_every_golden_archive_has_a_verdict_and_a_maker() -> None:
    verdicts = [*GOOD, *GROWN, *OF_LOGS, *OF_PARTS, *LEFT, *REPAIRED, *REOPENED, *LOST, *REFUSED, *SPECIAL]
    assert sorted(verdicts) == NAMES == sorted([*defects(), *GROWN, *OF_LOGS, *OF_PARTS, *named_archives()])


@pytest.mark.parametrize("name", GOOD)
def test_good_archives_are_read(name: str) -> None:
    disk = disk_of(name)
    assert whole(opened(disk, name)) and repair(disk, name).whole and whole(opened(disk, name))


@pytest.mark.parametrize("name", GROWN)
def test_a_session_that_grew_is_read_turn_by_turn_and_merged(name: str) -> None:
    disk = disk_of(name)
    key = KEY if "sealed" in name else None
    archive = TowerArchive.open(DirectoryStore(disk), [grown_codec(), grown_codec(fast=True)], key=key)
    history = archive.history(GREW)
    assert [v.version for v in history] == list(range(1, TURNS + 1)) and archive.verify(decode=True).sound
    for number, tower in enumerate(archive.towers(history), 1):
        assert [tokens.tolist() for _, tokens in tower.segments] == [turn(n) for n in range(number)]
    modes = {archive.record(v.leaf).record.mode for v in history}
    assert all(any(mode & wanted == wanted for mode in modes) for wanted in GROWN[name])
    places = {v.location for v in history}  # the first version ends in the prompt, which is no part of a run
    assert len(places) == (2 if "merged" in name else TURNS)


@pytest.mark.parametrize("name", OF_LOGS)
def test_logs_of_agents_are_read_and_coded_as_they_were(name: str) -> None:
    disk = disk_of(name)
    key = KEY if "sealed" in name else None
    archive = TowerArchive.open(DirectoryStore(disk), [log_codec()], key=key)
    rows = {log: [lines(a, b) for a, b in itertools.pairwise(steps)] for log, steps in LOGS.items()}
    for log, expected in rows.items():
        for version, tower in enumerate(archive.towers(archive.history(log)), 1):
            assert [tokens.astype(np.uint8).tobytes() for _, tokens in tower.segments] == expected[:version]
    segments = {log: [archive.record(s) for s, _ in archive.get(log).segments] for log in LOGS}
    methods = {log: [method_of(archive.keys.bits(i.context, i.record))[0] for i in of] for log, of in segments.items()}
    assert methods["shop/first"] == ["log + model"] and methods["shop/large"][0] == "log + ppmd"
    assert archive.verify(decode=True).sound
    for log, expected in rows.items():  # the same bytes are the same segments: nothing is coded again
        tokens = [np.frombuffer(one, np.uint8) for one in expected]
        [receipt] = archive.put([NewSession(log, tokens, kind="text")])
        assert receipt.unchanged and receipt.new == 0
    # and coded again they take the same bits
    [again] = log_codec().encode([Plain(np.frombuffer(rows["shop/first"][0], np.uint8), np.zeros(0, np.uint8))])
    assert again == archive.keys.bits(segments["shop/first"][0].context, segments["shop/first"][0].record)
    assert repair(disk, name).whole


@pytest.mark.parametrize("name", OF_PARTS)
def test_parts_of_a_session_are_read_as_they_were(name: str) -> None:
    disk = disk_of(name)
    archive, wanted = opened(disk, name), dict[str, list[int]]()
    for number, each in enumerate(PARTS, 1):
        wanted |= each
        whole = archive.parts.directory.whole("log", wanted=number)
        assert {part.part: archive.tower(part).tokens.tolist() for part in whole.each} == wanted
        assert whole.forgotten == (number == 1)
    told = {v.part: v.content for whole in archive.ls(history=True) for v in whole.each}
    assert told == {part: NOTHING if part else TOLD for part in wanted}
    # what the later versions have of the first is not forgotten with it
    marked = {(v.version, v.part) for v in archive.history("log") if v.forgotten}
    assert marked == {(1, "agents/one")} and archive.verify(decode=True).sound and repair(disk, name).whole


@pytest.mark.parametrize("name", LEFT)
def test_what_is_gone_for_a_reason_is_not_missed(name: str) -> None:
    disk = disk_of(name)
    for _ in range(2):
        archive = opened(disk, name)
        assert readable(archive) == LEFT[name] and archive.verify(decode=True).sound
        archive.want_whole("read")
        assert repair(disk, name).whole


def test_a_loss_is_told_until_it_is_acknowledged() -> None:
    name, left = "bad-loss-recorded", ALL - {("b", 1)}
    disk = disk_of(name)
    for _ in range(2):
        archive = opened(disk, name)
        assert readable(archive) == left and not archive.verify().sound
        with pytest.raises(PltzError, match="pack"):
            archive.want_whole("read")
        assert not repair(disk, name).whole
    assert len(opened(disk, name).acknowledge()) == 1
    archive = opened(disk, name)
    assert readable(archive) == left and archive.verify(decode=True).sound and repair(disk, name).whole
    archive.want_whole("read")


@pytest.mark.parametrize("name", REPAIRED)
def test_what_repair_makes_whole(name: str) -> None:
    disk = disk_of(name)
    archive = opened(disk, name)
    assert readable(archive) == REPAIRED[name] and not archive.verify().sound and repair(disk, name).whole
    assert whole(opened(disk, name))


@pytest.mark.parametrize("name", REOPENED)
def test_what_is_not_opened_before_it_is_repaired(name: str) -> None:
    disk = disk_of(name)
    with pytest.raises(PltzError):
        opened(disk, name)
    assert repair(disk, name).whole and whole(opened(disk, name))


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_is_named_and_the_rest_is_kept(name: str) -> None:
    disk = disk_of(name)
    archive = opened(disk, name)
    assert readable(archive) == LOST[name] and not archive.verify(decode=True).sound
    told = repair(disk, name)
    assert not told.whole
    named = {(v.name, v.version) for v in told.lost} | {(u.name, 1) for u in told.unnamed}
    assert len(told.lost) + len(told.unnamed) == len(ALL - {FORGOTTEN} - LOST[name]), named
    assert readable(opened(disk, name)) == LOST[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_a_person_can_decide(name: str) -> None:
    disk = disk_of(name)
    before = disk.seen.files()
    with pytest.raises(REFUSED[name]):
        opened(disk, name)
    try:
        assert not repair(disk, name).whole
    except (UsageError, CorruptError, VersionError):
        pass
    with pytest.raises(REFUSED[name]):
        opened(disk, name)
    assert before.items() <= disk.seen.files().items(), "nothing was deleted"


def test_where_nothing_says_how_many_records_there_were_repair_does_not_vouch_for_all() -> None:
    """Take a pack that is no small one, which has a second header."""
    disk, noise = disk_of("good"), np.random.default_rng(3).integers(0, 256, 5000)
    before = set(disk.seen.files())
    opened(disk, "").put([NewSession("noise", [noise])])
    [path] = (path for path in disk.seen.files().keys() - before if path.startswith("packs/"))
    data = disk.seen.files()[path]
    disk.overwrite(path, data[:9] + bytes([data[9] ^ 1]) + data[10:-24] + bytes(24))  # the first header and the footer
    disk.unlink(path.replace("packs", "parity"))

    def read() -> bool:
        archive = opened(disk, "")
        [version] = archive.history("noise")
        return readable(archive) == ALL and archive.tower(version).tokens.tolist() == noise.tolist()

    assert read() and not opened(disk, "").verify().sound
    told = repair(disk, "")
    assert (told.salvaged, told.uncounted, told.whole) == (1, 1, False)
    assert read() and not opened(disk, "").verify().sound and len(opened(disk, "").acknowledge()) == 1
    assert whole(opened(disk, ""))


def test_a_pack_of_another_version_is_named_and_left_alone() -> None:
    disk, why = disk_of("bad-pack-of-a-newer-version"), "use a newer pltz"
    archive = opened(disk, "")
    assert readable(archive) == ALL - {("a", 2)}
    report = archive.verify()
    assert not report.sound and any(why in p.what for p in report.problems)
    before = disk.seen.files()
    assert not repair(disk, "").whole
    packs = {path: data for path, data in before.items() if path.startswith("packs/")}
    assert packs.items() <= disk.seen.files().items()


def test_without_the_keys_of_a_domain_nothing_is_read_or_put_and_that_is_told() -> None:
    disk = disk_of("bad-sealed-keys-missing")
    archive = opened(disk, "sealed")
    assert not readable(archive)
    for key in (KEY, None):
        report = TowerArchive.open(DirectoryStore(disk), [BytesCodec()], key=key).verify()
        assert not report.sound and {p.kind for p in report.problems} == {"keys"}
    before, told = disk.seen.files(), repair(disk, "sealed")
    assert not told.whole and len(told.keyless) == 2 and not told.lost
    with pytest.raises(MissingKeys):
        archive.put([NewSession("a", [np.array(SESSIONS["a", 2])])])
    assert before.items() <= disk.seen.files().items()


@pytest.mark.parametrize("name", ["bad-sealed-archive-key-missing"])
def test_without_the_archives_own_key_file_verify_and_repair_tell(name: str) -> None:
    disk = disk_of(name)
    report = TowerArchive.open(DirectoryStore(disk), [BytesCodec()]).verify()
    assert [p.name for p in report.problems] == [json.loads(disk.seen.files()["archive.json"])["archive"]]
    told = repaired(disk)
    assert not told.whole and len(told.keyless) == 1
