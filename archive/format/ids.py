"""Identities: what a domain, segment, session and version are called. Spec: FORMAT.md, "Identities".

A segment's id fixes its whole tower (the parent's id is hashed in), hence context and position, which is exactly when
its KV may be used again. Names are 16 bytes of BLAKE2b with a personalisation each, so no kind is mistaken for another.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.archive.concurrency import meanwhile
from pltz.plt_codec.errors import ContentError

try:
    from pltz.archive.format import _batch
except ImportError:  # it is built where there is a C compiler
    _batch = None  # type: ignore[assignment]
many = _batch  # looked at before each use: it may be None

Tokens = npt.NDArray[np.integer[Any]]  # (T,) token ids

SIZE = 16  # bytes of every identity
NONE = bytes(SIZE)  # no parent, empty tower, any target
TENANT, BASE = 0, 1  # kinds of domain
MAX_TOKENS = (1 << 31) - 1  # a segment; also the largest token id
U32 = np.dtype("<u4")
MOST_THREADS = 4  # that hash
# tokens in the mean, and rows, before more than one does: below 2 KiB hashlib keeps the interpreter
LEAST_ROW, LEAST_ROWS = 600, 64
LEAST_ABREAST = 1 << 18  # tokens, before more than one does with `many.c`
SEGMENT = b"pltz segment"
BLOCK = 128  # bytes of BLAKE2b: a key is padded to so many


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
    return segment_head(domain, tokenizer, parent).digest(tokens)


class Head(NamedTuple):
    """What stands before the tokens of a segment in its hash: many segments may have it in common."""

    data: bytes
    key: bytes = b""

    def digest(self, tokens: Tokens) -> bytes:
        """32 bytes, of the head and (T,) tokens."""
        state = self.state()
        state.update(np.ascontiguousarray(tokens, U32).data)
        return state.digest()

    def state(self) -> hashlib.blake2b:
        return hashlib.blake2b(self.data, digest_size=2 * SIZE, key=self.key, person=SEGMENT)

    def block(self) -> bytes:
        """As it is hashed: a key is a block of its own."""
        return self.key.ljust(BLOCK, b"\0") + self.data if self.key else self.data


def segment_head(domain: bytes, tokenizer: bytes, parent: bytes) -> Head:
    """Of the segments below ``parent``, without a key."""
    return Head(domain + tokenizer + parent)


def digests(heads: Sequence[Head], rows: Sequence[Tokens]) -> list[bytes]:
    """A digest each, of a head and then (T,) tokens of type U32, one after the other in memory.

    Several are hashed abreast where the processor can, and several threads share the work where it is long: hashing lets go of the interpreter.

    >>> row = np.array([1, 2], np.uint32)
    >>> digests([segment_head(NONE, NONE, NONE)], [row]) == [segment_digest(NONE, NONE, NONE, row)]
    True
    """
    known = set(heads)
    keys = {len(head.key) for head in known}
    fast = many is not None and many.lanes > 0 and len(keys) == 1 and _right(many)
    blocks = {head: head.block() for head in known}
    hashed = partial(_abreast, blocks, max(keys), compiled=many) if fast else _one_by_one
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    ends = np.cumsum([len(row) for row in rows])
    least = LEAST_ABREAST if fast else LEAST_ROW * max(len(rows), LEAST_ROWS)
    if threads == 1 or not len(rows) or ends[-1] < least:
        return hashed(heads, rows)
    bounds = [*np.searchsorted(ends, ends[-1] * np.arange(threads) // threads).tolist(), len(rows)]
    parts = [slice(*bound) for bound in pairwise(bounds)]  # about as many tokens each
    with ExitStack() as stack:
        works = [partial(hashed, heads[part], rows[part]) for part in parts]
        others = [stack.enter_context(meanwhile(work)) for work in works[1:]]
        return sum((other() for other in others), works[0]())


@functools.cache
def _right(compiled: Any) -> bool:
    """Whether what was compiled gives hashlib's digests: looked at once a process, by messages around the ends of blocks. Wrong names would be noticed late."""
    rows = [np.arange(n, dtype=U32) for n in (0, 1, 19, 20, 21, 32, 52, 530, 4000)]
    for key in (b"", b"k" * 32):
        heads = [Head(bytes([n]) * 48, key) for n in range(len(rows))]
        if _abreast({head: head.block() for head in heads}, len(key), heads, rows, compiled) != _one_by_one(
            heads, rows
        ):
            return False
    return True


def _abreast(
    blocks: Mapping[Head, bytes], key: int, heads: Sequence[Head], rows: Sequence[Tokens], compiled: Any
) -> list[bytes]:
    """``key``: bytes of the keys; ``compiled``: the module of many.c."""
    person = SEGMENT.ljust(hashlib.blake2b.PERSON_SIZE, b"\0")
    found = compiled.digests(person, 2 * SIZE, key, tuple(map(blocks.__getitem__, heads)), list(rows))
    return [found[at : at + 2 * SIZE] for at in range(0, len(found), 2 * SIZE)]


def _one_by_one(heads: Sequence[Head], rows: Sequence[Tokens]) -> list[bytes]:
    states = {head: head.state() for head in set(heads)}
    out = []
    for head, row in zip(heads, rows, strict=True):
        state = states[head].copy()
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
