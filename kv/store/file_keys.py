"""FileKeys: keys of the files of KV of a sealed archive, and how they seal a file. Spec: FORMAT.md, "Sealed files".

    tenant's cache key in the archive --salt--> key of a file --AES-256-GCM--> chunks, whose tags are the checksums

With each erasure in a tenant the archive makes another cache key, and destroys the one before. So an erasure ends all
files of the tenant and their copies, on whatever machine. They are a cache: what does not open is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from pltz.archive import TENANT
from pltz.plt_codec import PltzError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import GCM

    from pltz.archive import Archive

log = logging.getLogger("pltz.kv")

SALT, KEY = 16, 32  # bytes

Pieces = Sequence[memoryview]


class Clear:
    """Chunks as they are. Their checksums, XXH3-128, find damage and no forgery."""

    salt = b""

    def of_header(self, header: bytes) -> bytes:
        """Return the checksum of what is before the data, 16 bytes."""
        import xxhash

        return xxhash.xxh3_128_digest(header)

    def closed(self, number: int, pieces: Pieces) -> tuple[Pieces, bytes]:
        """Return the chunk of this number, from 1 on, as it is written, and its checksum."""
        import xxhash

        state = xxhash.xxh3_128()
        for piece in pieces:
            state.update(piece)
        return pieces, state.digest()

    def opened(self, number: int, pieces: Pieces, checksum: bytes) -> bool:
        """Turn a chunk that was read into what it was, in place. Returns whether it is right."""
        return self.closed(number, pieces)[1] == checksum


class Sealed:
    """Chunks encrypted under a key of one file. ``key``: the tenant's. ``salt``: the file's own."""

    def __init__(self, key: bytes, salt: bytes) -> None:
        self.salt = salt
        self._key = blake2b(salt, key=key, digest_size=KEY, person=b"pltz kv file").digest()

    def of_header(self, header: bytes) -> bytes:
        """Return the tag of what is before the data, 16 bytes."""
        coder = self._cipher(0).encryptor()
        coder.authenticate_additional_data(header)
        coder.finalize()
        return coder.tag

    def closed(self, number: int, pieces: Pieces) -> tuple[Pieces, bytes]:
        """Return the chunk of this number, from 1 on, as it is written, and its tag."""
        coder = self._cipher(number).encryptor()
        coded = [memoryview(coder.update(piece)) for piece in pieces]
        coder.finalize()
        return coded, coder.tag

    def opened(self, number: int, pieces: Pieces, checksum: bytes) -> bool:
        """Turn a chunk that was read into what it was, in place. Returns whether it is right."""
        from cryptography.exceptions import InvalidTag

        coder = self._cipher(number, checksum).decryptor()
        try:
            for piece in pieces:
                coder.update_into(piece, piece)
            coder.finalize()
        except InvalidTag:
            return False
        return True

    def _cipher(self, number: int, tag: bytes | None = None) -> Cipher[GCM]:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        return Cipher(AES256(self._key), GCM(number.to_bytes(12, "little"), tag))


CLEAR = Clear()


class FileKeys:
    """The keys of a sealed archive's tenants, as of its last look. Any thread may use them."""

    def __init__(self, archive: Archive) -> None:
        self._domain = archive.parts.keys.domain
        self._keys: dict[bytes, bytes] = {}  # by owners

    def owner(self, tenant: str) -> bytes:
        """Return what stands for a tenant in its files: the id of its domain, 16 bytes."""
        return self._domain(TENANT, tenant)

    def found(self, archive: Archive, tenants: Iterable[str]) -> dict[bytes, bytes | None]:
        """Return by owner the newest keys that an archive has of tenants, where they are others than before."""
        keys: dict[bytes, bytes | None] = {}
        for owner in map(self.owner, tenants):
            try:
                keys[owner] = next(iter(archive.parts.keys.cache_keys(owner)), None)
            except PltzError as exc:
                keys[owner] = None
                if owner in self._keys:
                    log.warning("a tenant's files of KV are not used: %s", exc)
        return {owner: key for owner, key in keys.items() if key != self._keys.get(owner)}

    def take(self, keys: Mapping[bytes, bytes | None]) -> None:
        """Take what `found` returned."""
        self._keys = {owner: key for owner, key in {**self._keys, **keys}.items() if key is not None}

    def seal(self, owner: bytes, salt: bytes) -> Sealed | None:
        """Return what encrypts a file of a tenant, None where it has no key."""
        key = self._keys.get(owner)
        return None if key is None else Sealed(key, salt)

    def name(self, owner: bytes, name: bytes) -> bytes:
        """Return what stands for a name in a folder, 32 bytes: one that nobody can guess where there is a key."""
        return blake2b(name, key=self._keys.get(owner, b""), digest_size=32, person=b"pltz kv name").digest()

    def all_names(self, names: Collection[bytes]) -> set[bytes]:
        """Return what stands for names, whosever they are."""
        return {self.name(owner, name) for owner in self._keys for name in names}
