"""The audit as it is read: all records of an archive, each checked against the one before it.

    for entry in entries(catalog, expect=None):
        print(entry.place, entry.verb, entry.actor, entry.reason)

A record names sessions by the first bytes of their keys: `names_of` tells which are there still.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.encryption.keys import LockedArchive
from pltz.archive.format import object_names
from pltz.archive.format.audit import (
    BREAK,
    FORCED,
    KEY_SIZE,
    MAX_SIZE,
    MAX_TAIL,
    NOTE_OF,
    SEALED,
    AuditFile,
    AuditTail,
    ChainedRecord,
    Verb,
)
from pltz.archive.format.ids import TENANT
from pltz.archive.format.manifest import Manifest
from pltz.plt_codec.errors import CorruptError, FormatError
from pltz.plt_codec.identity import NONE, SIZE

FANOUT = 4  # files of records that are worth one in their place


class AuditEntry(NamedTuple):
    """A record of the audit as it is told.

    Attributes:
        place: its place, from 1. digest, before: its digest and that of the record before it, hex.
        time: seconds since 1970.
        verb: what was done, as "put".
        number: of how many versions or packs.
        actor, reason: who and why; empty without the key of a sealed archive.
        sessions: the first digits of their keys, of at most eight. about: what else is told.
        broken: whether records before it may lack: a manifest was lost. ``forced``: the clock was the user's word.
        unproven: whether actor and reason of a sealed archive are the word of somebody without its key.
    """

    place: int
    time: int
    verb: str
    number: int
    actor: str
    reason: str
    sessions: list[str]
    about: dict[str, Any]
    digest: str
    before: str
    broken: bool
    forced: bool
    unproven: bool


def entries(catalog: Catalog, expect: str | None = None) -> Iterator[AuditEntry]:
    """Yield all records, the oldest first.

    ``expect``: digest of a record, hex, kept elsewhere, that has to be among them. Raises CorruptError after those that
    are left, where records are gone or were changed, StoreError.
    """
    tails, lacking, met = [catalog.listing.present.audit], None, expect is None
    try:
        for _, found in _files(catalog):
            tails.insert(0, found)
    except CorruptError as exc:
        lacking = exc
    for tail in tails:
        try:
            for chained in tail.records():
                met |= chained.digest.hex() == expect
                yield _entry(catalog, chained)
        except CorruptError as exc:
            lacking = lacking or exc
    if lacking:
        raise lacking
    if not met:
        raise CorruptError(f"the audit has no record {expect}: it was written anew, or an older state came back")


def _files(catalog: Catalog) -> Iterator[tuple[bytes, AuditTail]]:
    """Yield each file, the newest first: its name, and its records as far as the chain has them.

    Raises CorruptError where those before are not there.
    """
    after = catalog.listing.present.audit
    while after.file != NONE:
        for name in _names(catalog, after.file):
            with suppress(CorruptError):
                if (found := _read(catalog, name)) and found.first < after.first <= found.end:
                    tail = found if after.first == found.end else found.up_to(after.first)
                    if tail.last == after.before:
                        break
        else:
            path = object_names.audit(after.file)
            raise CorruptError(f"records 1 to {after.first} of the audit cannot be read: {path} is damaged or gone")
        yield name, (after := tail)
    if after.first or after.before != NONE:
        raise CorruptError(f"records 1 to {after.first} of the audit are not there")


def _read(catalog: Catalog, name: bytes) -> AuditTail | None:
    """Return the records of a file of this archive; None where it is damaged or gone."""
    with suppress(FormatError, FileNotFoundError):
        file = AuditFile.decode(catalog.store.read(object_names.audit(name), 0, MAX_SIZE))
        return file.tail if file.archive == catalog.listing.archive else None
    return None


def _names(catalog: Catalog, name: bytes) -> Iterator[bytes]:
    """Yield the name of a file, then those of all that may have its records: it may have been put into another."""
    yield name
    yield from sorted(object_names.holds_among(catalog.store.list(object_names.AUDIT)))


def merge_files(catalog: Catalog) -> None:
    """Put the newest files together where FANOUT are not half full. Raises StoreError, WriterFailed.

    A crash, or a put that is faster, leaves the new files to nobody, or the old ones, until the next time. Where only
    appends are, all stay.
    """
    listing, store, newest = catalog.listing, catalog.store, list[AuditTail]()
    with suppress(CorruptError):  # what is damaged stays as it is
        for _, tail in () if listing.present.settings.append_only else _files(catalog):
            if len(tail.rows) > MAX_TAIL // 2:
                break
            newest.insert(0, tail.up_to(tail.end))  # each record is checked
    if len(newest) < FANOUT:
        return
    together, old, made = list[AuditTail](), [listing.present.audit.file, *(tail.file for tail in newest[1:])], [b""]
    for tail in newest:
        if together and len(together[-1].rows) + len(tail.rows) <= MAX_TAIL:
            first = together.pop()
            size, rows = first.size + tail.size, first.rows + tail.rows
            tail = replace(first, size=size, last=tail.last, rows=rows, note=None)
        together.append(tail)
    for tail in together:  # each names the one before
        data = AuditFile(listing.archive, replace(tail, file=made[-1] or tail.file)).encode()
        made.append(data[-SIZE:])
        if not store.put(object_names.audit(made[-1]), data):
            return  # a damaged file has its name
    named = False

    def naming(manifest: Manifest) -> Manifest:
        nonlocal named
        named = manifest.audit.file == old[0]  # else a newer file has that name in it
        return replace(manifest, audit=replace(manifest.audit, file=made[-1])) if named else manifest

    listing.publish(naming)
    for name in set(old) - set(made) if named else ():
        store.delete(object_names.audit(name))
    if named:
        _sweep(catalog)


def _sweep(catalog: Catalog) -> None:
    """Delete files that nobody names: of a crash here, and of changes that others were faster than. Raises StoreError.

    A larger file of the chain has their records, or another one in the place of their last. What somebody is about to
    name is newer than the chain, or has whole files of it.
    """
    store = catalog.store
    with suppress(CorruptError):  # beside what is damaged all stays
        chain = dict(_files(catalog))
        for name in object_names.holds_among(store.list(object_names.AUDIT)) - chain.keys():
            left = _read(catalog, name) or AuditTail()
            end = left.end
            if any(
                tail.first <= left.first < end <= tail.end
                and (tail.size > left.size or tail.last != left.last)
                and _digest_of(tail, end - 1) == _digest_of(left, end - 1)
                for tail in chain.values()
            ):
                store.delete(object_names.audit(name))


def _digest_of(tail: AuditTail, place: int) -> bytes:
    """Return the digest of a record; of the one before the first, too. Raises CorruptError."""
    return tail.up_to(place).last if place > tail.first else tail.before


def _entry(catalog: Catalog, chained: ChainedRecord) -> AuditEntry:
    record, about = chained.record, dict[str, Any]()
    with suppress(ValueError, TypeError, RecursionError, FormatError):
        if not record.flags & SEALED:
            about = dict(json.loads(record.note))
        elif not isinstance(catalog.keys, LockedArchive):
            about = dict(json.loads(catalog.keys.open_note(record.note, NOTE_OF)))
    verb = Verb(record.verb).name.lower() if record.verb in [*Verb] else str(record.verb)
    return AuditEntry(
        chained.place,
        record.time,
        verb,
        record.number,
        about.pop("actor", ""),
        about.pop("reason", ""),
        [key.hex() for key in record.keys],
        about,
        chained.digest.hex(),
        chained.before.hex(),
        bool(record.flags & BREAK),
        bool(record.flags & FORCED),
        bool(catalog.keys.cipher) and not record.flags & SEALED,
    )


def names_of(catalog: Catalog) -> dict[str, str]:
    """Return tenant and name of the sessions that are there, forgotten ones too, by what records tell of their keys."""
    if isinstance(catalog.keys, LockedArchive):
        return {}
    found, keys = dict[str, str](), catalog.keys
    for version in catalog.lookup.all_versions(listed=True):
        key = keys.session_key(keys.domain(TENANT, version.tenant), version.name)[:KEY_SIZE].hex()
        found[key] = f"{version.tenant}/{version.name}"
    return found
