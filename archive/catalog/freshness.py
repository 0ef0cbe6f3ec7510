"""Freshness: a short token, kept outside the archive, that exposes a roll-back. Spec: FORMAT.md, "Freshness".

    put, verify --> "3f2a9c01d0e4b7a2-12-9b1c5e0f00aa7d31" --> verify --expect

An archive cannot show the removal of a pack together with everything that named it. The token can: it counts
all packs that there ever were and names one of the newest.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.ledger import PackState
from pltz.archive.format.manifest import Manifest
from pltz.plt_codec.errors import FormatError, UsageError

PREFIX = 8  # bytes of an id
TOKEN = re.compile(r"([0-9a-f]{16})-([0-9]{1,18})-([0-9a-f]{16})")


class Token(NamedTuple):
    """The state of an archive at some time.

    Attributes:
        archive: first 8 bytes of the archive's id.
        packs: number of packs that are there, or that the ledger says were deleted or lost. Where there is a manifest
            its generation.
        newest: first 8 bytes of the id of a newest pack; zeros where there was none.
    """

    archive: bytes
    packs: int
    newest: bytes

    def __str__(self) -> str:
        """Return the token as people keep it.

        >>> str(Token(bytes(8), 3, b"12345678"))
        '0000000000000000-3-3132333435363738'
        """
        return f"{self.archive.hex()}-{self.packs}-{self.newest.hex()}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token. Raises UsageError."""
        match = TOKEN.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"expected a token that put or verify printed (16 hex-number-16 hex), found {text!r}"
            )
        return cls(bytes.fromhex(match[1]), int(match[2]), bytes.fromhex(match[3]))


def token_of(catalog: Catalog) -> Token:
    """Return the token of the present state. Raises StoreError.

    The newest pack is the last one that this catalog put. If it put none, all headers are read, and the pack
    with the latest time is the newest.
    """
    packs = sorted(catalog.listing.packs, reverse=True)  # of packs of the same time the last by id
    newest = catalog.listing.newest or max(packs, key=lambda pack: _time(catalog, pack), default=bytes(PREFIX))
    return Token(catalog.ledger.archive[:PREFIX], count_of(catalog), newest[:PREFIX])


def count_of(catalog: Catalog) -> int:
    """Return the N of the present token. Raises StoreError."""
    if manifest := _manifest(catalog):
        return manifest.generation
    last = catalog.listing.last
    return len(known_packs(catalog)) + (last.dropped if last else 0)


def rolled_back(catalog: Catalog, expected: Token) -> str | None:
    """Return the evidence that the archive is older than a token, or None. Raises StoreError."""
    known, last = known_packs(catalog), catalog.listing.last
    if catalog.ledger.archive[:PREFIX] != expected.archive:
        here = catalog.ledger.archive.hex()
        return f"the token is of archive {expected.archive.hex()}..., and this is archive {here}"
    # of a token from before entries were dropped the pack may be among theirs: its count must do
    judged = expected.packs > (last.known if last else 0)
    if judged and any(expected.newest) and not any(pack.startswith(expected.newest) for pack in known):
        return (
            f"pack {expected.newest.hex()}..., which the token names, is gone, and no collector deleted it: "
            "the archive was rolled back, or its newest packs were taken away; bring them from a backup"
        )
    if manifest := _manifest(catalog):
        if manifest.generation < expected.packs:
            return (
                f"the token is of generation {expected.packs}, and the manifest of generation {manifest.generation}: "
                "the archive or its manifest was rolled back; bring it from a backup, or run pltz archive repair"
            )
        return None
    if (count := count_of(catalog)) < expected.packs:
        return (
            f"the token counts {expected.packs} packs, and there are or were {count}: "
            "the archive was rolled back, or packs were taken away; bring them from a backup"
        )
    return None


def known_packs(catalog: Catalog) -> set[bytes]:
    """Return the packs that are there and those that the ledger says were deleted or lost.

    Raises StoreError.
    """
    absent = catalog.listing.absent()
    explained = {pack for pack, state in absent.items() if state is not PackState.MISSING}
    lost = {loss.pack for loss in catalog.ledger.losses()}
    return set(catalog.listing.packs) | catalog.ledger.deleted | lost | explained


def _manifest(catalog: Catalog) -> Manifest | None:
    """Return the manifest that was loaded or put last; None where there is none that can be used."""
    register = catalog.listing.register
    return register.manifest if register else None


def _time(catalog: Catalog, pack: bytes) -> int:
    """Return the moment in a pack's header, in ticks since 1970; -1 where it cannot be read."""
    try:
        return catalog.listing.opened(pack).head.moment
    except (FormatError, FileNotFoundError):
        return -1
