"""IndexKeeper: writes indexes, so that opening an archive scans few packs, and in a bucket lists of sessions.

    keeper = IndexKeeper(catalog)
    keeper.write_if_due()               # after each commit: when enough packs lack an index
    keeper.write()                      # one index over all packs

A folder has no lists: there the heads of blocks are read as fast. Spec: WRITING.md, "Put".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set as AbstractSet
from dataclasses import replace
from functools import partial

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.listing import ATTEMPTS
from pltz.archive.errors import Fenced, Outdated, StoreError
from pltz.archive.format import index_file, object_names
from pltz.archive.format.byte_source import Held
from pltz.archive.format.index_file import FileIndex, Lookup
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.session_list import encoded
from pltz.plt_codec.errors import FormatError

# packs, entries and bytes without an index before one is written; opening scans them, for some tens of milliseconds
INDEX_PACKS, INDEX_ENTRIES, INDEX_BYTES = 32, 1024, 8 << 20
BUCKET_PACKS = 12  # in place of `INDEX_PACKS` in a bucket, where who lists sessions asks for each of them
TOGETHER = 1 << 17  # bytes that a bucket keeps in one index, so that a reader with nothing cached fetches few
ENTRY_BYTES, PACK_BYTES = 6, 40  # about what each takes in an index and in the copy of its pack table


def without_index(catalog: Catalog) -> set[bytes]:
    """Return the packs that no index covers."""
    covered = set[bytes]().union(*(set(index.packs) for index in catalog.listing.indexes.values()))
    return set(catalog.listing.packs) - covered


def _listing(indexes: Collection[str], lists: dict[str, str], manifest: Manifest) -> Manifest:
    """Return a manifest with these lists in place of those that the indexes have."""
    others = {name: index for name, index in manifest.lists.items() if index not in indexes}
    return replace(manifest, lists=others | lists)


class IndexKeeper:
    """Writes the index files of one archive. Several processes may do so at once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self._store = catalog, catalog.store

    def write_if_due(self) -> None:
        """Write an index when enough packs lack one.

        What they have is durable already, so a full disk costs only time: it is noted as a problem.
        """
        listing = self._catalog.listing
        waiting = without_index(self._catalog) - listing.damaged()  # unreadable packs never get an index
        size = sum(map(listing.packs.__getitem__, waiting))
        entries = sum(map(listing.tail.entries_of, waiting))
        most = BUCKET_PACKS if self._store.remote else INDEX_PACKS
        if len(waiting) >= most or entries >= INDEX_ENTRIES or size >= INDEX_BYTES:
            self.try_to_write(everything=False)

    def try_to_write(self, *, everything: bool = True) -> None:
        """Write an index as `write` does; where that is not possible now, note it as a problem."""
        try:
            self.write(everything=everything)
        except (StoreError, Fenced) as exc:
            self._catalog.problems.note("index", "", str(exc))

    def rebuild(self) -> None:
        """Make one index from the packs alone, then delete all others.

        Raises Fenced, StoreError; the old indexes are all there then.
        """
        old = set(self._store.list(object_names.INDEXES))
        self._catalog.listing.skip(old)
        self._catalog.refresh()
        made = self.write(replaced=old)
        named = made | self._catalog.listing.present.indexes
        for name in old - named:
            self._store.delete(object_names.index(name))
        for name in {name.hex() for name in object_names.table_copy.listed(self._store.list)} - named:
            self._store.delete(object_names.table_copy(name))
        for name in self._store.list(object_names.LISTS).keys() - self._catalog.listing.present.lists.keys():
            self._store.delete(object_names.session_list(name))
        self._catalog.listing.skip(())
        self._catalog.refresh()

    def write(self, *, everything: bool = True, replaced: Collection[str] = ()) -> set[str]:
        """Put an index over the packs that have none, and return the names of the index files put.

        Smaller indexes are merged into it, or all of them with ``everything``, and without it none where the archive is
        append-only. ``replaced``: indexes that the manifest
        no longer names, if not those that were merged. Raises Fenced, StoreError.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._write(everything, replaced)
            except (FileNotFoundError, Outdated):  # another replaced an index of which only ranges were read
                self._catalog.refresh()
        raise Fenced("others replace the indexes all the time: no index was written, try again")

    def _write(self, everything: bool, replaced: Collection[str]) -> set[str]:
        """Write an index as `write` does. Raises FileNotFoundError where one that is merged is gone."""
        catalog = self._catalog
        together = TOGETHER if self._store.remote else 0  # on a directory a look-up in one more index costs little
        merges = everything or not catalog.listing.present.settings.append_only  # what is merged is deleted
        absorbed: dict[str, FileIndex] = {}
        entries, packs = catalog.listing.tail.count, len(catalog.listing.tail.packs)
        for name, known in sorted(catalog.listing.indexes.items(), key=lambda item: len(item[1])):
            fits = packs + len(known.packs) <= index_file.MAX_PACKS
            size = ENTRY_BYTES * (entries + len(known)) + PACK_BYTES * (packs + len(known.packs))
            if everything or (merges and fits and (len(known) <= 2 * entries or size <= together)):
                absorbed[name] = known
                entries += len(known)
                packs += len(known.packs)
        # damaged packs are scanned on opening
        sources: list[Lookup] = [catalog.listing.tail, *absorbed.values()]
        covered = {p for source in sources for p in source.packs if p in catalog.listing.packs}
        sizes = {p: catalog.listing.packs[p] for p in covered - catalog.listing.damaged()}
        built = [index_file.build(sources, part) for part in index_file.parts(sizes)]
        made = {self._put(data): FileIndex.of(data) for data in built}
        before = catalog.listing.present.lists.keys()
        lists = self._put_lists(next(iter(made)), sizes.keys(), absorbed) if len(made) == 1 else {}
        catalog.listing.publish(partial(_listing, made, lists), made=made, replaced=replaced or absorbed)
        # those absorbed go once the new ones are there
        for name in before - catalog.listing.present.lists.keys():
            self._store.delete(object_names.session_list(name))
        for old in absorbed.keys() - made.keys() - catalog.listing.present.indexes:
            self._store.delete(object_names.index(old), lasting=False)  # nothing names them
            self._store.delete(object_names.table_copy(old), lasting=False)
        return set(made)

    def list_again(self, index: str) -> None:
        """Put lists of the packs of an index in place of those that it has. Raises Outdated, StoreError."""
        listing = self._catalog.listing
        before = listing.present.lists.keys()
        lists = self._put_lists(index, listing.indexes[index].packs.keys() & listing.packs.keys(), ())
        listing.publish(partial(_listing, [index], lists))
        for name in before - listing.present.lists.keys():
            self._store.delete(object_names.session_list(name))

    def _put_lists(self, index: str, packs: AbstractSet[bytes], absorbed: Iterable[str]) -> dict[str, str]:
        """Put lists of packs where lists are of use, and return the index of each. ``absorbed``: indexes with lists.

        Raises FileNotFoundError where a pack is gone, StoreError.
        """
        lists = dict[str, str]()
        try:
            rows = self._catalog.lookup.rows_for_lists(packs, absorbed) if self._store.remote else ()
            for name, data in encoded(rows, self._catalog.listing.archive, self._store.random):
                if self._store.put(object_names.session_list(name.hex()), data):
                    lists[name.hex()] = index
        except FormatError as exc:  # its packs are read in place of a list
            self._catalog.problems.note("list", index, str(exc))
            return {}
        return lists

    def _put(self, data: bytes) -> str:
        """Put an index file and return its name. Raises StoreError."""
        name, table = index_file.name_of(data), index_file.table_of(Held(data))
        with self._store.ahead([data, table]):
            if not self._store.put(object_names.index(name), data):
                self._store.delete(object_names.index(name))  # its digest is not its name: it is damaged
                if not self._store.put(object_names.index(name), data):
                    where = object_names.index(name)
                    raise StoreError(f"{where} holds other bytes than its name says: rebuild or repair")
            # without the index a manifest would not tell which packs it names
            self._store.put(object_names.table_copy(name), table)
        return name
