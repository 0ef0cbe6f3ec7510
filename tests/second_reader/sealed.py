"""Keys and boxes of a sealed archive, as archive/encryption/FORMAT.md describes them."""

import hashlib
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from tests.second_reader.fields import Damaged, Fields, Newer, first, refuse
from tests.second_reader.model import digest
from tests.second_reader.state import Files, checked


def unseal(key: bytes, box: bytes, *about: bytes) -> bytes:
    """Return what is in a box. ``about``: what it is bound to."""
    try:
        return AESSIV(digest("pltz box", size=64, key=key)).decrypt(box, list(about))
    except InvalidTag as error:
        raise Damaged("a box that does not open") from error


class KeyFile:
    """The newest key file of a domain, of its two copies one that is sound: what is in the clear, and its box."""

    def __init__(self, files: Files, domain: bytes) -> None:
        names = sorted(name for name in files if name.startswith(f"keys/{domain.hex()}-"))
        copies = (files[name] for name in names if name[:-2] == names[-1][:-2] and files[name][8:24] == domain)
        fields: Fields = first(lambda data: checked(data, "pltz key", b"PLTk", 1), copies)
        reserved, _, self.generation, self.wrap, count = fields.unpack("3s16sI8sB")
        refuse(any(reserved), "a key file of a newer version", Newer)
        self.lineages = [fields.take(4) for _ in range(count)]
        self.head, self.box = fields.data[: fields.at], fields.rest()


def outer(row: bytes, secret: bytes) -> bytes:
    """Return the key by which a secret opens a row of the archive's own key file."""
    (by_phrase, n, r, p), salt, most = row[:4], row[4:20], (1 << 31) - 1
    by_bytes = digest("pltz secret", secret, size=32, key=salt)
    return hashlib.scrypt(secret, salt=salt, n=1 << n, r=r, p=p, dklen=32, maxmem=most) if by_phrase else by_bytes


class DomainKeys:
    """The keys of a domain."""

    def __init__(self, file: KeyFile, plain: bytes) -> None:
        fields = Fields(plain)
        self.who, self.id = (fields.take(1), fields.sized()), fields.take(32)
        self._file, self._slots = file, [fields.unpack("HI32s") for _ in range(fields.varint())]  # behind: doomed units

    def key(self, root: bytes, unit: bytes) -> bytes | None:
        """Return the key of a unit's records that name a root; None where it was destroyed."""
        began, slot = int.from_bytes(root[4:], "big"), int.from_bytes(unit[:2], "big") >> 4
        refuse(root[:4] not in self._file.lineages or began > self._file.generation, "a domain that lost its keys")
        own, roots = ([(since, key) for at, since, key in self._slots if at == place] for place in (slot, 0xFFFF))
        if own or not (keys := [key for since, key in roots if since <= began]):
            return next((key for since, key in reversed(own) if since <= began), None)
        return digest("pltz slot", slot.to_bytes(2, "little"), size=32, key=keys[-1])


class Keyring:
    """All keys of a sealed archive. ``secret``: the bytes of a key file or the passphrase; ``names``: key of ids."""

    def __init__(self, files: Files, archive: bytes, secret: bytes) -> None:
        self._files, self._archive, self.domain = files, archive, cache(self._domain)
        fields = Fields((own := KeyFile(files, archive)).box)
        rows = [fields.take(68) for _ in range(fields.number(1))]
        key = first(lambda row: unseal(outer(row, secret), row[20:], archive, row[:20]), rows)
        root = Fields(unseal(key, own.box[fields.at :], archive, own.head + own.box[: fields.at]))
        self.wraps = {digest("pltz wrap id", size=8, key=key): key for key in map(root.take, [32] * root.number(1))}
        self.names = root.take(32)
        root.end()

    def _domain(self, domain: bytes) -> DomainKeys:
        file = KeyFile(self._files, domain)
        refuse(file.wrap not in self.wraps, "a key file of another key of the archive")
        return DomainKeys(file, unseal(self.wraps[file.wrap], file.box, self._archive, file.head))
