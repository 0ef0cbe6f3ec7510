"""Freshness: a short token, kept outside the archive, that exposes a roll-back. Spec: FORMAT.md, "Manifest".

    put, verify --> "3f2a9c01d0e4b7a2-1048576000000033" --> verify --expect

Nothing in an archive tells that it was brought back as a whole. The generation of its manifest, kept elsewhere, does.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.plt_codec.errors import UsageError

PREFIX = 8  # bytes of an id
TOKEN = re.compile(r"([0-9a-f]{16})-([0-9]{1,19})")


class Token(NamedTuple):
    """The state of an archive at some time: first 8 bytes of its id, and the generation of its manifest."""

    archive: bytes
    generation: int

    def __str__(self) -> str:
        """Return the token as people keep it.

        >>> str(Token(bytes(8), 3))
        '0000000000000000-3'
        """
        return f"{self.archive.hex()}-{self.generation}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token. Raises UsageError."""
        match = TOKEN.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"expected a token that put or verify printed (16 hex-number), found {text!r}")
        return cls(bytes.fromhex(match[1]), int(match[2]))


def token_of(catalog: Catalog) -> Token:
    """Return the token of the state that was looked at or put last."""
    manifest = catalog.listing.present
    return Token(manifest.settings.archive[:PREFIX], manifest.generation)


def rolled_back(catalog: Catalog, expected: Token) -> str | None:
    """Return the evidence that the archive is older than a token, or None."""
    present = token_of(catalog)
    if present.archive != expected.archive:
        here = catalog.listing.archive.hex()
        return f"the token is of archive {expected.archive.hex()}..., and this is archive {here}"
    if present.generation < expected.generation:
        return (
            f"the token is of generation {expected.generation}, and the manifest of generation {present.generation}: "
            "the archive or its manifest was rolled back; bring it from a backup, or run pltz archive repair"
        )
    return None
