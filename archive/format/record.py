"""A record: a segment, a session's version, both, or a mark, as a value. `block.py` stores records.

Spec: FORMAT.md, "Block".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.limits import MAX_TOKENS as SESSION_TOKENS

UNDELETE, FORGET = 0, 1
MAX_NAME = 1024  # bytes of UTF-8
TICK_BITS = 20  # a second has 2^20 ticks
MAX_MOMENT = 1 << 62  # ticks since 1970, excluded
MAX_TIME = 1 << 40  # seconds since 1970, excluded
MAX_TAGS = 16384  # bytes of JSON
TOKENS_PER_BYTE = 65536
MAX_VEIL = 8 + 16 + 5 + MAX_NAME + MAX_TAGS  # bytes: unit, tag, length of the name, name, tags
LEAST_VEIL = 8 + 16 + 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that forgets or undeletes one version. The mark with the highest counter is in force."""

    version: bytes  # version id
    counter: int
    verb: int  # UNDELETE or FORGET


class Record(NamedTuple):
    """The content of a record.

    Attributes:
        context: number of its context in the pack's table.
        parent: id of the segment above, NONE for a root.
        id: id of its segment, None without one.
        tokens: number of tokens of its segment.
        name: name of its session, None without one.
        moment: when its version was put, in ticks since 1970. A session's versions are ordered by it.
        time: time of its version, in seconds since 1970, as it was given or when it was put.
        veil: in a sealed archive, unit and box in place of name and tags, which are empty then. The bitstring is
            a box too.
    """

    context: int
    parent: bytes = NONE
    id: bytes | None = None
    tokens: int = 0
    bitstring: bytes = b""
    name: str | None = None
    moment: int = 0
    time: int = 0
    tags: bytes = b""
    mark: Mark | None = None
    veil: bytes = b""

    @property
    def leaf(self) -> bytes:
        """Return the leaf of the session's tower; NONE for an empty one."""
        return self.parent if self.id is None else self.id


def tokens_fit(tokens: int, size: int) -> bool:
    """Return whether a bitstring of ``size`` bytes may hold this many tokens."""
    return 0 <= tokens <= min(SESSION_TOKENS, TOKENS_PER_BYTE * (size + 1))


def pack_tags(tags: Mapping[str, str]) -> bytes:
    """Return tags as bytes, none without tags.

    Raises ContentError where they are not strings or are too many.

    >>> pack_tags({"b": "2", "a": "1"})
    b'{"a":"1","b":"2"}'
    """
    if not tags:
        return b""
    if any(not isinstance(part, str) for pair in tags.items() for part in pair):
        raise ContentError("expected tags as strings by strings")
    data = json.dumps(dict(tags), sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MAX_TAGS:
        raise ContentError(f"tags of {len(data)} bytes are over the limit of {MAX_TAGS}")
    return data


def unpack_tags(data: bytes) -> dict[str, str]:
    """Undo `pack_tags`. Raises CorruptError."""
    if not data:
        return {}
    try:
        tags = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CorruptError("the tags of a session are not JSON: damaged") from exc
    if not isinstance(tags, dict) or any(not isinstance(value, str) for value in tags.values()):
        raise CorruptError("the tags of a session are not strings by strings: damaged")
    return tags
