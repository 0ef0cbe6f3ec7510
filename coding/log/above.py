"""Above: the parts of a log that stand above another one, each coded after those before it.

    first = Above.of(first_lines)                   a writer, which has the bytes
    second = Above.of(more_lines, first)
    made = Above.made_of(columns, opaque, text, 900)  a reader, which has the table and joins it

What a part leaves (the past of its table, and its text) is made of it after what those above left: by a split of its
bytes, or by a join of its table. Both leave the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

KEY = 16  # bytes
REACH = 1 << 22  # bytes of a part and those above it: after more, a part is coded alone


@dataclass(frozen=True, slots=True, eq=False)
class Above:
    """A part of a log, and the part that it was coded after.

    Attributes:
        count: bytes of its content.
        up: what it was coded after; None: nothing.
        content: its bytes, of a writer.
        table: columns, opaque bytes and text of a reader; None where there is the content.
        key: a digest of all of them.
        whole: bytes of its content with those that are recalled (recall.py); None: as many.
        size: whole bytes of all parts from the first on.
    """

    count: int
    up: Above | None = None
    content: bytes = b""
    table: tuple[bytes, bytes, bytes] | None = None
    whole: int | None = None
    key: bytes = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        state = hashlib.blake2b(self.up.key if self.up else b"", digest_size=KEY, person=b"pltz above")
        state.update(repr((self.count, self.table and [len(part) for part in self.table])).encode())
        for part in self.table or (self.content,):
            state.update(part)
        object.__setattr__(self, "key", state.digest())
        object.__setattr__(self, "size", (self.whole or self.count) + (self.up.size if self.up else 0))

    @classmethod
    def of(cls, content: bytes, up: Above | None = None, whole: int | None = None) -> Above:
        """Return a part of these bytes."""
        return cls(len(content), up, content, None, whole)

    @classmethod
    def made_of(
        cls, columns: bytes, opaque: bytes, text: bytes, count: int, up: Above | None = None, whole: int | None = None
    ) -> Above:
        """Return a part of ``count`` bytes by its table. ``text``: pieces, each with `table.END` behind it."""
        return cls(count, up, b"", (columns, opaque, text), whole)

    @property
    def to_follow(self) -> Above | None:
        """Return this part if another is coded after it; None where it is coded alone, as after `REACH` bytes."""
        return self if self.size <= REACH else None

    def parts(self) -> list[Above]:
        """Return all parts, the first one first."""
        found, at = list[Above](), [self]
        while at:
            found.append(at.pop())
            at += [found[-1].up] if found[-1].up else []
        return found[::-1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes the same: a thousand parts in each other are too deep for pickle."""
        return _above, ([(part.count, part.content, part.table, part.whole) for part in self.parts()],)


def _above(rows: Sequence[tuple[int, bytes, Any, int | None]]) -> Above | None:
    at: Above | None = None
    for count, content, made, whole in rows:
        at = Above(count, at, content, made, whole)
    return at
