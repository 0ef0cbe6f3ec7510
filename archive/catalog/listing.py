"""The listing: packs, indexes and what is condemned, lost or missing, as one process sees an archive.

All of it is the word of the manifest: `Listing.follow` takes it, `Listing.publish` puts the next one in its place. A
pack that it names and that is not there is *missing*: `Listing.read` tells which, by a listing of packs/. Damage to an
index is made good by a scan of its packs. Damage to a pack costs only the damaged bytes.

`Listing.stable` repeats work during which a named pack turned out to be gone, because a collector took it out.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pltz.archive.catalog.losses import Loss, Losses
from pltz.archive.catalog.problems import Problems
from pltz.archive.catalog.register import ManifestRegister
from pltz.archive.errors import ArchiveError, ManifestLost, Outdated, StoreError, WriterFailed
from pltz.archive.format import object_names
from pltz.archive.format.audit import FULL, AuditFile, AuditRecord
from pltz.archive.format.byte_source import File
from pltz.archive.format.index_file import (
    SEGMENTS,
    Entries,
    FileIndex,
    Location,
    Lookup,
    MemoryIndex,
    by_section,
    joined,
    keys_of,
    packs_of,
)
from pltz.archive.format.manifest import MOST_OVER, MOST_PACKS, Manifest, NamedPack
from pltz.archive.format.pack import AHEAD, FOOTER, FRONT, Damage, Pack
from pltz.archive.format.record import RUN, Context, Record
from pltz.archive.format.session_list import Row, listed
from pltz.archive.storage.store import Store, is_there
from pltz.plt_codec.errors import FormatError, PltzError
from pltz.plt_codec.identity import SIZE

T = TypeVar("T")

OPEN_PACKS = 256  # packs whose header and tables stay in memory
SMALL = AHEAD + FRONT  # bytes of a pack that come in one request; of a larger one they have header and first block
ATTEMPTS = 8  # at work whose packs a collector deletes meanwhile
AT_ONCE = 1 << 14  # keys of a scanned pack collected as Python objects before they become columns


class Found(NamedTuple):
    """A record, its location and the context that its pack gives it."""

    location: Location
    record: Record
    context: Context


class PackFront:
    """Reads a pack over a network. Its first bytes, and the last ones read, stay in memory until the next look.

    So a small pack is one request, and a block is asked for once, although several look-ups want it.

    ``size``: of the pack, in bytes. ``data``: the first bytes.
    """

    def __init__(self, store: Store, name: str, size: int) -> None:
        self._store, self._name = store, name
        self.data = b""
        self._begin, self._last = 0, b""
        self._end, self._foot = max(0, size - FOOTER.size), b""
        self._whole = False  # whether the first bytes are all there are

    def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes at ``offset``. Raises the errors of `Store.read`."""
        if offset == 0 < size and not self.data:
            self.ask(0)
        if self._whole or (offset == self._end and self._foot):
            return self.data[offset : offset + size] if self._whole else self._foot[:size]
        for begin, held in (0, self.data), (self._begin, self._last):
            if begin <= offset and offset + size <= begin + len(held):
                return held[offset - begin : offset - begin + size]
        if size > AHEAD:
            return self._store.read(self._name, offset, size)
        self._begin, self._last = offset, self._store.read(self._name, offset, AHEAD)
        return self._last[:size]

    def ask(self, offset: int) -> None:
        """Ask for header, footer and a block at ``offset``, side by side or in one. Raises the errors of `read`."""
        if self._end + FOOTER.size <= SMALL:
            self.data = self._store.read(self._name, 0, SMALL)
            self._whole = len(self.data) < SMALL
            return
        ahead = offset > FRONT
        # one byte more than the footer has tells that the pack is longer
        ranges = (0, FRONT if ahead else SMALL), (self._end, FOOTER.size + 1), (offset, AHEAD)
        self.data, self._foot, *block = self._store.read_ranges(self._name, ranges if ahead else ranges[:2])
        if block:
            self._begin, [self._last] = offset, block

    def forget(self) -> None:
        """Drop the bytes in memory."""
        self.data = self._last = b""
        self._whole = False


