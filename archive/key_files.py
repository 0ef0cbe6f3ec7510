"""Key files: wrapped keys in small files that can really be destroyed. Needs no key. Spec: FORMAT.md, "Encryption".

    keys/<domain id>-<generation>-<copy>          the archive key under the domain id of zeros

A key file is never changed: a new generation is put beside it, in two copies, and then the older ones are overwritten and
deleted. Generations are shredded oldest first, so whoever sees the one it knows, and not the next, is up to date.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from pltz.archive.errors import ArchiveError
from pltz.archive.identity import NONE, SIZE, digest
from pltz.archive.store import Store
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError

MAGIC = b"PLTk"
VERSION = 1
HEAD = struct.Struct(
    "<4sBB2s16sI"
)  # magic, version, KDF, reserved, domain id (zeros: the archive's), generation
KDF = struct.Struct("<BBBB16s")  # log2 of n, r, p, reserved, salt
PERSON = b"pltz key"
NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})-([01])")
COPIES = 2
RAW, SCRYPT = 0, 1
MAX_SCRYPT = 1 << 30  # bytes of memory that a file may ask for
MAX_SIZE = 64 << 20  # bytes of a key file


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
                done += self.destroy(domain, generation)
        for name in self.store.list("tmp"):
            if self._left_over(f"tmp/{name}", domain, before):
                self.store.shred(f"tmp/{name}")
                done += 1
        return done

    def destroy(self, domain: bytes, generation: int) -> int:
        """Shred one generation; how many files."""
        for copy in range(COPIES):
            self.store.shred(file_name(domain, generation, copy))
        return COPIES

    def _left_over(self, name: str, domain: bytes, before: int) -> bool:
        """Whether a file that was never put in place holds keys of a domain from before a generation, or such as lost to it.

        A newer one, or the same, is being put right now, and may be linked to its name already: that is not overwritten.
        """
        try:
            head = self.store.read(name, 0, HEAD.size)
            if len(head) < HEAD.size or head[:4] != MAGIC:
                return False  # keys stand behind the head
            *_, whose, generation = HEAD.unpack(head)
            if whose != domain or generation > before:
                return False
            if generation < before:
                return True
            newest = self.read(domain, before)
            return newest is not None and self.store.read(name, 0, MAX_SIZE) != newest.encode()
        except FileNotFoundError:
            return False


def file_name(domain: bytes, generation: int, copy: int) -> str:
    """Of a key file.

    >>> file_name(bytes(16), 1, 0)
    'keys/00000000000000000000000000000000-00000001-0'
    """
    return f"keys/{domain.hex()}-{generation:08x}-{copy}"
