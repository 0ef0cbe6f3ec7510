"""Keys and boxes of a sealed archive, as archive/encryption/FORMAT.md describes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from tests.second_reader.fields import Damaged, Fields, Newer, refuse
from tests.second_reader.state import Files, checked

VERSION, ROOT = 3, 0xFFFF


def keyed(key: bytes, person: str, *parts: bytes, size: int = 32) -> bytes:
    """Return the keyed BLAKE2b of parts, one after the other."""
    return hashlib.blake2b(b"".join(parts), key=key, digest_size=size, person=person.encode()).digest()


def unseal(key: bytes, box: bytes, *about: bytes) -> bytes:
    """Return what is in a box. ``about``: what it is bound to."""
    try:
        return AESSIV(keyed(key, "pltz box", size=64)).decrypt(box, list(about))
    except InvalidTag as error:
        raise Damaged("a box that does not open") from error


class KeyFile(NamedTuple):
    """A key file: what is in the clear, and its box."""

    scrypt: Sequence[int]  # log2 n, r, p; none of a key that is no passphrase
    generation: int
    salt: bytes
    lineages: list[bytes]
    head: bytes
    box: bytes

    def open(self, key: bytes, archive: bytes) -> bytes:
        """Return what is in the box."""
        return unseal(key, self.box, archive, self.head)


def newest(files: Files, domain: bytes) -> KeyFile:
    """Return the newest key file of a domain, of its two copies one that is sound."""
    names = sorted(name for name in files if name.startswith(f"keys/{domain.hex()}-"))
    damage: Damaged | None = None
    for name in (name for name in names if name[:-2] == names[-1][:-2]):
        try:
            return _key_file(files[name], domain)
        except Damaged as error:
            damage = error
    raise damage or Damaged("a domain that lost its keys")


def _key_file(data: bytes, domain: bytes) -> KeyFile:
    fields = checked(data, "pltz key", b"PLTk", VERSION)
    kind, reserved, of, generation, *cost, last, salt, count = fields.unpack("BH16sI4B16sB")
    lineages = [fields.take(4) for _ in range(count)]
    refuse(reserved or last, "reserved bytes that are not zero", Newer)
    refuse(of != domain or kind > 1, "a key file of another domain")
    return KeyFile(cost if kind else (), generation, salt, lineages, data[: fields.at], fields.rest())


class DomainKeys:
    """The keys of a domain."""

    def __init__(self, file: KeyFile, plain: bytes) -> None:
        fields = Fields(plain)
        self.kind, self.name, self.id = fields.number(1), fields.take(fields.varint()), fields.take(32)
        self._file, self._slots = file, dict[int, list[tuple[int, bytes]]]()
        for _ in range(fields.varint()):
            slot, since, key = fields.number(2), fields.number(4), fields.take(32)
            self._slots.setdefault(slot, []).append((since, key))
        for _ in range(fields.varint()):
            fields.take(8)
        fields.end()

    def key(self, root: bytes, unit: bytes) -> bytes | None:
        """Return the key of a unit's records that name a root; None where it was destroyed."""
        began, slot = int.from_bytes(root[4:], "big"), int.from_bytes(unit[:2], "big") >> 4
        if root[:4] not in self._file.lineages or began > self._file.generation:
            raise Damaged("a domain that lost its keys")
        own = self._slots.get(slot)
        keys = [key for since, key in own or self._slots.get(ROOT, []) if since <= began]
        if not keys or own:
            return keys[-1] if keys else None
        return keyed(keys[-1], "pltz slot", slot.to_bytes(2, "little"))


class Keyring:
    """All keys of a sealed archive. ``secret``: the bytes of a key file or the passphrase."""

    def __init__(self, files: Files, archive: bytes, secret: bytes) -> None:
        self._files, self._archive, self._domains = files, archive, dict[bytes, DomainKeys]()
        own = newest(files, archive)
        if own.scrypt:
            n, r, p = own.scrypt
            kek = hashlib.scrypt(secret, salt=own.salt, n=1 << n, r=r, p=p, dklen=32, maxmem=(1 << 31) - 1)
        else:
            kek = keyed(own.salt, "pltz secret", secret)
        key = own.open(kek, archive)
        self._wrap, self._names = keyed(key, "pltz wrap"), keyed(key, "pltz names")

    def domain(self, domain: bytes) -> DomainKeys:
        """Return the keys of a domain."""
        if domain not in self._domains:
            file = newest(self._files, domain)
            found = DomainKeys(file, file.open(self._wrap, self._archive))
            if found.name and self.domain_id(found.kind, found.name) != domain:
                raise Damaged("keys of another domain")
            self._domains[domain] = found
        return self._domains[domain]

    def domain_id(self, kind: int, name: bytes) -> bytes:
        """Return the id of a domain."""
        return keyed(self._names, "pltz domain", bytes([kind]), name, size=16)
