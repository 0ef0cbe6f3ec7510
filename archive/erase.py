"""Erase: destroy the keys of a session or a tenant, then read the raw files to prove that nothing opens. Spec: FORMAT.md, "Erase".

    tenant    all its trees are emptied
    session   1 a generation of keys with a new tree, and the session's units doomed: writers rely on them no more
              2 look again: what other sessions share stays
              3 a generation with the units punctured out of the older trees
    both      older generations are overwritten and deleted; every record is read from the packs and its key asked for

Why two generations: a writer that was acknowledged before the first is seen in step 2; one that publishes after it finds the keys changed
and is not acknowledged (`Fenced`). A crash leaves the session whole, doomed or erased with an older generation beside; the next erase goes on.

What it cannot reach: copies of `keys/` made by others: backups, snapshots, a copy-on-write or log-structured file system or a flash disk that keeps
overwritten blocks, an object store that keeps versions. They hold wrapped keys only, so who has no archive key gets nothing from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pltz.archive.errors import ArchiveError, Fenced, NotFound
from pltz.archive.identity import NONE, TENANT
from pltz.archive.index import SEGMENTS, key_of_session
from pltz.archive.keys import DomainKeys, Keyring, Unit
from pltz.archive.pack import Damage, Pack
from pltz.archive.seal import KEY, UNIT, Tree, unit_of
from pltz.archive.view import View
from pltz.plt_codec.errors import FormatError, UsageError


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
        """All versions of a session, forgotten ones too. Raises NotFound, Fenced, StoreError."""
        known = self._known(tenant)
        towers = self._towers(known.domain, name)
        if not towers:
            raise NotFound(f"no session {name!r} of tenant {tenant!r} in this archive")
        key = self.keys.session_key(known.domain, name)
        doomed = {s for tower in towers for s in tower}
        if not dry_run:
            units = {unit_of(key), *map(unit_of, doomed)}
            fresh = {self.view.store.random(UNIT): Tree.root(self.view.store.random(KEY))}
            begun = known.following(
                roots=known.roots | fresh,
                doomed=frozenset(Unit(root, unit) for root in known.roots for unit in units),
            )
            self._publish(begun)
            self.view.refresh()
        kept = doomed & self._used_by_others(known.domain, name)
        if dry_run:
            return Erasure(tenant, name, len(towers), len(doomed - kept), len(kept), 0, 0, 0)
        units = {unit_of(key), *map(unit_of, doomed - kept)}
        trees = dict(begun.roots)
        for root in known.roots:
            for unit in units:
                trees[root] = trees[root].puncture(unit)
        done = begun.following(roots=trees, doomed=frozenset[Unit]())
        self._publish(done)
        files = self.keys.folder.shred(known.domain, done.generation)
        records, unread = self._prove(known.domain, set(known.roots), units)
        return Erasure(tenant, name, len(towers), len(doomed - kept), len(kept), records, files, unread)

    def _known(self, tenant: str) -> DomainKeys:
        self.view.refresh()
        known = self.keys.of(self.keys.domain(TENANT, tenant))
        if known is None or known.erased:
            raise NotFound(f"no tenant {tenant!r} in this archive, or it was erased")
        return known

    def _publish(self, keys: DomainKeys) -> None:
        if not self.keys.publish(keys):
            raise Fenced("something of this tenant was erased at the same time: erase again")

    def _towers(self, domain: bytes, name: str) -> list[set[bytes]]:
        """Segments of each version that are in the tenant's domain: shared prompts are not."""
        return [self._own(domain, v.leaf) for v in self.view.versions(domain, name)]

    def _used_by_others(self, domain: bytes, name: str) -> set[bytes]:
        others: set[bytes] = set()
        for v in self.view.all_versions():
            if v.name != name and self.view.at(v.location).context.domain == domain:
                others |= self._own(domain, v.leaf)
        return others

    def _own(self, domain: bytes, leaf: bytes) -> set[bytes]:
        found: set[bytes] = set()
        while leaf != NONE and leaf not in found:
            places = self.view.find(SEGMENTS, leaf)
            if not places:
                break  # lost, or erased before: what is above it cannot be reached
            if places[0].context.domain != domain:
                break
            found.add(leaf)
            leaf = places[0].record.parent
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
            try:
                pack = Pack.of(self.view.store.view(f"packs/{name}"))
                items = list(pack.scan())
            except FileNotFoundError:
                continue  # collected
            except FormatError:
                unread += 1
                continue
            unread += any(isinstance(item, Damage) for item in items)
            for item in items:
                if isinstance(item, Damage) or item[1].mark:
                    continue
                r, c = item[1], pack.head.contexts[item[1].context]
                if c.domain != domain or c.root not in roots:
                    continue
                ids = [r.id] if r.id is not None else []
                ids += [key_of_session(r, c)] if r.name is not None else []
                mine = [i for i in ids if units is None or unit_of(i) in units]
                if any(known.roots[c.root].key(unit_of(i)) is not None for i in mine):
                    raise ArchiveError(f"a record in {name} still opens: erase again")
                records += bool(mine)
        return records, unread
