"""The audit as it is read: all records of an archive, each checked against the one before it.

    for entry in entries(catalog, expect=None):
        print(entry.place, entry.verb, entry.actor, entry.reason)

A record names sessions by the first bytes of their keys: `names_of` tells which are there still.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.encryption.keys import LockedArchive
from pltz.archive.format import object_names
from pltz.archive.format.audit import (
    BREAK,
    FORCED,
    KEY_SIZE,
    MAX_SIZE,
    NOTE_OF,
    SEALED,
    AuditFile,
    AuditTail,
    ChainedRecord,
    Verb,
)
from pltz.archive.format.ids import TENANT
from pltz.plt_codec.errors import CorruptError, FormatError
from pltz.plt_codec.identity import NONE


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
        for found in _files(catalog):
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


def _files(catalog: Catalog) -> Iterator[AuditTail]:
    """Yield the records of each file, the newest first. Raises CorruptError where those before are not there."""
    after = catalog.listing.present.audit
    while after.file != NONE:
        path = object_names.audit(after.file)
        try:
            file = AuditFile.decode(catalog.store.read(path, 0, MAX_SIZE))
        except (FormatError, FileNotFoundError):
            file = None
        own = file and file.archive == catalog.listing.archive
        if not file or not own or (file.tail.end, file.tail.last) != (after.first, after.before):
            raise CorruptError(f"records 1 to {after.first} of the audit cannot be read: {path} is damaged or gone")
        yield (after := file.tail)
    if after.first or after.before != NONE:
        raise CorruptError(f"records 1 to {after.first} of the audit are not there")


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
