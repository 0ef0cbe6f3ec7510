"""A pack of another archive among our packs is refused by name and moved aside. None of it is read or saved."""

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.plt_codec.errors import PltzError
from tests.archive.kit import DirectoryStore, NewSession, Repairer, SimDisk, TowerArchive, create, reopen, repaired


@pytest.fixture
def other() -> SimDisk:
    """Make another archive with a session of its own."""
    disk = SimDisk(seed=7)
    create(disk).put([_session("theirs", 9)])
    return disk


@pytest.fixture
def mixed(disk: SimDisk, archive: TowerArchive, other: SimDisk) -> SimDisk:
    """Put a session into the archive, and add all packs, parity and indexes of the other archive."""
    archive.put([_session("ours", 1)])
    for path, data in other.seen.files().items():
        if path not in (SETTINGS, SETTINGS_COPY) and not path.startswith("manifest/"):
            disk.write_new(path, data)
    return disk


def _session(name: str, first: int) -> NewSession:
    return NewSession(name, [np.arange(first, first + 40)])


@pytest.mark.parametrize("indexed", [False, True])
def test_nothing_of_it_is_shown(mixed: SimDisk, other: SimDisk, indexed: bool) -> None:
    """Refuse a foreign pack: its sessions were listed and read as if they were ours."""
    if indexed:
        reopen(other).write_index()
        [(name, _)] = other.names("index")
        mixed.write_new(f"index/{name}", other.seen.files()[f"index/{name}"])
    archive = reopen(mixed)
    assert [v.name for v in archive.ls()] == ["ours"]
    with pytest.raises(PltzError):
        archive.get("theirs")
    assert not archive.verify().sound, "parity tells that some manifest named it"
    before = mixed.seen.files()
    archive.collect()
    assert before.items() <= mixed.seen.files().items() | {(p, d) for p, d in before.items() if p[:9] == "manifest/"}


def test_repair_moves_it_aside_and_saves_nothing_of_it(mixed: SimDisk, other: SimDisk) -> None:
    theirs = {p: d for p, d in other.seen.files().items() if p.startswith("packs/")}
    dry = Repairer(DirectoryStore(mixed), dry_run=True).run()
    assert theirs.items() <= mixed.seen.files().items()
    done = repaired(mixed)
    assert done.whole and not done.salvaged and len(done.aside) == 2 and dry.aside == done.aside
    files = mixed.seen.files()
    assert not theirs.keys() & files.keys()
    assert set(theirs.values()) <= {data for path, data in files.items() if path.startswith("damaged/")}
    archive = reopen(mixed)
    report = archive.verify(decode=True)
    assert report.sound and not report.missing_copies and [v.name for v in archive.ls()] == ["ours"]
    again = repaired(mixed)
    assert again.whole and not again.aside and not again.restored


def test_where_all_packs_are_of_another_archive_it_is_archive_json_that_is_wrong(
    disk: SimDisk, archive: TowerArchive, other: SimDisk
) -> None:
    archive.put([_session("ours", 1)])
    for name, _ in list(disk.names("manifest")):
        disk.unlink(f"manifest/{name}")
    for path in (SETTINGS, SETTINGS_COPY):
        disk.unlink(path)
        disk.write_new(path, other.seen.files()[path])
    before = disk.seen.files()
    with pytest.raises(ArchiveError, match="bring the right archive"):
        repaired(disk)
    assert disk.seen.files() == before


def test_where_there_are_no_packs_the_manifest_tells_whose_archive_json_it_is(
    disk: SimDisk, archive: TowerArchive, other: SimDisk
) -> None:
    ours = disk.seen.files()[SETTINGS]
    disk.unlink(SETTINGS)
    disk.write_new(SETTINGS, other.seen.files()[SETTINGS])
    assert repaired(disk).whole and disk.seen.files()[SETTINGS] == ours


@pytest.mark.usefixtures("archive")
def test_where_there_are_no_packs_two_of_three_tell_whose_manifest_it_is(disk: SimDisk, other: SimDisk) -> None:
    ours = disk.seen.files()[SETTINGS]
    [there] = (path for path in disk.seen.files() if path.startswith("manifest/0"))
    disk.unlink(there)
    disk.write_new(there, next(d for p, d in other.seen.files().items() if p.startswith("manifest/0")))
    repaired(disk)
    assert disk.seen.files()[SETTINGS] == ours == disk.seen.files()[SETTINGS_COPY]
    reopen(disk).put([NewSession("a", [np.arange(9)])])
    assert reopen(disk).verify().sound
