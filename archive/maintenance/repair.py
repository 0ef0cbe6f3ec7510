"""Repair: put back what parity and second copies can, say exactly what they cannot, move damage aside. Spec: FORMAT.md, "Repair".

    archive.json, plans, keys,
    ledger entries               from their second copies
    packs                        from what is left of them and their parity; believed only where the digest is the name
    packs beyond their parity    readable records into new packs, the rest to damaged/; sessions that lost something are named,
                                 and the ledger keeps the loss until somebody acknowledges it
    parity, indexes              made anew

Works without the key of a sealed archive: boxes are copied as they are. Nothing a session needs is ever deleted: what is replaced is
first copied to `damaged/`, which nothing reads but the next repair. Parity files and indexes can be made from packs, so damaged ones are
dropped; so is a damaged copy of a key file, which must not outlive an erasure.

In memory at once: some MiB of a pack that is sound, twice what one has that is not, three times where it is beyond its parity.

A crash leaves some files repaired. Between deleting a damaged pack and putting the restored one the pack is gone, but what it was made
from is in `damaged/`: the next run goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pltz.archive.catalog.chain import lost
from pltz.archive.catalog.ledger import FILE_NAME, PackState, copies_of, decode_as, entries_among
from pltz.archive.catalog.ledger import MAX_FILE as MAX_ENTRY
from pltz.archive.catalog.view import Version, View
from pltz.archive.encryption.key_files import COPIES, KeyFile, KeyFolder, file_name
from pltz.archive.encryption.keys import Keys, Locked
from pltz.archive.errors import ArchiveError, StoreError
from pltz.archive.format.ids import digest
from pltz.archive.format.index_file import SEGMENTS, SESSIONS, FileIndex, Location, key_of, key_of_session
from pltz.archive.format.pack import MAX_SIZE as MAX_PACK
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.parity import Parity
from pltz.archive.format.plan import Plan
from pltz.archive.format.prefix_crc import Stretch
from pltz.archive.format.record import Record
from pltz.archive.format.settings import COPY, MAX_SIZE, NAME, Settings
from pltz.archive.maintenance.salvage_reader import Remains
from pltz.archive.storage.store import Store, is_there
from pltz.archive.writing.publisher import shared_ranges
from pltz.archive.writing.writer import Writer
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError, VersionError

T = TypeVar("T")

PACK_NAME = re.compile(r"[0-9a-f]{32}")
PLAN_NAME = re.compile(r"[0-9a-f]{16}")
PERSON = b"pltz damaged"
MAX_PLAN = 1 << 26  # bytes


@dataclass(frozen=True)
class LostRecord:
    """A version whose own record is gone. ``session``: first 48 bits of its session key, hex; ``name`` where another version tells."""

    session: str
    tenant: str | None
    name: str | None
    place: Location


@dataclass
class Repaired:
    """What a run did, by file name. ``finished``: older keys that an unfinished erase left, destroyed now.

    ``lost``: versions that cannot be thawed; ``unnamed``: versions of which no record is left;
    ``missing``: records that stood in packs beyond repair and were not read; ``uncounted``: such packs of which nothing says how many;
    ``recorded``: packs that earlier runs gave up, whose loss nobody acknowledged."""

    checked: int = 0
    restored: list[str] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    salvaged: int = 0
    missing: int = 0
    uncounted: int = 0
    lost: list[Version] = field(default_factory=list)
    unnamed: list[LostRecord] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is lost."""
        return not (
            self.broken or self.lost or self.unnamed or self.missing or self.uncounted or self.recorded
        )


