"""Root keys: what the archive's own key file has, and how secrets open it. Spec: FORMAT.md, "Keys" and "Key files".

    secret, or another one --opens--> archive key --opens--> wrap keys, name key
                                                                |
                                                                +--> the keys of each domain (`keyring.py`)

Secrets open the same archive key side by side. A key that is changed is another archive key and another wrap key. The
name key stays, as ids of domains are made by it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from pltz.archive.encryption.box import KEY, keyed, seal, unseal
from pltz.archive.encryption.key_files import WRAP_ID, KeyFile
from pltz.archive.encryption.keys import RAW, SCRYPT, KeySource
from pltz.archive.errors import KeyMismatch
from pltz.plt_codec.errors import CorruptError, UsageError, VersionError
from pltz.plt_codec.identity import SIZE

PLACE = struct.Struct("<B3B16s")  # KDF, log2 of n, r, p, salt
SECRET_BOX = KEY + SIZE  # bytes
MOST_SECRETS, MOST_WRAPS = 16, 8
SCRYPT_COST = (15, 8, 1)  # 32 MiB, a tenth of a second
MAX_SCRYPT = 1 << 30  # bytes of memory that a file may ask for

Random = Callable[[int], bytes]


def wrap_id(key: bytes) -> bytes:
    """Return the id of a wrap key, 8 bytes."""
    return keyed(key, b"pltz wrap id", [], WRAP_ID)


@dataclass(frozen=True)
class SealedSecret:
    """The archive key as one secret opens it. ``cost`` and ``salt`` are those of the KDF."""

    kdf: int
    cost: tuple[int, int, int]
    salt: bytes
    box: bytes = b""

    @property
    def place(self) -> bytes:
        """Return the plain part, to which the box is bound."""
        return PLACE.pack(self.kdf, *self.cost, self.salt)

    @classmethod
    def make(cls, random: Random, archive: bytes, secret: KeySource, key: bytes) -> SealedSecret:
        """Seal an archive key for a secret. ``random``: returns so many bytes."""
        plain = cls(secret.kdf, SCRYPT_COST if secret.kdf == SCRYPT else (0, 0, 0), random(SIZE))
        return replace(plain, box=seal(secret.key(plain.cost, plain.salt), key, [archive, plain.place]))

    @classmethod
    def decode(cls, data: bytes) -> SealedSecret:
        """Return the secret in these bytes. Raises CorruptError, VersionError."""
        kdf, n, r, p, salt = PLACE.unpack_from(data)
        if kdf > SCRYPT:
            raise VersionError("a key file has a secret of a newer version: use a newer pltz")
        if kdf == SCRYPT and not (1 <= n <= 30 and 1 <= r and 1 <= p <= 16 and (128 << n) * r <= MAX_SCRYPT):
            raise CorruptError(f"a key file asks for scrypt with n 2^{n}, r {r}, p {p}: refused")
        return cls(kdf, (n, r, p), salt, data[PLACE.size :])

    def open(self, archive: bytes, secret: KeySource) -> bytes | None:
        """Return the archive key; None where it is another secret's."""
        try:
            return unseal(secret.key(self.cost, self.salt), self.box, [archive, self.place], "")
        except CorruptError:
            return None


@dataclass(frozen=True)
class RootKeys:
    """The keys from which all others of an archive are reached.

    Attributes:
        generation: of the key file.
        key: the archive key.
        secrets: what opens it.
        wraps: keys by which key files of domains are sealed, the newest first.
        names: the key of the ids of domains.
    """

    generation: int
    key: bytes
    secrets: tuple[SealedSecret, ...]
    wraps: tuple[bytes, ...]
    names: bytes

    @classmethod
    def first(cls, random: Random, archive: bytes, secret: KeySource) -> RootKeys:
        """Make those of a new archive."""
        key = random(KEY)
        return cls(0, key, (SealedSecret.make(random, archive, secret, key),), (random(KEY),), random(KEY))

    def adding(self, random: Random, archive: bytes, secret: KeySource) -> RootKeys:
        """Return the next generation, which one more secret opens. Raises UsageError where there are 16."""
        if len(self.secrets) == MOST_SECRETS:
            raise UsageError(f"{MOST_SECRETS} keys open this archive already: drop them with a new one")
        added = (*self.secrets, SealedSecret.make(random, archive, secret, self.key))
        return replace(self, generation=self.generation + 1, secrets=added)

    def changing(self, random: Random, archive: bytes, secret: KeySource) -> RootKeys:
        """Return the next generation, which a secret alone opens, with another archive key and wrap key."""
        key = random(KEY)
        own, wraps = (SealedSecret.make(random, archive, secret, key),), (random(KEY), *self.wraps)[:MOST_WRAPS]
        return replace(self, generation=self.generation + 1, key=key, secrets=own, wraps=wraps)

    def sealed(self, archive: bytes) -> KeyFile:
        """Return the archive's own key file."""
        rows = b"".join(secret.place + secret.box for secret in self.secrets)
        plain = KeyFile(archive, self.generation, bytes([len(self.secrets)]) + rows)
        root = bytes([len(self.wraps)]) + b"".join(self.wraps) + self.names
        return replace(plain, box=plain.box + seal(self.key, root, [archive, plain.head + plain.box]))

    @classmethod
    def open(cls, archive: bytes, file: KeyFile, secret: KeySource) -> RootKeys:
        """Open the archive's own key file. Raises KeyMismatch, CorruptError, VersionError."""
        size = PLACE.size + SECRET_BOX
        end = 1 + size * file.box[0] if file.box else 0
        if not 1 < end < len(file.box) or file.box[0] > MOST_SECRETS:
            raise CorruptError("the archive's own key file has no secrets: damaged")
        secrets = tuple(SealedSecret.decode(file.box[at : at + size]) for at in range(1, end, size))
        alike = [sealed for sealed in secrets if sealed.kdf == secret.kdf]
        if not alike:
            kind = "a key file or key command" if secret.kdf != RAW else "a passphrase"
            raise KeyMismatch(f"this archive opens with {kind}")
        key = next((found for sealed in alike if (found := sealed.open(archive, secret)) is not None), None)
        if key is None:
            changed = f", which was changed (key file of generation {file.generation})" if file.generation else ""
            raise KeyMismatch(f"this is not the key of this archive{changed}")
        head = replace(file, box=b"").head + file.box[:end]
        root = unseal(key, file.box[end:], [archive, head], "the archive's own key file")
        wraps = tuple(root[at : at + KEY] for at in range(1, len(root) - KEY, KEY))
        if len(root) != 1 + KEY * (len(wraps) + 1) or not root[0] == len(wraps) <= MOST_WRAPS:
            raise CorruptError("the archive's own key file has no wrap keys: damaged")
        return cls(file.generation, key, secrets, wraps, root[-KEY:])
