"""Identities of domains, segments, sessions and versions. Spec: FORMAT.md, "Identities".

A segment's id fixes its whole tower, because the parent's id is hashed in. It therefore fixes context and
position, which is exactly the condition for reusing its KV. Identities are 16 bytes of BLAKE2b, those of segments 10.
Each kind has its personalisation, so that no kind is mistaken for another.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container.frame import is_bytewise
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.identity import MAX_POSITION, NONE, SIZE, digest

Tokens = npt.NDArray[np.integer[Any]]  # (T,) token ids

PART_SIZE = 4  # bytes of a part's key
LEAF = 4  # bytes of a leaf's id that tell two versions apart that were put in one tick
SEGMENT_SIZE = 10  # bytes of a segment id
NO_SEGMENT = bytes(SEGMENT_SIZE)  # no parent, empty tower
TENANT, BASE = 0, 1  # kinds of a domain
MAX_TOKENS = MAX_POSITION
U32 = np.dtype("<u4")
MAX_BYTE = 255
AT_ONCE = 1 << 20  # tokens that are hashed at once
SEGMENT = b"pltz segment"
SALT_SIZE = 16  # bytes of the digest that stands for a salt
SALTED = "#salt="  # between a tenant and the digest of a salt


@functools.lru_cache(4096)
def domain_id(kind: int, name: str) -> bytes:
    """Return the id, 16 bytes, of a tenant or of a family of base prompts. Raises ContentError.

    >>> domain_id(TENANT, "acme") == domain_id(BASE, "acme")
    False
    """
    return digest(b"pltz domain", bytes([kind]), utf8(name))


def segment_of(digest: bytes) -> bytes:
    """Return the segment id, 10 bytes, in a digest.

    >>> segment_of(bytes(range(32))).hex()
    '00010203040506070809'
    """
    return digest[:SEGMENT_SIZE]


def segment_digest(domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
    """Return the digest of a segment, 32 bytes; the first 10 are in its id.

    All 32 bytes tell apart segments crafted to share an id. ``tokens``: (T,), each in 0..2^31-1.
    """
    return segment_head(domain, tokenizer, parent).digest(tokens)


class Head(NamedTuple):
    """The bytes before a segment's tokens in its hash, which many segments may share."""

    data: bytes
    key: bytes = b""

    def digest(self, tokens: Tokens) -> bytes:
        """Return the digest, 32 bytes, of the head and ``tokens``, (T,)."""
        return _digest(self.state(), tokens, self.of_bytes)

    @property
    def of_bytes(self) -> bool:
        """Return whether the tokens are bytes."""
        return is_bytewise(self.data[SIZE : 2 * SIZE])

    def state(self) -> hashlib.blake2b:
        """Return the hash state after the head."""
        return hashlib.blake2b(self.data, digest_size=2 * SIZE, key=self.key, person=SEGMENT)


def segment_head(domain: bytes, tokenizer: bytes, parent: bytes) -> Head:
    """Return the head of the segments below ``parent``, without a key."""
    return Head(domain + tokenizer + parent)


def digests(heads: Sequence[Head], rows: Sequence[Tokens]) -> list[bytes]:
    """Return the digest, 32 bytes, of each head and its row of (T,) tokens: or bytes.

    >>> row = np.array([1, 2], np.uint32)
    >>> digests([segment_head(NONE, NONE, NO_SEGMENT)], [row]) == [segment_digest(NONE, NONE, NO_SEGMENT, row)]
    True
    """
    states = {head: head.state() for head in set(heads)}
    out = []
    for head, row in zip(heads, rows, strict=True):
        out.append(_digest(states[head].copy(), row, head.of_bytes))
    return out


def _digest(state: hashlib.blake2b, tokens: Tokens, of_bytes: bool) -> bytes:
    if of_bytes and tokens.dtype != np.uint8 and len(tokens) and tokens.max() > MAX_BYTE:
        raise ContentError(f"expected bytes, found a token {tokens.max()}")
    for begin in range(0, len(tokens), AT_ONCE):
        state.update(np.ascontiguousarray(tokens[begin : begin + AT_ONCE], np.uint8 if of_bytes else U32).data)
    return state.digest()


@functools.lru_cache(4096)
def session_key(domain: bytes, name: str) -> bytes:
    """Return the key by which a session is looked up, 16 bytes. Raises ContentError for a name that is not Unicode."""
    state = _begun(b"pltz session", SIZE, domain).copy()
    state.update(utf8(name))
    return state.digest()


