"""Identities: 16 bytes of BLAKE2b. Each kind has its personalisation, so that no kind is mistaken for another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

SIZE = 16  # bytes of every identity
NONE = bytes(SIZE)  # no parent, empty tower, any target
MAX_POSITION = (1 << 31) - 1  # tokens per segment; also the largest token id


def digest(person: bytes, *parts: bytes | memoryview) -> bytes:
    """Return 16 bytes over whole files. ``person`` keeps kinds of files apart."""
    return digest_of(person, parts)


def digest_of(person: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    """Return the `digest` of data too large for memory, given in parts."""
    state = hashlib.blake2b(digest_size=SIZE, person=person)
    for part in parts:
        state.update(part)
    return state.digest()
