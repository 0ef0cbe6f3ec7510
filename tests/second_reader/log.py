"""Log frames, as coding/FORMAT.md describes them.

Of a log in a table with bytes above it only columns, opaque bytes and pieces are read: its past is what a writer makes
of these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.second_reader.fields import Damaged, Fields, Newer, copies_of, fallback, joined
from tests.second_reader.model import Bundle, digest, layout_of, tokens_of
from tests.second_reader.table import Log

VOICES = {"user", "assistant", "tool", "system", "function", "message"}
MOST_ABOVE, LEAST_ABOVE, PER_BYTE = 1 << 22, 1 << 16, 16


class AfterOthers(Exception):
    """A log in a table that stands after other bytes."""


class LogParts(NamedTuple):
    """The parts of a log frame."""

    method: int
    copied: bool
    layout: int
    check: bytes
    columns: bytes
    opaque: bytes
    text_count: int
    text: bytes  # as it is coded, with its copies


def parts_of(data: bytes) -> LogParts:
    """Return the parts of a frame that is not empty."""
    fields = Fields(data)
    head, check = fields.number(1), fields.take(8)
    method = head & 3
    if head >> 4 or method > 2:
        raise Newer(f"a log frame of head {head}")
    if head & 12 and method != 2:
        raise Damaged("copies or lanes in a log without tokens")
    sizes = [fields.varint() for _ in range(3)] if method else [0, 0, 0]
    columns, opaque = fields.take(sizes[0]), fields.take(sizes[1])
    return LogParts(method, bool(head & 4), head >> 3 & 1, check, columns, opaque, sizes[2], fields.rest())


def content(data: bytes, count: int, above: bytes, bundle: Bundle | None = None) -> bytes:
    """Return the content of a log frame. ``above``: the bytes that stand before it, or those of a log like it.

    Raises:
        AfterOthers: methods 1 and 2, with bytes above.
        LookupError: method 2, without a bundle.
    """
    if not count:
        if data:
            raise Damaged("a frame of no bytes that has bytes")
        return b""
    parts = parts_of(data)
    above = above[-min(MOST_ABOVE, max(LEAST_ABOVE, PER_BYTE * count)) :]
    if not parts.method:
        found = fallback(parts.text, count, prefix=above)
    elif above:
        raise AfterOthers(f"method {parts.method}")
    else:
        found = Log.after_known_lines().join(parts.columns, parts.opaque, pieces(parts, bundle, b"", ()), count)
    if digest("pltz log", found, size=8) != parts.check:
        raise Damaged("a log that differs from its check")
    return found


def pieces(parts: LogParts, bundle: Bundle | None, data: bytes, tokens: Sequence[int]) -> list[bytes]:
    """Return the pieces of a frame of methods 1 and 2. ``data``, ``tokens``: the text above, in bytes and in tokens."""
    count = parts.text_count
    if parts.method == 1:
        text = fallback(parts.text, count, prefix=data)
        if text and text[-1] != 0xFF:
            raise Damaged("a text that ends within a piece")
        return text.split(b"\xff")[:-1]
    if bundle is None:
        raise LookupError("a log of a model without its bundle")
    fields = Fields(parts.text)
    copies = copies_of(fields, count, len(tokens)) if parts.copied else []
    literals = count - sum(length for _, length, _ in copies)
    layout = layout_of(parts.layout, literals)
    found = joined(copies, tokens_of(bundle.model, fields.rest(), literals, layout, tokens), tokens)
    starts = [place for place, token in enumerate(found) if token in bundle.special]
    if starts[:1] != [0][: len(found)] or not {bundle.special[found[place]] for place in starts} <= VOICES:
        raise Damaged("a piece without its voice")
    return [bundle.spell(found[a + 1 : b]) for a, b in zip(starts, [*starts[1:], len(found)], strict=True)]
