"""Conversion: an archive gets a manifest in place, beside writers, and whatever cuts it off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pltz.archive import opener
from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import Fenced, NotFound, StoreError
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.parity import SHARE, SHARED
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.s3 import ObjectStore
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from tests.archive.conftest import S3Server
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive

PROMPT = np.arange(20)
Contents = dict[tuple[str, int], list[int]]


def session(name: str, *more: int) -> NewSession:
    return NewSession(name, [PROMPT, np.array([ord(name[0]), *more])], shared=1)


def contents(archive: TowerArchive) -> Contents:
    return {(v.name, v.version): archive.tower(v).tokens.tolist() for v in archive.ls(history=True)}


def filled(store: Store, codec: SegmentCodec, key: Secret | None = None, parity: int = SHARE) -> TowerArchive:
    """Make an archive without a manifest that has an index, a pack without one, a mark and a plan."""
    made = TowerArchive.create(store, [codec], key=key, parity=(parity, SHARED), manifest=False)
    made.put([session("a"), session("b")])
    made.put([session("a", 1)])
    made.forget(made.history("b"))
    made.collect(dead_share=0.01)
    made.write_index()
    made.put([session("c")])
    return made


@pytest.mark.parametrize("key", [None, RAW], ids=["open", "sealed"])
@pytest.mark.parametrize("parity", [SHARE, 0])
def test_an_archive_gets_a_manifest_in_place(
    store: Store, codec: SegmentCodec, key: Secret | None, parity: int
) -> None:
    old = filled(store, codec, key, parity)
    before = contents(old)
    assert opener.convert(store) and not opener.convert(store)
    new = TowerArchive.open(store, [codec], key=key)
    assert new.settings.manifest and new.catalog.listing.following and contents(new) == before
    assert not new.catalog.listing.late
    report = new.verify(decode=True)
    assert report.sound and not report.missing_copies
    assert contents(old) == before and old.catalog.listing.following  # an object from before follows it too
    for archive in (old, new):
        archive.put([session("d", len(before))])
    for _ in range(2):
        new.collect(dead_share=0.01)
    last = TowerArchive.open(store, [codec], key=key)
    assert len(contents(old)) == len(contents(last)) == len(before) + 1 and last.verify(decode=True).sound


def converted(store: Store) -> None:
    opener.convert(store)


def test_a_crash_at_any_point_leaves_all_and_the_next_call_finishes(codec: SegmentCodec) -> None:
    disk = SimDisk()
    before = contents(filled(DirectoryStore(disk), codec))
    states: dict[frozenset[tuple[str, bytes]], DiskState] = {}

    def watch() -> None:
        for state in disk.crashes("tmp"):
            states.setdefault(frozenset(f for f in state.files().items() if not f[0].startswith("tmp/")), state)

    disk.watch = watch
    assert opener.convert(DirectoryStore(disk))
    kinds = set[tuple[bool, bool]]()
    for state in states.values():
        after = SimDisk(state, seed=1)
        opened = TowerArchive.open(DirectoryStore(after), [codec])
        kinds.add((opened.settings.manifest, opened.catalog.listing.following))
        assert contents(opened) == before and opened.verify(decode=True).sound
        opened.put([session("d")])
        Repairer(DirectoryStore(after)).run()
        opener.convert(DirectoryStore(after))
        last = TowerArchive.open(DirectoryStore(after), [codec])
        assert last.catalog.listing.following and len(contents(last)) == len(before) + 1
        report = last.verify(decode=True)
        assert report.sound and not report.missing_copies
    assert kinds == {(False, False), (True, False), (True, True)} and len(states) >= 5


class Between(DirectoryStore):
    """A store that lets others act before its call number ``at``."""

    def __init__(self, disk: SimDisk, at: int, work: Callable[[], object]) -> None:
        super().__init__(disk)
        self.calls, self.work = at, work

    def _step(self) -> None:
        self.calls -= 1
        if not self.calls:
            self.work()

    def put(self, name: str, data: bytes) -> bool:
        self._step()
        return super().put(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self._step()
        super().replace(name, data)

    def read(self, name: str, offset: int, size: int) -> bytes:
        self._step()
        return super().read(name, offset, size)

    def list(self, folder: str) -> dict[str, int]:
        self._step()
        return super().list(folder)


def check_all_named(disk: SimDisk, codec: SegmentCodec, wanted: Contents) -> None:
    """Check that readers that list nothing see all that was acknowledged, and that all is sound."""
    opener.convert(DirectoryStore(disk))
    after = TowerArchive.open(DirectoryStore(disk), [codec])
    assert after.catalog.listing.following
    found = contents(after)
    assert after.catalog.listing.following and wanted.items() <= found.items()
    assert after.verify(decode=True).sound


def starts(codec: SegmentCodec, parity: int) -> Iterator[tuple[int, SimDisk]]:
    root = SimDisk()
    filled(DirectoryStore(root), codec, parity=parity)
    for at in range(1, 200):
        yield at, root.clone()


@pytest.mark.parametrize("parity", [SHARE, 0])
def test_a_conversion_at_any_call_of_a_put(codec: SegmentCodec, parity: int) -> None:
    """Name what an old process acknowledges; it puts again what it may not acknowledge."""
    refused = 0
    for at, disk in starts(codec, parity):
        store = Between(disk, at, lambda disk=disk: converted(DirectoryStore(disk)))  # type: ignore[misc]
        old = TowerArchive.open(DirectoryStore(disk), [codec])
        old.parts.catalog.store = old.parts.catalog.listing.store = store
        try:
            old.put([session("d"), session("a", 2)])
        except Fenced:
            refused += 1
            check_all_named(disk, codec, {})
            old.put([session("d"), session("a", 2)])
        if store.calls > 0:
            break
        assert old.get("a").tokens.tolist()[-2:] == [ord("a"), 2]
        check_all_named(disk, codec, contents(old))
    assert at > 5 and refused


@pytest.mark.parametrize("parity", [SHARE, 0])
def test_an_old_put_at_any_call_of_a_conversion(codec: SegmentCodec, parity: int) -> None:
    done = 0
    for at, disk in starts(codec, parity):
        old = TowerArchive.open(DirectoryStore(disk), [codec])

        def put(old: TowerArchive = old) -> None:
            nonlocal done
            with suppress(Fenced):
                old.put([session("d"), session("a", 2)])
                done += 1

        store = Between(disk, at, put)
        opener.convert(store)
        if store.calls > 0:
            break
        check_all_named(disk, codec, contents(old))
    assert at > 8 and done > 8


def test_an_old_reader_sees_no_put_that_was_cut_off(
    disk: SimDisk, codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = filled(DirectoryStore(disk), codec)
    opener.convert(DirectoryStore(disk))

    def fail(*_: object) -> None:
        raise StoreError("cut off")

    writer = TowerArchive.open(DirectoryStore(disk), [codec])
    monkeypatch.setattr(writer.store, "swap", fail)
    with pytest.raises(StoreError, match="cut off"):
        writer.put([session("z")])
    with pytest.raises(NotFound):
        old.get("z")
    assert "z" not in [v.name for v in old.ls()]


def test_a_pack_without_parity_is_no_late_one(disk: SimDisk, codec: SegmentCodec) -> None:
    """It was acknowledged before there was a manifest. As a late one it would never be merged with others."""
    archive = filled(DirectoryStore(disk), codec)
    before, bare = contents(archive), archive.version("c").location.pack
    disk.vanish(f"parity/{bare.hex()}")
    assert opener.convert(DirectoryStore(disk))
    after = TowerArchive.open(DirectoryStore(disk), [codec])
    assert bare in after.catalog.listing.packs and not after.catalog.listing.late
    assert contents(after) == before and after.verify().missing_copies == [f"parity/{bare.hex()}"]


@pytest.mark.parametrize("paths", [(SETTINGS,), (SETTINGS, SETTINGS_COPY)])
def test_settings_of_before_that_come_back_are_those_of_the_manifest(
    disk: SimDisk, codec: SegmentCodec, paths: tuple[str, ...]
) -> None:
    filled(DirectoryStore(disk), codec)
    old = {path: disk.read(path, 0, 9999) for path in paths}
    opener.convert(DirectoryStore(disk))
    for path, data in old.items():
        disk.vanish(path)
        disk.write_new(path, data)
    assert set(Repairer(DirectoryStore(disk)).run().restored) == {SETTINGS, SETTINGS_COPY}
    opened = TowerArchive.open(DirectoryStore(disk), [codec])
    assert opened.settings.manifest and opened.catalog.listing.following


def test_a_bucket_that_ignores_a_condition_keeps_its_archive_as_it_is(
    s3: S3Server, codec: SegmentCodec, tmp_path: Path
) -> None:
    store = ObjectStore(s3.place(), tmp_path)
    before = contents(filled(store, codec))
    s3.ignoring = "HTTP_IF_MATCH"
    with pytest.raises(StoreError, match="If-Match"):
        opener.convert(store)
    opened = TowerArchive.open(store, [codec])
    assert not opened.settings.manifest and contents(opened) == before
