"""Erase: destroy the keys of a session, a tenant or a base domain, then read the raw files to prove that nothing opens. Spec: FORMAT.md, "Erase".

    tenant    all its trees are emptied
    session   1 a generation of keys with a new tree, and the session's units doomed: writers rely on them no more
              2 look again: what was put meanwhile is doomed too (1 again); what other sessions share stays
              3 a generation with the units punctured out of the older trees
    base      1 a generation with a new tree: writers rely on records under the older ones no more
              2 look again: where a session stands on the older trees, stop
              3 a generation in which the older trees are empty
    all       older generations are overwritten and deleted; every record is read from the packs and its key asked for

A look counts only where no pack vanished on the way (a collector moves what lives), and where all was readable: a session that is not seen
would lose what it shares.

Why two generations: a writer that was acknowledged before the first is seen in step 2; one that publishes after it finds the keys changed
and is not acknowledged (`Fenced`). A crash leaves one of the states that FORMAT.md lists under "Unfinished erase". Every erase begins by
finishing what is certain.

What it cannot reach: copies of `keys/` made by others: backups, snapshots, a copy-on-write or log-structured file system or a flash disk that keeps
overwritten blocks, an object store that keeps versions. They hold wrapped keys only, so who has no archive key gets nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from pltz.archive.catalog.view import Problem, Version, View
from pltz.archive.encryption.box import KEY, UNIT, Tree, unit_of
from pltz.archive.encryption.domain_keys import DomainKeys, Unit
from pltz.archive.encryption.key_files import KeyFolder
from pltz.archive.encryption.keyring import MASTER, Keyring
from pltz.archive.errors import ArchiveError, Fenced, NotFound
from pltz.archive.format.ids import BASE, NONE, TENANT
from pltz.archive.format.index_file import SEGMENTS, key_of_session
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.humanize import counted
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class BaseUse:
    """A base domain on which erased sessions stood. ``own``, ``others``: sessions of the same tenant and of other tenants that still stand
    on it, forgotten ones too; ``erased``: whether its keys were destroyed as well (in a dry run: would be)."""

    name: str
    own: int
    others: int
    erased: bool


@dataclass(frozen=True)
class Erasure:
    """What was erased. ``tenant``, ``name``, ``base``: what was named; ``segments``: whose keys were destroyed; ``shared``: that other
    sessions of the tenant have too, which stay; ``records``: read from the raw packs, whose keys are gone; ``files``: key files overwritten
    and deleted; ``unread``: packs with damage, in which the proof could not look at every byte; ``bases``: base domains on which the erased
    sessions stood; ``finished``: key files that unfinished erases of others had left, destroyed too."""

    tenant: str | None
    name: str | None
    base: str | None = None
    versions: int = 0
    segments: int = 0
    shared: int = 0
    records: int = 0
    files: int = 0
    unread: int = 0
    bases: tuple[BaseUse, ...] = ()
    finished: int = 0


class _Done(NamedTuple):
    """What destroying keys came to: see `Erasure`."""

    files: int
    records: int
    unread: int


class _Named(NamedTuple):
    """A record as the proof sees it. ``ids``: of its segment and its session, those that it has."""

    pack: str
    root: bytes
    ids: list[bytes]


@dataclass
class _Finished:
    """What was finished of erases that were cut off: key files by domain, bases."""

    files: dict[bytes, int] = field(default_factory=dict)
    bases: list[BaseUse] = field(default_factory=list)


class Eraser:
    """One erasure at a time; several may run."""

    def __init__(self, view: View):
        if not isinstance(view.keys, Keyring):
            raise UsageError(
                "erasing destroys keys, and this archive was opened without any: a sealed one needs its key; "
                "in one without encryption, forget and then collect twice frees the bytes"
            )
        self.view, self.keys = view, view.keys

    def tenant(self, tenant: str, *, bases: bool = False, dry_run: bool = False) -> Erasure:
        """Erase everything of a tenant: its sessions, segments, names.

        With ``bases`` also the base domains on which only this tenant's sessions stand. Raises NotFound, Fenced, StoreError; with ``bases``
        ArchiveError where packs are damaged or gone: it is not known then who stands on a base.
        """
        finished = self._finish(dry_run)
        known = self._known(TENANT, tenant)
        if known.erased:
            over = self._over(Erasure(tenant, None), known, finished, bases, dry_run)
            if dry_run:
                return over
            records, unread = self._prove(known.domain, set(known.roots), None)
            return replace(over, records=over.records + records, unread=unread)
        versions = sum(v.tenant == tenant for v in self.view.all_versions())
        look = self._look if bases else self.view.look  # damage is in the way of bases, not of the tenant
        uses = look(lambda: self._uses(tenant, lambda v: v.tenant == tenant))
        free = [use for use in uses if bases and not use.others]
        if dry_run:
            uses = [replace(use, erased=use in free) for use in uses]
            return self._receipt(Erasure(tenant, None, versions=versions), known, finished, uses)
        for use in free:
            self._begin(self._known(BASE, use.name))
        erased = {"name": "", "kind": TENANT, "id_key": bytes(KEY), "doomed": frozenset[Unit]()}
        done = [self._empty(known, set(known.roots), **erased)]
        for use in free:
            base = self._known(BASE, use.name)
            if users := self.users(base.domain, base.older):
                others = sum(whose != tenant for whose, _ in users)
                seen = replace(use, own=len(users) - others, others=others)
            else:
                done.append(self._empty(base, base.older))
                seen = replace(use, erased=True)
            uses[uses.index(use)] = seen
        return self._receipt(Erasure(tenant, None, versions=versions), known, finished, uses, done)

    def base(self, name: str, *, dry_run: bool = False) -> Erasure:
        """Erase all segments of a base domain.

        Raises ArchiveError where any session stands on it, a forgotten one too, or where packs are damaged or gone, so that this is not
        known; NotFound, Fenced, StoreError.
        """
        finished = self._finish(dry_run)
        known = self._known(BASE, name)
        if users := self.users(known.domain, known.roots):
            raise ArchiveError(f"{_standing(name, users)}: erase these first; nothing was erased")
        records = (record for record in self._records(known.domain) if record)
        found = {i for r in records for i in r.ids if known.roots[r.root].key(unit_of(i)) is not None}
        if not found:
            return self._over(Erasure(None, None, name), known, finished, True, dry_run)
        erasure = Erasure(None, None, name, segments=len(found))
        if dry_run:
            return self._receipt(erasure, known, finished)
        begun = self._begin(known)
        if users := self.users(begun.domain, begun.older):
            raise ArchiveError(f"{_standing(name, users)} by now: erase these first; nothing was erased")
        return self._receipt(erasure, known, finished, done=[self._empty(begun, begun.older)])

    def session(self, tenant: str, name: str, *, dry_run: bool = False) -> Erasure:
        """Erase all versions of a session, forgotten ones too.

        Raises NotFound, Fenced, StoreError, ArchiveError where packs are damaged or gone: what other sessions share is not known then.
        """
        finished = self._finish(dry_run)
        known = self._known(TENANT, tenant)
        towers = self._look(lambda: self._towers(known.domain, name))
        if not towers:
            return self._over(Erasure(tenant, name), known, finished, False, dry_run)
        begun = known
        if not dry_run:
            begun, towers = self._doom(known, name, towers)
        doomed = set[bytes]().union(*towers)
        kept = doomed & self._look(lambda: self._used_by_others(tenant, known.domain, name))
        uses = self._look(lambda: self._uses(tenant, lambda v: (v.tenant, v.name) == (tenant, name)))
        erasure = Erasure(tenant, name, versions=len(towers), segments=len(doomed - kept), shared=len(kept))
        if dry_run:
            return self._receipt(erasure, known, finished, uses)
        units = {unit_of(self.keys.session_key(known.domain, name)), *map(unit_of, doomed - kept)}
        trees = dict(begun.roots)
        for root in known.roots:
            for unit in units:
                trees[root] = trees[root].puncture(unit)
        done = begun.following(roots=trees, doomed=frozenset[Unit]())
        return self._receipt(erasure, known, finished, uses, [self._destroy(done, set(known.roots), units)])

    def _doom(
        self, known: DomainKeys, name: str, towers: list[set[bytes]]
    ) -> tuple[DomainKeys, list[set[bytes]]]:
        """Keys by which nobody relies on a session any more, and its towers: a version that was put until then is among them."""
        fresh = self._fresh()
        begun, doomed = known, set[bytes]()
        while begun is known or any(tower - doomed for tower in towers):
            doomed |= set[bytes]().union(*towers)
            units = {unit_of(self.keys.session_key(known.domain, name)), *map(unit_of, doomed)}
            begun = begun.following(
                roots=known.roots | fresh,
                doomed=frozenset(Unit(root, unit) for root in known.roots for unit in units),
            )
            self._publish(begun)
            towers = self._look(lambda: self._towers(known.domain, name))
        return begun, towers

    def _begin(self, base: DomainKeys) -> DomainKeys:
        """Publish a new root for a base domain: writers rely on records under the older ones no more."""
        begun = base.following(roots=base.roots | self._fresh())
        self._publish(begun)
        self.keys.folder.shred(
            begun.domain, begun.generation
        )  # nothing is erased yet: the new keys have all of the older
        return begun

    def _fresh(self) -> dict[bytes, Tree]:
        return {self.view.store.random(UNIT): Tree.root(self.view.store.random(KEY))}

    def _empty(self, known: DomainKeys, roots: Collection[bytes], **changes: Any) -> _Done:
        """Destroy all keys under some roots of a domain, and prove it."""
        emptied = {root: Tree({}) if root in roots else tree for root, tree in known.roots.items()}
        return self._destroy(known.following(roots=emptied, **changes), set(roots), None)

    def _destroy(self, keys: DomainKeys, roots: set[bytes], units: set[int] | None) -> _Done:
        """Publish keys without what is erased, destroy the older ones, and prove it."""
        self._publish(keys)
        files = self.keys.folder.shred(keys.domain, keys.generation)
        return _Done(files, *self._prove(keys.domain, roots, units))

    def _receipt(
        self,
        erasure: Erasure,
        known: DomainKeys,
        finished: _Finished,
        uses: Collection[BaseUse] = (),
        done: Collection[_Done] = (),
    ) -> Erasure:
        """The erasure with what was done for it, and what was finished of others before."""
        names = {use.name for use in uses}
        others = {domain: files for domain, files in finished.files.items() if domain != known.domain}
        return replace(
            erasure,
            records=sum(d.records for d in done),
            files=sum(d.files for d in done) + finished.files.get(known.domain, 0),
            unread=max((d.unread for d in done), default=0),
            bases=(*uses, *(use for use in finished.bases if use.name not in names)),
            finished=sum(others.values()),
        )

    def _over(
        self, erasure: Erasure, known: DomainKeys, finished: _Finished, bases: bool, dry_run: bool
    ) -> Erasure:
        """The receipt where nothing was left to erase but what an unfinished erase left, which was finished just now.

        ``bases``: whether a base that was finished counts. Raises NotFound where nothing was left.
        """
        if known.domain in finished.files or (bases and finished.bases):
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
        """Finish what is certain of erases that were cut off: FORMAT.md, "Unfinished erase"."""
        self.view.refresh()
        folder = self.keys.folder
        if dry_run:
            finished = _Finished({domain: len(files) for domain, files in folder.leftovers().items()})
        else:
            finished = _Finished(folder.finish())
        for base in begun_bases(self.view, self.keys):
            try:
                users = self.users(base.domain, base.older)
            except ArchiveError:  # packs are damaged: this base waits, what was asked for need not
                continue
            if not users:
                files = 0 if dry_run else self._empty(base, base.older).files
                finished.files[base.domain] = finished.files.get(base.domain, 0) + files
                finished.bases.append(BaseUse(base.name, 0, 0, True))
        return finished

    def _look(self, work: Callable[[], T]) -> T:
        """What ``work`` finds in all packs that are there now. Raises ArchiveError where some cannot be read, or are gone."""
        self.view.refresh()
        found = self.view.look(work)
        if self.view.hiding():
            raise ArchiveError(
                "packs are damaged, gone or lost, so what other sessions share is not known: repair first; "
                "where repair gives up, pltz archive repair --acknowledge"
            )
        return found

    def _known(self, kind: int, name: str) -> DomainKeys:
        self.view.refresh()
        known = self.keys.of(self.keys.domain(kind, name))
        if known is None:
            raise NotFound(f"no {'base' if kind == BASE else 'tenant'} {name!r} in this archive")
        return known

    def _publish(self, keys: DomainKeys) -> None:
        if not self.keys.publish(keys):
            raise Fenced("something of this tenant or base was erased at the same time: erase again")

    def _towers(self, domain: bytes, name: str) -> list[set[bytes]]:
        """Segments of each version that are in the tenant's domain: shared prompts are not."""
        return [self._own(domain, v.leaf) for v in self.view.versions(domain, name)]

    def _used_by_others(self, tenant: str, domain: bytes, name: str) -> set[bytes]:
        others = [v for v in self.view.all_versions() if v.tenant == tenant and v.name != name]
        return set[bytes]().union(*(self._own(domain, v.leaf) for v in others))

    def _own(self, domain: bytes, leaf: bytes) -> set[bytes]:
        found: set[bytes] = set()
        todo = [leaf]
        while todo:
            at = todo.pop()
            if at == NONE or at in found:
                continue
            for place in self.view.find(SEGMENTS, at):  # of what is lost, or was erased before, there is none
                if place.context.domain == domain:  # all: one that was crafted must not cut the tower short
                    found.add(at)
                    todo.append(place.record.parent)
        return found

    def _uses(self, tenant: str, going: Callable[[Version], bool]) -> list[BaseUse]:
        """The bases on which versions that are ``going`` stand, and who else does."""
        versions, grounds = self.view.all_versions(), Grounds(self.view)
        used = {domain for v in versions if going(v) for domain, _ in grounds.under(v.leaf)}
        if not used:
            return []
        users: dict[bytes, set[tuple[str, str]]] = {domain: set() for domain in used}
        for v in versions:
            for domain in () if going(v) else {domain for domain, _ in grounds.under(v.leaf)} & used:
                users[domain].add((v.tenant, v.name))
        uses = []
        for domain, sessions in users.items():
            base = self.keys.of(domain)
            others = sum(whose != tenant for whose, _ in sessions)
            uses.append(BaseUse(base.name if base else "", len(sessions) - others, others, False))
        return sorted(uses, key=lambda use: use.name)

    def users(self, domain: bytes, roots: Collection[bytes]) -> dict[tuple[str, str], bool]:
        """Return the sessions that stand on records under these roots of a base domain, and whether all such versions are forgotten.

        A segment that is stored under another root too counts: a collector may keep either record.
        Raises ArchiveError where packs are damaged or gone.
        """
        wanted = {(domain, root) for root in roots}

        def work() -> dict[tuple[str, str], bool]:
            grounds, found = Grounds(self.view), dict[tuple[str, str], bool]()
            for v in self.view.all_versions():
                if wanted & grounds.under(v.leaf):
                    found[v.tenant, v.name] = v.forgotten and found.get((v.tenant, v.name), True)
            return found

        return self._look(work)

    def _prove(self, domain: bytes, roots: set[bytes], units: set[int] | None) -> tuple[int, int]:
        """(records of the units that do not open any more, packs that could not be read whole). Raises ArchiveError where one opens.

        Reads files, not indexes: packs, and the keys as they are on the disk now. ``units``: None is all.
        """
        left = self.keys.folder.generations().get(domain, [])
        self.keys.refresh()
        known = self.keys.of(domain)
        if len(left) != 1 or known is None or known.generation != left[0]:
            raise ArchiveError("older keys are still there: erase again")
        records = unread = 0
        for record in self._records(domain):
            if record is None:
                unread += 1
            elif record.root in roots:
                mine = [i for i in record.ids if units is None or unit_of(i) in units]
                if any(known.roots[record.root].key(unit_of(i)) is not None for i in mine):
                    raise ArchiveError(f"a record in {record.pack} still opens: erase again")
                records += bool(mine)
        return records, unread

    def _records(self, domain: bytes) -> Iterator[_Named | None]:
        """Read every record of a domain from the raw packs; None stands for a pack that could not be read whole."""
        for name in sorted(self.view.store.list("packs")):
            damaged = False
            try:
                file = self.view.store.open(f"packs/{name}")
                pack = Pack(file.read, file.size, archive=self.view.ledger.archive)
                for item in pack.scan():
                    if isinstance(item, Damage):
                        damaged = True
                        continue
                    r, c = item[1], pack.head.contexts[item[1].context]
                    if c.domain == domain and not r.mark:
                        ids = [r.id] if r.id is not None else []
                        yield _Named(
                            name, c.root, [*ids, key_of_session(r, c)] if r.name is not None else ids
                        )
            except FileNotFoundError:
                continue  # collected
            except FormatError:
                damaged = True
            if damaged:
                yield None


