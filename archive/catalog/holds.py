"""Holds: what may not be forgotten, freed or erased until a person releases it. Spec: format/AUDIT.md, "Holds".

    holds.place(tenant="acme", name="chat-7", author=Author("alice", "case 7"))
    holds.want_free("acme", "chat-7")       # raises OnHold

They are in the manifest, so whoever decides by a manifest decides by its holds: a swap that would forget, free or erase
follows one that has the same. Each has an object of its own too, from which repair makes the manifest's row again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pltz.archive.author import Author
from pltz.archive.encryption.keys import Encryption, LockedArchive
from pltz.archive.errors import ManifestLost, NotFound, OnHold, StoreError
from pltz.archive.format import object_names
from pltz.archive.format.audit import AuditRecord, Verb
from pltz.archive.format.hold import MAX_SIZE, SESSION, TAG, TENANT, Hold
from pltz.archive.format.ids import SALTED, TENANT as DOMAIN, utf8
from pltz.archive.format.index_file import key_of_session
from pltz.archive.format.manifest import MOST_HOLDS, Manifest
from pltz.archive.format.record import unpack_about
from pltz.archive.humanize import moment
from pltz.archive.storage.store import is_there
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from pltz.archive.catalog.listing import Found, Listing
    from pltz.archive.catalog.lookup import Version

Tags = Mapping[str, str]
SHOWN = 4  # bytes of an id in messages


class LegalHold(NamedTuple):
    """A hold as it is listed.

    Attributes:
        id: 16 bytes.
        time: when it was placed, in seconds since 1970.
        tenant: of what is held; None: a tag of any tenant.
        name: the session. tag: key and value. Without both all of the tenant is held.
        actor, reason: who placed it, and why.
    """

    id: bytes
    time: int
    tenant: str | None
    name: str | None
    tag: tuple[str, str] | None
    actor: str
    reason: str

    def covers(self, tenant: str, name: str | None, tags: Iterable[Tags]) -> bool:
        """Return whether something is held. ``name``: None for all of a tenant. ``tags``: of each of its versions."""
        if self.tenant is not None and self.tenant not in (tenant, tenant.partition(SALTED)[0]):
            return False
        if self.name is not None:
            return name in (None, self.name) and tenant == self.tenant
        return self.tag is None or any(each.get(self.tag[0]) == self.tag[1] for each in tags)

    def __str__(self) -> str:
        """Return it as words."""
        whose = "" if self.tenant is None else f" of tenant {self.tenant!r}"
        what = f"session {self.name!r}" if self.name is not None else f"tag {'='.join(self.tag)}" if self.tag else "all"
        why = f" ({self.reason})" if self.reason else ""
        return f"{what}{whose}, held since {moment(self.time)} by {self.actor}{why}: hold {self.id[:SHOWN].hex()}"


class Holds:
    """The holds of one archive, as its manifest has them."""

    def __init__(self, listing: Listing, keys: Encryption, record: Callable[..., AuditRecord]) -> None:
        self._listing, self._keys, self._record = listing, keys, record
        self._known: dict[bytes, LegalHold] = {}

    @property
    def rows(self) -> Mapping[bytes, Hold]:
        """Return the holds in force by the last look, by id."""
        return self._listing.present.holds

    def all(self) -> list[LegalHold]:
        """Return the holds in force, the oldest first. Raises KeyMismatch without the key, CorruptError."""
        return sorted(map(self._read, self.rows.values()), key=lambda hold: (hold.time, hold.id))

    def _read(self, row: Hold) -> LegalHold:
        if row.id not in self._known:
            note = self._keys.open_note(row.note, row.head)
            try:
                of = json.loads(note)
                tenant, name, tag, actor, reason = (of[key] for key in ("tenant", "name", "tag", "actor", "reason"))
                words = [word for word in (tenant, name, *(tag or ())) if word is not None]
                if not all(isinstance(word, str) for word in (*words, actor, reason)) or len(tag or "kv") != 2:
                    raise TypeError("other values than words")
            except (ValueError, KeyError, TypeError, RecursionError) as exc:
                raise CorruptError(f"the note of hold {row.id[:SHOWN].hex()} is none: damaged") from exc
            self._known[row.id] = LegalHold(row.id, row.time, tenant, name, tuple(tag) if tag else None, actor, reason)
        return self._known[row.id]

    # ---- questions

    def on(self, tenant: str, name: str | None = None, tags: Iterable[Tags] = ()) -> LegalHold | None:
        """Return a hold on a session, or with no name on anything of a tenant. ``tags``: of each of its versions."""
        tags = list(tags) if self.rows else []
        return next((hold for hold in self.all() if hold.covers(tenant, name, tags)), None)

    def on_version(self, version: Version) -> LegalHold | None:
        """Return a hold on a version of a session, or on a part of it."""
        return self.on(version.tenant, version.name, (part.tags for part in version.each))

    def want_free(self, tenant: str, name: str | None = None, tags: Iterable[Tags] = ()) -> None:
        """Raise OnHold where something is held. Arguments as of `on`."""
        if hold := self.on(tenant, name, tags):
            raise held(hold)

    def want_free_versions(self, versions: Iterable[Version]) -> None:
        """Raise OnHold where one of these is held."""
        for version in versions if self.rows else ():
            if hold := self.on_version(version):
                raise held(hold)

    def keeps(self, item: Found) -> bool:
        """Return whether a session's record is held. Without the key, all is that may be."""
        if not self.rows:
            return False
        if isinstance(self._keys, LockedArchive):
            place = item.context.domain, key_of_session(item.record, item.context)
            return any(row.kind != SESSION or (row.domain, row.session) == place for row in self.rows.values())
        tenant, name, about = self._keys.session(item.context, item.record)
        return self.on(tenant, name, [unpack_about(about)[2]]) is not None

    def want_agreed(self) -> None:
        """Raise ManifestLost where the object of a hold is there that the manifest lacks: nothing is destroyed then.

        An older manifest came back, or somebody changed it who may not delete. Raises StoreError.
        """
        store, listing = self._listing.store, self._listing

        def lacking() -> set[bytes]:
            there = object_names.hold.listed(store.list).keys()
            listing.follow()  # after: a hold is in the manifest before it has an object
            return {name for name in there - self.rows.keys() if not foreign(name)}

        def foreign(name: bytes) -> bool:
            with suppress(CorruptError, FileNotFoundError):
                return Hold.decode(store.read(object_names.hold(name), 0, MAX_SIZE)).archive != listing.archive
            return False

        if lacking() and (found := lacking()):  # one may be released just now
            what = f"{object_names.hold(min(found))} is there, and the manifest lacks that hold"
            raise ManifestLost(f"{what}: an older one came back, or it was changed; run pltz archive repair")

    # ---- changes

    def place(
        self,
        author: Author,
        *,
        tenant: str | None,
        name: str | None = None,
        tag: tuple[str, str] | None = None,
        time: int | None = None,
    ) -> LegalHold:
        """Place a hold, durably, and return it. ``time``: of that of another archive, in seconds since 1970.

        Raises UsageError where it names nothing, or a session and a tag, KeyMismatch, StoreError, WriterFailed.
        """
        if (name is not None and tag is not None) or (tenant is None and tag is None):
            raise UsageError("expected a session of a tenant, a tag, or a tenant to hold")
        kind = SESSION if name is not None else TAG if tag else TENANT
        domain, keys = bytes(16), self._keys
        session = domain
        if name is not None and tenant is not None:
            domain = keys.context(DOMAIN, tenant).domain  # its keys are made where it has none yet
            session = keys.session_key(domain, name)
        for word in tag or ():
            utf8(word)  # no version has a tag that is no text
        note = {"tenant": tenant, "name": name, "tag": tag, "actor": author.actor, "reason": author.reason}
        store = self._listing.store
        row = Hold(kind, self._listing.archive, store.now() if time is None else time, b"", domain, session)
        data = json.dumps(note, ensure_ascii=False).encode(errors="backslashreplace")
        row = replace(row, note=keys.seal_note(data, row.head))
        if len(row.encode()) > MAX_SIZE:  # no reader would take it, nor the manifest with it
            raise UsageError(f"expected a hold of at most {MAX_SIZE} bytes: use a shorter name, tag or reason")

        def placing(manifest: Manifest) -> Manifest:
            if len(manifest.holds) >= MOST_HOLDS:
                raise UsageError(f"expected at most {MOST_HOLDS} holds: hold a tag or a tenant in place of sessions")
            return replace(manifest, holds={**manifest.holds, row.id: row})

        self._listing.publish(placing, record=self._recorded(Verb.HOLD, row))
        if not store.put(object_names.hold(row.id), row.encode()):
            raise StoreError(f"{object_names.hold(row.id)} holds other bytes than its name says: move it away")
        return self._read(row)

    def release(self, identity: bytes) -> LegalHold:
        """Release a hold by its id, of which the first bytes are enough, durably, and return it.

        Raises NotFound where there is none, UsageError where several are named, KeyMismatch, StoreError, WriterFailed.
        """
        named = [row for row in self.rows.values() if row.id.startswith(identity)]
        if len(named) > 1:
            raise UsageError(f"{len(named)} holds begin with {identity.hex()}: name more of the id")
        if not named:
            raise NotFound(f"no hold {identity.hex()} in this archive: see pltz hold ls")
        [row] = named
        released = self._read(row)

        def releasing(manifest: Manifest) -> Manifest:
            return replace(manifest, holds={i: other for i, other in manifest.holds.items() if i != row.id})

        path = object_names.hold(row.id)
        self._listing.store.delete(path)  # before: what is there and not in the manifest is of a newer one
        if is_there(self._listing.store, path):
            raise StoreError(f"the store keeps {path}: release the hold with the right to delete it")
        self._listing.publish(releasing, record=self._recorded(Verb.RELEASE, row))
        self._listing.store.delete(path)  # repair may have put it meanwhile
        return released

    def _recorded(self, verb: Verb, row: Hold) -> AuditRecord:
        """Return the record of a hold that is placed or released, for the audit."""
        return self._record(verb, 1, [row.session] if row.kind == SESSION else [], hold=row.id[:SHOWN].hex())


def held(hold: LegalHold) -> OnHold:
    """Return the error about what a hold keeps."""
    return OnHold(f"{hold}; nothing was done: release it first (pltz hold release {hold.id[:SHOWN].hex()})", hold)
