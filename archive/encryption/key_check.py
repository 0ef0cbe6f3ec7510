"""The key check: whether the key files are those for the records that packs have. Needs no key.

    tables of packs --> domain, roots of its records
                                     |
    newest key file of the domain --> lineages, generation          fault: no file, none sound, or roots it never had

Absence is no proof that nothing was stored. So whoever makes the first keys of a domain, finds no session of it, or
says that an archive is sound, looks here first. Spec: FORMAT.md, "Lost keys".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

from pltz.archive.encryption.key_files import KeyFolder
from pltz.archive.format.object_names import key_pattern, pack
from pltz.archive.format.pack import Pack
from pltz.archive.format.record import SEALED
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import FormatError

READERS = 16  # tables read at once: one from a bucket waits for the network
FEW = 64  # packs whose tables are read one after the other


class KeyCheck:
    """Compares the roots that packs name with the key files. Each pack's table is read once.

    ``archive``: id of the archive; packs of others are left out.
    """

    def __init__(self, store: Store, archive: bytes, folder: KeyFolder | None = None) -> None:
        self.store, self.archive = store, archive
        self.folder = folder or KeyFolder(store)
        self._packs: Callable[[], Mapping[bytes, int]] | None = None
        self._all = False  # whether roots are of all packs that are there, since the last refresh
        self._tables: dict[bytes, frozenset[tuple[bytes, bytes]]] = {}  # pack -> domain and root of each context
        self._roots: dict[bytes, set[bytes]] | None = None

    def refresh(self, packs: Callable[[], Mapping[bytes, int]] | None = None) -> None:
        """Look at packs and key files again at the next question.

        ``packs``: returns the packs and their sizes, as the caller has just listed them; None lists them then.
        """
        self._roots, self._packs, self._all = None, packs, False
        self.folder.forget()

    def look_at_all(self) -> None:
        """Look from now to the next refresh at all packs that are there, and not only at those that a manifest names.

        One lists them. Whoever makes first keys needs it: an older manifest, or a put that was cut off, names fewer.
        """
        if not self._all and self._packs:
            self._roots, self._packs = None, None
        self._all = True

    @property
    def roots(self) -> dict[bytes, set[bytes]]:
        """Return the roots that packs name, by domain. Packs that cannot be read are left out. Raises StoreError."""
        if self._roots is None:
            sizes = self._packs() if self._packs else pack.listed(self.store.list)
            self._tables = {name: self._tables[name] for name in self._tables.keys() & sizes.keys()}
            new = sorted(sizes.keys() - self._tables.keys())
            slices = [[(name, sizes[name]) for name in new[n::READERS]] for n in range(READERS if new else 0)]
            with ThreadPoolExecutor(READERS) if len(new) > FEW else nullcontext() as pool:
                for found in (pool.map if pool else map)(self._read, slices):
                    self._tables |= found
            self._roots = {}
            for domain, root in frozenset[tuple[bytes, bytes]]().union(*self._tables.values()):
                self._roots.setdefault(domain, set()).add(root)
        return self._roots

    def missing(self) -> dict[bytes, str]:
        """Return the domains that have records and no key file, with a sentence. Names of files decide.

        Raises StoreError.
        """
        roots = self.roots  # before key files: keys are put before the packs that use them
        there = self.folder.generations(fresh=False)
        if (roots.keys() | {self.archive}) - there.keys():  # the listing may be older than that of packs
            there = self.folder.generations()
        found = {domain: _no_file(domain) for domain in sorted(roots.keys() - there.keys())}
        if roots and self.archive not in there:
            own = key_pattern(self.archive)
            found[self.archive] = f"packs are sealed, and the archive's own key file ({own}) is missing: {BRING_BACK}"
        return found

    def faults(self) -> dict[bytes, str]:
        """Return each domain whose key files are not those for its records, with a sentence. Reads the key files.

        Raises StoreError.
        """
        found = self.missing()
        for domain in sorted(self.roots.keys() - found.keys()):
            if what := self.fault(domain):
                found[domain] = what
        return found

    def fault(self, domain: bytes) -> str | None:
        """Return a sentence where the key files of a domain are not those for its records. Raises StoreError."""
        if not (roots := self.roots.get(domain)) or not self._fault(domain, roots, fresh=False):
            return None
        return self._fault(domain, roots, fresh=True)  # the listing may be older than that of packs

    def _fault(self, domain: bytes, roots: Collection[bytes], *, fresh: bool) -> str | None:
        """Return a sentence where the key files of a domain do not govern some roots. ``fresh``: list them now."""
        try:
            newest = self.folder.newest(domain, fresh=fresh)
        except FormatError as exc:
            return f"packs have records of domain {domain.hex()}, and of its newest key file {exc}: {BRING_BACK}"
        if newest is None:
            return _no_file(domain)
        if all(map(newest.governs, roots)):
            return None
        return (
            f"packs have records of domain {domain.hex()} under keys that its newest key file ({key_pattern(domain)}, "
            f"generation {newest.generation}) never had: it is an older one, or was made anew while they were away; "
            f"{BRING_BACK}"
        )

    def strangers(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each key file with keys that the newest of its domain never had, and a sentence."""
        for name, _ in self.folder.strangers():
            yield (name, "has keys that the newest key file of its domain never had: it stays; move one of them away")

    def _read(self, packs: Sequence[tuple[bytes, int]]) -> dict[bytes, frozenset[tuple[bytes, bytes]]]:
        """Return the tables of packs, given by id and size, without those that cannot be read."""
        found = {}
        for name, size in packs:
            with suppress(FormatError, FileNotFoundError):  # verify reports damage; a collector may delete a pack
                found[name] = self._table(name, size)
        return found

    def _table(self, name: bytes, size: int) -> frozenset[tuple[bytes, bytes]]:
        file = pack(name)
        head = Pack(lambda at, count: self.store.read(file, at, count), size, archive=self.archive, both=False).head
        return frozenset((c.domain, c.root) for c in head.contexts if c.cipher == SEALED)


BRING_BACK = (
    "bring it back from a copy of keys/, then ask again; where there is none, erase the whole tenant or base "
    "(pltz archive erase): nothing of it can be read any more"
)


def _no_file(domain: bytes) -> str:
    files = key_pattern(domain)
    return f"packs have records of domain {domain.hex()}, and its key files ({files}) are missing: {BRING_BACK}"
