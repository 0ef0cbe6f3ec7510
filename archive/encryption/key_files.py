"""Key files: wrapped keys in small files that can really be destroyed. Needs no key.

Spec: FORMAT.md, "Key files".

    keys/<domain id>-<generation>-<copy>          the archive key under the domain id of zeros

A key file is never changed. A new generation is put beside it, in two copies, and then the older ones are
overwritten and deleted. Generations are shredded oldest first. So a process that still finds the generation
it knows, and not the next, is up to date.

The keys of a domain that were made once and those that followed them are one *lineage*. A root is named by its lineage
and by the generation that it began in. So a pack, which names the roots of its records, shows without any key whether
a key file is the one for it (`KeyFile.governs`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pltz.archive.errors import ArchiveError
from pltz.archive.format.object_names import (
    KEYS,
    TEMPORARY,
    KeyFileName,
    key_copies,
    key_files_among,
    temporaries_among,
)
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTk"
VERSION = 1
WRAP_ID = 8  # bytes
HEAD = struct.Struct("<4sB3s16sI8s")  # magic, version, reserved, domain id, generation, id of the wrap key
PERSON = b"pltz key"
LINEAGE = 4  # bytes
MAX_LINEAGES = 255
MAX_SIZE = 64 << 20  # bytes of a key file
ATTEMPTS = 8  # at reading the newest key file of a domain while others replace it


@dataclass(frozen=True)
class KeyFile:
    """One generation of wrapped keys.

    Attributes:
        wrap: id of the key that seals the box, 8 bytes; zeros of the archive's own file.
        lineages: those of its keys, 4 bytes each, the present one last; none of the archive's own.
    """

    domain: bytes
    generation: int
    box: bytes
    wrap: bytes = bytes(WRAP_ID)
    lineages: tuple[bytes, ...] = ()

    @property
    def head(self) -> bytes:
        """Return the plain part, to which the box is bound."""
        head = HEAD.pack(MAGIC, VERSION, bytes(3), self.domain, self.generation, self.wrap)
        return head + bytes([len(self.lineages)]) + b"".join(self.lineages)

    def governs(self, root: bytes) -> bool:
        """Return whether the keys of a root are in this file or were destroyed on purpose, as `governs` does."""
        return governs(self.lineages, self.generation, root)

    def follows(self, older: KeyFile) -> bool:
        """Return whether all keys of an older file are in this one or were destroyed on purpose."""
        return set(older.lineages) <= set(self.lineages)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        data = self.head + self.box
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> KeyFile:
        """Return the key file in these bytes, without a key. Raises CorruptError, VersionError."""
        if len(data) < LEAST or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("a key file does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("a key file does not start as one: damaged")
        read = VERSIONS[data[len(MAGIC)]]
        return read(data)


def _read(data: bytes) -> KeyFile:
    """Return the key file in a file whose digest and magic are right."""
    _, _, reserved, domain, generation, wrap = HEAD.unpack_from(data)
    if any(reserved):
        raise VersionError("a key file has fields of a newer version: use a newer pltz")
    begin = HEAD.size + 1
    end = begin + LINEAGE * data[begin - 1]
    if end > len(data) - SIZE:
        raise CorruptError("a key file ends in its lineages: damaged")
    lineages = tuple(data[at : at + LINEAGE] for at in range(begin, end, LINEAGE))
    return KeyFile(domain, generation, data[end:-SIZE], wrap, lineages)


VERSIONS = Readers("the key file", {VERSION: _read})
LEAST = HEAD.size + 1 + SIZE  # bytes of a file


def root_id(lineage: bytes, generation: int) -> bytes:
    """Return the id of the root that begins in a generation, 8 bytes.

    >>> root_id(b"abcd", 7)
    b'abcd\\x00\\x00\\x00\\x07'
    """
    return lineage + generation.to_bytes(LINEAGE, "big")


def generation_of(root: bytes) -> int:
    """Return the generation in which a root began."""
    return int.from_bytes(root[LINEAGE:], "big")


def governs(lineages: Collection[bytes], generation: int, root: bytes) -> bool:
    """Return whether keys of a generation and of these lineages have a root, or had it and destroyed it.

    >>> [governs([b"abcd"], 7, root_id(lineage, n)) for lineage, n in ((b"abcd", 7), (b"abcd", 8), (b"efgh", 0))]
    [True, False, False]
    """
    return root[:LINEAGE] in lineages and generation_of(root) <= generation


class KeyFolder:
    """Key files by domain and generation; needs no key.

    One listing serves several questions, until `forget`, or until this object puts or destroys a file.
    """

    def __init__(self, store: Store):
        self.store = store
        self._listed: list[KeyFileName] | None = None

    def forget(self) -> None:
        """List the files again at the next question."""
        self._listed = None

    def _files(self, *, fresh: bool) -> list[KeyFileName]:
        """Return the names of all key files, as the last listing had them or, ``fresh``, as they are now."""
        if fresh or self._listed is None:
            self._listed = key_files_among(self.store.list(KEYS))
        return self._listed

    def generations(self, *, fresh: bool = True) -> dict[bytes, list[int]]:
        """Return, by domain, the generations with any copy present, oldest first. Raises StoreError.

        ``fresh``: as they are now; else by the last listing, if there is one.
        """
        found: dict[bytes, set[int]] = {}
        for file in self._files(fresh=fresh):
            found.setdefault(file.domain, set()).add(file.generation)
        return {domain: sorted(numbers) for domain, numbers in found.items()}

    def read(self, domain: bytes, generation: int) -> KeyFile | None:
        """Return a key file from its first sound copy; None if no copy exists.

        Raises FormatError where all existing copies are damaged, StoreError.
        """
        failure: FormatError | None = None
        for copy in (0, 1):
            try:
                return self.read_copy(KeyFileName(domain, generation, copy))
            except FileNotFoundError:
                continue
            except FormatError as exc:
                failure = exc
        if failure:
            raise failure
        return None

    def read_copy(self, name: KeyFileName) -> KeyFile:
        """Return the content of one key file.

        Raises FileNotFoundError, FormatError where it is damaged or that of another, StoreError.
        """
        file = KeyFile.decode(self.store.read(name.name, 0, MAX_SIZE))
        if (file.domain, file.generation) != (name.domain, name.generation):
            raise CorruptError(f"{name.name} says that it is {KeyFileName(file.domain, file.generation, 0).name[:-2]}")
        return file

    def put(self, file: KeyFile) -> bool:
        """Put both copies, durably. Return False if another process put this generation first.

        Raises ArchiveError where the file is over the limit, StoreError, WriterFailed.
        """
        data = file.encode()
        if len(data) > MAX_SIZE:
            raise ArchiveError("this tenant's keys take too much room: copy what is left to a new archive")
        first, second = key_copies(file.domain, file.generation)
        self.forget()
        if not self.store.put(first, data):
            return False
        self.store.put(second, data)
        return True

    def shred(self, newest: KeyFile) -> int:
        """Destroy the generations before one, oldest first, and left-overs of crashes. Return the number of files.

        Files that it does not follow stay: they have keys that were not destroyed on purpose. Raises StoreError,
        WriterFailed.
        """
        return self._shred(self._older({newest.domain: newest}.get).get(newest.domain, []))

    def leftovers(self) -> dict[bytes, list[str]]:
        """Return, by domain, the key files that an unfinished erase left, oldest first.

        These are the files older than the newest generation, which follows them. Domains whose newest generation is
        damaged in both copies are left out: an erase may be in it, and older keys would undo that.
        """
        return self._older(self._heads())

    def finish(self) -> dict[bytes, int]:
        """Destroy the files of `leftovers` and return them by domain.

        Both copies of the newest generations are put before.
        """
        heads = self._heads()
        if not (older := self._older(heads)):
            return {}
        for domain in older:
            if newest := heads(domain):
                self.put(newest)
        left = self.leftovers()  # listed again: a file just put may have been erased meanwhile
        return {domain: self._shred(files) for domain, files in left.items()}

    def newest(self, domain: bytes, *, fresh: bool = True) -> KeyFile | None:
        """Return the newest key file of a domain; None where it has none. ``fresh``: as `generations` has it.

        Raises FormatError where both copies are damaged, CorruptError where the keys keep changing, StoreError.
        """
        for _ in range(ATTEMPTS):  # a generation shredded while it is read has a successor
            if not (numbers := self.generations(fresh=fresh).get(domain)):
                return None
            fresh = True
            try:
                if file := self.read(domain, numbers[-1]):
                    return file
            except FormatError:
                if self.generations().get(domain, [])[-1:] == numbers[-1:]:
                    raise
        raise CorruptError(f"the keys of domain {domain.hex()} keep changing: try again")

    def strangers(self) -> Iterator[tuple[str, KeyFile]]:
        """Yield name and content of each sound key file that the newest of its domain does not follow.

        It has keys that were not destroyed on purpose: the newest ones were made while it was away.
        """
        heads, numbers = self._heads(), self.generations(fresh=False)
        for file in self._files(fresh=False):
            if file.generation == numbers.get(file.domain, [file.generation])[-1]:
                continue
            head, known = heads(file.domain), self._sound(file)
            if head and known and not head.follows(known):
                yield file.name, known

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
            self.forget()
            self.store.shred(name)
        return len(files)

    def _heads(self) -> Callable[[bytes], KeyFile | None]:
        """Return a function that reads the newest key file of a domain, once; None where it has none that is sound."""
        numbers, known = self.generations(), dict[bytes, KeyFile | None]()

        def head(domain: bytes) -> KeyFile | None:
            if domain in numbers and domain not in known:
                known[domain] = None
                with suppress(FormatError):
                    known[domain] = self.read(domain, numbers[domain][-1])
            return known.get(domain)

        return head

    def _sound(self, file: KeyFileName) -> KeyFile | None:
        """Return the content of a key file; None where it is damaged or gone."""
        try:
            return self.read_copy(file)
        except (FormatError, FileNotFoundError):
            return None

    def _older(self, head: Callable[[bytes], KeyFile | None]) -> dict[bytes, list[str]]:
        """Return, by domain, the files of older generations, oldest first, then those in ``tmp/``.

        A sound file with keys of another lineage is left out. ``head``: the newest key file of a domain. The last
        listing serves, which is no older than what this object did.
        """
        found: dict[bytes, list[str]] = {}
        files = self._files(fresh=False)
        last = {file.domain: file.generation for file in sorted(files, key=lambda file: file.generation)}
        for file in sorted(files, key=lambda file: (file.generation, file.copy)):
            newest = head(file.domain) if file.generation < last[file.domain] else None
            if newest and file.generation < newest.generation:
                with suppress(FileNotFoundError):
                    if _outlived(newest, self.store.read(file.name, 0, MAX_SIZE)):
                        found.setdefault(file.domain, []).append(file.name)
        # a bucket has none: an object is put at once
        for name in () if self.store.remote else temporaries_among(self.store.list(TEMPORARY)):
            if (whose := self._left_over(name, head)) is not None:
                found.setdefault(whose, []).append(name)
        return found

    def _left_over(self, name: str, head: Callable[[bytes], KeyFile | None]) -> bytes | None:
        """Return the domain of a temporary key file that is outdated; else None.

        Outdated is a file older than the newest generation, or one of the same number that lost to it. Any other file
        is being put right now and may already be linked to its name, so it must not be overwritten.
        """
        try:
            begin = self.store.read(name, 0, HEAD.size)
            if len(begin) < HEAD.size or begin[:4] != MAGIC:
                return None  # too short to hold keys, or no key file
            _, _, _, whose, generation, _ = HEAD.unpack(begin)
            newest = head(whose)
            if newest is None or generation > newest.generation:
                return None
            data = self.store.read(name, 0, MAX_SIZE)
            if generation == newest.generation:
                return bytes(whose) if data != newest.encode() else None
        except FileNotFoundError:
            return None
        return bytes(whose) if _outlived(newest, data) else None


def _outlived(newest: KeyFile, data: bytes) -> bool:
    """Return whether an older key file has no key that is still needed: it is damaged, or the newest follows it."""
    try:
        return newest.follows(KeyFile.decode(data))
    except VersionError:
        return False
    except FormatError:
        return True