class Listing:
    """The state of an archive as one process sees it. Only its methods change the attributes.

    Attributes:
        manifest: the one that it is of; None before the first look.
        packs: size of each pack in bytes, by id: those that the manifest names and that are there as far as is known,
            and those that this process has put and not named yet.
        indexes: index files by their digest in hex.
        tail: entries of the packs that no index covers.
        condemned: named packs that nothing new may rely on.
        own_rows: what a list has of packs that this process put and no index covers, in a bucket.
        unnamed: packs that no manifest names, with their sizes; none but in `showing_unnamed`.
        staleness: how often a named pack turned out to be gone.
        gone: how often a record was met whose keys are destroyed: it may be under newer ones in a pack named since.
    """

    def __init__(self, store: Store, problems: Problems) -> None:
        self.store, self._problems = store, problems
        self.register = ManifestRegister(store)
        self.manifest: Manifest | None = None
        self.packs: dict[bytes, int] = {}
        self.indexes: dict[str, FileIndex] = {}
        self.tail = MemoryIndex()
        self.condemned = frozenset[bytes]()
        self.unnamed: dict[bytes, int] = {}
        self.own_rows: dict[bytes, list[Row]] = {}
        self.staleness = self.gone = 0
        self.listed = False  # whether packs/ was listed at the last look
        self._showing = False
        self._archive: bytes | None = None  # id of the archive
        self._losses = Losses(store)
        self._covered: dict[bytes, int] = {}  # named packs that an index covers
        self._scanned: dict[bytes, int] = {}  # those of indexes that cannot be used
        self._missing = frozenset[bytes]()  # named packs that are not there
        self._pending: dict[bytes, NamedPack] = {}  # packs put by this process that no manifest names yet
        self._drafted: tuple[Manifest, AuditRecord | None, Manifest] | None = None  # what follows one with a record
        self._skipped = set[str]()  # index files that are damaged, or as of `skip`
        self._opened: OrderedDict[bytes, Pack] = OrderedDict()
        self._fronts: dict[bytes, PackFront] = {}  # of the opened packs

    # ---- looks

    def follow(self) -> None:
        """Take the state from the present manifest. Raises ManifestLost, RolledBack, StoreError, VersionError."""
        self.listed = False
        self._follow()
        if self._missing:  # repair may have brought some back
            self._set_missing({pack for pack in self._missing if not is_there(self.store, object_names.pack(pack))})

    def read(self) -> None:
        """Look as `follow` does, and tell by a listing of packs/ which named packs are not there."""
        self._follow()
        sizes = object_names.pack.listed(self.store.list)
        self._follow()  # after the listing: what was put meanwhile is named by now, what was taken out no more
        absent = self._named().keys() - sizes.keys()
        if self._showing:
            self.unnamed = self._unnamed_of(sizes)
        self._set_missing({pack for pack in absent if not is_there(self.store, object_names.pack(pack))})
        for pack in sorted(self.unnamed):
            self._cover(pack)
        self.listed = True

    def unnamed_packs(self) -> dict[bytes, int]:
        """Return the packs in packs/ that no manifest names and none says are gone, with their sizes.

        Raises the errors of `follow`.
        """
        sizes = object_names.pack.listed(self.store.list)
        self._follow()  # after the listing: a pack that was put meanwhile is named by now, or is not listed
        return self._unnamed_of(sizes)

    def _unnamed_of(self, sizes: Mapping[bytes, int]) -> dict[bytes, int]:
        known = self._named().keys() | self.present.gone.keys() | self._pending.keys()
        return {pack: size for pack, size in sizes.items() if pack not in known}

    @contextmanager
    def showing_unnamed(self) -> Iterator[None]:
        """Read packs too that no manifest names: an erase has to reach what no put finished. None gets named."""
        self._showing = True
        self.read()
        try:
            yield
        finally:
            self._showing, self.unnamed, self.tail = False, {}, MemoryIndex()
            self.take(self.present)

    def _follow(self) -> None:
        self._forget_fronts()
        before = None
        for _ in range(ATTEMPTS):
            manifest = self.register.load()
            if self._archive not in (None, manifest.settings.archive):
                raise ManifestLost("the manifest is that of another archive: run pltz archive repair")
            if manifest is self.manifest or self.take(manifest, scan=manifest is before):
                self._archive = manifest.settings.archive
                return
            before = manifest
        raise ManifestLost("an index is gone that the manifest names, and its pack table: run pltz archive repair")

    def take(self, manifest: Manifest, *, scan: bool = True) -> bool:
        """Take the state from a manifest, and return whether all packs are known that it names.

        ``scan``: packs of indexes that cannot be used are scanned; False: the state is not taken then.
        """
        self._read_indexes(set(manifest.indexes))
        packs = {pack: size for index in self.indexes.values() for pack, size in index.packs.items()}
        scanned = dict[bytes, int]()
        for name in manifest.indexes - self.indexes.keys():
            table = self.table_of(name) if scan else None
            if table is None:
                self.manifest = None
                return False
            scanned |= {pack: size for pack, size in table.items() if pack not in packs and pack not in manifest.packs}
        over = manifest.gone.keys() | manifest.lost.keys()
        self.manifest = manifest
        self._scanned = {pack: size for pack, size in scanned.items() if pack not in over}
        self._covered = {pack: size for pack, size in packs.items() if pack not in over}
        self.condemned = frozenset(manifest.condemned)
        self._pending = {pack: row for pack, row in self._pending.items() if pack not in manifest.packs}
        rows = {**manifest.packs, **self._pending}
        if self.tail.packs.keys() - rows.keys() - self._scanned.keys() - self.unnamed.keys():
            self.tail = MemoryIndex()
        for pack, row in rows.items():
            if pack not in self.tail.packs:
                self.tail.add_pack(pack, row.size, row.sections)
        self.own_rows = {pack: own for pack, own in self.own_rows.items() if pack in rows}
        self._set_missing({pack for pack in self._missing if self._is_named(pack)})
        for pack in sorted(self._scanned.keys() - self._missing):
            self._cover(pack)
        return True

    def _is_named(self, pack: bytes) -> bool:
        return pack in self._covered or pack in self.rows or pack in self._scanned

    def _named(self) -> dict[bytes, int]:
        """Return the packs that the manifest names, with their sizes."""
        rows = {pack: row.size for pack, row in self.present.packs.items()}
        return {**self._covered, **self._scanned, **rows}

    @property
    def present(self) -> Manifest:
        """Return the manifest of the last look. Raises ManifestLost before the first one."""
        if self.manifest is None:
            raise ManifestLost("the manifest was not looked at yet")
        return self.manifest

    @property
    def archive(self) -> bytes:
        """Return the id of the archive."""
        return self.present.settings.archive

    @property
    def rows(self) -> Mapping[bytes, NamedPack]:
        """Return the packs of which the manifest has the entries, which count as those of an index do."""
        return self.manifest.packs if self.manifest else {}

    def _set_missing(self, packs: AbstractSet[bytes]) -> None:
        self._missing = frozenset(packs)
        self._set_packs()

    def _set_packs(self) -> None:
        own = {pack: row.size for pack, row in self._pending.items()}
        packs = {**{pack: size for pack, size in self._named().items() if pack not in self._missing}, **own}
        packs |= self.unnamed
        for pack in [p for p in self._opened if packs.get(p) != self.packs.get(p)]:
            del self._opened[pack]
            self._fronts.pop(pack, None)
        self.packs = packs

    def missing(self) -> frozenset[bytes]:
        """Return the packs that the manifest names and that are not there, as far as is known."""
        return self._missing

    def damaged(self) -> set[bytes]:
        """Return the packs that are there and have bytes that could not be read."""
        return (self._problems.packs & self.packs.keys()) - self.unnamed.keys()

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is known to be damaged, missing or lost, but for losses that a person knows of.

        Else a session may have versions although no look-up finds its key.
        """
        return not (self._missing or self.damaged() or any(not row.acknowledged for row in self.present.lost.values()))

    def losses(self) -> list[Loss]:
        """Return the packs that repair gave up, acknowledged or not. Raises StoreError."""
        return self._losses.of(self.present.lost)

    def stable(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` from an attempt during which no named pack turned out to be gone.

        Records that a collector moved are in packs that were not named yet, so the manifest is read again before
        each new attempt. An error of an attempt with a stale look proves nothing: the attempt is repeated, and so
        is one that ends with FileNotFoundError. Raises ArchiveError after ATTEMPTS attempts.
        """
        for _ in range(ATTEMPTS):
            before, gone = self.staleness, self.gone
            try:
                result = work()
            except FileNotFoundError:
                self.note_stale()
            except PltzError:
                if self.staleness == before:
                    raise
            else:
                if self.staleness == before and (self.gone == gone or self.register.load() is self.manifest):
                    return result
            self.read()
        raise ArchiveError("a collector keeps moving what is looked at: try again")

    def note_stale(self) -> None:
        """Note that a named pack turned out to be gone, so that `stable` looks again."""
        self.staleness += 1

    # ---- the next manifest

    def publish(
        self,
        edit: Callable[[Manifest], Manifest] | None = None,
        *,
        made: Mapping[str, FileIndex] = MappingProxyType({}),
        replaced: Iterable[str] = (),
        relied: AbstractSet[bytes] = frozenset(),
        fence: Callable[[], None] = lambda: None,
        anew: bool = False,
        record: AuditRecord | None = None,
    ) -> bool:
        """Put a manifest that names what this process put, and return whether one was put.

        Args:
            edit: returns what follows a manifest; None: that itself. It is called again where another was first.
            made: indexes that were put. ``replaced``: those whose place they take.
            relied: packs that what was put relies on.
            fence: raises Outdated where keys of what was put changed. It is called once the present manifest is known.
            anew: put one even where it says the same: whoever builds on the present one decides anew.
            record: of the change, for the audit.

        Raises Outdated where a pack in ``relied`` is condemned or gone by then, ArchiveError where too many packs have
        no index, StoreError, WriterFailed, and the errors of ``edit``. Nothing may be acknowledged then.
        """
        change = partial(self._next, edit, dict(made), frozenset(replaced), relied, fence, record)
        changed = self.register.swap(change, anew=anew)
        if (manifest := self.register.manifest) and manifest is not self.manifest and not self.take(manifest):
            self._follow()  # others replaced an index that it names
        self._pending.clear()
        return changed

    def draft(self, record: AuditRecord | None) -> bytes | None:
        """Return the manifest that `publish` puts next with this record, if no other is put before; None: none."""
        base = self.register.manifest
        if base is None or base is not self.manifest:
            return None
        none = frozenset[Any]()
        self._drafted = base, record, self._next(None, {}, none, none, lambda: None, record, base)
        return self.register.draft(self._drafted[2])

    def _next(
        self,
        edit: Callable[[Manifest], Manifest] | None,
        made: dict[str, FileIndex],
        replaced: frozenset[str],
        relied: AbstractSet[bytes],
        fence: Callable[[], None],
        record: AuditRecord | None,
        base: Manifest | None,
    ) -> Manifest:
        """Return the manifest to put in place of another. Arguments and errors as of `publish`."""
        base = self.register.load() if base is None else base
        if base is not self.manifest:
            if not self.take(base):
                raise Outdated("an index was replaced meanwhile: nothing was acknowledged, try again")
            # a swap that others built on at once looks lost: a collector may have taken these packs by now
            if any(pack in base.gone or not is_there(self.store, object_names.pack(pack)) for pack in self._pending):
                raise Outdated("a collector took what was put meanwhile: nothing was acknowledged, try again")
        if not all(self._is_named(pack) and pack not in self.condemned for pack in relied):
            raise Outdated("a collector condemned what was relied on: nothing was acknowledged, try again")
        fence()
        packs = {**base.packs, **self._pending}
        known = self._drafted if not (edit or made or replaced) else None
        if known and known[0] is base and known[1] is record and known[2].packs.keys() == packs.keys():
            return known[2]
        fresh = replace(base, packs=packs)
        fresh = edit(fresh) if edit else fresh
        if made or replaced:
            fresh = self._indexed(fresh, made, replaced)
        if len(fresh.packs) > MOST_PACKS:
            raise ArchiveError(f"{len(fresh.packs)} packs have no index: run pltz archive rebuild, then try again")
        if len(fresh.condemned) > MOST_OVER or len(fresh.gone) > MOST_OVER:
            raise ArchiveError(f"more than {MOST_OVER} packs are condemned or gone: collect first")
        return self._recorded(fresh, record) if record else fresh

    def _recorded(self, manifest: Manifest, record: AuditRecord) -> Manifest:
        """Return a manifest with a record; once it has many, a file has them, which is put before it."""
        manifest = manifest.recording(record)
        if len(manifest.audit.rows) < FULL:
            return manifest
        data = AuditFile(self.archive, manifest.audit).encode()
        self.store.put(object_names.audit(name := data[-SIZE:]), data)
        return replace(manifest, audit=manifest.audit.after(name))

    def _indexed(self, manifest: Manifest, made: dict[str, FileIndex], replaced: frozenset[str]) -> Manifest:
        """Return a manifest with indexes in place of others. An index stays as long as others lack a named pack of it.

        Raises Outdated where one that was made has packs that are no longer named.
        """
        covered = set[bytes]().union(*(index.packs for index in made.values()))
        if not all(self._is_named(pack) or pack in self._pending for pack in covered):
            raise Outdated("packs were taken out meanwhile: no index was written, try again")
        known = covered | manifest.packs.keys() | manifest.gone.keys() | manifest.lost.keys()
        dropped = set[str]()
        for name in replaced - made.keys():
            packs = self.indexes[name].packs if name in self.indexes else self.table_of(name) or {}
            dropped |= set() if packs.keys() - known else {name}
        names = (manifest.indexes | made.keys()) - dropped
        rows = {pack: row for pack, row in manifest.packs.items() if pack not in covered}
        return replace(manifest.indexed(names), packs=rows)

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries], records: Sequence[Row] = ()) -> None:
        """Add a pack that this process has just put, with its index entries by section.

        ``records``: its records; what a list has of them is kept where lists are written.
        """
        if self.store.remote:
            self.own_rows[pack] = [row for c, r in records if (row := listed(c, r))]
        self._pending[pack] = NamedPack(size, sections)
        self.packs[pack] = size
        self.tail.add_pack(pack, size, sections)

    def drop_pending(self, *, delete: bool) -> None:
        """Forget the packs of a put that failed: named later, they would be newer than what others put meanwhile.

        ``delete``: no manifest ever named them, so that their files can go.
        """
        pending, self._pending = self._pending, {}
        for pack in pending if delete and self.manifest else ():  # else an earlier swap may have named them
            if not self._is_named(pack):
                with suppress(StoreError, WriterFailed):
                    self.store.delete(object_names.pack(pack))
        self.tail = MemoryIndex()
        if self.manifest:
            with suppress(StoreError):
                self.take(self.manifest)

    # ---- indexes

    def _read_indexes(self, named: set[str]) -> None:
        """Open the indexes that are named."""
        for name in set(self.indexes) - named:
            del self.indexes[name]
        for name in sorted(named - set(self.indexes) - self._skipped):
            try:
                self.indexes[name] = FileIndex(self.store.open(object_names.index(name)), name)
            except FormatError as exc:
                self._problems.note("index", name, str(exc))
                self._skipped.add(name)
            except FileNotFoundError:
                continue

    def skip(self, indexes: Iterable[str]) -> None:
        """Use all indexes from the next look on but some, by digest in hex, whose packs are scanned."""
        self._skipped, self.manifest = set(indexes), None
        self.indexes.clear()

    def read_again(self) -> None:
        """Look again, for who met an index that another replaced meanwhile. Raises the errors of `follow`."""
        self.indexes.clear()
        self.manifest = None
        self._follow()

    def table_of(self, name: str) -> dict[bytes, int] | None:
        """Return the packs of an index that is not used, because it is damaged or gone; None where nothing tells them.

        Raises StoreError.
        """
        with suppress(FormatError, FileNotFoundError):
            return packs_of(bytes(self.store.view(object_names.table_copy(name))), name)
        with suppress(FormatError, FileNotFoundError):
            return FileIndex(self.store.open(object_names.index(name)), name).packs
        return None

    def drop_index(self, index: Lookup, why: str) -> None:
        """Drop an index that turned out to be damaged, and scan its packs."""
        for name, known in list(self.indexes.items()):
            if known is index:
                self._problems.note("index", name, why)
                self._skipped.add(name)
                del self.indexes[name]
        over = self.present.gone.keys() | self.present.lost.keys()
        self._scanned |= {pack: size for pack, size in index.packs.items() if pack not in over}
        for pack in sorted(index.packs):
            self._cover(pack)

    def has_segments(self, keys: Iterable[int]) -> bool:
        """Return whether named packs have segments of all these keys, 36 bits each."""
        wanted = np.array(sorted(keys), np.uint64)
        if not len(wanted):
            return True
        indexes: list[Lookup] = [self.tail, *self.indexes.values()]
        found = [index.has(SEGMENTS, wanted) for index in indexes]
        return bool(np.logical_or.reduce(found).all())

    def entries_of(self, pack: bytes, size: int) -> Mapping[int, Entries]:
        """Return the index entries of a pack by section, of a scan of it. Damage is noted as a problem."""
        self.packs[pack] = size
        self._scan_in(pack, size)
        return self.tail.sections[pack]

    # ---- packs

    def opened(self, pack: bytes, block: int = 0) -> Pack:
        """Return a pack opened for reading. ``block``: the offset of one that is read next.

        Raises FormatError, FileNotFoundError, StoreError.
        """
        if pack not in self._opened:
            archive, name = self.archive, object_names.pack(pack)
            if (size := self.packs.get(pack)) is None:  # taken out since the caller was told of it
                raise FileNotFoundError(errno.ENOENT, "no longer named", name)
            reader = PackFront(self.store, name, size) if self.store.remote else None
            if reader:
                reader.ask(block if block < size else 0)
            read = reader.read if reader else partial(self.store.read, name)
            opened = Pack(read, size, archive=archive, name=pack, both=False)
            if opened.nameless:  # opened again each time: it may be replaced
                self._problems.note("pack", pack.hex(), opened.nameless, pack=pack)
                return opened
            self._opened[pack] = opened
            if reader:
                self._fronts[pack] = reader
            if len(self._opened) > OPEN_PACKS:
                closed, _ = self._opened.popitem(last=False)
                if front := self._fronts.pop(closed, None):
                    front.forget()
        self._opened.move_to_end(pack)
        return self._opened[pack]

    def scan(self, pack: bytes, *, bodies: bool = True, file: File | None = None) -> Iterator[Found | Damage]:
        """Yield all records and damaged ranges of a pack. ``file``: its bytes, where the caller has them.

        The pack is read from end to end in pieces. Without ``bodies`` the records come without their bitstrings, but
        for runs of sessions, whose bitstrings have their older versions. A run whose bitstring is damaged comes without
        it then, behind the damage. Raises FormatError, FileNotFoundError, StoreError.
        """
        file = file or self.store.open(object_names.pack(pack))
        opened = Pack(file.read, file.size, archive=self.archive, name=pack)
        for copy in opened.damaged_copies:
            yield Damage(0, opened.head.size, f"the {copy} is damaged, the other is used", ())
        if opened.nameless:  # nothing tells what else the pack of this name has
            yield Damage(file.size - FOOTER.size, FOOTER.size, opened.nameless)
        for item in opened.blocks(bodies=bodies):
            if isinstance(item, Damage):
                yield item
                continue
            block, rows = item
            for row, record in rows:
                context = opened.head.contexts[record.context]
                if not bodies and record.mode & RUN and record.name is not None:
                    try:
                        record = opened.of_block(block, row)
                    except FormatError as exc:
                        yield Damage(block.offset, block.size, str(exc), [(row, record)], block.offset)
                yield Found(Location(pack, block.offset, row), record, context)

    def _forget_fronts(self) -> None:
        for front in self._fronts.values():
            front.forget()

    def _cover(self, pack: bytes) -> None:
        """Scan a pack into the tail unless an index covers it."""
        size = self.packs.get(pack)
        if size is None or self.tail.packs.get(pack) == size:
            return
        if not any(index.packs.get(pack) == size for index in self.indexes.values()):
            self._scan_in(pack, size)

    def _scan_in(self, pack: bytes, size: int) -> None:
        rows: list[tuple[int, bytes, int]] = []
        parts: list[Mapping[int, Entries]] = [by_section(rows)]
        whole = True
        try:
            for item in self.scan(pack):
                if isinstance(item, Damage):
                    whole = False
                    what = f"{item.size} bytes at {item.offset}: {item.why}"
                    self._problems.note("pack", pack.hex(), what, pack=pack, blind=item.rows is None)
                    contexts = self.opened(pack).head.contexts if item.rows else []
                    for _, record in item.rows or ():  # look-ups must find what is damaged
                        found = keys_of(record, contexts[record.context])
                        rows += [(section, name, item.block) for section, name in found]
                    continue
                at, record, context = item
                rows += [(section, name, at.offset) for section, name in keys_of(record, context)]
                if len(rows) >= AT_ONCE:
                    parts.append(by_section(rows))
                    rows = []
        except FormatError as exc:
            whole = False
            self._problems.note("pack", pack.hex(), str(exc), pack=pack, blind=True)
        except FileNotFoundError:
            self.note_stale()
            self.packs.pop(pack, None)
            return
        if not whole and pack in self.rows:
            parts.append(self.rows[pack].sections)
        self.tail.add_pack(pack, size, joined([*parts, by_section(rows)]))
