"""Erase: destroy the keys of a session or a tenant, then read the raw files to prove that nothing opens. Spec: FORMAT.md, "Erase".

    tenant    all its trees are emptied
    session   1 a generation of keys with a new tree, and the session's units doomed: writers rely on them no more
              2 look again: what was put meanwhile is doomed too (1 again); what other sessions share stays
              3 a generation with the units punctured out of the older trees
    both      older generations are overwritten and deleted; every record is read from the packs and its key asked for

A look counts only where no pack vanished on the way (a collector moves what lives), and where all was readable: a session that is not seen
would lose what it shares.

Why two generations: a writer that was acknowledged before the first is seen in step 2; one that publishes after it finds the keys changed
and is not acknowledged (`Fenced`). A crash leaves the session whole, doomed or erased with an older generation beside; the next erase goes on.

What it cannot reach: copies of `keys/` made by others: backups, snapshots, a copy-on-write or log-structured file system or a flash disk that keeps
overwritten blocks, an object store that keeps versions. They hold wrapped keys only, so who has no archive key gets nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pltz.archive.domain_keys import DomainKeys, Unit
from pltz.archive.errors import ArchiveError, Fenced, NotFound
from pltz.archive.identity import NONE, TENANT
from pltz.archive.index import SEGMENTS, key_of_session
from pltz.archive.keyring import Keyring
from pltz.archive.pack import Damage, Pack
from pltz.archive.seal import KEY, UNIT, Tree, unit_of
from pltz.archive.view import View
from pltz.plt_codec.errors import FormatError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Erasure:
    """What was erased. ``segments``: whose keys were destroyed; ``shared``: that other sessions of the tenant have too, which stay;
    ``records``: read from the raw packs, whose keys are gone; ``files``: key files overwritten and deleted; ``unread``: packs
    with damage, in which the proof could not look at every byte."""

    tenant: str
    name: str | None
    versions: int
    segments: int
    shared: int
    records: int
    files: int
    unread: int


class Eraser:
    """One erasure at a time; several may run."""

    def __init__(self, view: View):
        if not isinstance(view.keys, Keyring):
            raise UsageError(
                "erasing destroys keys, and this archive was opened without any: a sealed one needs its key; "
                "in one without encryption, forget and then collect twice frees the bytes"
            )
        self.view, self.keys = view, view.keys

    def tenant(self, tenant: str, *, dry_run: bool = False) -> Erasure:
        """Everything of a tenant: its sessions, segments, names. Raises NotFound, Fenced, StoreError."""
        known = self._known(tenant)
        if files := self._finish(known, dry_run=dry_run, over=known.erased, what=f"tenant {tenant!r}"):
            records, unread = self._prove(known.domain, set(known.roots), None)
            return Erasure(tenant, None, 0, 0, 0, records, files, unread)
        versions = [v for v in self.view.all_versions() if v.tenant == tenant]
        emptied = {root: Tree({}) for root in known.roots}
        if dry_run:
            return Erasure(tenant, None, len(versions), 0, 0, 0, 0, 0)
        erased = known.following(
            name="", kind=TENANT, id_key=bytes(KEY), roots=emptied, doomed=frozenset[Unit]()
        )
        self._publish(erased)
        files = self.keys.folder.shred(known.domain, erased.generation)
        records, unread = self._prove(known.domain, set(known.roots), None)
        return Erasure(tenant, None, len(versions), 0, 0, records, files, unread)

    def session(self, tenant: str, name: str, *, dry_run: bool = False) -> Erasure:
        """All versions of a session, forgotten ones too.

        Raises NotFound, Fenced, StoreError, ArchiveError where packs are damaged: what other sessions share is not known then.
        """
        known = self._known(tenant)
        towers = self._look(lambda: self._towers(known.domain, name))
        what = f"session {name!r} of tenant {tenant!r}"
        if files := self._finish(known, dry_run=dry_run, over=not towers, what=what):
            return Erasure(tenant, name, 0, 0, 0, 0, files, 0)
        begun = known
        if not dry_run:
            begun, towers = self._doom(known, name, towers)
        doomed = set[bytes]().union(*towers)
        kept = doomed & self._look(lambda: self._used_by_others(tenant, known.domain, name))
        if dry_run:
            return Erasure(tenant, name, len(towers), len(doomed - kept), len(kept), 0, 0, 0)
        units = {unit_of(self.keys.session_key(known.domain, name)), *map(unit_of, doomed - kept)}
        trees = dict(begun.roots)
        for root in known.roots:
            for unit in units:
                trees[root] = trees[root].puncture(unit)
        done = begun.following(roots=trees, doomed=frozenset[Unit]())
        self._publish(done)
        files = self.keys.folder.shred(known.domain, done.generation)
        records, unread = self._prove(known.domain, set(known.roots), units)
        return Erasure(tenant, name, len(towers), len(doomed - kept), len(kept), records, files, unread)

    def _doom(
        self, known: DomainKeys, name: str, towers: list[set[bytes]]
    ) -> tuple[DomainKeys, list[set[bytes]]]:
        """Keys by which nobody relies on a session any more, and its towers: a version that was put until then is among them."""
        fresh = {self.view.store.random(UNIT): Tree.root(self.view.store.random(KEY))}
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

    def _look(self, work: Callable[[], T]) -> T:
        """What ``work`` finds in all packs that are there now. Raises ArchiveError where some cannot be read."""
        self.view.refresh()
        found = self.view.look(work)
        if self.view.unreadable & set(self.view.packs):
            raise ArchiveError("packs are damaged, so what other sessions share is not known: repair first")
        return found

    def _known(self, tenant: str) -> DomainKeys:
        self.view.refresh()
        known = self.keys.of(self.keys.domain(TENANT, tenant))
        if known is None:
            raise NotFound(f"no tenant {tenant!r} in this archive")
        return known

    def _finish(self, known: DomainKeys, *, dry_run: bool, over: bool, what: str) -> int:
        """Where an erasure is ``over`` but for the older keys that a crash left, destroy these; how many files.

        Raises NotFound where there is nothing to erase and nothing was left.
        """
        if not over:
            return 0
        folder = self.keys.folder
        if not dry_run and (file := folder.read(known.domain, known.generation)):
            folder.put(file)  # both copies, before the older ones go
        files = 0 if dry_run else folder.shred(known.domain, known.generation)
        if not files:
            raise NotFound(f"no {what} in this archive, or it was erased")
        return files

    def _publish(self, keys: DomainKeys) -> None:
        if not self.keys.publish(keys):
            raise Fenced("something of this tenant was erased at the same time: erase again")

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
        for name in sorted(self.view.store.list("packs")):
            damaged = False
            try:
                file = self.view.store.open(f"packs/{name}")
                pack = Pack(file.read, file.size)
                for item in pack.scan():
                    if isinstance(item, Damage):
                        damaged = True
                        continue
                    r, c = item[1], pack.head.contexts[item[1].context]
                    if r.mark or c.domain != domain or c.root not in roots:
                        continue
                    ids = [r.id] if r.id is not None else []
                    ids += [key_of_session(r, c)] if r.name is not None else []
                    mine = [i for i in ids if units is None or unit_of(i) in units]
                    if any(known.roots[c.root].key(unit_of(i)) is not None for i in mine):
                        raise ArchiveError(f"a record in {name} still opens: erase again")
                    records += bool(mine)
            except FileNotFoundError:
                continue  # collected
            except FormatError:
                damaged = True
            unread += damaged
        return records, unread
