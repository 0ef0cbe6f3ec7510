"""Erase: destroy the keys of a session, a tenant or a base domain, and prove that nothing opens.

The proof reads the raw files. Spec: WRITING.md, "Keys and erasing".

    tenant    all its keys are destroyed
    session   1 publish a generation of keys which dooms the session's units and gives their slots other keys beside:
                writers no longer rely on them
              2 look again: versions put meanwhile are doomed too (step 1 again); segments that other sessions
                share stay
              3 put records of these slots that stay again under the new keys (`reroot.py`), and publish a generation
                without the older ones
    base      1 publish a generation with a new root: writers no longer rely on records under the older ones
              2 look again: stop where a session stands on the older roots
              3 publish a generation without the older roots
    all       overwrite and delete older generations; read every record from the packs and ask for its key

A tenant or base whose key files are lost is given up by erasing it as a whole: new keys govern its records, so these
count as erased.

A look counts only if no pack vanished on the way (a collector moves live records) and everything was
readable. A session that is not seen would lose the segments that it shares.

Two generations are needed because writers run at the same time. A writer acknowledged before the first generation is
seen in step 2. One that publishes after it finds the keys changed and is not acknowledged (`Fenced`). A crash leaves
one of the states that WRITING.md lists under "Unfinished erase". Every erase begins by finishing the certain ones.

It cannot reach copies of `keys/` made by others: backups, snapshots, a copy-on-write or log-structured file
system, a flash disk that keeps overwritten blocks, an object store that keeps versions. These hold wrapped
keys only, so they are useless without the archive key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.listing import PackFront
from pltz.archive.catalog.problems import Problem
from pltz.archive.encryption.box import KEY, UNIT, unit_of
from pltz.archive.encryption.domain_keys import AGAIN, WHOLE, DomainKeys
from pltz.archive.encryption.key_files import LINEAGE, KeyFolder, generation_of
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import ArchiveError, Fenced, NotFound, StoreError
from pltz.archive.format import object_names
from pltz.archive.format.audit import AuditRecord, Verb
from pltz.archive.format.ids import BASE, NO_SEGMENT, TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.pack import AHEAD, Damage, Pack
from pltz.archive.humanize import counted
from pltz.archive.maintenance.domain_records import DomainRecords, identities
from pltz.archive.maintenance.reroot import Rerooter
from pltz.archive.writing.writer import ArchiveWriter
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError

T = TypeVar("T")

AT_ONCE = "something of this tenant or base was erased at the same time: erase again"
TURNS, PAUSE = 8, 0.1  # of an erase that others overtake, and seconds before the second at most; then twice as long
PAST = 1 << 20  # generations by which new keys are ahead of lost ones: what comes back is older


@dataclass(frozen=True)
class BaseUse:
    """A base domain on which erased sessions stood.

    ``erased``: whether its keys were destroyed as well, because its own erase had begun and was cut off.
    """

    name: str
    erased: bool = False


@dataclass(frozen=True)
class Erasure:
    """The result of an erasure.

    Attributes:
        tenant, name, base: the names given.
        segments: number of segments whose keys were destroyed.
        shared: number of segments that stay because other sessions of the tenant share them.
        moved: number of records of other sessions that were put again, as the keys of their slots were destroyed.
        records: number of records in the raw packs whose keys are gone.
        files: number of key files overwritten and deleted.
        unread: number of damaged packs, of which the proof could not read every byte.
        bases: base domains on which the erased sessions stood.
        finished: number of key files left by other unfinished erases, destroyed too.
        kept: key files of which the bucket keeps a version: until it is deleted, the keys in it can be brought back.
    """

    tenant: str | None
    name: str | None
    base: str | None = None
    versions: int = 0
    segments: int = 0
    shared: int = 0
    moved: int = 0
    records: int = 0
    files: int = 0
    unread: int = 0
    bases: tuple[BaseUse, ...] = ()
    finished: int = 0
    kept: tuple[str, ...] = ()


class _Done(NamedTuple):
    """The effect of destroying keys; fields as in `Erasure`."""

    files: int
    records: int
    unread: int


class _Named(NamedTuple):
    """A record as the proof sees it. ``units``: those of its segment and its session, as far as it has them."""

    pack: str
    root: bytes
    units: tuple[int, ...]


@dataclass
class _Finished:
    """Unfinished erases that were finished: key files by domain, and bases."""

    files: dict[bytes, int] = field(default_factory=dict)
    bases: list[BaseUse] = field(default_factory=list)


class Eraser:
    """Erases one thing at a time; several may run at once.

    ``writer``: puts records under other keys. It is not needed to look.

    Raises UsageError for an archive opened without keys.
    """

    def __init__(self, catalog: Catalog, writer: ArchiveWriter | None = None):
        if not isinstance(catalog.keys, Keyring):
            raise UsageError(
                "erasing destroys keys, and this archive was opened without any: a sealed one needs its key; "
                "in one without encryption, forget and then collect twice frees the bytes"
            )
        self.catalog, self.keys, self._writer = catalog, catalog.keys, writer

    def tenant(self, tenant: str, *, dry_run: bool = False) -> Erasure:
        """Erase all sessions, segments and names of a tenant. Damage does not hinder it.

        Raises:
            OnHold: something of it is held.
            NotFound: there is no such tenant, or it was erased.
            Fenced: something else of this tenant was erased at the same time.
            StoreError: the store failed.
        """
        finished = self._finish(dry_run)
        self._want_free(tenant)
        if self.keys.key_check.fault(self.keys.domain(TENANT, tenant)):
            return self._give_up(TENANT, tenant, finished, dry_run)
        known = self._known(TENANT, tenant)
        if known.erased:
            over = self._over(Erasure(tenant, None), known, finished, dry_run)
            if dry_run:
                return over
            left, unread = self._prove(known.domain, None, None)
            return replace(over, records=over.records + left, unread=unread)
        records = DomainRecords(self.catalog, known.domain)
        versions, uses = self.catalog.listing.stable(lambda: self._whole(tenant, records))
        erasure = Erasure(tenant, None, versions=versions)
        if dry_run:
            return self._receipt(erasure, known, finished, uses)
        none, buried = frozenset[int](), {WHOLE: self.catalog.store.ticks()}
        gone = replace(known, name="", id_key=bytes(KEY), roots=(), slots={}, doomed=none, buried=buried)
        self._last_word(tenant)
        record = self._record(Verb.ERASED, TENANT, tenant, None, versions)
        done = self._destroy(gone.following(), None, None, record, records)
        return self._receipt(erasure, known, finished, uses, [done])

    def _whole(self, tenant: str, records: DomainRecords) -> tuple[int, list[BaseUse]]:
        """Return the number of versions of a tenant, and the bases on which they stand.

        Its packs are read whole, and the proof takes what they have from ``records``. Where one is damaged, all are
        read as readers do.
        """
        try:
            records.read()
            versions = records.versions()
        except ArchiveError:
            versions = {v.id: v.leaf for v in self.catalog.lookup.all_versions(records.domain)}
        return len(versions), self._uses(versions.values())

    def base(self, name: str, *, dry_run: bool = False) -> Erasure:
        """Erase all segments of a base domain.

        Raises:
            ArchiveError: a session stands on it, forgotten ones included, or packs are damaged or gone, so this is
                unknown.
            NotFound: there is no such base, or it was erased.
            Fenced: something else of this base was erased at the same time.
            StoreError: the store failed.
        """
        finished = self._finish(dry_run)
        if self.keys.key_check.fault(self.keys.domain(BASE, name)):
            return self._give_up(BASE, name, finished, dry_run)
        known = self._known(BASE, name)
        if users := self.users(known.domain, None, fresh=False):
            raise ArchiveError(f"{_standing(name, users)}: erase these first; nothing was erased")
        records = (record for record in self._records(known.domain) if record)
        found = {unit for r in records for unit in r.units if known.has(r.root, unit)}
        if not found:
            return self._over(Erasure(None, None, name), known, finished, dry_run)
        erasure = Erasure(None, None, name, segments=len(found))
        if dry_run:
            return self._receipt(erasure, known, finished)
        begun = self._begin(known)
        if users := self.users(begun.domain, begun.since):
            raise ArchiveError(f"{_standing(name, users)} by now: erase these first; nothing was erased")
        return self._receipt(erasure, known, finished, done=[self._empty(begun)])

    def _give_up(self, kind: int, name: str, finished: _Finished, dry_run: bool) -> Erasure:
        """Erase a domain whose keys are missing or damaged: put new keys that follow all those that packs name.

        Raises ArchiveError where a session stands on the base, Fenced.
        """
        domain = self.keys.domain(kind, name)
        roots = self.keys.key_check.roots[domain]
        if kind == BASE and (users := self.users(domain, None)):
            raise ArchiveError(f"{_standing(name, users)}: erase these first; nothing was erased")
        erasure = Erasure(*((name, None) if kind == TENANT else (None, None, name)))
        there = self.keys.folder.generations().get(domain, [])
        generation = max([*there, *map(generation_of, roots)]) + PAST
        lineages = (*sorted({root[:LINEAGE] for root in roots}), self.catalog.store.random(LINEAGE))
        fresh = () if kind == TENANT else ((generation, self.catalog.store.random(KEY)),)
        about = (name, self.catalog.store.random(KEY)) if kind == BASE else ("", bytes(KEY))
        keys = DomainKeys(domain, generation, kind, *about, fresh, lineages=lineages)
        if dry_run:
            return self._receipt(erasure, keys, finished)
        if kind == TENANT:
            self._last_word(name)
        if not self.keys.begin(keys):
            raise Fenced(AT_ONCE)
        self.catalog.listing.publish(record=self._record(Verb.ERASED, kind, name))
        done = _Done(self.keys.shred(keys), *self._prove(domain, generation, None, own=generation))
        return self._receipt(erasure, keys, finished, done=[done])

    def session(self, tenant: str, name: str, *, dry_run: bool = False) -> Erasure:
        """Erase all versions of a session, forgotten ones included.

        Raises:
            ArchiveError: packs are damaged or gone, so the segments shared with other sessions are unknown. Or others
                are coded after this one by a bundle that the archive was not opened with.
            OnHold: something of it is held.
            NotFound: there is no such session, or it was erased.
            Fenced: something else of this tenant was erased at the same time.
            StoreError: the store failed.
        """
        finished = self._finish(dry_run)
        with self.catalog.listing.showing_unnamed():  # a put that was cut off may have left a version
            return self._session(tenant, name, finished, dry_run)

    def _session(self, tenant: str, name: str, finished: _Finished, dry_run: bool) -> Erasure:
        """Do the work of `session`, but for what earlier erases left."""
        known = self._known(TENANT, tenant)
        self._want_free(tenant, name)
        records = DomainRecords(self.catalog, known.domain)
        towers, dead, used = self._still(
            lambda: (self._towers(records, name), self._dead(records), self._used_by_others(records, name))
        )
        if not towers:
            return self._over(Erasure(tenant, name), known, finished, dry_run)
        # what the session had
        begun, doomed = known, dead.union(*towers) - used
        if not dry_run:
            # The last look is of after the keys that doom the session: who put a pack since is fenced, so none was
            # acknowledged that it lacks.
            begun, towers, used = self._doom(known, records, name, doomed)
        versions = self._still(lambda: self.catalog.lookup.versions(known.domain, name))
        uses = self._still(lambda: self._uses([v.leaf for v in versions]))
        going, shared = doomed - used, len(used & set[bytes]().union(*towers))
        erasure = Erasure(tenant, name, versions=len({v.version for v in versions}), segments=len(going), shared=shared)
        if dry_run:
            return self._receipt(erasure, known, finished, uses)
        # the keys of everything that goes are destroyed
        own = unit_of(self.keys.session_key(known.domain, name))
        units = {own, *map(unit_of, going)}
        self._look(records.read)  # last of all: a collector may have copied records to packs that were not listed
        done, moved = self._without(begun, records, units, own)
        self._last_word(tenant, name)
        record = self._record(Verb.ERASED, TENANT, tenant, name, erasure.versions)
        destroyed = self._destroy(done, begun.since, units, record, records)
        return replace(self._receipt(erasure, known, finished, uses, [destroyed]), moved=moved)

    def renew(self, tenant: str) -> Erasure:
        """Change the keys of a tenant: put its records again under another root, and destroy the keys that they had.

        Raises:
            ArchiveError: packs are damaged or gone: what comes back of them would not open.
            NotFound: there is no such tenant, or it was erased.
            Fenced: something of this tenant was erased at the same time.
            StoreError: the store failed.
        """
        finished = self._finish(False)
        known = self._known(TENANT, tenant)
        if known.erased:
            raise NotFound(f"no tenant {tenant!r} in this archive, or it was erased")
        if self.catalog.listing.losses():
            raise ArchiveError("packs are lost, and would not open where they come back: nothing was changed")
        records = DomainRecords(self.catalog, known.domain)
        self._still(records.read)
        begun = known.renewing(self.catalog.store.random)
        self._publish(begun)
        self._look(records.read)  # who put a pack under the older keys since is fenced
        older = {root: units for root, units in records.units.items() if root != begun.newest}
        moves = {root: {unit for unit in units if begun.has(root, unit)} for root, units in older.items()}
        moved = Rerooter(self.catalog, self.keys, self._wanted_writer()).run(begun, moves, records)
        record = self._record(Verb.KEY, TENANT, tenant, count=moved)
        destroyed = self._destroy(begun.renewed(), begun.since, None, record, records)
        return replace(self._receipt(Erasure(tenant, None), known, finished, done=[destroyed]), moved=moved)

    def _want_free(self, tenant: str, name: str | None = None) -> None:
        """Raise OnHold where something of a session is held, or without a name of a tenant.

        Where damage or lost keys may hide versions with a tag that is held, they count as held.
        """
        holds = self.catalog.holds
        if not holds.rows:
            return
        domain, lookup, tags = self.keys.domain(TENANT, tenant), self.catalog.lookup, list[Mapping[str, str]]()
        with suppress(FormatError, ArchiveError):
            versions = lookup.all_versions(domain) if name is None else lookup.versions(domain, name)
            tags = [version.tags for version in versions]
        if self.keys.key_check.fault(domain) or self.catalog.damage.hiding():
            tags += [dict([hold.tag]) for hold in holds.all() if hold.tag]
        holds.want_free(tenant, name, tags)

    def _last_word(self, tenant: str, name: str | None = None) -> None:
        """Swap a manifest without a hold on what goes: one that is placed later comes after. Raises OnHold.

        The audit has it then, before a key goes.
        """
        record = self._record(Verb.ERASE, TENANT, tenant, name)
        self.catalog.listing.publish(fence=lambda: self._want_free(tenant, name), record=record)

    def _record(self, verb: Verb, kind: int, of: str, name: str | None = None, count: int = 0) -> AuditRecord:
        """Return the record of an erase, which names the session, tenant or base by its key alone."""
        domain = self.keys.domain(kind, of)
        sessions = [] if name is None else [self.keys.session_key(domain, name)]
        about = {"base" if kind == BASE else "tenant": domain[:UNIT].hex()}
        return self.catalog.record(verb, count, sessions, flags=0, **about)

    def _without(
        self, begun: DomainKeys, records: DomainRecords, units: set[int], session: int
    ) -> tuple[DomainKeys, int]:
        """Return the keys without those of some units, and the number of other records put again for that.

        ``session``: the unit that is to stay erased.
        """
        done = begun.finish(self._live(records), {session: self.catalog.store.ticks() & ~AGAIN})
        moves = begun.moves(done, units, records.units)
        return done, Rerooter(self.catalog, self.keys, self._wanted_writer()).run(begun, moves, records)

    def _live(self, records: DomainRecords) -> Collection[int]:
        """Return units in all slots whose keys may be needed.

        They are all where a pack was given up, which may come back.
        """
        if self.catalog.listing.losses():
            return range(0, 1 << 64, 1 << 52)
        return set[int]().union(*records.units.values())

    def _doom(
        self, known: DomainKeys, records: DomainRecords, name: str, doomed: set[bytes]
    ) -> tuple[DomainKeys, list[set[bytes]], set[bytes]]:
        """Publish keys by which no writer relies on a session any more.

        Return them, the session's towers and the segments of others. The towers include versions put until then;
        their segments are added to ``doomed``.
        """
        going, begun = doomed, known
        while begun is known or going - doomed:
            doomed |= going
            units = {unit_of(self.keys.session_key(known.domain, name)), *map(unit_of, doomed)}
            begun = begun.begin(self.catalog.store.random, units, self._live(records))
            self._publish(begun)
            towers, used = self._look(lambda: (self._towers(records, name), self._used_by_others(records, name)))
            going = set[bytes]().union(*towers) - used
        return begun, towers, used

    def _wanted_writer(self) -> ArchiveWriter:
        if self._writer is None:
            raise UsageError("erasing a session needs the archive's writer: erase through pltz.Archive")
        return self._writer

    def _begin(self, base: DomainKeys) -> DomainKeys:
        """Publish a new root for a base domain: writers no longer rely on records under the older ones."""
        begun = base.begin(self.catalog.store.random)
        self._publish(begun)
        self.keys.shred(begun)  # nothing is erased yet: the new keys contain all older ones
        return begun

    def _empty(self, begun: DomainKeys) -> _Done:
        """Destroy all keys of a base but those under its newest root, and prove it."""
        record = self._record(Verb.ERASED, BASE, begun.name)
        return self._destroy(begun.finish(), begun.since, None, record)

    def _destroy(
        self,
        keys: DomainKeys,
        before: int | None,
        units: set[int] | None,
        record: AuditRecord,
        seen: DomainRecords | None = None,
    ) -> _Done:
        """Publish keys without the erased ones, destroy the older generations, and prove it.

        ``record``: of it, for the audit. The others as in `_prove`.
        """
        self._publish(keys, record)
        files = self.keys.shred(keys)
        return _Done(files, *self._prove(keys.domain, before, units, seen, own=keys.generation))

    def _receipt(
        self,
        erasure: Erasure,
        known: DomainKeys,
        finished: _Finished,
        uses: Collection[BaseUse] = (),
        done: Collection[_Done] = (),
    ) -> Erasure:
        """Return the erasure with its effects and those of finishing earlier ones."""
        names = {use.name for use in uses}
        others = {domain: files for domain, files in finished.files.items() if domain != known.domain}
        return replace(
            erasure,
            records=sum(d.records for d in done),
            files=sum(d.files for d in done) + finished.files.get(known.domain, 0),
            unread=max((d.unread for d in done), default=0),
            bases=(*uses, *(use for use in finished.bases if use.name not in names)),
            finished=sum(others.values()),
            kept=tuple(name for name in self.catalog.store.kept if object_names.folder_of(name) == object_names.KEYS),
        )

    def _over(self, erasure: Erasure, known: DomainKeys, finished: _Finished, dry_run: bool) -> Erasure:
        """Return the receipt of an erase that had nothing to do but finish an unfinished one.

        Raises NotFound where nothing was finished.
        """
        if known.domain in finished.files or (erasure.base is not None and finished.bases):
            return self._receipt(erasure, known, finished)
        what = (
            f"base {erasure.base!r}"
            if erasure.base is not None
            else f"tenant {erasure.tenant!r}"
            if erasure.name is None
            else f"session {erasure.name!r} of tenant {erasure.tenant!r}"
        )
        verb = "would be" if dry_run else "were"
        files = sum(finished.files.values())
        also = f"; {counted(files, 'key file')} of another unfinished erase {verb} destroyed" if files else ""
        raise NotFound(f"no {what} in this archive, or it was erased{also}")

    def _finish(self, dry_run: bool) -> _Finished:
        """Finish the certain ones of the erases that were cut off: WRITING.md, "Unfinished erase"."""
        self.catalog.holds.want_agreed()
        self.catalog.refresh()
        folder = self.keys.folder
        if dry_run:
            finished = _Finished({domain: len(files) for domain, files in folder.leftovers().items()})
        else:
            finished = _Finished(folder.finish())
        begun = [*begun_bases(self.catalog, self.keys)]
        if begun and not dry_run:
            self.catalog.listing.publish(anew=True)  # the erase that began may have been cut off before it did
        for base in begun:
            try:
                users = self.users(base.domain, base.since)
            except ArchiveError:  # packs are damaged: this base waits, the requested erasure need not
                continue
            if not users:
                files = 0 if dry_run else self._empty(base).files
                finished.files[base.domain] = finished.files.get(base.domain, 0) + files
                finished.bases.append(BaseUse(base.name, True))
        return finished

    def _look(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` on all packs present. Raises ArchiveError where some are unreadable or gone."""
        self.catalog.refresh()
        return self._still(work)

    def _still(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` on the packs of the last look, where they are there still; else as `_look`.

        Raises its errors.
        """
        if not self.catalog.listing.listed:
            self.catalog.refresh()
        found = self.catalog.listing.stable(work)
        if self.catalog.damage.hiding():
            raise ArchiveError(
                "packs are damaged, gone or lost, so what other sessions share is not known: repair first; "
                "where repair gives up, pltz archive repair --acknowledge"
            )
        return found

    def _known(self, kind: int, name: str) -> DomainKeys:
        """Return the keys of a tenant or base. Raises NotFound, MissingKeys."""
        domain = self.keys.domain(kind, name)
        known = self.keys.of(domain)
        self.keys.want(domain, f"{'base' if kind == BASE else 'tenant'} {name!r}")
        if known is None:
            raise NotFound(f"no {'base' if kind == BASE else 'tenant'} {name!r} in this archive")
        return known

    def _publish(self, keys: DomainKeys, record: AuditRecord | None = None) -> None:
        """Put keys, and replace the manifest on which puts that know older ones build. Raises Fenced."""
        if not self.keys.publish(keys):
            raise Fenced(AT_ONCE)
        self.catalog.listing.publish(anew=True, record=record)

    def _towers(self, records: DomainRecords, name: str) -> list[set[bytes]]:
        """Return, for each version, its segments in the tenant's domain. Shared prompts are left out."""
        versions = self.catalog.lookup.versions(records.domain, name)
        records.read()
        return [records.under([v.leaf]) for v in versions]

    def _dead(self, records: DomainRecords) -> set[bytes]:
        """Return the segments of a tenant that no version has: nothing tells whose they were.

        Records that a run replaced may be there still, and parts of a log whose put was cut off.
        """
        records.read()
        return records.segments - records.under(records.leaves())

    def _used_by_others(self, records: DomainRecords, name: str) -> set[bytes]:
        """Return the segments of other sessions."""
        records.read()
        leaves = records.leaves(but=self.keys.session_key(records.domain, name))
        return records.under(leaves)

    def _uses(self, leaves: Iterable[bytes]) -> list[BaseUse]:
        """Return the bases on which versions with these last segments stand."""
        if not _base_domains(self.catalog):
            return []
        grounds = Grounds(self.catalog)
        known = map(self.keys.of, {domain for leaf in leaves for domain, _ in grounds.under(leaf)})
        return [BaseUse(name) for name in sorted(base.name if base else "" for base in known)]

    def users(self, domain: bytes, before: int | None, *, fresh: bool = True) -> dict[tuple[str, str], bool]:
        """Return the sessions that stand on records of a base domain, under roots before a generation; None is all.

        The value is True where all such versions of the session are forgotten. A segment that is stored under
        another root too counts: a collector may keep either record. ``fresh``: list packs again before.

        Raises ArchiveError where packs or the keys of any domain are damaged or gone.
        """

        def work() -> dict[tuple[str, str], bool]:
            grounds, found = Grounds(self.catalog), dict[tuple[str, str], bool]()
            with self.catalog.lookup.keeping_blocks():
                for v in self.catalog.lookup.all_versions():
                    if any(d == domain and _is_before(root, before) for d, root in grounds.under(v.leaf)):
                        found[v.tenant, v.name] = v.forgotten and found.get((v.tenant, v.name), True)
            return found

        found = (self._look if fresh else self._still)(work)
        lacking = self.catalog.keyless()  # met on the way, too: sessions of these tenants are not listed
        if others := lacking.keys() - {domain}:
            raise ArchiveError(f"{lacking[min(others)]}; nothing was erased")
        return found

    def _prove(
        self,
        domain: bytes,
        before: int | None,
        units: set[int] | None,
        seen: DomainRecords | None = None,
        *,
        own: int | None = None,
    ) -> tuple[int, int]:
        """Return the records of the units, none of which opens, and the packs that could not be read whole.

        Reads files, not indexes: packs, and the keys as they are on the disk now. ``before``: generation from which on
        roots may open. ``before``, ``units``: None is all. ``seen``: as of `_records`. ``own``: the generation put.

        Raises ArchiveError where a record opens or older keys are there.
        """
        strange = {file.generation for _, file in self.keys.folder.strangers() if file.domain == domain}
        left = [n for n in self.keys.folder.generations(fresh=False).get(domain, []) if n not in strange]
        self.keys.refresh()
        known = self.keys.of(domain)
        if known is None or min([known.generation, *left]) < (known.generation if own is None else own):
            raise ArchiveError("older keys are still there: erase again")  # newer ones are of another erase
        records = unread = 0
        for record in self._records(domain, seen):
            if record is None:
                unread += 1
            elif _is_before(record.root, before):
                mine = [unit for unit in record.units if units is None or unit in units]
                if any(known.has(record.root, unit) for unit in mine):
                    raise ArchiveError(f"a record in {record.pack} still opens: erase again")
                records += bool(mine)
        return records, unread

    def _records(self, domain: bytes, seen: DomainRecords | None = None) -> Iterator[_Named | None]:
        """Yield every record of a domain from the raw packs.

        None stands for a pack that could not be read whole. Of a large pack whose two heads lack the domain no more is
        read. ``seen``: the records of packs that were read whole already, which never change.
        """
        store, archive = self.catalog.store, self.catalog.listing.archive
        for name, size in sorted(object_names.pack.listed(store.list).items()):
            damaged, path = False, object_names.pack(name)
            if seen and (rows := seen.rows(name)) is not None:
                yield from (_Named(name.hex(), *row) for row in rows)
                continue
            try:
                if size > AHEAD:
                    with suppress(FormatError):  # the whole file may be read where its front cannot
                        pack = Pack(PackFront(store, path, size).read, size, archive=archive, name=name)
                        domains = {context.domain for context in pack.head.contexts}
                        if domain not in domains and not pack.damaged_copies:
                            continue
                file = store.open(path)
                pack = Pack(file.read, file.size, archive=archive)
                for item in pack.scan():
                    if isinstance(item, Damage):
                        damaged = True
                        continue
                    r, c = item[1], pack.head.contexts[item[1].context]
                    if c.domain == domain and not r.mark:
                        yield _Named(name.hex(), c.root, tuple(map(unit_of, identities(r, c))))
                damaged |= pack.footer().name != name
            except FileNotFoundError:
                continue  # collected
            except FormatError:
                damaged = True
            if damaged:
                yield None


def again(work: Callable[[], T]) -> T:
    """Return the result of an erase, which is begun again, after a pause, where another of its tenant was first.

    Raises Fenced where others are first all the time.
    """
    for turn in range(1, TURNS):
        with suppress(Fenced):
            return work()
        time.sleep(random.uniform(0, PAUSE * 2**turn))
    return work()


class Grounds:
    """The base domains under towers. Each segment is looked up once, so shared segments cost little."""

    def __init__(self, catalog: Catalog):
        self.catalog = catalog
        self._known: dict[bytes, frozenset[tuple[bytes, bytes]]] = {NO_SEGMENT: frozenset()}

    def under(self, leaf: bytes) -> frozenset[tuple[bytes, bytes]]:
        """Return (base domain, root of its keys) of each record under ``leaf`` that is in a base domain."""
        chain: list[tuple[bytes, frozenset[tuple[bytes, bytes]]]] = []  # from the leaf up
        seen, todo, single = set[bytes](), [leaf], True
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in self._known:
                chain.append((at, self._known[at]))
                continue
            found = self.catalog.lookup.find(SEGMENTS, at)
            bases = [p.context for p in found if p.context.domain_kind == BASE]
            own = frozenset((c.domain, c.root) for c in bases)
            chain.append((at, own))
            parents = {p.record.parent for p in found}
            single &= len(parents) <= 1  # else one was crafted, and it must not cut the tower short
            todo += parents
        if not single:
            return frozenset[tuple[bytes, bytes]]().union(*(own for _, own in chain))
        under = frozenset[tuple[bytes, bytes]]()
        for at, own in reversed(chain):
            under |= own
            self._known[at] = under
        return under


def _is_before(root: bytes, generation: int | None) -> bool:
    return generation is None or generation_of(root) < generation


def _base_domains(catalog: Catalog) -> set[bytes]:
    """Return the base domains of which packs have records, by the heads of packs that can be read."""
    domains = set[bytes]()
    for pack in sorted(catalog.listing.packs):
        try:
            domains.update(c.domain for c in catalog.listing.opened(pack).head.contexts if c.domain_kind == BASE)
        except FormatError:
            continue
        except FileNotFoundError:
            catalog.listing.note_stale()
    return domains


def begun_bases(catalog: Catalog, keys: Keyring) -> Iterator[DomainKeys]:
    """Yield the keys of base domains with an unfinished erase; only domains with records in a pack."""
    for domain in sorted(_base_domains(catalog)):
        with suppress(CorruptError):
            known = keys.of(domain)
            if known and known.kind == BASE and len(known.roots) > 1:
                yield known


def unfinished(catalog: Catalog) -> Iterator[Problem]:
    """Yield each unfinished erase that files and keys show; without the key fewer are seen.

    Spec: WRITING.md, "Unfinished erase".
    """
    keys, folder = catalog.keys, KeyFolder(catalog.store)
    for domain, files in sorted(folder.leftovers().items()):
        yield Problem(
            "erase",
            domain.hex(),
            "an erase is unfinished, or goes on now: "
            f"{counted(len(files), 'older key file')} left ({', '.join(files)}); "
            "pltz archive repair destroys them, as the next erase does",
        )
    if not isinstance(keys, Keyring):
        return
    for base in begun_bases(catalog, keys):
        try:
            users = Eraser(catalog).users(base.domain, base.since)
        except StoreError:
            raise
        except ArchiveError:  # packs are damaged, which is reported elsewhere
            continue
        if not users:
            what = f"the erase of base {base.name!r} is unfinished, or goes on now; the next erase finishes it"
            yield Problem("erase", base.domain.hex(), what)
    for domain in sorted(folder.generations()):
        with suppress(CorruptError):
            known = None if domain == keys.archive else keys.of(domain)
            if known and known.doomed:
                yield Problem("erase", domain.hex(), _doomed(catalog, keys, known))


def _doomed(catalog: Catalog, keys: Keyring, known: DomainKeys) -> str:
    """Return a sentence that names the sessions that an erase doomed and did not erase."""
    names = {v.name for v in catalog.lookup.all_versions() if v.tenant == known.name}
    going = sorted(n for n in names if unit_of(keys.session_key(known.domain, n)) in known.doomed)
    what = ", ".join(map(repr, going)) or "a session that is gone"
    return (
        f"the erase of {what} of tenant {known.name!r} began, and is unfinished or goes on now: "
        "it destroyed nothing yet; "
        "erase it again to finish"
    )


def _standing(base: str, users: dict[tuple[str, str], bool]) -> str:
    """Return the number of sessions that stand on a base, in words."""
    tenants = len({tenant for tenant, _ in users})
    forgotten = sum(users.values())
    note = f", {forgotten:,} of them forgotten and not collected yet" if forgotten else ""
    return f"{counted(len(users), 'session')} of {counted(tenants, 'tenant')} stand on base {base!r}{note}"