def version_id(key: bytes, moment: int, leaf: bytes, time: int, part: int = 0) -> bytes:
    """Return the id of one version of a part of a session, 16 bytes, by which it is forgotten and undeleted.

    ``moment``: when it was put, in ticks; ``leaf``: id of its last segment, of which the first 4 bytes count;
    ``time``: its own, in seconds; ``part``: key of the part.
    """
    state = _begun(b"pltz version", SIZE, b"").copy()
    state.update(key + moment.to_bytes(8, "little") + leaf[:LEAF] + time.to_bytes(8, "little"))
    state.update(part.to_bytes(PART_SIZE, "little"))
    return state.digest()


def part_key(key: bytes, part: str, secret: bytes = b"") -> int:
    """Return the number that stands for a part in the head of its record: 0 for the main one, others below 2^32.

    ``key``: of the session; ``secret``: id key of its domain in a sealed archive.
    """
    state = hashlib.blake2b(key + utf8(part), digest_size=PART_SIZE, key=secret, person=b"pltz part")
    return max(1, int.from_bytes(state.digest(), "little")) if part else 0


def checked(tokens: npt.ArrayLike) -> Tokens:
    """Return token ids as (T,) int64, and bytes as they are, (T,) uint8.

    Raises ContentError unless they are one row of ids in 0..2^31-1.

    >>> checked([1, 2]).tolist()
    [1, 2]
    """
    array = np.asarray(tokens)
    if array.ndim != 1 or len(array) > MAX_TOKENS or (len(array) and array.dtype.kind not in "iu"):
        raise ContentError(f"expected one row of token ids, found shape {array.shape} of {array.dtype}")
    if len(array) and (array.min() < 0 or array.max() > MAX_TOKENS):
        raise ContentError(f"expected token ids in 0..{MAX_TOKENS}, found {array.min()}..{array.max()}")
    return array if array.dtype == np.uint8 else array.astype(np.int64)


def utf8(name: str) -> bytes:
    """Return a name as UTF-8.

    Raises ContentError for a name that was not text before it became a str, such as a file name in another encoding.
    """
    try:
        return name.encode()
    except UnicodeEncodeError as exc:
        raise ContentError(f"the name {name!r} is not valid Unicode: use another one") from exc


@functools.lru_cache(4096)
def _begun(person: bytes, size: int, data: bytes) -> hashlib.blake2b:
    """Return the state of a hash over data that many messages begin with, to be copied."""
    return hashlib.blake2b(data, digest_size=size, person=person)


def tenant_of(tenant: str, salt: str | bytes | None = None) -> str:
    """Return the archive's tenant for a tenant's sessions under a salt.

    Nothing is shared between salts, and a session is found only with its own salt. A salt must not be
    guessable, so only its digest is kept. Raises UsageError.

    >>> tenant_of("acme"), tenant_of("acme", "s3cret")[:10]
    ('acme', 'acme#salt=')
    """
    if salt is None or salt in ("", b""):
        return tenant
    if SALTED in tenant:
        raise UsageError(f"expected a tenant without a salt, found one with {SALTED}")
    key = hashlib.blake2b(tenant.encode("utf-8", "surrogatepass")).digest()
    named = hashlib.blake2b(_data(salt, "salt"), digest_size=SALT_SIZE, person=b"pltz salt", key=key)
    return f"{tenant}{SALTED}{named.hexdigest()}"


def target_of(target: bytes | None, adapter: str | bytes | None = None) -> bytes:
    """Return the fingerprint, 16 bytes, to keep for a target with an adapter: the KV depends on both.

    ``adapter``: its name, or 16 bytes of its own. Zeros stand for an unknown target. Raises UsageError.

    >>> target_of(None).hex() == "00" * 16, target_of(bytes(16), "lora-1") == target_of(bytes(16), "lora-2")
    (True, False)
    """
    if adapter is None:
        return target or NONE
    kind = bytes([isinstance(adapter, str)])
    return digest(b"pltz adapter", target or NONE, kind, _data(adapter, "adapter"))


def _data(name: str | bytes, what: str) -> bytes:
    """Return a name as bytes. Raises UsageError."""
    if not isinstance(name, str | bytes):
        raise UsageError(f"expected a {what} as str or bytes, got {type(name).__name__}")
    return name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
