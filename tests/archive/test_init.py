"""Init: of several at once one wins completely, and an init that a crash cut off can be run again."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, cast

import numpy as np
import pytest

from pltz.archive.encryption.keys import Secret
from pltz.archive.format.object_names import FOLDERS, SETTINGS
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import CorruptError, PltzError, UsageError
from tests.archive.kit import DirectoryStore, DiskState, NewSession, SegmentCodec, SimDisk, TowerArchive, create, reopen

KEYS = [Secret(b"sixteen bytes, %d" % n, 0) for n in range(4)]
ALIKE = 8  # states with the same files and as many folders, which a crash leaves in any combination
CALLS = "make", "put", "read", "list", "delete", "shred"


class Interrupted:
    """A store that lets another process act before call number ``at``."""

    def __init__(self, store: Store, at: int, work: Callable[[], object]):
        self._store, self._left, self._work = store, at, work

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)

        def call(*arguments: Any) -> Any:
            self._left -= 1
            if not self._left:
                self._work()
            return found(*arguments)

        return call if name in CALLS else found


def made(store: Store, codec: SegmentCodec, key: Secret | None) -> TowerArchive | PltzError:
    try:
        return TowerArchive.create(store, [codec], key=key)
    except PltzError as exc:
        return exc


def made_too(store: Store, codec: SegmentCodec, key: Secret | None, results: list[TowerArchive | PltzError]) -> None:
    results.append(made(store, codec, key))


def check_one_won(
    store: Store, codec: SegmentCodec, results: list[TowerArchive | PltzError], keys: list[Secret | None]
) -> None:
    """Check that the others were refused, and that the winner's archive opens with the winner's key and works."""
    won = [n for n, r in enumerate(results) if isinstance(r, TowerArchive)]
    assert len(won) == 1, results
    assert all(isinstance(r, UsageError) for r in results if not isinstance(r, TowerArchive)), results
    archive = results[won[0]]
    assert isinstance(archive, TowerArchive)
    archive.put([NewSession("a", [np.arange(9)])])
    fresh = TowerArchive.open(store, [codec], key=keys[won[0]])
    assert fresh.get("a").tokens.tolist() == list(range(9)) and fresh.verify(decode=True).sound


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_another_init_at_any_call_of_one(codec: SegmentCodec, first: bool, second: bool) -> None:
    keys = [KEYS[0] if first else None, KEYS[1] if second else None]
    for at in range(1, 100):
        store = DirectoryStore(SimDisk())
        others: list[TowerArchive | PltzError] = []
        broken = Interrupted(store, at, partial(made_too, store, codec, keys[1], others))
        mine = made(cast("Store", broken), codec, keys[0])
        if not others:
            break
        check_one_won(store, codec, [mine, *others], keys)
    assert at > (12 if first else 8)


@pytest.mark.parametrize("sealed", [True, False])
def test_many_at_once(store: Store, codec: SegmentCodec, sealed: bool) -> None:
    keys = KEYS if sealed else [None] * len(KEYS)
    barrier = Barrier(len(keys))

    def make(key: Secret | None) -> TowerArchive | PltzError:
        barrier.wait()
        return made(store, codec, key)

    with ThreadPoolExecutor(len(keys)) as pool:
        results = list(pool.map(make, keys))
    check_one_won(store, codec, results, list(keys))


@pytest.mark.parametrize("sealed", [True, False])
def test_a_crash_of_init_at_any_point(codec: SegmentCodec, sealed: bool) -> None:
    """Crash an init: it leaves no archive, a whole one, or one that the next init finishes with any key."""
    key = KEYS[0] if sealed else None
    disk = SimDisk()
    states: dict[object, dict[frozenset[str], DiskState]] = {}  # by files outside tmp/, number of folders, and folders

    def watch() -> None:
        for state in disk.crashes("tmp"):
            files = frozenset((p, d) for p, d in state.files().items() if not p.startswith("tmp/"))
            alike = states.setdefault((files, len(state.folders)), {})
            if len(alike) < ALIKE:
                alike.setdefault(frozenset(state.folders), state)

    disk.watch = watch
    create(disk, key=key)
    finished = whole = 0
    for state in itertools.chain(*(alike.values() for alike in states.values())):
        store = DirectoryStore(SimDisk(state, seed=3))
        other = KEYS[1] if sealed else None
        again = made(store, codec, other)
        if isinstance(again, TowerArchive):
            finished += 1
            check_one_won(store, codec, [again], [other])
        else:
            whole += 1
            check_one_won(store, codec, [TowerArchive.open(store, [codec], key=key)], [key])
    assert finished > 40 and whole


def test_an_archive_that_lost_its_settings_is_not_made_anew(disk: SimDisk) -> None:
    """Refuse an init over an archive, whose keys it would destroy."""
    create(disk, key=KEYS[0]).put([NewSession("a", [np.arange(9)])])
    settings = disk.read(SETTINGS, 0, 9999)
    disk.unlink(SETTINGS)
    before = dict(disk.seen.files())
    with pytest.raises(UsageError, match="repair"):
        create(disk, key=KEYS[1])
    assert {p: d for p, d in disk.seen.files().items() if not p.startswith("tmp/")} == before
    disk.write_new(SETTINGS, settings)
    assert len(reopen(disk, key=KEYS[0]).get("a").tokens) == 9


def test_a_sealed_archive_without_its_key_says_what_to_do(disk: SimDisk) -> None:
    create(disk, key=KEYS[0])
    for path in [p for p in disk.seen.names if p.startswith("keys/")]:
        disk.unlink(path)
    with pytest.raises(CorruptError, match="run it again"):
        reopen(disk, key=KEYS[0])
    assert set(FOLDERS) <= disk.seen.folders
