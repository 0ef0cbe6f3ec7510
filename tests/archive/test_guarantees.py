"""The promises of docs/guarantees.md, after every step of random walks with damage, kills and others beside.

`GuardedMachine` is a state machine with a model that knows what was acknowledged, and with a disk on which something
happens in the middle of an operation. Sessions are alike, and some share a prompt with the other tenant. One file, or a
pack with its parity, is damaged at a time: changed, cut off, zeroed or removed. Later it is put back, or repaired.
After each step everything is read through a fresh and through an old object of the archive, open and sealed.

`SEEDS` walk in every run. PLTZ_ALL_FAULTS=1 adds `MORE`, and takes half an hour.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pltz.archive.archive import Archive
from pltz.archive.author import Author
from pltz.archive.catalog.lookup import Version, VersionName
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import Secret
from pltz.archive.encryption.rekey import rekey
from pltz.archive.encryption.root_keys import MOST_SECRETS
from pltz.archive.errors import KeyMismatch, NotFound, RolledBack, StaysErased, StoreError
from pltz.archive.format.clock import STEP
from pltz.archive.format.ids import Tokens
from pltz.archive.format.manifest import Manifest
from pltz.archive.maintenance.erase import Eraser
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.retention import Policy, expired
from pltz.archive.storage.seen import PLACES
from pltz.archive.storage.store import Content, Store
from pltz.coding.codecs.codec import Coded
from pltz.plt_codec.container.frame import TOWER
from pltz.plt_codec.errors import PltzError
from tests.archive.kit import RAW, DirectoryStore, DiskState, NewSession, SimDisk, TowerArchive, ZlibCodec, create
from tests.archive.test_machine import NAMES
from tests.archive.towers import Tower, copy
from tests.examples import examples

SEEDS = range(2)
MORE = range(2, 60)
WALKS, STEPS = 16, 40  # of each seed, if all are walked: see `examples`. The first does next to nothing
BATCH_TOKENS = 300  # tokens decoded at once, in place of a million
DAY = 24 * 3600
GRACE = 7 * DAY
PARITY_OF_ALL = 2048  # bytes of a pack that comes back from its parity alone
HANDLES = 2
KINDS = "changed", "cut", "zeroed", "gone", "other", "foreign"  # damage: the last two are bytes of other files

Key = tuple[str, str]
Event = tuple[str, int] | None
T = TypeVar("T")

BESIDE = "y", "beside"  # the session that a writer beside puts
KEPT = "packs", "parity", "index", "list", "lost", "damaged"  # what a keeper may delete
FREES = "collector", "forgetter", "eraser"  # what may free versions beside an operation
PARTS = "p", "p|a", "p|b/c"  # names in the model of a session's parts, which are never forgotten here
ALIKE = np.random.default_rng(5).integers(0, 60_000, 80)
HANDLE = st.integers(0, HANDLES - 1)
TENANT = st.sampled_from("xy")
TURN = st.lists(st.integers(0, 255), min_size=1, max_size=6)
EVENT = st.none() | st.tuples(st.sampled_from(["kill", "collector", "writer"]), st.integers(1, 80))


class Killed(BaseException):
    """The end of a process by a kill."""


READS = frozenset(("names", "changed", "read", "view", "open"))
CHANGES = frozenset(
    ("make_directory", "write_new", "overwrite", "append", "truncate", "sync_file", "link", "unlink", "sync_directory")
)


class InterruptedDisk(SimDisk):
    """A disk on which something happens before one of its calls."""

    def __init__(self, state: DiskState | None = None, seed: int = 0) -> None:
        self.wait(0, lambda: None)
        super().__init__(state, seed)

    def wait(self, calls: int, happen: Callable[[], None]) -> None:
        """Let something happen before one of the next calls; 0: before none."""
        self._left, self._happen = calls, happen

    @property
    def calls_waited(self) -> int:
        """Return the calls since `wait`, where nothing was to happen."""
        return -self._left

    def _step(self) -> None:
        self._left -= 1
        if not self._left:
            self._happen()

    def __getattribute__(self, name: str) -> Any:
        if name in READS or name in CHANGES:  # before the call looks at anything
            self._step()
        return super().__getattribute__(name)


class BoundedCodec(ZlibCodec):
    """The codec of the tests. It counts the most tokens that it was asked to decode at once, of several records."""

    def __init__(self) -> None:
        super().__init__(TOWER, b"zlib with tower.")
        self.most = 0

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        if len(batch) > 1:
            self.most = max(self.most, sum(coded.count for coded in batch))
        return super().decode(batch)


@dataclass
class KnownVersion:
    """A version that the archive must have.

    Attributes:
        forgotten: None where a mark was asked for and its answer is not known.
        at: time at which it was forgotten, in seconds since 1970.
        may_go: a collector may have freed it.
        moment: when it was put, in ticks. A session's versions are ordered by it, whoever put them.
        half_forgotten: a mark was asked for and not acknowledged, which takes effect where a manifest is made anew.
    """

    id: bytes
    moment: int
    tokens: tuple[int, ...]
    forgotten: bool | None = False
    at: int = 0
    may_go: bool = False
    half_forgotten: bool = False

    @property
    def order(self) -> tuple[int, bytes]:
        """Return the sort key that puts versions of a session oldest first."""
        return self.moment, self.id


class GuardedMachine(RuleBasedStateMachine):
    """A model (tenant, name) -> versions by their moments, beside an archive that is damaged and mended."""

    key: Any = None
    append_only = False
    also_old = 1  # objects that are asked for the promises beside a new one
    denied = False  # whether the last work was refused for want of a right
    disk: InterruptedDisk

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.handles = InterruptedDisk(), list[TowerArchive]()
        self.codec = self.bounded = BoundedCodec()
        self.known: dict[Key, list[KnownVersion]] = {}
        self.turns: dict[Key, list[list[int]]] = {}
        self.doubts: dict[Key, set[tuple[int, ...]]] = {}  # asked for and not acknowledged
        self.orphans: dict[Key, set[tuple[int, ...]]] = {}  # those that no manifest named, unless it gets lost
        self.held = set[Key]()  # sessions whose hold was acknowledged and not released
        self.hurt: dict[str, bytes] = {}  # damaged files, with their bytes before
        self.mendable = True  # repair must bring back everything
        self.killed = False  # whether any work was
        self.back = 0  # times that something old came back
        self.backup: dict[str, bytes] = {}
        self.cache = TemporaryDirectory()
        self._bound = mock.patch("pltz.archive.catalog.chain.BATCH_TOKENS", BATCH_TOKENS)
        self._bound.start()

    def teardown(self) -> None:
        self._bound.stop()
        self.cache.cleanup()
        super().teardown()

    # ---- opening, and work that may fail

    @initialize()
    def start(self) -> None:
        store = self.store()
        TowerArchive.create(store, [self.codec], key=self.key, append_only=self.append_only)
        self.open_all()
        self.own_key = self.handles[0].catalog.listing.archive.hex()  # without both copies of it nothing opens

    def store(self) -> DirectoryStore:
        return DirectoryStore(self.disk, cache=Path(self.cache.name))

    def open(self) -> TowerArchive:
        return self.opened(self.store())

    def opened(self, store: Store, key: Any = None) -> TowerArchive:
        return TowerArchive.open(store, [self.codec], key=key or self.key)

    def open_one(self, handle: int) -> TowerArchive:
        """Open the archive as one of the objects does."""
        return self.open()

    def open_all(self) -> bool:
        self.handles = [self.open_one(handle) for handle in range(HANDLES)]
        return True

    def with_all_rights(self) -> None:
        """Open both objects as who may do anything."""

    def is_denied(self, error: PltzError) -> bool:
        """Return whether work was refused for want of a right."""
        return False

    def session(self, tenant: str, name: str, turns: list[list[int]]) -> NewSession:
        """Return a session. Those of a tenant have a tag that changes by the turn: inside a run they need records."""
        first, *others = (np.array(t, np.int64) for t in turns)
        own, (name, _, part) = np.concatenate([ALIKE[:40], first, ALIKE[40:]]), name.partition("|")
        shared = [np.concatenate([own, [len(others)]]), own[5:]] if name == "a" else [own]  # one of prompts much alike
        tags = {"turn": str(len(turns))} if tenant == "y" else {}
        return NewSession(name, [*shared, *others], tenant, shared=int(name == "a"), part=part, tags=tags)

    def act(self, event: Event, work: Callable[[], T], allowed: tuple[int, ...] = ()) -> T | None:
        """Return the result of work, or None where it was killed or refused with a cause.

        Work is refused where something is damaged, or where others are at work. Nothing but a PltzError escapes.
        """
        self.denied = False
        if self.hurt:
            event = None
        if event:
            self.disk.wait(event[1], partial(getattr(self, f"_{event[0]}")))
        try:
            return work()
        except Killed:
            self.power_fails()
        except PltzError as exc:
            self.disk.wait(0, lambda: None)
            self.denied = self.is_denied(exc)
            codes = {*allowed, *((3, 4, 7) if self.hurt else (7,) if event and self.may_refuse(event) else ())}
            assert self.denied or exc.exit_code in codes, f"refused without a cause: {type(exc).__name__}: {exc}"
            with suppress(PltzError):
                self.open_all()
        finally:
            self.disk.wait(0, lambda: None)
        return None

    def may_refuse(self, event: Event) -> bool:
        """Return whether work may end with an error where something happens beside it."""
        return True

    def _kill(self) -> None:
        self.killed = True
        raise Killed

    def _collector(self) -> None:
        self.freed(0)
        for _ in range(2):
            self.open().collect(dead_share=0.01)

    def _writer(self) -> None:
        session = self.session(*BESIDE, [[self.disk.drawn % 256]])
        self.learn(session, self.open().put([session])[0])

    def power_fails(self) -> None:
        """Keep what was synced, or everything, by the number of bytes drawn."""
        PLACES.pop(Path(self.cache.name), None)  # no process is left
        state = self.disk.seen if self.disk.drawn % 2 else self.disk.durable
        clock = self.disk.clock
        self.disk = InterruptedDisk(state, seed=self.disk.drawn)
        self.disk.clock = clock + 1  # the machine starts anew
        self.open_all()

    @rule(handle=HANDLE)
    def reopen(self, handle: int) -> None:
        if (archive := self.act(None, partial(self.open_one, handle))) is not None:
            self.handles[handle] = archive

    # ---- the model

    def learn(self, session: Any, receipt: Any) -> None:
        """Note an acknowledged put. Also where its machine saw nothing newer than an old manifest, it is the newest."""
        key, tokens = (session.tenant, "|".join(filter(None, (session.name, session.part)))), tokens_of(session)
        known = self.known.setdefault(key, [])
        same = next((v for v in known if v.id == receipt.id), None)
        if receipt.unchanged and same:
            assert same.tokens == tokens and same.forgotten is not True, "a version that is not there counts as stored"
            same.forgotten = False
        elif same:
            same.forgotten, same.may_go = False, False
        else:
            assert all(v.moment < receipt.moment for v in known), "a put is no newer than others"
            known.append(KnownVersion(receipt.id, receipt.moment, tokens))

    def freed(self, grace: int) -> None:
        """Note that a collector runs: what was forgotten before the grace may go."""
        for key, version in ((key, version) for key, versions in self.known.items() for version in versions):
            if version.forgotten is not False:
                version.may_go |= (not grace or version.at <= self.disk.clock - grace) and not self.is_held(key)
                if self.hurt:  # the mark of a version that cannot be seen may be freed
                    version.forgotten = None

    def settle(self) -> None:
        """Look how what was in doubt came out, in an archive without damage."""
        archive = self.open()
        archive.catalog.refresh()
        archive.catalog.listing.publish()  # what a killed writer left takes effect now, and not later
        held = {(hold.tenant or "", hold.name or "") for hold in archive.catalog.holds.all()}
        assert self.held <= held, "a hold is gone"
        self.held = held
        for key in {*self.known, *self.doubts}:
            known = {v.id: v for v in self.known.get(key, [])}
            doubts = self.doubts.pop(key, set())
            orphans = self.orphans.setdefault(key, set())
            orphans |= doubts
            for found in rows_of(archive, key):
                if (version := known.get(found.id)) is not None:
                    if version.forgotten is None:
                        version.forgotten, version.at = found.forgotten, self.disk.clock
                        if version.may_go and not found.forgotten:
                            self.forget_what_came_back_in_part(archive, version, found)
                    continue
                with suppress(PltzError):
                    tokens = tuple(archive.tower(found).tokens.tolist())
                    assert tokens in doubts | orphans, f"nobody put version {found.version} of {key}"
                    known[found.id] = KnownVersion(found.id, found.moment, tokens, found.forgotten, self.disk.clock)
                    continue
                self.released(archive, key)
                archive.forget([found])  # it was not acknowledged, and what it relied on is gone
                known[found.id] = KnownVersion(found.id, found.moment, (), True, self.disk.clock, True)
            self.known[key] = sorted(known.values(), key=lambda v: v.order)

    def forget_what_came_back_in_part(self, archive: TowerArchive, known: KnownVersion, found: Version) -> None:
        """Forget a version that was collected and came back with old files, where a segment of it was erased since."""
        try:
            archive.tower(found)
        except PltzError:
            self.released(archive, (found.tenant, found.name))
            archive.forget([found])
            known.forgotten = True

    def is_held(self, key: Key) -> bool:
        return (key[0], key[1].partition("|")[0]) in self.held

    def released(self, archive: TowerArchive, key: Key) -> None:
        """Release what holds a session."""
        name = key[1].partition("|")[0]
        for hold in archive.catalog.holds.all():
            if (hold.tenant, hold.name) == (key[0], name):
                archive.catalog.holds.release(hold.id)
        self.held.discard((key[0], name))

    @property
    def harmless(self) -> bool:
        """Return whether no damaged file keeps anything from being read."""
        return all(
            path.startswith(("parity/", "index/")) or (path.startswith("keys/") and other_copy(path) not in self.hurt)
            for path in self.hurt
        )

    # ---- operations

    def put_session(self, handle: int, key: Key, turns: list[list[int]], event: Event) -> None:
        session = self.session(*key, turns)
        archive = self.handles[handle]
        if event and event[0] in FREES:  # it may take what was put, which is put again, and is there twice then
            self.orphans.setdefault(key, set()).add(tokens_of(session))
        receipts = self.act(event, partial(archive.put_and_join if handle else archive.put, [session]))
        if receipts:
            self.learn(session, receipts[0])
            self.turns[key] = turns
        else:
            self.doubts.setdefault(key, set()).add(tokens_of(session))

    @rule(handle=HANDLE, tenant=TENANT, turns=st.dictionaries(st.sampled_from(PARTS), TURN, min_size=1), event=EVENT)
    def put_parts(self, handle: int, tenant: str, turns: dict[str, list[int]], event: Event) -> None:
        """Put parts of one session at once, each of them grown."""
        grown = {(tenant, name): [*self.turns.get((tenant, name), []), turn] for name, turn in turns.items()}
        sessions = [self.session(*key, each) for key, each in grown.items()]
        archive = self.handles[handle]
        receipts = self.act(event, partial(archive.put_and_join if handle else archive.put, sessions))
        assert receipts is None or len({receipt.moment for receipt in receipts}) == 1
        for number, (key, each) in enumerate(grown.items()):
            tokens = tokens_of(sessions[number])
            if receipts is None or (event and event[0] in FREES):
                (self.doubts if receipts is None else self.orphans).setdefault(key, set()).add(tokens)
            if receipts is not None:
                self.learn(sessions[number], receipts[number])
                self.turns[key] = each

    @rule(handle=HANDLE, tenant=TENANT, name=NAMES, turns=st.lists(TURN, min_size=1, max_size=3), event=EVENT)
    def put(self, handle: int, tenant: str, name: str, turns: list[list[int]], event: Event) -> None:
        self.put_session(handle, (tenant, name), turns, event)

    @precondition(lambda self: self.turns)
    @rule(handle=HANDLE, turn=TURN, event=EVENT, data=st.data())
    def grow(self, handle: int, turn: list[int], event: Event, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.turns)))
        self.put_session(handle, key, [*self.turns[key], turn], event)

    @precondition(lambda self: self.turns)
    @rule(handle=HANDLE, name=NAMES, turn=TURN, event=EVENT, data=st.data())
    def fork(self, handle: int, name: str, turn: list[int], event: Event, data: st.DataObject) -> None:
        """Put the first turns of a session and another one, under its name or another."""
        key = data.draw(st.sampled_from(sorted(self.turns)))
        kept = data.draw(st.integers(1, len(self.turns[key])))
        self.put_session(handle, (key[0], name), [*self.turns[key][:kept], turn], event)

    @precondition(lambda self: self.turns)
    @rule(turns=st.lists(TURN, min_size=4, max_size=7), event=EVENT, data=st.data())
    def grow_long(self, turns: list[list[int]], event: Event, data: st.DataObject) -> None:
        """Put turn after turn, so that turns are joined, and the joined ones again."""
        key = data.draw(st.sampled_from(sorted(self.turns)))
        for number, turn in enumerate(turns):
            self.put_session(1, key, [*self.turns.get(key, []), turn], event if number == len(turns) - 1 else None)

    @precondition(lambda self: self.turns)
    @rule(handle=HANDLE, turn=TURN, data=st.data())
    def grow_again(self, handle: int, turn: list[int], data: st.DataObject) -> None:
        self.grow(handle, turn, None, data)

    def marked(self, handle: int, data: st.DataObject, *, forgotten: bool) -> list[tuple[KnownVersion, Version]]:
        """Choose a version that is forgotten, or is not, and that can be seen."""
        known = {v.id: v for v in itertools.chain(*self.known.values()) if v.forgotten is forgotten}
        listed = self.act(None, lambda: list(self.handles[handle].ls(history=True, forgotten=True))) or []
        rows = [(known[v.id], v) for v in listed if v.id in known and v.name not in PARTS]
        return [rows[data.draw(st.integers(0, len(rows) - 1))]] if rows else []

    def note_forgotten(self, known: Sequence[KnownVersion], done: int | None, event: Event) -> None:
        for version in known:
            version.half_forgotten |= done is None
            version.forgotten, version.at = None if done is None else True, self.disk.clock
            version.may_go = event is not None and event[0] in FREES

    @rule(handle=HANDLE, event=EVENT, data=st.data())
    def forget(self, handle: int, event: Event, data: st.DataObject) -> None:
        for known, version in self.marked(handle, data, forgotten=False):
            self.forget_this(handle, known, version, event)

    def forget_this(self, handle: int, known: KnownVersion, version: Version, event: Event) -> None:
        # a swap that a collector builds on looks lost: the version may be freed by then, as was asked
        allowed, held = ((8,) if event and event[0] in FREES else ()), self.is_held((version.tenant, version.name))
        done = self.act(event, partial(self.handles[handle].forget, [version]), (7,) if held else allowed)
        assert done is None or not held, "what is held was forgotten"
        if not held:
            self.note_forgotten([known], done, event)

    @rule(handle=HANDLE, keep=st.integers(1, 2), event=EVENT)
    def expire(self, handle: int, keep: int, event: Event) -> None:
        found = self.act(None, lambda: self.handles[handle].whole_histories())
        found = [version for version in found or [] if version.name not in PARTS]
        chosen = expired(found, Policy(keep_last=keep), self.disk.clock)
        chosen = [version for version in chosen if not self.is_held((version.tenant, version.name))]
        ids = {v.id for v in chosen}
        for key, versions in self.known.items():
            live = [v for v in versions if v.forgotten is False]
            assert not {v.id for v in live[-keep:]} & ids, f"retention takes the newest version of {key}"
        known = [v for v in itertools.chain(*self.known.values()) if v.id in ids]
        allowed = (8,) if event and event[0] in FREES else ()
        self.note_forgotten(known, self.act(event, lambda: self.handles[handle].forget(chosen), allowed), event)

    @rule(handle=HANDLE, event=EVENT, data=st.data())
    def undelete(self, handle: int, event: Event, data: st.DataObject) -> None:
        for known, version in self.marked(handle, data, forgotten=True):
            self.undelete_this(handle, known, version, event)

    def undelete_this(self, handle: int, known: KnownVersion, version: Version, event: Event) -> None:
        allowed = (7, 8) if known.may_go or event else ()
        done = self.act(event, partial(self.handles[handle].undelete, [version]), allowed)
        done = None if self.hurt and not done else done  # its mark may be hidden: nothing was brought back
        known.forgotten = False if done is not None else None if event or self.hurt or self.denied else True
        known.may_go &= done is None

    @precondition(lambda self: self.turns)
    @rule(handle=HANDLE, event=EVENT, data=st.data())
    def hold(self, handle: int, event: Event, data: st.DataObject) -> None:
        self.hold_this(handle, data.draw(st.sampled_from(sorted(self.turns))), event)

    def hold_this(self, handle: int, key: Key, event: Event) -> None:
        place, name = self.handles[handle].catalog.holds.place, key[1].partition("|")[0]
        placed = None if self.is_held(key) else self.act(event, lambda: place(Author("a"), tenant=key[0], name=name))
        self.held |= {(key[0], name)} if placed else set()

    @rule(handle=HANDLE, event=EVENT)
    def release(self, handle: int, event: Event) -> None:
        """Release all. What was cut off is released or not, as `settle` finds."""
        archive, held = self.handles[handle], sorted(self.held)
        self.held = set()

        def work() -> None:
            for key in held:
                self.released(archive, key)

        self.act(event, work)

    @rule(handle=HANDLE, share=st.sampled_from([0.01, 0.5]), grace=st.sampled_from([0, GRACE]), event=EVENT)
    def collect(self, handle: int, share: float, grace: int, event: Event) -> None:
        self.freed(grace)
        beside = (7,) if event and event[0] in (*FREES, "renewer") else ()  # they take what this one condemned
        self.act(event, lambda: self.handles[handle].collect(dead_share=share, grace=grace), beside)

    @precondition(lambda self: not self.hurt)
    @rule(handle=HANDLE, days=st.integers(9, 4000), age=st.sampled_from([2, 30]), floor=st.booleans())
    def expire_by_a_clock_that_went_ahead(self, handle: int, days: int, age: int, floor: bool) -> None:
        """By age, through the library: a first look takes nothing that the archive's own time does not."""
        self.settle()
        cold, now = Archive(self.open().parts), self.disk.clock
        agreed = max(cold.parts.catalog.listing.present.clock) or now  # or what this look agrees with
        self.disk.clock += days * DAY
        policy = Policy(keep_within=age * DAY, keep_at_least=(age + 1) * DAY if floor else None)
        least = agreed + STEP - (age + floor) * DAY  # what is younger stays
        for version in cold.expire(policy, dry_run=True):
            assert version.time < least, "an age counts by a clock that went ahead"
            assert not self.is_held((version.tenant, version.name)), "a policy takes what is held"
        self.disk.clock = now

    @rule(seconds=st.sampled_from([60, 3 * DAY, GRACE + DAY]))
    def time_passes(self, seconds: int) -> None:
        self.disk.clock += seconds

    @rule(handle=HANDLE, event=EVENT)
    def join(self, handle: int, event: Event) -> None:
        self.act(event, lambda: self.handles[handle].join())

    @rule(handle=HANDLE)
    def join_and_free(self, handle: int) -> None:
        """Join turns, and free what was replaced."""
        self.join(handle, None)
        self.collect(handle, 0.01, 0, None)
        self.collect(handle, 0.01, 0, None)

    @rule(share=st.integers(1, 100))
    def join_beside_a_collector(self, share: int) -> None:
        """Join turns while the packs go that are read: after a percentage of its calls, tried on a copy."""
        if self.hurt:
            return
        self.collect(0, 0.01, 0, None)
        self.handles[0] = self.open()
        twin = InterruptedDisk(self.disk.seen, self.disk.seed)
        archive = self.opened(DirectoryStore(twin))
        twin.wait(0, lambda: None)
        archive.join()
        self.join(0, ("collector", max(1, twin.calls_waited * share // 100)))

    @precondition(lambda self: self.turns and not self.hurt)
    @rule(turn=TURN, data=st.data())
    def grow_while_packs_are_away(self, turn: list[int], data: st.DataObject) -> None:
        """Put a version while the packs of all earlier ones are away, and bring these back."""
        key = data.draw(st.sampled_from(sorted(self.turns)))
        self.settle()
        self.write_index(0, None)
        packs = {f"packs/{v.location.pack.hex()}" for v in rows_of(self.open(), key)}
        self.hurt, self.mendable = {path: self.disk.seen.files()[path] for path in sorted(packs)}, False
        for path in self.hurt:
            self.disk.vanish(path)
        self.put_session(1, key, [*self.turns[key], turn], None)
        self.put_back()

    @rule(turns=st.lists(TURN, min_size=2, max_size=3), at=st.integers(1, 99))
    def flip_in_a_run(self, turns: list[list[int]], at: int) -> None:
        """Grow a session, join its turns, free what was replaced, and change a byte of its run."""
        if self.hurt:
            return
        for count in range(1, len(turns) + 1):
            self.put_session(0, ("x", "run"), turns[:count], None)
        self.join_and_free(0)
        archive = self.open()
        [*_, version] = archive.history("run", "x")
        path, bits = f"packs/{version.location.pack.hex()}", archive.record(version.leaf).record.bitstring
        data = self.disk.seen.files()[path]
        place = data.find(bits) + len(bits) * at // 100
        protected = f"parity/{version.location.pack.hex()}" in self.disk.seen.names
        self.hurt, self.mendable = {path: data}, protected
        self.overwrite(path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])

    @rule(handle=HANDLE, keep=st.integers(1, 2))
    def expire_in_the_night(self, handle: int, keep: int) -> None:
        """Condemn all packs, forget a week later, and free what was condemned."""
        self.collect(handle, 0.01, GRACE, None)
        self.time_passes(GRACE + DAY)
        self.expire(handle, keep, None)
        self.collect(handle, 0.01, GRACE, None)

    @rule(handle=HANDLE, event=EVENT)
    def write_index(self, handle: int, event: Event) -> None:
        self.act(event, lambda: self.handles[handle].write_index())

    @rule()
    def copy(self) -> None:
        self.copy_all(None)

    def copy_all(self, event: Event) -> None:
        """Copy all versions to a new archive: it has all of them, or the copy says that it is not whole."""
        before = {version.id for versions in self.known.values() for version in versions}
        other = TowerArchive.create(DirectoryStore(SimDisk(seed=3)), [self.codec])

        def work() -> bool:
            archive = self.open()
            for _ in copy(archive, archive.ls(history=True), other):
                pass
            archive.want_whole("copied")
            return True

        if self.act(event, work):
            for key, versions in self.known.items():
                found = [tuple(other.tower(v).tokens.tolist()) for v in rows_of(other, key)]
                wanted = [v.tokens for v in versions if v.forgotten is False and v.id in before]
                assert [t for t in found if t in wanted] == wanted, f"the copy of {key} says it is whole"

    # ---- damage

    @precondition(lambda self: self.turns and not self.hurt)
    @rule(handle=HANDLE, turns=st.lists(TURN, min_size=1, max_size=3), cached=st.booleans(), data=st.data())
    def roll_back(self, handle: int, turns: list[list[int]], cached: bool, data: st.DataObject) -> None:
        """Put, and bring the whole archive of before back. Who saw what was put never calls it absent.

        ``cached``: on this machine; else on one that saw nothing.
        """
        self.with_all_rights()
        self.settle()
        self.back += 1
        model, files = deepcopy((self.known, self.turns, self.doubts, self.orphans)), self.disk.seen.files()
        key = data.draw(st.sampled_from(sorted(self.turns)))
        for turn in turns:
            self.put_session(handle, key, [*self.turns[key], turn], None)
        self.put_session(handle, ("x", "since"), turns, None)
        for path in self.disk.seen.files().keys() - files.keys():
            self.disk.vanish(path)
        for path, old in files.items():
            self.overwrite(path, old)
        if cached:
            with pytest.raises(PltzError) as told:
                self.handles[handle].get("since", "x")
            assert told.value.exit_code in (3, 7), "what this process put is called absent"
        else:
            self.forget_all_seen()
        report = Repairer(self.store()).run()
        assert report.rolled_back == cached and report.whole != report.rolled_back
        self.known, self.turns, self.doubts, self.orphans = model
        self.backup = {}  # its files may be of what was rolled back
        self.open_all()

    def forget_all_seen(self) -> None:
        """Forget what this machine saw of the archive, as one does that never opened it."""
        PLACES.pop(Path(self.cache.name), None)
        shutil.rmtree(self.cache.name)

    @precondition(lambda self: not self.hurt)
    @rule()
    def copy_old_files(self) -> None:
        """Bring back what was deleted since the last time, as ``cp --no-clobber`` of a backup does, and repair."""
        self.settle()
        for path in self.backup.keys() - self.disk.seen.files().keys():
            self.overwrite(path, self.backup[path])
        for version in itertools.chain(*self.known.values()):
            if version.may_go:  # its record may be there again, and its mark not
                version.forgotten = None
        Repairer(self.store()).run()
        self.open_all()
        kept = ("packs", "parity", "index")
        self.backup = {p: d for p, d in self.disk.seen.files().items() if p.partition("/")[0] in kept}

    @precondition(lambda self: not self.hurt)
    @rule(kind=st.sampled_from(KINDS), twice=st.booleans(), data=st.data())
    def damage(self, kind: str, twice: bool, data: st.DataObject) -> None:
        """Damage a file. Twice: a pack and its parity, where an index names the pack, or both copies of keys."""
        self.settle()
        files = {p: d for p, d in self.disk.seen.files().items() if d and self.is_victim(p)}
        folder = data.draw(st.sampled_from(sorted({p.partition("/")[0] for p in files})))
        path = data.draw(st.sampled_from(sorted(p for p in files if p.partition("/")[0] == folder)))
        at, length = data.draw(st.integers(0, len(files[path]) - 1)), data.draw(st.integers(1, 40))
        named = set[bytes]().union(*(set(i.packs) for i in self.open().catalog.listing.indexes.values()))
        pack = path.removeprefix("packs/")
        self.hurt = {path: files[path]}
        self.mendable = folder != "packs" or (
            f"parity/{pack}" in files and (kind == "changed" or len(files[path]) <= PARITY_OF_ALL)
        )
        if twice and folder == "packs" and bytes.fromhex(pack) in named and f"parity/{pack}" in files:
            self.hurt[f"parity/{pack}"] = files[f"parity/{pack}"]
            self.disk.vanish(f"parity/{pack}")
            self.mendable = False
        whole = folder == "keys" and self.own_key not in path and newest_alone(path, files)
        if twice and whole and (other := other_copy(path)) in files:
            self.hurt[other] = files[other]
            self.disk.vanish(other)
            self.mendable = False
        others = sorted(p for p in files if p.partition("/")[0] == folder and p != path)
        if kind == "gone" or (kind == "other" and not others):  # as it is, it could be collected, and come back then
            self.disk.vanish(path)
            return
        burst = bytes(b ^ 0x5A for b in files[path][at : at + length])
        new = {
            "changed": files[path][:at] + burst + files[path][at + len(burst) :], "cut": files[path][:at],
            "zeroed": bytes(len(files[path])), "other": files[data.draw(st.sampled_from(others or [path]))],
            "foreign": foreign(folder, self.key),
        }[kind]
        self.overwrite(path, new)

    def is_victim(self, path: str) -> bool:
        """Return whether a file is damaged in these walks."""
        return path.partition("/")[0] not in ("tmp", "damaged") and path != "manifest/before"

    def overwrite(self, path: str, data: bytes) -> None:
        """Give a file other bytes, durably."""
        inode = self.disk.seen.names.get(path)
        if inode is None:
            inode = 1 + max([*self.disk.seen.data, *self.disk.durable.data, 0])
        for state in (self.disk.seen, self.disk.durable):
            state.names[path], state.data[inode] = inode, data

    @precondition(lambda self: self.hurt)
    @rule()
    def put_back(self) -> None:
        """Bring the damaged files back as they were, and repair: an older manifest, or what repair gave up."""
        made = {path for path in self.disk.seen.names if path.startswith("manifest/0")} - self.hurt.keys()
        older = any(path.startswith("manifest/") and path > max(made, default=path) for path in self.hurt)
        files = self.disk.seen.files()
        for path, data in self.hurt.items():
            here, there = files.get(path), files.get(other_copy(path))
            of_domain = {p for p in files if p.partition("-")[0] == path.partition("-")[0]} - self.hurt.keys()
            anew = bool(of_domain) or (here is not None and here == there)
            if path.startswith("keys/") and anew and other_copy(path) in self.hurt:
                continue  # made anew, since nothing acknowledged was under those that were lost
            pack = path.removeprefix("parity/")
            if len(pack) != 32 or f"packs/{pack}" in {*self.disk.seen.names, *self.hurt}:  # no parity of a deleted pack
                self.overwrite(path, data)
        if older or self.open().catalog.listing.losses():  # only repair takes back what it gave up
            Repairer(self.store()).run()
        self.hurt, self.mendable = {}, True
        self.open_all()

    @rule(event=EVENT)
    def repair(self, event: Event) -> None:
        """Repair. What has redundancy comes back, and nothing goes from an archive that verify calls sound.

        A put that was killed may take effect by it, at the place that its moment gives.
        """
        for key, orphans in self.orphans.items():
            self.doubts.setdefault(key, set()).update(orphans)
        sound = self.act(None, lambda: self.open().verify().sound)
        before = {p for p in self.disk.seen.names if p.startswith("packs/")}
        report = self.act(None if event and event[0] != "kill" else event, lambda: Repairer(self.store()).run())
        if sound:
            assert before <= self.disk.seen.names.keys(), "repair deletes from a sound archive"
        if report is not None:
            assert report.whole or not (sound or self.mendable), report
            named_again = any(path.startswith("manifest/") for path in self.hurt)  # all marks
            for version in itertools.chain(*self.known.values()):
                if (version.half_forgotten and named_again) or (version.may_go and self.killed):
                    version.forgotten = None  # a collector that was killed may have left a pack with it
            if report.whole:
                self.hurt = {}
            self.open_all()

    @property
    def present(self) -> dict[str, bytes]:
        """Return the files of the manifest."""
        return {p: d for p, d in self.disk.seen.files().items() if p.startswith("manifest/")}

    @precondition(lambda self: self.turns and not self.hurt)
    @rule(handle=HANDLE, turns=st.lists(TURN, min_size=1, max_size=3), elsewhere=st.booleans(), data=st.data())
    def bring_back(self, handle: int, turns: list[list[int]], elsewhere: bool, data: st.DataObject) -> None:
        """Put, bring the manifest of before back, ask here or put on a machine that saw nothing, and repair."""
        self.with_all_rights()
        self.settle()
        self.back += 1
        key, kept = data.draw(st.sampled_from(sorted(self.turns))), self.present
        self.handles[handle].catalog.look(0)
        for turn in turns:
            self.put_session(1 - handle, key, [*self.turns[key], turn], None)
        for path in self.present:
            self.disk.vanish(path)
        for path, old in kept.items():
            self.overwrite(path, old)
        if elsewhere:
            session, unknowing = self.session(*key, [*self.turns[key], [self.back % 256]]), DirectoryStore(self.disk)
            named = Manifest.decode(kept[max(kept.keys() - {"manifest/before"})])
            gone = any(f"index/{name}" not in self.disk.seen.names for name in named.indexes)  # replaced since
            receipts = self.act(None, lambda: self.opened(unknowing).put([session]), (7,) * gone)
            assert receipts or gone
            for receipt in receipts or ():
                self.learn(session, receipt)
        else:  # all objects of this machine say so, also one that was open before
            session = self.session(*key, [*self.turns[key], [len(turns)]])
            put: Callable[[], Any] = partial(self.handles[1 - handle].put, [session])
            calls: list[Callable[[], Any]] = [self.open, put, self.handles[handle].ls]
            for call in calls:
                with pytest.raises(RolledBack):
                    list(call())
        report = Repairer(self.store()).run()
        assert report.rolled_back or elsewhere, report  # a machine that saw nothing may reach the generation of before
        self.open_all()

    # ---- promises

    @invariant()
    def promises_hold(self) -> None:
        if not self.handles:
            return
        if not self.hurt:
            self.settle()
        try:
            archives = [self.open(), *self.handles[: self.also_old]]
        except PltzError as exc:
            assert self.hurt and exc.exit_code in (3, 4, 7), exc  # 4: by the archive.json of another archive
            return
        wholes = [self.look(archive) for archive in archives]
        self.bounded.most = 0
        report = archives[0].verify(decode=bool(self.disk.drawn % 3))
        assert self.bounded.most <= BATCH_TOKENS, "verify decodes more at once than its bound"
        assert all(wholes) or not report.sound, "verify calls an archive sound that cannot be read"
        assert self.hurt or report.sound, report
        if not self.hurt:
            kept = {v.id for v in itertools.chain(*self.known.values()) if v.forgotten and not v.may_go}
            listed = {row.id for v in archives[0].ls(history=True, forgotten=True) for row in v.each}
            assert kept <= listed, "what was forgotten is gone before its grace"

    def look(self, archive: TowerArchive) -> bool:
        """Read everything that was acknowledged, and return whether it is all there."""
        wholes = [self.look_at(archive, key, versions) for key, versions in self.known.items()]
        listed = self.read(lambda: {row.id for v in archive.ls(history=True) for row in v.each})
        sure = {v.id for v in itertools.chain(*self.known.values()) if v.forgotten is False}
        possible = {v.id for v in itertools.chain(*self.known.values()) if not v.forgotten}
        if listed is None or not sure <= listed or not (listed <= possible or any(self.doubts.values())):
            assert not self.harmless, "sessions are not listed"
            with pytest.raises(PltzError):
                archive.want_whole("listed")
        elif self.harmless:
            archive.want_whole("listed")
        return all(wholes)

    def look_at(self, archive: TowerArchive, key: Key, versions: Sequence[KnownVersion]) -> bool:
        """Read all versions of a session, and return whether all that are acknowledged are there.

        What cannot be read is named as damaged and never called absent.
        """
        newest: set[tuple[int, ...]] = set(self.doubts.get(key, ()))
        if any(path.startswith("manifest/") for path in self.hurt):
            newest |= self.orphans.get(key, set())
        for version in reversed(versions):
            newest |= {version.tokens} if not version.forgotten else set()
            if version.forgotten is False:
                break
        live = [v for v in versions if v.forgotten is False]
        try:
            found = self.read(lambda: tuple(read(archive, key).tokens.tolist()))
        except NotFound as exc:
            assert not live, f"{key} is called absent: {exc}"
            found = None
        else:
            assert found is None or found in newest, f"{key} gives another version than the newest"
        history = self.read(lambda: {v.id: v for v in rows_of(archive, key)})
        whole = (found is not None or not live) and history is not None
        for version in live if history is not None else ():
            if history and version.id in history:
                tower = self.read(partial(archive.tower, history[version.id]))
            else:
                tower = self.read(partial(read, archive, key, version.id))
                assert tower is None, f"version {version.id.hex()} of {key} is not listed, and reads as another"
            assert tower is None or tuple(tower.tokens.tolist()) == version.tokens
            whole &= tower is not None
        return whole

    def read(self, work: Callable[[], T]) -> T | None:
        """Return the result of reading, or None where damage keeps it from being read. NotFound escapes."""
        try:
            return work()
        except NotFound:
            raise
        except PltzError as exc:
            assert not self.harmless and exc.exit_code in (3, 7), f"{type(exc).__name__}: {exc}"
            return None


class SealedMachine(GuardedMachine):
    """The same machine over a sealed archive, whose keys change, and from which sessions are erased too."""

    key = RAW

    def __init__(self) -> None:
        super().__init__()
        self.secrets: list[Secret] = [RAW]  # each of them opens it
        self.changes = 0

    def opened(self, store: Store, key: Any = None) -> TowerArchive:
        """Open it by any of the keys: of a change that was cut off, one of them does."""
        for secret in self.secrets[:-1] if key is None else ():
            with suppress(KeyMismatch):
                return super().opened(store, secret)
        return super().opened(store, key or self.secrets[-1])

    def opens(self, secret: Secret) -> bool:
        try:
            return bool(self.opened(self.store(), secret))
        except KeyMismatch:
            return False

    def is_victim(self, path: str) -> bool:
        """Leave the archive's own key files alone where a change of them was cut off: people try both keys then."""
        own = sum(self.own_key in name for name in self.disk.seen.names)
        return super().is_victim(path) and (own == 2 or self.own_key not in path)

    @precondition(lambda self: self.harmless)
    @rule(handle=HANDLE, how=st.sampled_from(["change", "add", "drop"]), event=EVENT)
    def rekey(self, handle: int, how: str, event: Event) -> None:
        """Change the key of the archive, or add one. The old one opens it before, and afterwards none that ended."""
        before, new = self.secrets, numbered(self.changes)
        how = "drop" if len(before) > 1 and (how == "change" or len(before) == MOST_SECRETS) else how
        self.changes, self.secrets = self.changes + 1, [new, *before]
        keys, other = self.handles[handle].keys, self.handles[1 - handle]
        assert isinstance(keys, Keyring)
        done = self.act(event, partial(rekey, keys, new, add=how == "add", drop=how == "drop"))
        self.secrets = [secret for secret in [new, *before] if self.opens(secret)]
        ends = [new, *before] if how == "add" else [new]
        assert self.secrets == ends or (done is None and self.secrets == before), (how, done)
        if done is not None:  # who goes on by the old key puts what the new one opens, or is told
            session = self.session("x", "late", [[self.changes % 256]])
            for receipt in self.act(None, partial(other.put, [session]), (4,)) or ():
                self.learn(session, receipt)
                self.turns["x", "late"] = [[self.changes % 256]]
        self.open_all()

    @precondition(lambda self: self.harmless)
    @rule(handle=HANDLE, tenant=TENANT, event=EVENT)
    def renew(self, handle: int, tenant: str, event: Event) -> None:
        """Change the keys of a tenant: what it has stays."""
        archive = self.handles[handle]
        self.act(event, lambda: Eraser(archive.catalog, archive.parts.writer).renew(tenant), (8,))

    @precondition(lambda self: not self.hurt)
    @rule(data=st.data())
    def lose_keys(self, data: st.DataObject) -> None:
        """Remove both copies of the keys of a tenant or a base."""
        files = self.disk.seen.files()
        paths = sorted(p for p in files if p.startswith("keys/") and p.endswith("-0") and self.own_key not in p)
        if not paths or other_copy(path := data.draw(st.sampled_from(paths))) not in files:
            return
        if not newest_alone(path, files):
            return
        self.settle()
        self.hurt, self.mendable = {p: files[p] for p in (path, other_copy(path))}, False
        for lost in self.hurt:
            self.disk.vanish(lost)

    @rule(handle=HANDLE, event=EVENT, data=st.data())
    def erase(self, handle: int, event: Event, data: st.DataObject) -> None:
        chosen = sorted(key for key, versions in self.known.items() if any(not v.may_go for v in versions))
        if not chosen or not self.harmless:
            return
        self.erase_this(handle, data.draw(st.sampled_from(chosen)), event)

    def erase_this(self, handle: int, key: Key, event: Event) -> None:
        if key == BESIDE and event and event[0] == "writer":
            return  # its put may come after the erase, and stay
        name, held = key[1].partition("|")[0], self.is_held(key)
        done = self.act(event, lambda: self.handles[handle].erase(key[0], name), (7, 8) if event else (7,) * held)
        assert done is None or not held, "what is held was erased"
        if held:
            return
        if done is None and self.open().history(name, key[0]):
            return
        assert done is not None or event or self.denied
        if done is not None and not event:
            with pytest.raises(StaysErased):
                self.open().parts.writer.put([self.session(*key, [[1]])])
        for gone in [key] if name not in PARTS else [(key[0], part) for part in PARTS]:
            self.known.pop(gone, None)
            self.turns.pop(gone, None)
            self.doubts.pop(gone, None)


class RoleStore(DirectoryStore):
    """A folder as a role of docs/buckets.md reaches it: what its policy lacks is refused."""

    def __init__(self, disk: InterruptedDisk, cache: Path, role: str) -> None:
        super().__init__(disk, cache=cache)
        self.role = role

    def want(self, *roles: str) -> None:
        if self.role not in roles:
            raise StoreError(f"no permission for a {self.role}")

    def put(self, *args: Any, **how: Any) -> bool:
        self.want("putter", "keeper", "eraser")
        return super().put(*args, **how)

    def put_spare(self, *args: Any, **how: Any) -> None:
        self.want("putter", "keeper", "eraser")
        super().put_spare(*args, **how)

    def swap(self, *args: Any, **how: Any) -> Content | None:
        self.want("putter", "keeper", "eraser")
        return super().swap(*args, **how)

    def delete(self, name: str, **how: Any) -> None:
        self.want("eraser", *["keeper"] * (name.partition("/")[0] in KEPT))
        super().delete(name, **how)

    def shred(self, name: str) -> None:
        self.want("eraser")
        super().shred(name)


class RolesMachine(SealedMachine):
    """The same machine over an append-only archive. Its second object has a role: it does its work and no more."""

    append_only = True
    role = "putter"

    def open_one(self, handle: int) -> TowerArchive:
        return self.opened(RoleStore(self.disk, Path(self.cache.name), self.role if handle else "eraser"))

    def with_all_rights(self) -> None:
        self.take_role("eraser")

    def is_denied(self, error: PltzError) -> bool:
        return "no permission" in str(error)

    @rule(role=st.sampled_from(["reader", "putter", "keeper", "eraser"]))
    def take_role(self, role: str) -> None:
        before, self.role = self.role, role
        if self.act(None, self.open_all) is None:
            self.role = before  # the archive is too damaged to be opened

    def may_put(self) -> None:
        assert not self.denied or self.role == "reader", "who may put was refused"

    def put_session(self, handle: int, key: Key, turns: list[list[int]], event: Event) -> None:
        super().put_session(handle, key, turns, event)
        self.may_put()

    def forget_this(self, handle: int, known: KnownVersion, version: Version, event: Event) -> None:
        super().forget_this(handle, known, version, event)
        self.may_put()

    def undelete_this(self, handle: int, known: KnownVersion, version: Version, event: Event) -> None:
        super().undelete_this(handle, known, version, event)
        self.may_put()

    def hold_this(self, handle: int, key: Key, event: Event) -> None:
        self.denied = False  # what is held is not held again
        super().hold_this(handle, key, event)
        self.may_put()


def numbered(number: int) -> Secret:
    """Return one of the keys to which walks change."""
    return Secret(b"key number %06d" % number, 0)


@cache
def foreign(folder: str, key: Any) -> bytes:
    """Return the bytes of a file of another archive, of a folder if there is one."""
    disk = SimDisk(seed=77)
    archive = create(disk, key=key)
    archive.put([NewSession("a", [np.arange(9)], "x")])
    archive.write_index()
    files = disk.seen.files()
    return next((data for path, data in sorted(files.items()) if path.partition("/")[0] == folder), b"foreign")


def other_copy(path: str) -> str:
    """Return the path of the other copy of a key file."""
    return path[:-1] + ("1" if path.endswith("0") else "0")


def newest_alone(path: str, files: Collection[str]) -> bool:
    """Return whether a domain has one generation of keys: the loss of the newer of two undoes a killed erase."""
    domain = path.partition("-")[0]
    return {p[:-2] for p in files if p.startswith(domain)} == {path[:-2]}


def rows_of(archive: TowerArchive, key: Key) -> list[Version]:
    """Return the versions of a part of a session."""
    name, _, part = key[1].partition("|")
    return [version for version in archive.history(name, key[0]) if version.part == part]


def read(archive: TowerArchive, key: Key, version: VersionName | None = None) -> Tower:
    """Return a part of a session."""
    name, _, part = key[1].partition("|")
    return archive.tower(archive.parts.directory.version(name, key[0], version, part))


def tokens_of(session: Any) -> tuple[int, ...]:
    """Return all tokens of a new session."""
    return tuple(np.concatenate(list(session.segments)).astype(int).tolist())


@pytest.mark.parametrize("machine", [GuardedMachine, SealedMachine, RolesMachine], ids=["open", "sealed", "roles"])
@pytest.mark.parametrize("seed", [*SEEDS, *(MORE if os.environ.get("PLTZ_ALL_FAULTS") else ())])
def test_every_promise_holds(machine: type[GuardedMachine], seed: int) -> None:
    walks = settings(
        max_examples=examples(WALKS), stateful_step_count=STEPS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(type(machine.__name__, (machine,), {})), settings=walks)
