"""Key files: wrapped keys in small files that can really be destroyed. Needs no key.

Spec: FORMAT.md, "Encryption".

    keys/<domain id>-<generation>-<copy>          the archive key under the domain id of zeros

A key file is never changed. A new generation is put beside it, in two copies, and then the older ones are
overwritten and deleted. Generations are shredded oldest first. So a process that still finds the generation
it knows, and not the next, is up to date.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pltz.archive.errors import ArchiveError
from pltz.archive.format.object_names import KEYS, TEMPORARY, key_copies, key_files_among, temporaries_among
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import NONE, SIZE, digest

MAGIC = b"PLTk"
VERSION = 1
# magic, version, KDF, reserved, domain id (zeros: the archive's), generation
HEAD = struct.Struct("<4sBB2s16sI")
KDF = struct.Struct("<BBBB16s")  # log2 of n, r, p, reserved, salt
PERSON = b"pltz key"
RAW, SCRYPT = 0, 1
MAX_SCRYPT = 1 << 30  # bytes of memory that a file may ask for
MAX_SIZE = 64 << 20  # bytes of a key file


@dataclass(frozen=True)
class KeyFile:
    """One generation of wrapped keys. ``cost`` and ``salt`` are those of the KDF."""

    domain: bytes
    generation: int
    box: bytes
    kdf: int = RAW
    cost: tuple[int, int, int] = (0, 0, 0)
    salt: bytes = NONE

    @property
    def head(self) -> bytes:
        """Return the plain part, to which the box is bound."""
        head = HEAD.pack(MAGIC, VERSION, self.kdf, bytes(2), self.domain, self.generation)
        return head + KDF.pack(*self.cost, 0, self.salt)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        data = self.head + self.box
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> KeyFile:
        """Return the key file in these bytes, without a key. Raises CorruptError, VersionError."""
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
        """Return, by domain, the generations with any copy present, oldest first. Raises StoreError."""
        found: dict[bytes, set[int]] = {}
        for file in key_files_among(self.store.list(KEYS)):
            found.setdefault(file.domain, set()).add(file.generation)
        return {domain: sorted(numbers) for domain, numbers in found.items()}

    def read(self, domain: bytes, generation: int) -> KeyFile | None:
        """Return a key file from its first sound copy; None if no copy exists.

        Raises FormatError where all existing copies are damaged, StoreError.
        """
        failure: FormatError | None = None
        for name in key_copies(domain, generation):
            try:
                file = KeyFile.decode(self.store.read(name, 0, MAX_SIZE))
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
        """Put both copies, durably. Return False if another process put this generation first.

        Raises ArchiveError where the file is over the limit, StoreError, WriterFailed.
        """
        data = file.encode()
        if len(data) > MAX_SIZE:
            raise ArchiveError(
                "the holes in this tenant's keys take too much room: copy what is left to a new archive"
            )
        first, second = key_copies(file.domain, file.generation)
        if not self.store.put(first, data):
            return False
        self.store.put(second, data)
        return True

    def shred(self, domain: bytes, before: int) -> int:
        """Destroy the generations of a domain below ``before``, oldest first, and left-overs of crashes.

        Returns the number of files. Raises StoreError, WriterFailed.
        """
        return self._shred(self._older({domain: before}).get(domain, []))

    def leftovers(self) -> dict[bytes, list[str]]:
        """Return, by domain, the key files that an unfinished erase left, oldest first.

        These are the files older than the newest generation. Domains whose newest generation is damaged in
        both copies are left out: an erase may be in it, and older keys would undo that.
        """
        newest = {domain: numbers[-1] for domain, numbers in self.generations().items()}
        return {
            domain: files
            for domain, files in self._older(newest).items()
            if self.sound(domain, newest[domain])
        }

    def finish(self) -> dict[bytes, int]:
        """Destroy the files of `leftovers` and return them by domain.

        Both copies of the newest generations are put before.
        """
        for domain in self.leftovers():
            with suppress(FormatError):
                if file := self.read(domain, self.generations()[domain][-1]):
                    self.put(file)
        left = self.leftovers()  # listed again: a file just put may have been erased meanwhile
        return {domain: self._shred(files) for domain, files in left.items()}

    def sound(self, domain: bytes, generation: int) -> bool:
        """Return whether a sound copy of a generation exists."""
        try:
            return self.read(domain, generation) is not None
        except FormatError:
            return False

    def outdated(self, name: str) -> bool:
        """Return whether a file in ``keys/`` is older than a sound generation of its domain.

        Damage to such a file loses nothing.
        """
        for file in key_files_among([name]):
            newest = self.generations().get(file.domain, [0])[-1]
            return file.generation < newest and self.sound(file.domain, newest)
        return False

    def destroy(self, domain: bytes, generation: int) -> int:
        """Shred one generation and return the number of files."""
        return self._shred(key_copies(domain, generation))

    def _shred(self, files: Sequence[str]) -> int:
        for name in files:
            self.store.shred(name)
        return len(files)

    def _older(self, newest: Mapping[bytes, int]) -> dict[bytes, list[str]]:
        """Return, by domain, the files of older generations, oldest first, then those in ``tmp/``."""
        found: dict[bytes, list[str]] = {}
        files = key_files_among(self.store.list(KEYS))
        for file in sorted(files, key=lambda file: (file.generation, file.copy)):
            if file.generation < newest.get(file.domain, 0):
                found.setdefault(file.domain, []).append(file.name)
        for name in temporaries_among(self.store.list(TEMPORARY)):
            if (whose := self._left_over(name, newest)) is not None:
                found.setdefault(whose, []).append(name)
        return found

    def _left_over(self, name: str, newest: Mapping[bytes, int]) -> bytes | None:
        """Return the domain of a temporary key file that is outdated; else None.

        Outdated is a file older than the newest generation, or one of the same number that lost to it. Any
        other file is being put right now and may already be linked to its name, so it must not be
        overwritten.
        """
        try:
            head = self.store.read(name, 0, HEAD.size)
            if len(head) < HEAD.size or head[:4] != MAGIC:
                return None  # too short to hold keys, or no key file
            *_, whose, generation = HEAD.unpack(head)
            if whose not in newest or generation > newest[whose]:
                return None
            if generation < newest[whose]:
                return bytes(whose)
            file = self.read(whose, generation)
            lost = file is not None and self.store.read(name, 0, MAX_SIZE) != file.encode()
            return bytes(whose) if lost else None
        except (FileNotFoundError, FormatError):
            return None
