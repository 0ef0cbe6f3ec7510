"""Opening an archive: settings and keys from its store, and the parts that work on it, each with one job.

    opened = create("/data/cold", [BundleCodec(bundle)], key=key)
    opened.directory.version("chat-7")          # which sessions there are
    opened.reader.tower(version).tokens         # their tokens
    opened.writer.put([NewSession(...)])        # new ones

`archive.Archive` is the class that people use. Maintenance and tests take the parts that they need.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.directory import SessionDirectory
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.reader import TowerReader
from pltz.archive.catalog.register import ManifestRegister
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import Encryption, KeySource, LockedArchive, Plaintext
from pltz.archive.errors import KeyMismatch, ManifestLost
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.settings import MAX_SIZE, Settings
from pltz.archive.storage.places import open_store
from pltz.archive.storage.store import Store, is_there, remains
from pltz.archive.writing.last_towers import LastTowers
from pltz.archive.writing.marker import Marker
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import CorruptError, UsageError
from pltz.plt_codec.identity import SIZE


@dataclass(frozen=True, eq=False)
class OpenArchive:
    """The parts of an open archive. They belong to one thread.

    Attributes:
        codecs: the first codes new sessions that name no other; all are used for reading.
        directory: the sessions that there are.
        reader: their tokens.
        writer: puts sessions.
        last: towers that puts extend.
        marker: forgets versions and brings them back.
        indexes: writes index files.
    """

    store: Store
    settings: Settings
    keys: Encryption
    codecs: CodecRegistry
    catalog: Catalog
    directory: SessionDirectory
    reader: TowerReader
    writer: ArchiveWriter
    last: LastTowers
    marker: Marker
    indexes: IndexKeeper

    def want_key(self) -> None:
        """Raise KeyMismatch where the archive is sealed and was opened without its key."""
        if self.settings.sealed and isinstance(self.keys, LockedArchive):
            raise KeyMismatch(
                "the archive is sealed, and no key was given: nothing could be put or read. "
                "Name its key: key_file, key_command or passphrase_env (--key-file, --key-command, --passphrase-env)"
            )


def create(
    place: str | os.PathLike[str] | Store,
    codecs: Iterable[SegmentCodec] = (),
    *,
    key: KeySource | None = None,
    append_only: bool = False,
) -> OpenArchive:
    """Make an archive where there is none: in a directory, at ``s3://bucket/prefix``, or in a store.

    Args:
        codecs: as in `OpenArchive`.
        key: encrypts everything, so that sessions and tenants can be erased, and opens the archive.
        append_only: puts delete nothing, and overwrite nothing but the manifest.

    If several processes do this at once, one wins and the others leave its archive untouched. If a crash
    cut an init off before a sealed archive had its key, the next init finishes it.

    Raises UsageError where there is one or another process makes one, StoreError where the place cannot be written.
    """
    store = open_store(place) if isinstance(place, str | os.PathLike) else place
    store.make()
    settings = Settings(store.random(SIZE), key is not None, append_only)
    # where the settings are, another init won or was cut off
    if not is_there(store, SETTINGS):
        _want_nothing(store)
    if not store.put(SETTINGS, settings.encode()):
        settings = _cut_off(store, settings)
    # the manifest, keys and the second copy may be lacking after a crash, and are made then
    register = ManifestRegister(store)
    first = register.find() is None and register.swap(lambda base: base or Manifest(settings))
    if key:
        Keyring.create(store, settings.archive, key)
    elif not first:
        raise UsageError(f"there is an archive already: {SETTINGS} exists")
    store.put(SETTINGS_COPY, settings.encode())
    return _opened(store, settings, codecs, open_keys(store, settings, key), register)


def open_at(
    place: str | os.PathLike[str] | Store, codecs: Iterable[SegmentCodec] = (), *, key: KeySource | None = None
) -> OpenArchive:
    """Open an archive.

    A sealed archive opened without ``key`` can be checked, collected and repaired, but not read or written.

    Raises:
        UsageError: there is no archive, or a key was given for one that is not sealed.
        VersionError: it is of another version.
        KeyMismatch: ``key`` is not its key.
        ManifestLost, RolledBack, StoreError: repair has to make the manifest again, or the store failed.
    """
    store = open_store(place) if isinstance(place, str | os.PathLike) else place
    register = ManifestRegister(store)  # it has the settings too
    try:
        manifest = register.load_ahead()
    except ManifestLost:
        _want_archive(store, place)
        raise
    if not store.remote:  # in a bucket it would be a request, and nothing can be written into an object
        with suppress(FileNotFoundError, CorruptError):
            if Settings.decode(store.read(SETTINGS, 0, MAX_SIZE)) != manifest.settings:
                raise ManifestLost(f"{SETTINGS} and the manifest are of two archives: run pltz archive repair")
    return _opened(store, manifest.settings, codecs, open_keys(store, manifest.settings, key), register)


def _want_archive(store: Store, place: str | os.PathLike[str] | Store) -> None:
    """Raise UsageError where there is no archive, VersionError where it is of another version."""
    try:
        Settings.decode(store.read(SETTINGS, 0, MAX_SIZE))
    except CorruptError:
        return
    except FileNotFoundError as exc:
        if not remains(store):
            at = f"at {place}" if isinstance(place, str | os.PathLike) else "here"
            what = f"no archive {at} ({SETTINGS} is missing): is its disk there? pltz archive init makes a new one"
            raise UsageError(what) from exc


def open_or_create(place: str | os.PathLike[str], *, key: KeySource | None = None) -> OpenArchive:
    """Open an archive, or make one where there is none. Raises the errors of `create` and `open_at`."""
    if not is_there(open_store(place), SETTINGS):
        try:
            return create(place, key=key)
        except UsageError:
            if not is_there(open_store(place), SETTINGS):  # else another process made one just now
                raise
    return open_at(place, key=key)


def open_keys(store: Store, settings: Settings, key: KeySource | None) -> Encryption:
    """Return the keys of an archive. Raises KeyMismatch, CorruptError, UsageError."""
    if key and not settings.sealed:
        raise UsageError("this archive is not sealed: leave the key out")
    if not settings.sealed:
        return Plaintext()
    return Keyring(store, settings.archive, key, keeps=settings.append_only) if key else LockedArchive()


def _opened(
    store: Store, settings: Settings, codecs: Iterable[SegmentCodec], keys: Encryption, register: ManifestRegister
) -> OpenArchive:
    """Return the parts of an archive, its catalogue read. Raises the errors of `Catalog.look`.

    ``register``: that of its manifest, which was loaded for this call.
    """
    catalog = Catalog(store, keys)
    catalog.listing.register = register
    catalog.look(0)
    registry, indexes = CodecRegistry(codecs), IndexKeeper(catalog)
    writer = ArchiveWriter(catalog, registry)
    reader = TowerReader(catalog, registry)
    return OpenArchive(
        store=store,
        settings=settings,
        keys=keys,
        codecs=registry,
        catalog=catalog,
        directory=SessionDirectory(catalog),
        reader=reader,
        writer=writer,
        last=LastTowers(reader, writer),
        marker=Marker(catalog, writer, indexes),
        indexes=indexes,
    )


def _want_nothing(store: Store) -> None:
    """Raise UsageError where an archive lost its archive.json: a new one would destroy it."""
    if (folder := remains(store, made=True)) and not is_there(store, SETTINGS):
        raise UsageError(
            f"{SETTINGS} is missing and {folder}/ is not empty: an archive is here; "
            f"pltz archive repair may bring it back. "
            f"Where it was never used (an init was cut off), delete it"
        )


def _cut_off(store: Store, wanted: Settings) -> Settings:
    """Return the settings of an archive that has no manifest yet, or, where it is sealed, no key.

    Its init was cut off or is still running. The init whose manifest or key comes first owns the archive. Raises
    UsageError for any other archive.
    """
    settings = Settings.decode(store.read(SETTINGS, 0, MAX_SIZE))
    folders = ("keys", "packs", "parity") if settings.sealed else ("packs", "manifest", "parity")
    used = {n for folder in folders for n in store.list(folder)} - {SETTINGS}
    if replace(settings, archive=wanted.archive) != wanted or used:
        raise UsageError(f"there is an archive already: {SETTINGS} exists")
    return settings
