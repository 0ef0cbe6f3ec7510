"""Boxes: authenticated encryption of a record's fields, under keys that can be destroyed.

Spec: FORMAT.md, "Boxes".

    first 64 bits of an id = unit --first 12 bits--> slot --its key--> AES-SIV --> box

A unit is a segment or a session. Units are in 4,096 slots, and all of a slot have one key (`domain_keys.py`).

AES-SIV (RFC 5297) is deterministic: there is no nonce to repeat. The same fields under the same key give the same box,
which reveals nothing that the id beside it does not. So a collector may copy a box from pack to pack without a key. The
identity of the record is the associated data: a box moved to another record does not open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from pltz.plt_codec.errors import CorruptError

KEY = 32  # bytes
UNIT = 8  # leading bytes of an id, which name its unit
SLOT_BITS = 12  # leading bits of a unit, which name its slot


def unit_of(identity: bytes) -> int:
    """Return the unit of a segment id or session key: its first 64 bits.

    >>> unit_of(bytes(7) + bytes([5]) + bytes(8))
    5
    """
    return int.from_bytes(identity[:UNIT], "big")


def slot_of(unit: int) -> int:
    """Return the slot of a unit, below 4,096."""
    return unit >> 8 * UNIT - SLOT_BITS


def slot_key(root: bytes, slot: int) -> bytes:
    """Return the key that a root gives a slot, 32 bytes."""
    return keyed(root, b"pltz slot", [slot.to_bytes(2, "little")], KEY)


def seal(key: bytes, plain: bytes, about: Sequence[bytes]) -> bytes:
    """Return a box, 16 bytes longer than ``plain``.

    ``about``: associated data, authenticated but not contained; the pieces are kept apart.
    """
    return AESSIV(_wide(key)).encrypt(plain, list(about))


def unseal(key: bytes, box: bytes, about: Sequence[bytes], what: str) -> bytes:
    """Undo `seal`. Raises CorruptError where box, key or ``about`` differs; ``what`` names it in the message."""
    try:
        return AESSIV(_wide(key)).decrypt(box, list(about))
    except InvalidTag as exc:
        raise CorruptError(f"{what} does not open: damaged, changed, or moved from another place") from exc


def subkey(key: bytes, purpose: bytes) -> bytes:
    """Return a key, 32 bytes, for one purpose (at most 16 bytes)."""
    return hashlib.blake2b(key=key, digest_size=KEY, person=purpose).digest()


def keyed(key: bytes, person: bytes, parts: Iterable[bytes], size: int) -> bytes:
    """Return a keyed hash of ``size`` bytes. Its input cannot be guessed without the key."""
    state = hashlib.blake2b(key=key, digest_size=size, person=person)
    for part in parts:
        state.update(part)
    return state.digest()


def _wide(key: bytes) -> bytes:
    """Return the two keys of 32 bytes that AES-256-SIV takes."""
    return hashlib.blake2b(key=key, digest_size=2 * KEY, person=b"pltz box").digest()
