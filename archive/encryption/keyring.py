"""The keyring: all keys of a sealed archive, in memory. Spec: FORMAT.md, "Keys".

    secret --opens--> root keys (keys/<archive id>) --wrap--> the keys of each domain (keys/<domain id>)

It checks whether the generation that it read is still the newest. Content erased meanwhile is not read, and a
put under keys that have changed is not acknowledged.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Sequence

from pltz.archive.encryption.box import KEY, UNIT, keyed, seal, subkey, unit_of, unseal
from pltz.archive.encryption.domain_keys import AGAIN, WHOLE, DomainKeys, KeyReader
from pltz.archive.encryption.key_check import BRING_BACK, KeyCheck
from pltz.archive.encryption.key_files import ATTEMPTS, LINEAGE, KeyFile, KeyFolder
from pltz.archive.encryption.keys import Encryption, KeySource
from pltz.archive.encryption.root_keys import RootKeys, wrap_id
from pltz.archive.errors import Erased, Fenced, KeyMismatch, MissingKeys, Outdated
from pltz.archive.format.ids import BASE, NO_SEGMENT, Head, part_key, utf8
from pltz.archive.format.object_names import key_copies, key_pattern
from pltz.archive.format.record import RUN, SEALED, Context, Record
from pltz.archive.format.run import unpack_run
from pltz.archive.storage.store import Store, is_there
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError
from pltz.plt_codec.identity import NONE, SIZE
from pltz.plt_codec.varint import write_varint

ERASED_MEANWHILE = "something of this tenant was erased meanwhile: nothing was acknowledged, put again"
KEY_CHANGED = "the key of the archive was changed since it was opened: open it again, by the new key"


class Keyring(Encryption):
    """The keys of a sealed archive, in memory. Raises KeyMismatch on opening with another secret.

    ``keeps``: puts leave key files that no longer count to the next erase, as they have no right to delete.
    """

    def __init__(self, store: Store, archive: bytes, secret: KeySource, *, keeps: bool = False):
        self.store, self.archive, self._keeps = store, archive, keeps
        self.folder = KeyFolder(store)
        self.key_check = KeyCheck(store, archive, self.folder)
        self.take_root(open_root(self.folder, archive, secret))
        self.folder.forget()
        self._names = self.root.names
        self._notes = subkey(self._names, b"pltz notes")
        self._domains: dict[bytes, DomainKeys] = {}
        self._checked: set[bytes] = set()
        self._writable: dict[bytes, DomainKeys] = {}  # keys that were compared with the packs
        # Domains of which keys were missing or damaged when last asked for, and those whose newest file is damaged
        self.unreadable: dict[bytes, str] = {}
        self._damaged: set[bytes] = set()
        # Domains whose first keys this process made and has not yet compared with the listing
        self._made: set[bytes] = set()
        # Newer keys loaded since the last refresh, for reading records only, and the roots searched for
        self._newer: dict[bytes, DomainKeys | None] = {}
        self._sought: set[bytes] = set()
        self._listed: dict[bytes, list[int]] = {}
        self._fresh = False  # whether keys were listed since the last refresh

    @classmethod
    def create(cls, store: Store, archive: bytes, secret: KeySource) -> None:
        """Make root keys and seal them. Raises UsageError where there are some, StoreError."""
        if not KeyFolder(store).put(RootKeys.first(store.random, archive, secret).sealed(archive)):
            raise UsageError("somebody else is making an archive here")

    def take_root(self, root: RootKeys) -> None:
        """Go on by these root keys of the archive."""
        self.root, self._wraps = root, {wrap_id(key): key for key in root.wraps}

    def refresh(self) -> None:
        self._checked.clear()
        self._newer.clear()
        self._sought.clear()
        self._damaged.clear()
        self.key_check.refresh()
        self._fresh = False

    def check(self, domains: Iterable[bytes]) -> None:
        self._settle()
        if not all(self._current(self._domains[domain]) for domain in set(domains)):
            raise Outdated(ERASED_MEANWHILE)

    def _settle(self) -> None:
        """Compare the keys that this process made with the listing, before the first record under them is put.

        Else a record could be put under keys that nobody keeps. Raises Outdated.
        """
        made, self._made = self._made, set()
        if made:
            self._list()
            overtaken = [domain for domain in made if self._overtaken(self._domains[domain])]
            if overtaken:
                raise Outdated(ERASED_MEANWHILE)

    def domain(self, kind: int, name: str) -> bytes:
        return keyed(self._names, b"pltz domain", [bytes([kind]), utf8(name)], SIZE)

    def domain_name(self, context: Context) -> str:
        keys = self._holding(context)
        return keys.name if keys else ""

    def context(self, kind: int, name: str) -> Context:
        """Return the context for records of a domain, and make its keys where it has none.

        Raises MissingKeys where packs have records of it under keys that are not there, CorruptError, StoreError,
        WriterFailed.
        """
        domain = self.domain(kind, name)
        keys = self.of(domain)
        if keys is None:
            self.key_check.look_at_all()
        if keys is None or self._writable.get(domain) is not keys:
            self.want(domain, f"{'base' if kind == BASE else 'tenant'} {name!r}")
        if keys is None or keys.erased:
            keys = self._make(kind, name, domain, keys)
        self._writable[domain] = keys
        return Context(kind, domain, "", NONE, NONE, cipher=SEALED, root=keys.newest)

    def want(self, domain: bytes, who: str) -> None:
        known = self._domains.get(domain) if domain in self._checked else None
        if known and all(map(known.governs, self.key_check.roots.get(domain, ()))):
            return  # they are the newest, as this look found, and had all that packs name
        if what := self.key_check.fault(domain):
            raise MissingKeys(f"{who}: {what}")

    def session_key(self, domain: bytes, name: str) -> bytes:
        """Return the key by which a session is looked up: 8 bytes and 8 zeros."""
        keys = self.of(domain)
        key = keys.id_key if keys else self._names  # an unknown domain has no stored sessions
        return keyed(key, b"pltz session", [domain, utf8(name)], UNIT) + bytes(SIZE - UNIT)

    def part_key(self, domain: bytes, key: bytes, part: str) -> int:
        keys = self.of(domain) if part else None
        return part_key(key, part, keys.id_key if keys else self._names)

    def buried(self, domain: bytes, name: str) -> bool:
        keys = self.of(domain)
        at = keys.buried.get(unit_of(self.session_key(domain, name))) if keys and keys.buried else None
        return at is not None and not at & AGAIN

    def erased_at(self, domain: bytes, name: str) -> int:
        keys = self.of(domain)
        rows = keys.buried if keys else {}
        return max((rows.get(unit, 0) for unit in (WHOLE, unit_of(self.session_key(domain, name)))), default=0) | AGAIN

    def unbury(self, domain: bytes, name: str) -> None:
        """Let an erased session be put again, by keys that say so. Raises Fenced where others changed them."""
        if not self.buried(domain, name):
            return
        known = self._domains[domain]
        unit = unit_of(self.session_key(domain, name))
        keys = known.following(buried={**known.buried, unit: known.buried[unit] | AGAIN})
        if not self.publish(keys):
            raise Fenced(ERASED_MEANWHILE)
        if not self._keeps:
            self.shred(keys)

    def segment_head(self, domain: bytes, tokenizer: bytes, parent: bytes) -> Head:
        """Return the bytes and the key hashed before the tokens. Raises CorruptError where keys are missing."""
        keys = self.of(domain)
        if keys is None or keys.erased:  # a stored record may have been put under new keys since
            keys = self._newer.get(domain) or keys
        if keys is None:
            raise self._lacking(domain)
        return Head(domain + tokenizer + parent, keys.id_key)

    def seal(self, context: Context, record: Record) -> Record:
        """Return the record with its fields in boxes. Raises Erased, CorruptError, Outdated."""
        if self._made:
            self._settle()
        bitstring, veil = record.bitstring, b""
        if record.id is not None:
            head, bitstring = _in_clear(record)
            about = _about_segment(context, record, head)
            bitstring = head + seal(self._key(context, record.id), bitstring, about)
        if record.name is not None:
            key = self.session_key(context.domain, record.name)
            encoded = record.name.encode()
            plain = write_varint(len(encoded)) + encoded + record.about
            veil = key[:UNIT] + seal(self._key(context, key), plain, _about_session(context, record, key[:UNIT]))
        name = None if record.name is None else ""
        return record._replace(bitstring=bitstring, name=name, about=b"", veil=veil)

    def bits(self, context: Context, record: Record) -> bytes:
        if context.cipher != SEALED or record.id is None:
            raise CorruptError("a record without encryption in a sealed archive: refused")
        head, box = _in_clear(record)
        about = _about_segment(context, record, head)
        return head + unseal(self._key(context, record.id), box, about, "a bitstring")

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        if context.cipher != SEALED:
            raise CorruptError("a record without encryption in a sealed archive: refused")
        unit, box = record.veil[:UNIT], record.veil[UNIT:]
        plain = unseal(self._key(context, unit), box, _about_session(context, record, unit), "a session's name")
        reader = KeyReader(plain)
        name = reader.name()
        return self.domain_name(context), name, reader.rest()

    def seal_note(self, note: bytes, about: bytes) -> bytes:
        return seal(self._notes, note, [b"note", about])

    def open_note(self, note: bytes, about: bytes) -> bytes:
        return unseal(self._notes, note, [b"note", about], "a note")

    def gone(self, context: Context, identity: bytes) -> bool:
        try:
            keys = self._holding(context)
        except FormatError:  # damaged keys are no erased ones
            return False
        return bool(keys and keys.governs(context.root) and not keys.has(context.root, unit_of(identity)))

    def doomed(self, context: Context, identity: bytes) -> bool:
        try:
            keys = self.of(context.domain)
        except FormatError:
            return False
        if keys is None:
            return False
        return context.root != keys.newest and (keys.kind == BASE or unit_of(identity) in keys.doomed)

    def cache_keys(self, domain: bytes) -> list[bytes]:
        keys = self.of(domain)
        return [keyed(root, b"pltz cache", [domain], KEY) for _, root in reversed(keys.roots if keys else ())]

    def of(self, domain: bytes) -> DomainKeys | None:
        """Return the keys of a domain as of the last refresh; None if it has none.

        Raises MissingKeys where they are damaged, StoreError.
        """
        if domain in self._damaged:
            raise self._lacking(domain)
        if domain not in self._checked:
            known = self._domains.get(domain)
            if known is None or not self._current(known):
                self._load(domain)
            self._checked.add(domain)
            self.unreadable.pop(domain, None)
        return self._domains.get(domain)

    def _lacking(self, domain: bytes, *, older: bool = False) -> MissingKeys:
        """Return the error about keys that are not there; it is remembered until they are.

        ``older``: the archive's own key file lacks the key that sealed them.
        """
        what = f"the keys of domain {domain.hex()} are missing or damaged ({key_pattern(domain)}): {BRING_BACK}"
        if older:
            what = (
                f"{key_pattern(domain)} was sealed by another key than the archive's own key file has "
                f"({key_pattern(self.archive)}, generation {self.root.generation}): an older one or that of another "
                "archive came back; bring back the newer one from a copy of keys/"
            )
        self.unreadable[domain] = what
        return MissingKeys(what)

    def _holding(self, context: Context) -> DomainKeys | None:
        """Return the keys to read a stored record by.

        They are those of the last refresh, or newer ones if these lack the record's root. A reader that lists
        packs again meets records under keys made since. A writer's keys stay as of its last refresh, because
        `check` must find that keys changed.
        """
        keys = self.of(context.domain)
        if keys and keys.governs(context.root):
            return keys
        if context.root not in self._sought:
            self._sought.add(context.root)
            self._fresh = False  # the list is older than the record
            self.folder.forget()
            self._newer[context.domain] = self._newest(context.domain)
        return self._newer.get(context.domain) or keys

    def shred(self, keys: DomainKeys) -> int:
        """Destroy the generations before these keys and return the number of files (`KeyFolder.shred`)."""
        return self.folder.shred(KeyFile(keys.domain, keys.generation, b"", lineages=keys.lineages))

    def publish(self, keys: DomainKeys) -> bool:
        """Put the generation after an existing one. Return False if another process was first.

        Raises ArchiveError, StoreError, WriterFailed.
        """
        return self._there(keys.domain, keys.generation - 1) and self.begin(keys)

    def begin(self, keys: DomainKeys) -> bool:
        """Put keys of a domain that lost its own. Return False if another process was first.

        Raises StoreError, WriterFailed.
        """
        if not self._put(keys):
            return False
        self._list()
        return not self._overtaken(keys)

    def _overtaken(self, keys: DomainKeys) -> bool:
        """Return whether others put and destroyed later generations before these keys were put.

        Such keys would bring back erased content, so they are destroyed again.
        """
        if self._listed[keys.domain][-1] == keys.generation:
            return False
        del self._domains[keys.domain]
        self.folder.destroy(keys.domain, keys.generation)
        return True

    def _put(self, keys: DomainKeys) -> bool:
        self._want_root()
        data, (wrap, *_) = keys.encode(), self.root.wraps
        plain = KeyFile(keys.domain, keys.generation, b"", wrap_id(wrap), keys.lineages)
        box = seal(wrap, data, [self.archive, plain.head])
        if not self.folder.put(dataclasses.replace(plain, box=box)):
            return False
        self._domains[keys.domain] = keys
        return True

    def _make(self, kind: int, name: str, domain: bytes, old: DomainKeys | None) -> DomainKeys:
        """Make the first keys of a domain, or new keys of an erased one."""
        generation = old.generation + 1 if old else 0
        lineages = old.lineages if old else (self.store.random(LINEAGE),)
        roots = ((generation, self.store.random(KEY)),)
        gone = old.buried if old else {}
        keys = DomainKeys(domain, generation, kind, name, self.store.random(KEY), roots, lineages=lineages, buried=gone)
        if self._put(keys):
            self._made.add(domain)
            if old and not self._keeps:  # older ones hold no secret, but would look like an unfinished erase
                self.shred(keys)
        else:
            self._list()
            self._load(domain)
        return self._domains[domain]

    def _key(self, context: Context, identity: bytes) -> bytes:
        """Return the key of a segment or session, 32 bytes. Raises Erased, CorruptError."""
        keys = self._holding(context)
        if keys is None or not keys.governs(context.root):
            raise self._lacking(context.domain)
        key = keys.key(context.root, unit_of(identity))
        if key is None:
            raise Erased("this was erased: its key was destroyed")
        return key

    def _current(self, keys: DomainKeys) -> bool:
        """Return whether these are the newest keys.

        They are if the next generation is absent and then this one is still present (see `key_files`). Its lineages
        count, too: where key files vanished, another process may have made new keys under the same number.
        """
        if self._there(keys.domain, keys.generation + 1):
            return False
        try:
            file = self.folder.read(keys.domain, keys.generation)
        except FormatError:
            return False
        return file is not None and file.lineages == keys.lineages

    def _want_root(self) -> None:
        """Raise KeyMismatch where the key of the archive was changed since it was opened, once or more often."""
        generation = self.root.generation
        if self._there(self.archive, generation + 1) or not self._there(self.archive, generation):
            raise KeyMismatch(KEY_CHANGED)

    def _there(self, domain: bytes, generation: int) -> bool:
        return any(is_there(self.store, name) for name in key_copies(domain, generation))

    def _load(self, domain: bytes) -> None:
        """Load the newest readable generation; an older one only where the newer was never whole."""
        self._domains.pop(domain, None)
        if keys := self._newest(domain):
            self._domains[domain] = keys

    def _newest(self, domain: bytes) -> DomainKeys | None:
        """Return the newest generation that can be read; an older one only where the newer was never whole."""
        for _ in range(ATTEMPTS):  # a generation shredded while it is read has a successor
            if not self._there_listed(domain):
                return None
            generation = self._listed[domain][-1]
            try:
                file = self.folder.read(domain, generation)
            except FormatError as exc:
                if self.folder.generations().get(domain, [])[-1:] == [generation]:
                    self._damaged.add(domain)
                    raise self._lacking(domain) from exc
                file = None
            if file:
                plain = dataclasses.replace(file, box=b"").head
                if (wrap := self._wraps.get(file.wrap)) is None:
                    self._want_root()
                    self._damaged.add(domain)
                    raise self._lacking(domain, older=True)
                try:
                    data = unseal(wrap, file.box, [self.archive, plain], "a key file")
                    return DomainKeys.decode(domain, generation, data, file.lineages)
                except CorruptError as exc:
                    self._damaged.add(domain)
                    raise self._lacking(domain) from exc
            self._fresh = False
            self.folder.forget()
        raise CorruptError(f"the keys of domain {domain.hex()} keep changing: try again")

    def _there_listed(self, domain: bytes) -> bool:
        """Return whether a domain has keys.

        An unlisted domain is looked up once per refresh, because a put may have thousands of new ones.
        """
        newest = self._listed.get(domain, [-1])[-1]
        known = newest >= 0 and not self._there(domain, newest + 1) and self._there(domain, newest)
        if not known and not (newest < 0 and self._fresh):
            self._list(fresh=self._fresh)
        return domain in self._listed

    def _list(self, *, fresh: bool = True) -> None:
        self._listed, self._fresh = self.folder.generations(fresh=fresh), True


def open_root(folder: KeyFolder, archive: bytes, secret: KeySource) -> RootKeys:
    """Open the newest of the archive's own key files that is sound. Raises KeyMismatch, CorruptError, StoreError."""
    failure: FormatError | None = None
    for generation in reversed(folder.generations().get(archive, [])):
        try:
            if file := folder.read(archive, generation):
                return RootKeys.open(archive, file, secret)
        except FormatError as exc:
            failure = exc
    raise failure or CorruptError(
        "the archive's key file is missing: restore keys/ from a copy, or, where init was cut off, run it again"
    )


def _in_clear(record: Record) -> tuple[bytes, bytes]:
    """Return the bytes of a bitstring that are never encrypted, and the others. Raises CorruptError."""
    size = len(record.bitstring) - len(unpack_run(record).data) if record.mode & RUN else 0
    return record.bitstring[:size], record.bitstring[size:]


def _about_segment(context: Context, record: Record, head: bytes) -> Sequence[bytes]:
    c = context
    place = struct.pack("<BBQ", c.method, record.mode, record.tokens)
    about = [b"segment", c.domain + c.root + c.tokenizer + c.bundle + place, record.id or NO_SEGMENT, record.parent]
    return [*about, head] if head else about


def _about_session(context: Context, record: Record, unit: bytes) -> Sequence[bytes]:
    c = context
    place = struct.pack("<BQQI", c.kind, record.moment, record.time, record.part)
    return [b"session", c.domain + c.root + c.tokenizer + c.target + place, unit, record.leaf]
