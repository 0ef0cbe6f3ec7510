"""Keys: who may read what, in small files that can really be destroyed. Spec: FORMAT.md, "Encryption".

    passphrase, key file or command --Secret--> wraps the archive key (keys/000...0)
    archive key --> wraps the keys of each domain (keys/<domain id>): id key, name, one tree of unit keys a root (`seal.Tree`)

`Clear` is what an archive without encryption has, `Locked` a sealed one opened without its key (records can be checked, copied and
repaired, not read), `Keyring` a sealed one with it. All three say the same things: what a domain, a segment and a session are called, and
what a record's fields are.

A key file is never changed: a new generation is put beside it, in two copies, and then the older ones are overwritten and
deleted. Generations are shredded oldest first, so whoever sees the one it knows, and not the next, is up to date.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from pltz.archive import identity
from pltz.archive.errors import ArchiveError, Erased, Fenced, KeyMismatch
from pltz.archive.identity import BASE, NONE, SIZE, TENANT, Tokens, digest
from pltz.archive.pack import CLEAR, SEALED, Context
from pltz.archive.record import MAX_LABELS, MAX_NAME, Record
from pltz.archive.seal import KEY, UNIT, Tree, keyed, seal, subkey, unit_of, unseal
from pltz.archive.store import Store
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError, VersionError
from pltz.plt_codec.varint import read_varint, write_varint

MAGIC = b"PLTk"
VERSION = 1
HEAD = struct.Struct(
    "<4sBB2s16sI"
)  # magic, version, KDF, reserved, domain id (zeros: the archive's), generation
KDF = struct.Struct("<BBBB16s")  # log2 of n, r, p, reserved, salt
NODE = struct.Struct("<BQ32s")  # depth, prefix, key
PERSON = b"pltz key"
NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})-([01])")
COPIES = 2
RAW, SCRYPT = 0, 1
SCRYPT_COST = (15, 8, 1)  # 32 MiB, a tenth of a second
MAX_SCRYPT = 1 << 30  # bytes of memory that a file may ask for
MAX_SIZE = 64 << 20  # bytes of a key file
MAX_ROOTS, MAX_NODES = 4096, 1 << 20
LEAST_SECRET = 16  # bytes of a key file or a command's output
MASTER = NONE


@dataclass(frozen=True)
class Secret:
    """What opens an archive. Make one with `passphrase`, `file` or `command`; it never shows what it holds."""

    material: bytes = field(repr=False)
    kdf: int

    @classmethod
    def passphrase(cls, words: str) -> Secret:
        """Stretched by scrypt. Raises UsageError for an empty one."""
        if not words:
            raise UsageError("expected a passphrase, got an empty one")
        return cls(words.encode(), SCRYPT)

    @classmethod
    def file(cls, path: str | Path) -> Secret:
        """The bytes of a file, at least 16 and random. Raises UsageError."""
        try:
            data = Path(path).read_bytes()
        except OSError as exc:
            raise UsageError(f"cannot read the key file: {exc.strerror}") from exc
        return cls._raw(data, "the key file")

    @classmethod
    def command(cls, line: str) -> Secret:
        """What a shell command prints, at least 16 bytes. Raises UsageError where it fails."""
        done = subprocess.run(line, shell=True, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise UsageError(f"the key command ended with {done.returncode}")
        return cls._raw(done.stdout, "the output of the key command")

    @classmethod
    def _raw(cls, data: bytes, what: str) -> Secret:
        if len(data) < LEAST_SECRET:
            raise UsageError(f"expected at least {LEAST_SECRET} bytes in {what}, got {len(data)}")
        return cls(data, RAW)

    def key(self, cost: tuple[int, int, int], salt: bytes) -> bytes:
        """32 bytes. ``cost``: log2 of n, r, p of scrypt."""
        if self.kdf == RAW:
            return keyed(salt, b"pltz secret", [self.material], KEY)
        n, r, p = cost
        return Scrypt(salt=salt, length=KEY, n=1 << n, r=r, p=p).derive(self.material)


class Keys(Protocol):
    """What names and fields mean in an archive."""

    cipher: int

    def refresh(self) -> None:
        """See what others did, when it is next asked for."""

    def check(self, domains: Iterable[bytes]) -> None:
        """Raises Fenced where keys of these domains changed since the last refresh: something was erased meanwhile."""

    def domain(self, kind: int, name: str) -> bytes:
        """What a domain is called. Raises KeyMismatch without the key."""

    def context(self, kind: int, name: str) -> Context:
        """What records of a domain are written under, codec and target left open; makes its keys where it has none."""

    def session_key(self, domain: bytes, name: str) -> bytes:
        """What a session is looked up by."""

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        """32 bytes that begin with what a segment is called."""

    def seal(self, context: Context, record: Record) -> Record:
        """The record as it is stored."""

    def bits(self, context: Context, record: Record) -> bytes:
        """The bitstring of a stored record. Raises Erased, KeyMismatch, CorruptError."""

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        """Tenant, name and labels of a stored session. Raises Erased, CorruptError."""

    def gone(self, context: Context, identity: bytes) -> bool:
        """Whether the key of a segment or session was destroyed."""

    def doomed(self, context: Context, identity: bytes) -> bool:
        """Whether it is about to be: nothing new may rely on it."""


class Clear:
    """An archive without encryption."""

    cipher = CLEAR

    def refresh(self) -> None:
        return

    def check(self, domains: Iterable[bytes]) -> None:
        return

    def domain(self, kind: int, name: str) -> bytes:
        return identity.domain_id(kind, name)

    def context(self, kind: int, name: str) -> Context:
        return Context(kind, self.domain(kind, name), name, NONE, NONE, 0)

    def session_key(self, domain: bytes, name: str) -> bytes:
        return identity.session_key(domain, name)

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        return identity.segment_digest(domain, tokenizer, parent, tokens)

    def seal(self, context: Context, record: Record) -> Record:
        return record

    def bits(self, context: Context, record: Record) -> bytes:
        return record.bitstring

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        return context.domain_name, record.name or "", record.labels

    def gone(self, context: Context, identity: bytes) -> bool:
        return False

    def doomed(self, context: Context, identity: bytes) -> bool:
        return False


class Locked(Clear):
    """A sealed archive without its key: names are shown as the ids that stand for them."""

    cipher = SEALED

    def domain(self, kind: int, name: str) -> bytes:
        raise _locked()

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        raise _locked()

    def bits(self, context: Context, record: Record) -> bytes:
        raise _locked()

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        return f"sealed {context.domain.hex()}", f"sealed {record.veil[:UNIT].hex()}", b""


def _locked() -> KeyMismatch:
    return KeyMismatch("this archive is sealed: open it with its passphrase, key file or key command")


class Unit(NamedTuple):
    """A key of a domain: which tree, which leaf."""

    root: bytes
    number: int


@dataclass(frozen=True)
class DomainKeys:
    """All keys of a domain, one generation. ``roots``: id -> tree, the last is the one that new records use; an empty tree was erased.

    ``doomed``: units whose erasure has begun.
    """

    domain: bytes
    generation: int
    kind: int
    name: str
    id_key: bytes
    roots: dict[bytes, Tree]
    doomed: frozenset[Unit] = frozenset()

    @property
    def erased(self) -> bool:
        """Whether the whole domain was: nothing is left but the ids of its roots."""
        return not any(tree.nodes for tree in self.roots.values())

    @property
    def newest(self) -> bytes:
        """Id of the root that new records use."""
        return list(self.roots)[-1]

    def following(self, **changes: object) -> DomainKeys:
        """The next generation."""
        return dataclasses.replace(self, generation=self.generation + 1, **changes)  # type: ignore[arg-type]

    def encode(self) -> bytes:
        """What is wrapped."""
        name = self.name.encode()
        out = [bytes([self.kind]), write_varint(len(name)), name, self.id_key, write_varint(len(self.roots))]
        for root, tree in self.roots.items():
            out += [root, write_varint(len(tree.nodes))]
            out += [NODE.pack(*at, key) for at, key in sorted(tree.nodes.items())]
        out.append(write_varint(len(self.doomed)))
        out += [unit.root + unit.number.to_bytes(UNIT, "big") for unit in sorted(self.doomed)]
        return b"".join(out)

    @classmethod
    def decode(cls, domain: bytes, generation: int, data: bytes) -> DomainKeys:
        """Undo `encode`. Raises CorruptError."""
        reader = _Reader(data)
        kind = reader.take(1)[0]
        name = reader.name()
        id_key = reader.take(KEY)
        roots: dict[bytes, Tree] = {}
        for _ in range(reader.count(MAX_ROOTS)):
            root = reader.take(UNIT)
            rows = [NODE.unpack(reader.take(NODE.size)) for _ in range(reader.count(MAX_NODES))]
            roots[root] = Tree({(depth, prefix): key for depth, prefix, key in rows})
        doomed = frozenset(
            Unit(reader.take(UNIT), unit_of(reader.take(UNIT))) for _ in range(reader.count(MAX_NODES))
        )
        reader.end()
        if not roots or kind not in (TENANT, BASE):
            raise CorruptError("the keys of a domain have no root: damaged")
        return cls(domain, generation, kind, name, id_key, roots, doomed)


@dataclass(frozen=True)
class KeyFile:
    """One generation of wrapped keys. ``head``: its plain part, which the box is bound to; ``cost`` and ``salt``: of the KDF."""

    domain: bytes
    generation: int
    box: bytes
    kdf: int = RAW
    cost: tuple[int, int, int] = (0, 0, 0)
    salt: bytes = NONE

    @property
    def head(self) -> bytes:
        """The plain part."""
        head = HEAD.pack(MAGIC, VERSION, self.kdf, bytes(2), self.domain, self.generation)
        return head + KDF.pack(*self.cost, 0, self.salt)

    def encode(self) -> bytes:
        """The file."""
        data = self.head + self.box
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> KeyFile:
        """Raises CorruptError, VersionError. Needs no key."""
        if len(data) < HEAD.size + KDF.size + SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("a key file does not match its checksum: damaged")
        magic, version, kdf, reserved, domain, generation = HEAD.unpack_from(data)
        n, r, p, zero, salt = KDF.unpack_from(data, HEAD.size)
        if magic != MAGIC:
            raise CorruptError("a key file does not start as one: damaged")
        if version != VERSION or any(reserved) or zero or kdf > SCRYPT:
            raise VersionError(f"a key file of version {version}: use a newer pltz")
        if kdf == SCRYPT and not (1 <= n <= 30 and 1 <= r and 1 <= p <= 16 and (128 << n) * r <= MAX_SCRYPT):
            raise CorruptError(f"a key file asks for scrypt with n 2^{n}, r {r}, p {p}: refused")
        return cls(domain, generation, data[HEAD.size + KDF.size : -SIZE], kdf, (n, r, p), salt)


class KeyFolder:
    """Key files by domain and generation; needs no key."""

    def __init__(self, store: Store):
        self.store = store

    def generations(self) -> dict[bytes, list[int]]:
        """Domain -> generations of which any copy is there, oldest first."""
        found: dict[bytes, set[int]] = {}
        for name in self.store.list("keys"):
            if match := NAME.fullmatch(name):
                found.setdefault(bytes.fromhex(match[1]), set()).add(int(match[2], 16))
        return {domain: sorted(numbers) for domain, numbers in found.items()}

    def read(self, domain: bytes, generation: int) -> KeyFile | None:
        """From the first copy that is sound; None: none is there. Raises FormatError where all that are there are damaged."""
        failure: FormatError | None = None
        for copy in range(COPIES):
            try:
                file = KeyFile.decode(self.store.read(file_name(domain, generation, copy), 0, MAX_SIZE))
                if (file.domain, file.generation) == (domain, generation):
                    return file
                failure = CorruptError("a key file says it is another")
            except FileNotFoundError:
                continue
            except FormatError as exc:
                failure = exc
        if failure:
            raise failure
        return None

    def put(self, file: KeyFile) -> bool:
        """Both copies, durable. False: somebody else was first."""
        data = file.encode()
        if len(data) > MAX_SIZE:
            raise ArchiveError(
                "the holes in this tenant's keys take too much room: copy what is left to a new archive"
            )
        if not self.store.put(file_name(file.domain, file.generation, 0), data):
            return False
        for copy in range(1, COPIES):
            self.store.put(file_name(file.domain, file.generation, copy), data)
        return True

    def shred(self, domain: bytes, before: int) -> int:
        """Destroy the generations of a domain below ``before``, oldest first, and what crashes left of it; how many files."""
        done = 0
        for generation in self.generations().get(domain, []):
            if generation < before:
                for copy in range(COPIES):
                    self.store.shred(file_name(domain, generation, copy))
                    done += 1
        for name in self.store.list("tmp"):
            if self._left_over(f"tmp/{name}", domain):
                self.store.shred(f"tmp/{name}")
                done += 1
        return done

    def _left_over(self, name: str, domain: bytes) -> bool:
        """Whether a file that was never put in place holds keys of a domain, whole or not."""
        try:
            head = self.store.read(name, 0, HEAD.size)
        except FileNotFoundError:
            return False
        return head[:4] == MAGIC and domain.startswith(head[8 : 8 + SIZE])


def file_name(domain: bytes, generation: int, copy: int) -> str:
    """Of a key file.

    >>> file_name(bytes(16), 1, 0)
    'keys/00000000000000000000000000000000-00000001-0'
    """
    return f"keys/{domain.hex()}-{generation:08x}-{copy}"


class Keyring:
    """The keys of a sealed archive, at hand. Raises KeyMismatch on opening with another secret."""

    cipher = SEALED

    def __init__(self, store: Store, archive: bytes, secret: Secret):
        self.store, self.archive = store, archive
        self.folder = KeyFolder(store)
        self._master = self._open_master(secret)
        self._wrap, self._names = subkey(self._master, b"pltz wrap"), subkey(self._master, b"pltz names")
        self._domains: dict[bytes, DomainKeys] = {}
        self._checked: set[bytes] = set()
        self._listed: dict[bytes, list[int]] = {}

    @classmethod
    def create(cls, store: Store, archive: bytes, secret: Secret) -> None:
        """Make an archive key and wrap it. Raises StoreError."""
        _put_master(KeyFolder(store), archive, secret, store.random(KEY), 0)

    def change(self, secret: Secret) -> None:
        """Wrap the archive key by another secret and destroy what the old one opened. Raises Fenced, StoreError."""
        generation = max(self.folder.generations()[MASTER])
        if not _put_master(self.folder, self.archive, secret, self._master, generation + 1):
            raise Fenced("somebody else changed the key at the same time: try again")
        self.folder.shred(MASTER, generation + 1)

    def refresh(self) -> None:
        self._checked.clear()

    def check(self, domains: Iterable[bytes]) -> None:
        for domain in set(domains):
            known = self._domains[domain]
            if not self._current(known):
                raise Fenced(
                    "something of this tenant was erased meanwhile: nothing was acknowledged, put again"
                )

    def domain(self, kind: int, name: str) -> bytes:
        return keyed(self._names, b"pltz domain", [bytes([kind]), name.encode()], SIZE)

    def context(self, kind: int, name: str) -> Context:
        domain = self.domain(kind, name)
        keys = self.of(domain)
        if keys is None or keys.erased:
            keys = self._make(kind, name, domain, keys)
        return Context(kind, domain, "", NONE, NONE, 0, cipher=SEALED, root=keys.newest)

    def session_key(self, domain: bytes, name: str) -> bytes:
        keys = self.of(domain)
        key = keys.id_key if keys else self._names  # no session of an unknown domain is stored under any key
        return keyed(key, b"pltz session", [domain, name.encode()], UNIT) + bytes(SIZE - UNIT)

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        keys = self.of(domain)
        if keys is None:
            raise CorruptError(f"the keys of domain {domain.hex()} are missing: see pltz archive verify")
        parts = [domain, tokenizer, parent, np.ascontiguousarray(tokens, "<u4").tobytes()]
        return keyed(keys.id_key, b"pltz segment", parts, 2 * SIZE)

    def seal(self, context: Context, record: Record) -> Record:
        bitstring, veil = record.bitstring, b""
        if record.id is not None:
            bitstring = seal(self._key(context, record.id), bitstring, _about_segment(context, record))
        if record.name is not None:
            key = self.session_key(context.domain, record.name)
            encoded = record.name.encode()
            plain = write_varint(len(encoded)) + encoded + record.labels
            veil = key[:UNIT] + seal(
                self._key(context, key), plain, _about_session(context, record, key[:UNIT])
            )
        name = None if record.name is None else ""
        return record._replace(bitstring=bitstring, name=name, labels=b"", veil=veil)

    def bits(self, context: Context, record: Record) -> bytes:
        if context.cipher != SEALED or record.id is None:
            raise CorruptError("a record without encryption in a sealed archive: refused")
        return unseal(
            self._key(context, record.id), record.bitstring, _about_segment(context, record), "a bitstring"
        )

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        if context.cipher != SEALED:
            raise CorruptError("a record without encryption in a sealed archive: refused")
        unit, box = record.veil[:UNIT], record.veil[UNIT:]
        plain = unseal(
            self._key(context, unit), box, _about_session(context, record, unit), "a session's name"
        )
        keys = self.of(context.domain)
        reader = _Reader(plain)
        name = reader.name()
        labels = reader.rest()
        if len(labels) > MAX_LABELS:
            raise CorruptError("the labels of a session are over the limit: damaged")
        return keys.name if keys else "", name, labels

    def gone(self, context: Context, identity: bytes) -> bool:
        keys = self.of(context.domain)
        tree = keys.roots.get(context.root) if keys else None
        return tree is not None and (not tree.nodes or tree._above(unit_of(identity)) is None)

    def doomed(self, context: Context, identity: bytes) -> bool:
        keys = self.of(context.domain)
        return keys is not None and Unit(context.root, unit_of(identity)) in keys.doomed

    def of(self, domain: bytes) -> DomainKeys | None:
        """The keys of a domain as they are since the last refresh; None: it has none. Raises CorruptError where they are damaged."""
        if domain not in self._checked:
            known = self._domains.get(domain)
            if known is None or not self._current(known):
                self._load(domain)
            self._checked.add(domain)
        return self._domains.get(domain)

    def publish(self, keys: DomainKeys) -> bool:
        """Put a generation. False: somebody else was first."""
        data = keys.encode()
        plain = KeyFile(keys.domain, keys.generation, b"")
        box = seal(self._wrap, data, [self.archive, plain.head])
        if not self.folder.put(dataclasses.replace(plain, box=box)):
            return False
        self._domains[keys.domain] = keys
        return True

    def _make(self, kind: int, name: str, domain: bytes, old: DomainKeys | None) -> DomainKeys:
        """First keys of a domain, or of one that was erased."""
        fresh = {self.store.random(UNIT): Tree.root(self.store.random(KEY))}
        keys = DomainKeys(
            domain,
            old.generation + 1 if old else 0,
            kind,
            name,
            self.store.random(KEY),
            (old.roots if old else {}) | fresh,
        )
        if not self.publish(keys):
            self._load(domain)
        return self._domains[domain]

    def _key(self, context: Context, identity: bytes) -> bytes:
        """Of a segment or session. Raises Erased, CorruptError."""
        keys = self.of(context.domain)
        if keys is None or context.root not in keys.roots:
            raise CorruptError(
                f"the keys of domain {context.domain.hex()} are missing: see pltz archive verify"
            )
        key = keys.roots[context.root].key(unit_of(identity))
        if key is None:
            raise Erased("this was erased: its key was destroyed")
        return key

    def _current(self, keys: DomainKeys) -> bool:
        """Whether these are the newest: the next is not there, then this one still is (see the head of this file)."""
        for generation, there in ((keys.generation + 1, False), (keys.generation, True)):
            if self._there(keys.domain, generation) != there:
                return False
        return True

    def _there(self, domain: bytes, generation: int) -> bool:
        for copy in range(COPIES):
            try:
                self.store.read(file_name(domain, generation, copy), 0, 1)
                return True
            except FileNotFoundError:
                continue
        return False

    def _load(self, domain: bytes) -> None:
        """The newest generation that can be read; older ones only where a newer was never whole."""
        self._domains.pop(domain, None)
        for _ in range(8):  # a generation may be shredded while it is read: then a newer one is there
            if not self._there_listed(domain):
                return
            generation = self._listed[domain][-1]
            try:
                file = self.folder.read(domain, generation)
            except FormatError:
                if self.folder.generations().get(domain, [])[-1:] == [generation]:
                    raise
                file = None
            if file:
                plain = dataclasses.replace(file, box=b"").head
                data = unseal(self._wrap, file.box, [self.archive, plain], "a key file")
                self._domains[domain] = DomainKeys.decode(domain, generation, data)
                return
            self._listed = {}
        raise CorruptError(f"the keys of domain {domain.hex()} keep changing: try again")

    def _there_listed(self, domain: bytes) -> bool:
        newest = self._listed.get(domain, [-1])[-1]
        if newest < 0 or self._there(domain, newest + 1) or not self._there(domain, newest):
            self._listed = self.folder.generations()
        return domain in self._listed

    def _open_master(self, secret: Secret) -> bytes:
        generations = self.folder.generations().get(MASTER, [])
        failure: FormatError | None = None
        for generation in reversed(generations):
            try:
                file = self.folder.read(MASTER, generation)
            except FormatError as exc:
                failure = exc
                continue
            if file is None:
                continue
            if file.kdf != secret.kdf:
                kind = "a passphrase" if file.kdf == SCRYPT else "a key file or key command"
                raise KeyMismatch(f"this archive opens with {kind}")
            plain = dataclasses.replace(file, box=b"").head
            try:
                return unseal(secret.key(file.cost, file.salt), file.box, [self.archive, plain], "")
            except CorruptError:
                raise KeyMismatch("this is not the key of this archive") from None
        raise failure or CorruptError("the archive's key file is missing: restore keys/ from a copy")


def _put_master(folder: KeyFolder, archive: bytes, secret: Secret, master: bytes, generation: int) -> bool:
    salt = folder.store.random(SIZE)
    cost = SCRYPT_COST if secret.kdf == SCRYPT else (0, 0, 0)
    plain = KeyFile(MASTER, generation, b"", secret.kdf, cost, salt)
    box = seal(secret.key(cost, salt), master, [archive, plain.head])
    return folder.put(dataclasses.replace(plain, box=box))


def _about_segment(context: Context, record: Record) -> Sequence[bytes]:
    c = context
    place = struct.pack("<HBQ", c.contract, c.mode, record.tokens)
    return [b"segment", c.domain + c.root + c.tokenizer + c.bundle + place, record.id or NONE, record.parent]


def _about_session(context: Context, record: Record, unit: bytes) -> Sequence[bytes]:
    c = context
    place = struct.pack("<BQQ", c.kind, record.number, record.time)
    return [b"session", c.domain + c.root + c.tokenizer + c.target + place, unit, record.leaf]


class _Reader:
    """Fields one after the other, each checked against what is there."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        """The next bytes. Raises CorruptError."""
        if self.at + size > len(self.data):
            raise CorruptError("keys end before their fields do: damaged")
        self.at += size
        return self.data[self.at - size : self.at]

    def count(self, most: int) -> int:
        """The next varint. Raises CorruptError."""
        value, self.at = read_varint(self.data, self.at)
        if value > most:
            raise CorruptError(f"a count of {value} where at most {most} are allowed: damaged")
        return value

    def name(self) -> str:
        """A varint and so many bytes of UTF-8. Raises CorruptError."""
        try:
            return self.take(self.count(MAX_NAME)).decode()
        except UnicodeDecodeError as exc:
            raise CorruptError("a sealed name is not UTF-8: damaged") from exc

    def rest(self) -> bytes:
        """What is left."""
        return self.take(len(self.data) - self.at)

    def end(self) -> None:
        """Raises CorruptError where anything is left."""
        if self.at != len(self.data):
            raise CorruptError("keys go on after their last field: damaged")