class Repairer:
    """One run over the files of an archive, which need not be one that opens.

    Args:
        store: where it lives.
        keys: makes the names of lost sessions readable; ``open_keys`` of the settings gives them. Not needed.
        dry_run: only say what would be done.
    """

    def __init__(
        self, store: Store, keys: Callable[[Settings], Keys] | None = None, *, dry_run: bool = False
    ):
        self.store, self.dry_run = store, dry_run
        self.report = Repaired()
        self._keys = keys

    def run(self) -> Repaired:
        """See the head of this file.

        Raises UsageError where there is no archive, CorruptError where both copies of archive.json are lost, StoreError.
        """
        settings = self._settings()
        plans = self._plans()
        self._ledger()
        self._key_files()
        if plans is None:
            return self.report  # what is condemned is not known: packs must wait
        self._indexes()
        keys = self._keys(settings) if self._keys else (Locked() if settings.sealed else None)
        view = View(self.store, keys)
        view.refresh()
        self.report.recorded += [loss.pack.hex() for loss in view.losses()]
        self._want_own(view)
        for pack in sorted(self._pack_names(view)):
            self._pack(view, pack, settings.parity)
        self._towers(keys)
        return self.report

    def _settings(self) -> Settings:
        found = self._mirrored(NAME, COPY, Settings.decode, MAX_SIZE)
        if found is None:
            raise CorruptError(f"{NAME} and its copy {COPY} are damaged: bring one of them from a backup")
        return found

    def _plans(self) -> set[bytes] | None:
        """What is condemned; None where a plan is lost."""
        names = {
            n for folder in ("collect", "parity") for n in self.store.list(folder) if PLAN_NAME.fullmatch(n)
        }
        found = [self._mirrored(f"collect/{n}", f"parity/{n}", _plan(n), MAX_PLAN) for n in sorted(names)]
        if None in found:
            return None
        return set().union(*(plan.condemned for plan in found if plan))

    def _ledger(self) -> None:
        """Both copies of each entry."""
        names = {name for name in self.store.list("ledger") if FILE_NAME.fullmatch(name)}
        for name in sorted(names | entries_among(self.store.list("parity"))):
            self._mirrored(*copies_of(name), partial(decode_as, name), MAX_ENTRY)

    def _mirrored(self, name: str, copy: str, decode: Callable[[bytes], T], most: int) -> T | None:
        """A small file from whichever copy is sound; the other is put right. None: neither is. Raises UsageError: neither was there."""
        self.report.checked += 1
        data = {n: self._maybe(n, most) for n in (name, copy)}
        if not any(d is not None for d in data.values()):
            raise UsageError(f"no archive here: {name} is missing")
        sound: dict[str, T] = {}
        for n, d in data.items():
            try:
                if d is not None:
                    sound[n] = decode(d)
            except VersionError:
                raise
            except FormatError:
                continue
        if not sound:
            self.report.broken.append(name)
            return None
        best = next(iter(sound))
        for n, d in data.items():
            if d != data[best]:
                self._replace(n, d, data[best] or b"")
        return sound[best]

    def _key_files(self) -> None:
        """Put both copies of the newest generation of each; then destroy the older files that an unfinished erase left."""
        folder = KeyFolder(self.store)
        for domain, generations in folder.generations().items():
            self.report.checked += 1
            if good := self._sound_key(folder, domain, generations[-1]):
                self._key_copies(domain, generations[-1], good)
            elif folder.generations().get(domain, generations)[-1] == generations[-1]:
                self.report.broken.append(file_name(domain, generations[-1], 0))
        for files in folder.leftovers().values():  # listed anew: what was put back may be erased since
            self.report.finished += files
            for name in () if self.dry_run else files:
                self.store.shred(name)

    def _key_copies(self, domain: bytes, generation: int, good: bytes) -> None:
        """Make all copies of a key file the good one."""
        for name in (file_name(domain, generation, copy) for copy in range(COPIES)):
            if self._maybe(name, len(good) + 1) != good:
                self.report.restored.append(name)
                if not self.dry_run:
                    self.store.shred(name)
                    self.store.put(name, good)

    def _sound_key(self, folder: KeyFolder, domain: bytes, generation: int) -> bytes | None:
        try:
            file: KeyFile | None = folder.read(domain, generation)
        except FormatError:
            return None
        return file.encode() if file else None

    def _indexes(self) -> None:
        """Damaged ones are dropped: the packs say the same."""
        for name in sorted(self.store.list("index")):
            self.report.checked += 1
            try:
                if FileIndex(self.store.open(f"index/{name}")).verify().hex() == name:
                    continue
            except FormatError:
                pass
            except FileNotFoundError:
                continue
            self.report.remade.append(f"index/{name}")
            if not self.dry_run:
                self.store.delete(f"index/{name}")

    def _pack_names(self, view: View) -> set[bytes]:
        """Packs that are there, or that something names."""
        parity = {bytes.fromhex(n) for n in self.store.list("parity") if PACK_NAME.fullmatch(n)}
        return parity | view.missing() | set(view.packs)

    def _pack(self, view: View, pack: bytes, shares: tuple[int, int]) -> None:
        self.report.checked += 1
        name = f"packs/{pack.hex()}"
        data = Remains.of(self.store, name, MAX_PACK)
        if data is None and self._gone(view, pack):
            return
        if data is not None and self._foreign(view, data):
            return self._move_out(view, pack)
        try:
            if data is not None and _is(pack, data):
                if pack not in view.ledger.deleted:  # else a collector is deleting it, parity first
                    self._protect(view, pack, data, shares)
                return
        except VersionError:
            return  # of a newer pltz: it knows
        parity = self._parity(pack)
        sources = [d for d in (data, *self._aside(name)) if d is not None]
        best: Stretch = sources[0] if sources else b""
        if parity:
            restored = parity.restore(sources)[0]
            if self._foreign(view, restored):
                return self._move_out(view, pack)
            if _is(pack, restored):
                self._replace(name, None if data is None else data.whole(), restored)
                self._protect(view, pack, restored, shares)
                return
            best = restored
        if self._foreign(view, best):
            return self._move_out(view, pack)
        self._salvage(view, pack, best, shares)

    def _foreign(self, view: View, data: Stretch) -> bool:
        """Return whether these are the bytes of a pack of another archive, damaged or not."""
        try:
            return _opened(data).head.archive != view.ledger.archive
        except FormatError:
            return False

    def _move_out(self, view: View, pack: bytes) -> None:
        """Move a pack of another archive aside, with its parity; nothing of it is saved. The ledger says first that it goes."""
        if not self.dry_run:
            view.ledger.put_deleted([pack])
        for name in (f"packs/{pack.hex()}", f"parity/{pack.hex()}"):
            if (left := self._maybe(name, 1 << 31)) is None:
                continue
            self._put_aside(name, left, dry_run=self.dry_run)
            if not self.dry_run:
                self.store.delete(name)

    def _want_own(self, view: View) -> None:
        """Raises ArchiveError where packs are here and all are of other archives: it is archive.json that is the wrong one then."""
        others = set[bytes]()
        for pack in view.packs:
            data = Remains.of(self.store, f"packs/{pack.hex()}", MAX_PACK)
            if data is None or not self._foreign(view, data):
                return
            others.add(_opened(data).head.archive)
        if others:
            raise ArchiveError(
                f"{NAME} is of archive {view.ledger.archive.hex()}, and all packs are of archive {min(others).hex()}: "
                f"bring the right {NAME} from a backup; nothing was changed"
            )

    def _gone(self, view: View, pack: bytes) -> bool:
        """Whether the ledger, read after the pack was seen to be absent, says why; what is left of a deleted one's parity goes."""
        view.ledger.refresh()
        state = view.ledger.state(pack)
        name = f"parity/{pack.hex()}"
        if state is PackState.DELETED and not self.dry_run:
            self.store.delete(name)
        return state is PackState.DELETED or (state is PackState.LOST and not is_there(self.store, name))

    def _protect(self, view: View, pack: bytes, data: Stretch, shares: tuple[int, int]) -> None:
        """A sound pack has sound parity, or gets it."""
        if not shares[0]:
            return
        try:
            parity = self._parity(pack)
            if parity and parity.covers(data):
                parity.verify()
                return
        except FormatError:
            pass
        name = f"parity/{pack.hex()}"
        self.report.remade.append(name)
        if self.dry_run:
            return
        opened = _opened(data)
        # without bitstrings: what counts is whose parent is whose
        found = [(at, r._replace(bitstring=b"")) for at, r in _scan(data)]
        contexts = [opened.head.contexts[r.context] for _, r in found]
        ends = [*(at for at, _ in found), opened.end]
        made = Parity.of(pack, data, shared_ranges(contexts, [r for _, r in found], ends), shares)
        self.store.delete(name)
        self.store.put(name, made.encode())
        if not is_there(self.store, f"packs/{pack.hex()}"):  # collected meanwhile
            self._gone(view, pack)

    def _parity(self, pack: bytes) -> Parity | None:
        data = self._maybe(f"parity/{pack.hex()}", 1 << 31)
        try:
            parity = Parity.decode(data) if data is not None else None
        except FormatError:
            return None
        return parity if parity and parity.pack == pack else None

    def _salvage(self, view: View, pack: bytes, best: Stretch, shares: tuple[int, int]) -> None:
        """What can be read goes to a new pack; the ledger keeps what cannot; the damaged one is condemned and moved aside."""
        view.ledger.refresh()
        deleted = pack in view.ledger.deleted  # a killed collector left it: what was live of it is elsewhere
        rows = [] if deleted else list(_scan(best))
        missing: int | None = 0
        sessions, segments, covered = set[int](), set[int](), True
        if not deleted:
            missing, sessions, segments, covered = self._note_lost(view, pack, best, {at for at, _ in rows})
        self.report.salvaged += len(rows)
        if self.dry_run:
            return
        if rows:
            contexts = _opened(best).head.contexts
            Writer(view, [], shares).copy([(contexts[r.context], r) for _, r in rows])
        if missing == 0 and not sessions:
            view.ledger.put_deleted([pack])
        else:
            view.ledger.put_lost(pack, missing, covered, sessions, segments)
        self._condemn(view, pack)
        for name in (f"packs/{pack.hex()}", f"parity/{pack.hex()}"):
            if (left := self._maybe(name, 1 << 31)) is not None:
                self._put_aside(name, left)
                self.store.delete(name)

    def _condemn(self, view: View, pack: bytes) -> None:
        """So that no writer relies on it and no collector waits for it."""
        for _ in range(8):
            view.read_plans()
            if pack in view.condemned:
                return
            plan = Plan(view.epoch + 1, self.store.random(16), frozenset({pack}))
            if self.store.put(plan.name, plan.encode()):
                self.store.put(plan.copy, plan.encode())
        view.read_plans()
        if pack not in view.condemned:
            raise ArchiveError("others keep collecting: try again")

    def _note_lost(
        self, view: View, pack: bytes, best: Stretch, read: set[int]
    ) -> tuple[int | None, set[int], set[int], bool]:
        """Note the records that the pack had and that were not read, as far as footer and indexes tell.

        Returns how many they are (None: nothing says), the keys of sessions and of segments among them, and whether an index
        covers the pack, so that no others are among them.
        """
        missing: int | None = None
        try:
            missing = max(0, _opened(best).count() - len(read))
            self.report.missing += missing
        except FormatError:
            self.report.uncounted += 1
        sessions, segments, covered = set[int](), set[int](), False
        known: dict[int, tuple[str, str]] = {}
        for session, called in _named(view):
            known.setdefault(key_of(session), called)
        for index in view.indexes.values():
            covered |= pack in index.packs
            segments |= {
                key for key, at in index.entries(SEGMENTS) if at.pack == pack and at.offset not in read
            }
            for key, at in index.entries(SESSIONS):
                if at.pack == pack and at.offset not in read:
                    sessions.add(key)
                    tenant, name = known.get(key, (None, None))
                    self.report.unnamed.append(LostRecord(f"{key:012x}", tenant, name, at))
        return missing, sessions, segments, covered

    def _towers(self, keys: Keys | None) -> None:
        """Versions that miss a segment."""
        view = View(self.store, keys)
        view.refresh()
        self.report.lost += lost(view, view.all_versions())

    def _replace(self, name: str, old: bytes | None, new: bytes) -> None:
        self.report.restored.append(name)
        if self.dry_run:
            return
        if old is not None:
            self._put_aside(name, old)
            self.store.delete(name)
        if not self.store.put(name, new):
            raise StoreError(
                f"{name} was put by somebody else, with other bytes, at the same time: repair again"
            )

    def _put_aside(self, name: str, data: bytes, *, dry_run: bool = False) -> None:
        """A durable copy of what is damaged, named by what is in it, so that a second run adds nothing."""
        copy = f"damaged/{name.replace('/', '-')}-{digest(PERSON, data).hex()[:8]}"
        if not dry_run and not self.store.put(copy, data):
            raise StoreError(
                f"{copy} holds other bytes than those of {name}, which stays: move it away, and repair again"
            )
        self.report.aside.append(copy)

    def _aside(self, name: str) -> Iterator[Remains | None]:
        """What earlier runs moved aside of a file."""
        for found in sorted(self.store.list("damaged")):
            if found.startswith(name.replace("/", "-") + "-"):
                yield Remains.of(self.store, f"damaged/{found}", MAX_PACK)

    def _maybe(self, name: str, most: int) -> bytes | None:
        """What is left of a file, in memory; None where there is none."""
        found = Remains.of(self.store, name, most)
        return None if found is None else found.whole()


