"""Keys and boxes of a sealed archive, as archive/encryption/FORMAT.md describes them."""

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from tests.second_reader.fields import Damaged, Fields, Newer, first, refuse
from tests.second_reader.model import digest
from tests.second_reader.state import Files, checked

VERSION, ROOT = 1, 0xFFFF


def unseal(key: bytes, box: bytes, *about: bytes) -> bytes:
    """Return what is in a box. ``about``: what it is bound to."""
    try:
        return AESSIV(digest("pltz box", size=64, key=key)).decrypt(box, list(about))
    except InvalidTag as error:
        raise Damaged("a box that does not open") from error


class KeyFile:
    """The newest key file of a domain, of its two copies one that is sound: what is in the clear, and its box."""

    def __init__(self, files: Files, domain: bytes) -> None:
        def read(name: str) -> Fields:
            refuse(files[name][8:24] != domain, "a key file of another domain")
            return checked(files[name], "pltz key", b"PLTk", VERSION)

        names = sorted(name for name in files if name.startswith(f"keys/{domain.hex()}-"))
        fields: Fields = first(read, (name for name in names if name[:-2] == names[-1][:-2]))
        self.by_phrase, reserved, _, self.generation, *self.cost, last, self.salt, count = fields.unpack("BH16sI4B16sB")
        refuse(reserved or last or self.by_phrase > 1, "a key file of a newer version", Newer)
        self.lineages = [fields.take(4) for _ in range(count)]
        self.head, self.box = fields.data[: fields.at], fields.rest()


class DomainKeys:
    """The keys of a domain."""

    def __init__(self, file: KeyFile, plain: bytes) -> None:
        fields = Fields(plain)
        self.who, self.id = (fields.take(1), fields.sized()), fields.take(32)
        self._file, self._slots = file, [fields.unpack("HI32s") for _ in range(fields.varint())]  # behind: doomed units

    def key(self, root: bytes, unit: bytes) -> bytes | None:
        """Return the key of a unit's records that name a root; None where it was destroyed."""
        began, slot = int.from_bytes(root[4:], "big"), int.from_bytes(unit[:2], "big") >> 4
        lost = root[:4] not in self._file.lineages or began > self._file.generation
        refuse(lost, "a domain that lost its keys")
        own, roots = ([(since, key) for at, since, key in self._slots if at == place] for place in (slot, ROOT))
        keys = [key for since, key in own or roots if since <= began]
        if own or not keys:
            return keys[-1] if keys else None
        return digest("pltz slot", slot.to_bytes(2, "little"), size=32, key=keys[-1])


class Keyring:
    """All keys of a sealed archive. ``secret``: the bytes of a key file or the passphrase; ``names``: key of ids."""

    def __init__(self, files: Files, archive: bytes, secret: bytes) -> None:
        self._files, self._archive, self._domains = files, archive, dict[bytes, DomainKeys]()
        own = KeyFile(files, archive)
        outer = b"" if own.by_phrase else digest("pltz secret", secret, size=32, key=own.salt)
        if own.by_phrase:
            n, r, p = own.cost
            outer = hashlib.scrypt(secret, salt=own.salt, n=1 << n, r=r, p=p, dklen=32, maxmem=(1 << 31) - 1)
        key = unseal(outer, own.box, archive, own.head)
        self._wrap, self.names = (digest(person, size=32, key=key) for person in ("pltz wrap", "pltz names"))

    def domain(self, domain: bytes) -> DomainKeys:
        """Return the keys of a domain."""
        if domain not in self._domains:
            file = KeyFile(self._files, domain)
            self._domains[domain] = DomainKeys(file, unseal(self._wrap, file.box, self._archive, file.head))
        return self._domains[domain]
