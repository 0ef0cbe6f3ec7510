"""Copies between open and sealed archives: a second run adds nothing, and a run that was cut off resumes."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.lookup import RecordLookup
from pltz.archive.errors import ArchiveError, MissingPack
from pltz.archive.format.ids import TENANT
from pltz.plt_codec.errors import UsageError
from tests.archive import towers
from tests.archive.kit import NewSession, Secret, SimDisk, TowerArchive, create, reopen

KEYS = [None, Secret(b"sixteen bytes or more", 0)]
PROMPT = np.arange(30)


def made(key: Secret | None) -> TowerArchive:
    return create(SimDisk(), key=key)


def filled(key: Secret | None) -> TowerArchive:
    """Make an archive with two sessions.

    One has three versions below a shared prompt, one of them twice. The other is of another tenant and has no time.
    """
    archive = made(key)
    for n, turns in enumerate(([1], [1, 2], [1])):
        archive.put([NewSession("s", [PROMPT, np.array(turns)], "acme", 1, "prompts", time=100 + n)])
    archive.put([NewSession("t", [np.array([5])], tags={"a": "b"}), NewSession("empty", [])])
    return archive


def copied(source: TowerArchive, to: TowerArchive) -> list[bool]:
    """Copy all versions and return for each whether it was there."""
    return [done.there for done in towers.copy(source, list(source.ls(history=True)), to)]


def content(archive: TowerArchive) -> list[tuple[str, str, int, int, list[int]]]:
    return [(v.tenant, v.name, v.version, v.time, archive.tower(v).tokens.tolist()) for v in archive.ls(history=True)]


@pytest.mark.parametrize(("theirs", "ours"), list(itertools.product(KEYS, KEYS)))
def test_a_copy_that_is_run_again_adds_nothing(theirs: Secret | None, ours: Secret | None) -> None:
    source, to = filled(theirs), made(ours)
    assert copied(source, to) == [False] * 5
    for _ in range(2):
        assert copied(source, to) == [True] * 5 and content(to) == content(source)
    source.put([NewSession("s", [PROMPT, np.array([1, 2, 3])], "acme", 1, "prompts", time=103)])
    assert sorted(copied(source, to)) == [False, *[True] * 5] and content(to) == content(source)


def test_what_a_copy_found_there_outlives_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may be between link and sync, and the copy puts nothing."""
    source, disk = filled(None), SimDisk()
    sync, to = disk.sync_directory, create(disk)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_directory", lambda path: None if path == "manifest" else sync(path))
        copied(source, to)
    assert all(copied(source, reopen(disk)))
    for state in disk.crashes("tmp"):
        assert content(reopen(SimDisk(state))) == content(source)


def test_a_copy_that_does_not_read_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = filled(None), made(None)
    reader = to.parts.reader
    towers_of = reader.towers

    def changed(versions: Any) -> list[towers.Tower]:
        return [replace(one, segments=[(s, t + 1) for s, t in one.segments]) for one in towers_of(versions)]

    monkeypatch.setattr(reader, "towers", changed)
    with pytest.raises(ArchiveError, match="does not read back"):
        copied(source, to)


@pytest.mark.parametrize("key", KEYS)
def test_a_copy_that_was_cut_off_goes_on(key: Secret | None) -> None:
    source, to = filled(KEYS[1]), made(key)
    versions = list(source.ls(history=True))
    list(towers.copy(source, versions[:3], to))
    assert sorted(copied(source, to)) == [False, False, True, True, True] and content(to) == content(source)


def test_what_is_erased_from_a_copy_while_it_is_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = filled(None), made(None)
    monkeypatch.setattr(RecordLookup, "versions", lambda catalog, domain, name: [])
    with pytest.raises(ArchiveError, match="copy again"):
        copied(source, to)


@pytest.mark.parametrize("collected", [False, True])
def test_what_was_erased_since_it_was_listed_is_passed_over(collected: bool) -> None:
    disk = SimDisk()
    source = create(disk, key=KEYS[1])
    for name in "abc":
        source.put([NewSession(name, [PROMPT + ord(name)])])
    to, versions = made(None), list(source.ls())
    other = reopen(disk, key=KEYS[1])
    other.erase("default", "b")
    for _ in range(2 * collected):
        other.collect()
    done = {d.version.name: d.erased for d in towers.copy(source, versions, to)}
    assert done == {"a": False, "b": True, "c": False} and [v.name for v in to.ls()] == ["a", "c"]


def test_what_is_lost_is_not_taken_for_erased() -> None:
    disk = SimDisk()
    source = create(disk)
    for name in "ab":
        source.put([NewSession(name, [PROMPT + ord(name)])])
    source.write_index()
    to, versions = made(None), list(source.ls())
    disk.unlink(f"packs/{versions[1].location.pack.hex()}")
    done = {d.version.name: (d.erased, type(d.lost)) for d in towers.copy(source, versions, to)}
    assert done == {"a": (False, type(None)), "b": (False, MissingPack)} and [v.name for v in to.ls()] == ["a"]


def test_a_copy_without_the_keys_of_a_tenant_is_not_called_whole() -> None:
    """Both files are there and empty: only who reads them knows, and copies look at the keys again and again."""
    disk = SimDisk()
    source = create(disk, key=KEYS[1])
    source.put([NewSession(name, [PROMPT], tenant) for name, tenant in (("a", "x"), ("b", "y"))])
    folder = f"keys/{source.keys.domain(TENANT, 'x').hex()}-"
    held = {path: data for path, data in disk.seen.files().items() if path.startswith(folder)}
    for path in held:
        disk.overwrite(path, b"")
    fresh = reopen(disk, key=KEYS[1])
    assert [d.version.name for d in towers.copy(fresh, fresh.ls(history=True), made(None))] == ["b"]
    with pytest.raises(ArchiveError, match="sessions are missing: the keys of domain"):
        fresh.want_whole("copied")
    for path, data in held.items():
        disk.overwrite(path, data)
    assert [v.name for v in fresh.ls()] == ["a", "b"]
    fresh.want_whole("copied")


def test_a_session_without_a_name_is_refused() -> None:
    for session in (NewSession("", [PROMPT]), NewSession("a", [PROMPT], tenant="")):
        with pytest.raises(UsageError, match="expected a name, found nothing"):
            made(None).put([session])