def _plan(name: str) -> Callable[[bytes], Plan]:
    """Decodes a plan, which must be the one of that name."""

    def decode(data: bytes) -> Plan:
        plan = Plan.decode(data)
        if plan.name != f"collect/{name}":
            raise CorruptError(f"plan {name} says it is {plan.name}")
        return plan

    return decode


def _opened(data: Stretch) -> Pack:
    """A pack of which only some is in memory. Raises as `Pack`."""
    return Pack(lambda at, size: memoryview(data[at : at + size]), len(data))


def _is(pack: bytes, data: Stretch) -> bool:
    """Whether these are the bytes that a pack's name stands for. Raises VersionError."""
    try:
        return _opened(data).verify() == pack
    except VersionError:
        raise
    except FormatError:
        return False


def _scan(data: Stretch) -> Iterator[tuple[int, Record]]:
    """Records that can be read."""
    try:
        yield from (item for item in _opened(data).scan() if not isinstance(item, Damage))
    except FormatError:
        return


def _named(view: View) -> Iterable[tuple[bytes, tuple[str, str]]]:
    """Session keys of the versions that can be read, and what they are called."""
    for v in view.all_versions():
        with suppress(FileNotFoundError):  # collected meanwhile
            item = view.at(v.location)
            yield key_of_session(item.record, item.context), (v.tenant, v.name)
