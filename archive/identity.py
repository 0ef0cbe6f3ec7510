"""Identities: what a domain, segment, session and version are called. Spec: FORMAT.md, "Identities".

A segment's id fixes its whole tower (the parent's id is hashed in), hence context and position, which is exactly when
its KV may be used again. Names are 16 bytes of BLAKE2b with a personalisation each, so no kind is mistaken for another.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import ContentError

Tokens = npt.NDArray[np.integer[Any]]  # (T,) token ids

SIZE = 16  # bytes of every identity
NONE = bytes(SIZE)  # no parent, empty tower, any target
TENANT, BASE = 0, 1  # kinds of domain
MAX_TOKENS = (1 << 31) - 1  # a segment; also the largest token id
ROW_TOKENS = 1 << 13  # checked at once


def domain_id(kind: int, name: str) -> bytes:
    """What a tenant or a family of base prompts is called.

    >>> domain_id(TENANT, "acme") == domain_id(BASE, "acme")
    False
    """
    return _hash(b"pltz domain", bytes([kind]), name.encode())


def segment_id(domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
    """``tokens``: (T,), each in 0..2^31-1 (see `checked`); the other arguments have 16 bytes."""
    return segment_digest(domain, tokenizer, parent, tokens)[:SIZE]


def segment_digest(domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
    """32 bytes that begin with the segment's id; all of them tell apart what was crafted to have one id."""
    state = _segments(domain, tokenizer).copy()
    state.update(parent)
    state.update(np.ascontiguousarray(tokens, "<u4").data)
    return state.digest()


def session_key(domain: bytes, name: str) -> bytes:
    """What a session is looked up by."""
    return _hash(b"pltz session", domain, name.encode())


def version_id(key: bytes, number: int, leaf: bytes, time: int) -> bytes:
    """One version of a session: what is forgotten and restored."""
    return _hash(b"pltz version", key, number.to_bytes(4, "little"), leaf, time.to_bytes(8, "little"))


def digest(person: bytes, *parts: bytes | memoryview) -> bytes:
    """16 bytes over whole files; `person` keeps kinds of files apart."""
    return _hash(person, *parts)


def checked(tokens: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Token ids as (T,) int64. Raises ContentError where they are not a flat row of ids in 0..2^31-1.

    >>> checked([1, 2]).tolist()
    [1, 2]
    """
    array = np.asarray(tokens)
    if array.ndim != 1 or len(array) > MAX_TOKENS or (len(array) and array.dtype.kind not in "iu"):
        raise ContentError(f"expected one row of token ids, found shape {array.shape} of {array.dtype}")
    if len(array) and (array.min() < 0 or array.max() > MAX_TOKENS):
        raise ContentError(f"expected token ids in 0..{MAX_TOKENS}, found {array.min()}..{array.max()}")
    return array.astype(np.int64)


def checked_rows(rows: Sequence[npt.ArrayLike]) -> list[npt.NDArray[np.uint32]]:
    """`checked` for many at once: (T,) uint32 each. Rows that are that already are not copied.

    >>> [row.tolist() for row in checked_rows([[1, 2], np.arange(3)])]
    [[1, 2], [0, 1, 2]]
    """
    done: list[npt.NDArray[np.uint32]] = []
    batch: list[npt.NDArray[np.uint32]] = []
    size = 0
    for row in rows:
        if not (isinstance(row, np.ndarray) and row.dtype == np.uint32 and row.ndim == 1):
            row = checked(row).astype(np.uint32)
        batch.append(row)
        size += len(row)
        if size > ROW_TOKENS:
            done += _in_range(batch)
            batch, size = [], 0
    return done + _in_range(batch)


def _in_range(batch: list[npt.NDArray[np.uint32]]) -> list[npt.NDArray[np.uint32]]:
    """The rows, none over the largest id: looked at as one. Raises ContentError."""
    if batch and np.concatenate(batch).max(initial=0) > MAX_TOKENS:
        for row in batch:
            checked(row)
    return batch


@functools.lru_cache(4096)
def _segments(domain: bytes, tokenizer: bytes) -> hashlib.blake2b:
    """What all segments of a domain and tokenizer begin with."""
    return hashlib.blake2b(domain + tokenizer, digest_size=2 * SIZE, person=b"pltz segment")


def _hash(person: bytes, *parts: bytes | memoryview) -> bytes:
    if len(parts) == 1:
        return hashlib.blake2b(parts[0], digest_size=SIZE, person=person).digest()
    if sum(map(len, parts)) < 4096:
        return hashlib.blake2b(b"".join(parts), digest_size=SIZE, person=person).digest()
    state = hashlib.blake2b(digest_size=SIZE, person=person)
    for part in parts:
        state.update(part)
    return state.digest()
