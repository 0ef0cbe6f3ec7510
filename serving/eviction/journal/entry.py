"""JournalEntry: one evicted session as it is kept in the journal, in bytes and back. Spec: FORMAT.md, "Entry"."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pltz.archive import MAX_NAME, MAX_TAGS, MAX_TOKENS, Tokens, pack_tags, unpack_tags
from pltz.plt_codec import NONE, SIZE, ContentError, CorruptError, read_varint, write_varint

HEAD = struct.Struct(f"<Q{SIZE}s{SIZE}s")
MAX_PREFIXES = 4096
MAX_BODY = 1 << 28  # bytes


@dataclass(frozen=True, eq=False)
class JournalEntry:
    """An evicted session.

    ``ids``: (T,). ``time``: seconds since 1970. ``prefixes``: token counts, ascending, at which shared
    beginnings end. ``base``: name under which the first of them is shared. ``parent``: name of the session
    this one was forked from. An empty name means none.
    """

    name: str
    ids: Tokens
    time: int
    tenant: str = "default"
    tokenizer: bytes = NONE
    target: bytes = NONE
    tags: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[int, ...] = ()
    base: str = ""
    parent: str = ""

    def encode(self) -> bytes:
        """Return its body. Raises ContentError where it does not fit the format.

        >>> JournalEntry.decode(JournalEntry("chat-7", np.arange(3), 9, prefixes=(1, 3)).encode()).ids.tolist()
        [0, 1, 2]
        """
        if not 0 <= self.time < 1 << 40:
            raise ContentError(f"expected a time in seconds since 1970, got {self.time}")
        parts = [HEAD.pack(self.time, _sixteen(self.tokenizer), _sixteen(self.target))]
        parts += [_sized(_utf8(text)) for text in (self.tenant, self.name, self.base, self.parent)]
        parts.append(_sized(pack_tags(self.tags)))
        parts += [write_varint(len(self.prefixes)), *map(write_varint, self._steps())]
        ids = _checked(self.ids)
        parts += [write_varint(len(ids)), ids.tobytes()]
        if sum(map(len, parts)) > MAX_BODY:
            raise ContentError(f"a session of {len(ids)} tokens is too long for the journal")
        return b"".join(parts)

    def _steps(self) -> list[int]:
        """Return the prefixes as distances. Raises ContentError."""
        ends = [0, *self.prefixes]
        steps = [b - a for a, b in itertools.pairwise(ends)]
        if len(steps) > MAX_PREFIXES or any(step <= 0 for step in steps) or ends[-1] > len(self.ids):
            raise ContentError(f"expected at most {MAX_PREFIXES} ascending prefixes within {len(self.ids)} tokens")
        return steps

    @classmethod
    def decode(cls, body: bytes) -> JournalEntry:
        """Return the entry of a body. Raises CorruptError for bytes that `encode` does not write."""
        if len(body) < HEAD.size:
            raise CorruptError(f"expected an entry of {HEAD.size} bytes or more, got {len(body)}")
        time, tokenizer, target = HEAD.unpack_from(body)
        texts, at = [], HEAD.size
        for _ in range(4):
            text, at = _take(body, at, MAX_NAME)
            texts.append(_text(text))
        tags, at = _take(body, at, MAX_TAGS)
        prefixes, at = _read_prefixes(body, at)
        count, at = read_varint(body, at)
        if len(body) - at != 4 * count or time >= 1 << 40:
            raise CorruptError(f"expected {count} tokens in {len(body) - at} bytes: damaged")
        ids = np.frombuffer(body, "<u4", count, at)
        if (count and int(ids.max()) > MAX_TOKENS) or (prefixes and prefixes[-1] > count):
            raise CorruptError("a token id or a prefix of an entry is out of range: damaged")
        tenant, name, base, parent = texts
        return cls(name, ids, time, tenant, tokenizer, target, unpack_tags(tags), prefixes, base, parent)


class Sized(NamedTuple):
    data: bytes
    end: int


def _sixteen(name: bytes) -> bytes:
    if len(name) != SIZE:
        raise ContentError(f"expected a fingerprint of {SIZE} bytes, got {len(name)}")
    return name


def _utf8(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise ContentError(f"a name has no UTF-8 form: {exc.reason}") from exc
    if len(data) > MAX_NAME:
        raise ContentError(f"a name of {len(data)} bytes is over the limit of {MAX_NAME}")
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise CorruptError("a name in the journal is not UTF-8: damaged") from exc


def _sized(data: bytes) -> bytes:
    return write_varint(len(data)) + data


def _take(body: bytes, at: int, most: int) -> Sized:
    size, at = read_varint(body, at)
    if size > min(most, len(body) - at):
        raise CorruptError(f"expected a field of at most {min(most, len(body) - at)} bytes, found {size}")
    return Sized(bytes(body[at : at + size]), at + size)


def _read_prefixes(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(body, at)
    if count > MAX_PREFIXES:
        raise CorruptError(f"expected at most {MAX_PREFIXES} prefixes, found {count}")
    ends: list[int] = []
    for _ in range(count):
        step, at = read_varint(body, at)
        if not step:
            raise CorruptError("expected ascending prefixes in an entry: damaged")
        ends.append((ends[-1] if ends else 0) + step)
    return tuple(ends), at


def _checked(ids: Tokens) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Return ids as u32, (T,). Raises ContentError."""
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise ContentError(f"expected one row of token ids, found shape {ids.shape} of {ids.dtype}")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > MAX_TOKENS):
        raise ContentError(f"expected token ids in 0..{MAX_TOKENS}, found {ids.min()}..{ids.max()}")
    return ids.astype("<u4")
