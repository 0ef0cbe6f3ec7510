"""Identities: what a domain, segment, session and version are called. Spec: FORMAT.md, "Identities".

A segment's id fixes its whole tower (the parent's id is hashed in), hence context and position, which is exactly when
its KV may be used again. Names are 16 bytes of BLAKE2b with a personalisation each, so no kind is mistaken for another.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.archive.meanwhile import meanwhile
from pltz.plt_codec.errors import ContentError

Tokens = npt.NDArray[np.integer[Any]]  # (T,) token ids

SIZE = 16  # bytes of every identity
NONE = bytes(SIZE)  # no parent, empty tower, any target
TENANT, BASE = 0, 1  # kinds of domain
MAX_TOKENS = (1 << 31) - 1  # a segment; also the largest token id
U32 = np.dtype("<u4")
MOST_THREADS = 4  # that hash
LEAST_ROW, LEAST_ROWS = (
    600,
    64,
)  # tokens in the mean, and rows, before more than one does: below 2 KiB hashing keeps the interpreter


def domain_id(kind: int, name: str) -> bytes:
    """What a tenant or a family of base prompts is called.

    >>> domain_id(TENANT, "acme") == domain_id(BASE, "acme")
    False
    """
    return digest(b"pltz domain", bytes([kind]), _utf8(name))


def segment_id(domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
    """``tokens``: (T,), each in 0..2^31-1 (see `checked`); the other arguments have 16 bytes."""
    return segment_digest(domain, tokenizer, parent, tokens)[:SIZE]


def segment_digest(domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
    """32 bytes that begin with the segment's id; all of them tell apart what was crafted to have one id."""
    state = segment_state(domain, tokenizer, parent)
    state.update(np.ascontiguousarray(tokens, U32).data)
    return state.digest()


def segment_state(domain: bytes, tokenizer: bytes, parent: bytes) -> hashlib.blake2b:
    """What `segment_digest` makes of all but the tokens: many segments may have it in common (`digests`)."""
    state = _begun(b"pltz segment", 2 * SIZE, domain + tokenizer).copy()
    state.update(parent)
    return state


def digests(states: Sequence[hashlib.blake2b], rows: Sequence[Tokens]) -> list[bytes]:
    """A digest each, of a state and then (T,) tokens. Several threads share the work where it is long: hashing lets go of the interpreter.

    >>> row = np.array([1, 2], np.uint32)
    >>> digests([segment_state(NONE, NONE, NONE)], [row]) == [segment_digest(NONE, NONE, NONE, row)]
    True
    """
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    ends = np.cumsum([len(row) for row in rows])
    if threads == 1 or not len(rows) or ends[-1] < LEAST_ROW * max(len(rows), LEAST_ROWS):
        return _digests(states, rows)
    bounds = [*np.searchsorted(ends, ends[-1] * np.arange(threads) // threads).tolist(), len(rows)]
    parts = [slice(*bound) for bound in pairwise(bounds)]  # about as many tokens each
    with ExitStack() as stack:
        works = [partial(_digests, states[part], rows[part]) for part in parts]
        others = [stack.enter_context(meanwhile(work)) for work in works[1:]]
        return sum((other() for other in others), works[0]())


def _digests(states: Sequence[hashlib.blake2b], rows: Sequence[Tokens]) -> list[bytes]:
    out = []
    for begun, row in zip(states, rows, strict=True):
        state = begun.copy()
        state.update(row.data)
        out.append(state.digest())
    return out


def session_key(domain: bytes, name: str) -> bytes:
    """What a session is looked up by."""
    state = _begun(b"pltz session", SIZE, domain).copy()
    state.update(_utf8(name))
    return state.digest()


def version_id(key: bytes, number: int, leaf: bytes, time: int) -> bytes:
    """One version of a session: what is forgotten and restored."""
    state = _begun(b"pltz version", SIZE, b"").copy()
    state.update(key + number.to_bytes(4, "little") + leaf + time.to_bytes(8, "little"))
    return state.digest()


def digest(person: bytes, *parts: bytes | memoryview) -> bytes:
    """16 bytes over whole files; `person` keeps kinds of files apart."""
    return digest_of(person, parts)


def digest_of(person: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    """`digest` of what is too large to be held at once."""
    state = hashlib.blake2b(digest_size=SIZE, person=person)
    for part in parts:
        state.update(part)
    return state.digest()


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


def _utf8(name: str) -> bytes:
    """Raises ContentError for what was no text before it became a str, such as a file name in another encoding."""
    try:
        return name.encode()
    except UnicodeEncodeError as exc:
        raise ContentError(f"the name {name!r} is not valid Unicode: use another one") from exc


@functools.lru_cache(4096)
def _begun(person: bytes, size: int, data: bytes) -> hashlib.blake2b:
    """A hash of what many begin with, to be copied."""
    return hashlib.blake2b(data, digest_size=size, person=person)
