"""Counts and bytes of an archive. Nothing of a session is read."""

from __future__ import annotations

from dataclasses import dataclass

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.index_keeper import without_index
from pltz.archive.format import index_file, object_names
from pltz.archive.format.index_file import Lookup
from pltz.archive.storage.store import Store


@dataclass(frozen=True)
class Stat:
    """Counts and bytes of an archive.

    Attributes:
        tail: packs that no index covers.
        missing: packs that are gone although no collector deleted them.
        losses: packs that repair gave up and whose loss is not acknowledged.
    """

    archive: bytes
    packs: int
    pack_bytes: int
    indexes: int
    index_bytes: int
    segments: int
    sessions: int
    marks: int
    tail: int
    condemned: int
    problems: int
    missing: int
    losses: int


def stat_of(catalog: Catalog, archive: bytes) -> Stat:
    """Return counts and bytes. ``archive``: its id, 16 bytes.

    Segments stored twice (by two writers at once) count twice. Raises StoreError.
    """
    catalog.look()
    listing = catalog.listing

    def counted() -> list[int]:
        lookups: list[Lookup] = [*listing.indexes.values(), listing.tail]
        starts = {pack: number << 30 for number, pack in enumerate(listing.packs)}
        return [len(index_file.gather(lookups, section, starts)[0]) for section in range(len(index_file.SECTIONS))]

    segments, sessions, marks = listing.stable(counted)  # an index that is read by ranges may be replaced meanwhile
    sizes = catalog.store.list(object_names.INDEXES)
    return Stat(
        archive=archive,
        packs=len(listing.packs),
        pack_bytes=sum(listing.packs.values()),
        indexes=len(listing.indexes),
        index_bytes=sum(sizes.get(name, 0) for name in listing.indexes),
        segments=segments,
        sessions=sessions,
        marks=marks,
        tail=len(without_index(catalog)),
        condemned=len(listing.condemned & set(listing.packs)),
        problems=len(catalog.problems),
        missing=len(catalog.listing.missing()),
        losses=len(catalog.damage.losses()),
    )


def disk_bytes(store: Store) -> int:
    """Return the bytes of all files of an archive: packs, indexes, parity, keys, the manifest and copies.

    Raises StoreError.
    """
    top = store.list("")
    return top.get(object_names.SETTINGS, 0) + sum(sum(store.list(folder).values()) for folder in object_names.FOLDERS)