class Grounds:
    """What towers stand on. Each segment is looked for once, so that what many sessions share costs little."""

    def __init__(self, view: View):
        self.view = view
        self._known: dict[bytes, frozenset[tuple[bytes, bytes]]] = {NONE: frozenset()}

    def under(self, leaf: bytes) -> frozenset[tuple[bytes, bytes]]:
        """Return (base domain, root of its keys) of each record in a base domain that the tower above ``leaf`` has."""
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
            found = self.view.find(SEGMENTS, at)
            bases = [p.context for p in found if p.context.domain_kind == BASE]
            chain.append((at, frozenset((c.domain, c.root) for c in bases)))
            parents = {p.record.parent for p in found}
            single &= len(parents) <= 1  # else one was crafted: it must not cut the tower short
            todo += parents
        if not single:
            return frozenset[tuple[bytes, bytes]]().union(*(own for _, own in chain))
        under = frozenset[tuple[bytes, bytes]]()
        for at, own in reversed(chain):
            under |= own
            self._known[at] = under
        return under


def begun_bases(view: View, keys: Keyring) -> Iterator[DomainKeys]:
    """Yield the keys of base domains whose erase began and was not finished; only such of which a pack has records."""
    domains = set[bytes]()
    for pack in sorted(view.packs):
        with suppress(FormatError, FileNotFoundError):
            domains.update(c.domain for c in view.pack(pack).head.contexts if c.domain_kind == BASE)
    for domain in sorted(domains):
        with suppress(CorruptError):
            known = keys.of(domain)
            if known and known.kind == BASE and known.older:
                yield known


