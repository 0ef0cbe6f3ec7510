"""Object names: the names of all objects of an archive, made and read here and nowhere else.

Spec: FORMAT.md, "Layout".

    pack(id) --> "packs/<32 hex>"          pack.listed(store.list) --> ids and sizes

What reads names skips all others: files with other names are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

PACKS, INDEXES, LISTS, PARITY, LOST, HOLDS, AUDIT = "packs", "index", "list", "parity", "lost", "hold", "audit"
MANIFEST, KEYS, DAMAGED, TEMPORARY = "manifest", "keys", "damaged", "tmp"
FOLDERS = (PACKS, PARITY, INDEXES, LISTS, LOST, HOLDS, AUDIT, KEYS, MANIFEST, DAMAGED, TEMPORARY)

SETTINGS = "archive.json"
SETTINGS_COPY = f"{PARITY}/{SETTINGS}"

_NUMBER = re.compile(r"[0-9a-f]{16}")
_KEY_FILE = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})-([01])")


class ObjectKind:
    """A kind of objects whose names have a digest. ``begin``: of their names in the folder.

    >>> pack(bytes(16)), table_copy("0f" * 16)
    ('packs/00000000000000000000000000000000', 'parity/index-0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f')
    >>> parity.listed(lambda folder: {"00" * 16: 7, "archive.json": 9}) == {bytes(16): 7}
    True
    """

    def __init__(self, folder: str, begin: str = "") -> None:
        self._folder, self._path = folder, f"{folder}/{begin}"
        self._pattern = re.compile(rf"{begin}([0-9a-f]{{32}})")

    def __call__(self, digest: bytes | str) -> str:
        """Return the name of the object with this digest, 16 bytes or 32 hex."""
        return self._path + (digest if isinstance(digest, str) else digest.hex())

    def listed(self, listing: Callable[[str], Mapping[str, int]]) -> dict[bytes, int]:
        """Return digests and sizes in bytes of those that are there. ``listing``: lists a folder, as `Store.list`."""
        found = ((self._pattern.fullmatch(name), size) for name, size in listing(self._folder).items())
        return {bytes.fromhex(match[1]): size for match, size in found if match}


pack, parity = ObjectKind(PACKS), ObjectKind(PARITY)  # by the id of the pack
index, table_copy = ObjectKind(INDEXES), ObjectKind(PARITY, "index-")  # by the digest of the index
session_list = ObjectKind(LISTS)
lost_keys = ObjectKind(LOST)  # what a lost pack had
hold, audit = ObjectKind(HOLDS), ObjectKind(AUDIT)


def numbers_among(names: Iterable[str]) -> set[int]:
    """Return the numbers of the contents of a register among the names in its folder, on a disk.

    >>> numbers_among(["000000000000000a", "current"])
    {10}
    """
    return {int(name, 16) for name in names if _NUMBER.fullmatch(name)}


class KeyFileName(NamedTuple):
    """The parts of the name of a key file. ``domain``: 16 bytes, zeros for the archive key."""

    domain: bytes
    generation: int
    copy: int

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return f"{KEYS}/{self.domain.hex()}-{self.generation:08x}-{self.copy}"


def key_copies(domain: bytes, generation: int) -> tuple[str, str]:
    """Return the names of both copies of a key file.

    >>> key_copies(bytes(16), 1)[0]
    'keys/00000000000000000000000000000000-00000001-0'
    """
    return KeyFileName(domain, generation, 0).name, KeyFileName(domain, generation, 1).name


def key_pattern(domain: bytes) -> str:
    """Return the names of all key files of a domain, as people write them.

    >>> key_pattern(bytes(16))
    'keys/00000000000000000000000000000000-*'
    """
    return f"{KEYS}/{domain.hex()}-*"


def key_files_among(names: Iterable[str]) -> list[KeyFileName]:
    """Return the key files among the names in ``keys/``, in the order given.

    >>> key_files_among(["00" * 16 + "-00000001-0", "notes"])[0].generation
    1
    """
    matches = filter(None, map(_KEY_FILE.fullmatch, names))
    return [KeyFileName(bytes.fromhex(match[1]), int(match[2], 16), int(match[3])) for match in matches]


def damaged(name: str, digest: bytes) -> str:
    """Return the name under which repair keeps damaged bytes of an object.

    ``name``: name of the object; ``digest``: of the bytes.

    >>> damaged("packs/00", bytes(16))
    'damaged/packs-00-00000000'
    """
    return f"{DAMAGED}/{name.replace('/', '-')}-{digest[:4].hex()}"


def damaged_among(names: Iterable[str], name: str) -> list[str]:
    """Return the names of the damaged copies of an object that are among the names in ``damaged/``, sorted."""
    begin = f"{name.replace('/', '-')}-"
    return [f"{DAMAGED}/{found}" for found in sorted(names) if found.startswith(begin)]


def temporary(random: bytes) -> str:
    """Return the name of a file that is not yet put in place. ``random``: bytes that no other file has."""
    return f"{TEMPORARY}/{random.hex()}"


def temporaries_among(names: Iterable[str]) -> list[str]:
    """Return the names of all files listed in ``tmp/``, sorted."""
    return [f"{TEMPORARY}/{name}" for name in sorted(names)]


def folder_of(name: str) -> str:
    """Return the folder of an object, empty for those at the root.

    >>> folder_of("packs/00"), folder_of("archive.json")
    ('packs', '')
    """
    return name.rpartition("/")[0]


def last_part(name: str) -> str:
    """Return the name of an object without its folder, as `Store.list` returns it.

    >>> last_part(index("0f" * 16))
    '0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f'
    """
    return name.rpartition("/")[2]
