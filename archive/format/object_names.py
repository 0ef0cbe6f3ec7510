"""Object names: the names of all objects of an archive, made and read here and nowhere else.

Spec: FORMAT.md, "Layout".

    pack(id) --> "packs/<32 hex>"          packs_among(names of packs/ or parity/) --> ids

Functions that read names take them as `Store.list` returns them, without the folder. They skip all others:
files with other names are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PACKS, INDEXES, LISTS, PARITY, LOST, HOLDS, AUDIT = "packs", "index", "list", "parity", "lost", "hold", "audit"
MANIFEST, KEYS, DAMAGED, TEMPORARY = "manifest", "keys", "damaged", "tmp"
FOLDERS = (PACKS, PARITY, INDEXES, LISTS, LOST, HOLDS, AUDIT, KEYS, MANIFEST, DAMAGED, TEMPORARY)

SETTINGS = "archive.json"
SETTINGS_COPY = f"{PARITY}/{SETTINGS}"

_DIGEST = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[0-9a-f]{16}")
_INDEX_COPY = re.compile(r"index-([0-9a-f]{32})")
_KEY_FILE = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})-([01])")


def pack(identity: bytes) -> str:
    """Return the name of a pack.

    >>> pack(bytes(16))
    'packs/00000000000000000000000000000000'
    """
    return f"{PACKS}/{identity.hex()}"


def parity(identity: bytes) -> str:
    """Return the name of the parity of a pack."""
    return f"{PARITY}/{identity.hex()}"


def packs_among(names: Iterable[str]) -> set[bytes]:
    """Return the ids of the packs among the names in ``packs/``, or of the packs whose parity is in ``parity/``.

    >>> packs_among(["00" * 16, "archive.json"]) == {bytes(16)}
    True
    """
    return {bytes.fromhex(name) for name in names if _DIGEST.fullmatch(name)}


def packs_listed(sizes: Mapping[str, int]) -> dict[bytes, int]:
    """Return the ids and sizes in bytes of the packs in a listing of ``packs/``."""
    return {bytes.fromhex(name): size for name, size in sizes.items() if _DIGEST.fullmatch(name)}


def index(digest: str) -> str:
    """Return the name of an index file. ``digest``: its digest, 32 hex.

    >>> index("0f" * 16)
    'index/0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f'
    """
    return f"{INDEXES}/{digest}"


def indexes_among(names: Iterable[str]) -> set[str]:
    """Return the digests, 32 hex, of the index files among the names in ``index/``."""
    return {name for name in names if _DIGEST.fullmatch(name)}


def session_list(digest: str) -> str:
    """Return the name of a list of sessions. ``digest``: its digest, 32 hex.

    >>> session_list("0f" * 16)
    'list/0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f'
    """
    return f"{LISTS}/{digest}"


def table_copy(digest: str) -> str:
    """Return the name of the copy of an index's pack table. ``digest``: of the index, 32 hex.

    >>> table_copy("0f" * 16)
    'parity/index-0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f'
    """
    return f"{PARITY}/index-{digest}"


def table_copies_among(names: Iterable[str]) -> set[str]:
    """Return the digests, 32 hex, of the indexes of which copies of pack tables are among the names in ``parity/``."""
    return {match[1] for name in names if (match := _INDEX_COPY.fullmatch(name))}


def numbers_among(names: Iterable[str]) -> set[int]:
    """Return the numbers of the contents of a register among the names in its folder, on a disk.

    >>> numbers_among(["000000000000000a", "current"])
    {10}
    """
    return {int(name, 16) for name in names if _NUMBER.fullmatch(name)}


def lost_keys(digest: bytes) -> str:
    """Return the name of the object that lists what a lost pack had. ``digest``: of the object.

    >>> lost_keys(bytes(16))
    'lost/00000000000000000000000000000000'
    """
    return f"{LOST}/{digest.hex()}"


def hold(identity: bytes) -> str:
    """Return the name of a hold.

    >>> hold(bytes(16))
    'hold/00000000000000000000000000000000'
    """
    return f"{HOLDS}/{identity.hex()}"


def holds_among(names: Iterable[str]) -> set[bytes]:
    """Return the ids of the holds among the names in ``hold/``, or of the files among those in ``audit/``."""
    return {bytes.fromhex(name) for name in names if _DIGEST.fullmatch(name)}


def audit(name: bytes) -> str:
    """Return the name of a file of the audit. ``name``: its digest.

    >>> audit(bytes(16))
    'audit/00000000000000000000000000000000'
    """
    return f"{AUDIT}/{name.hex()}"


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