def unfinished(view: View) -> Iterator[Problem]:
    """Yield each unfinished erase that files and keys tell of; without the key fewer are seen. Spec: FORMAT.md, "Unfinished erase"."""
    keys, folder = view.keys, KeyFolder(view.store)
    for domain, files in sorted(folder.leftovers().items()):
        what = "a change of the archive's key" if domain == MASTER else "an erase"
        yield Problem(
            "erase",
            domain.hex(),
            f"{what} is unfinished, or goes on now: {counted(len(files), 'older key file')} left ({', '.join(files)}); "
            "pltz archive repair destroys them, as the next erase does",
        )
    if not isinstance(keys, Keyring):
        return
    for base in begun_bases(view, keys):
        with suppress(ArchiveError):  # packs are damaged, which is told elsewhere
            if not Eraser(view).users(base.domain, base.older):
                what = f"the erase of base {base.name!r} is unfinished, or goes on now; the next erase finishes it"
                yield Problem("erase", base.domain.hex(), what)
    for domain in sorted(folder.generations()):
        with suppress(CorruptError):
            known = None if domain == MASTER else keys.of(domain)
            if known and known.doomed:
                yield Problem("erase", domain.hex(), _doomed(view, keys, known))


def _doomed(view: View, keys: Keyring, known: DomainKeys) -> str:
    """Which sessions an erase doomed and did not erase."""
    units = {unit.number for unit in known.doomed}
    names = {v.name for v in view.all_versions() if v.tenant == known.name}
    going = sorted(n for n in names if unit_of(keys.session_key(known.domain, n)) in units)
    what = ", ".join(map(repr, going)) or "a session that is gone"
    return (
        f"the erase of {what} of tenant {known.name!r} began, and is unfinished or goes on now: it destroyed nothing yet; "
        "erase it again to finish"
    )


def _standing(base: str, users: dict[tuple[str, str], bool]) -> str:
    """How many sessions stand on a base, in words."""
    tenants = len({tenant for tenant, _ in users})
    forgotten = sum(users.values())
    note = f", {forgotten:,} of them forgotten and not collected yet" if forgotten else ""
    return f"{counted(len(users), 'session')} of {counted(tenants, 'tenant')} stand on base {base!r}{note}"
