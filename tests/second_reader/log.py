"""Log frames, as coding/FORMAT.md describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.second_reader.fields import Damaged, Fields, Newer, copies_of, fallback, joined
from tests.second_reader.model import Bundle, digest, layout_of, tokens_of
from tests.second_reader.table import Log

VOICES = {"user", "assistant", "tool", "system", "function", "message"}
LEAST_ABOVE, PER_BYTE = 1 << 16, 16


class Table(NamedTuple):
    """A table as a frame has it. Those of a log, in their order, are what is above the next one."""

    columns: bytes
    opaque: bytes
    pieces: list[bytes]
    size: int  # bytes that it makes


class LogParts(NamedTuple):
    """The parts of a log frame."""

    by_model: bool
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
    if head >> 4:
        raise Newer(f"a log frame of head {head}")
    if head & 6 and not head & 1:
        raise Damaged("copies or lanes in a log without tokens")
    sizes = [fields.varint() for _ in range(4 if head & 8 else 3)]
    columns, opaque = fields.take(sizes[0]), fields.take(sizes[1])
    if head & 8:
        opaque = fallback(opaque, sizes[3])
    return LogParts(bool(head & 1), bool(head & 2), head >> 2 & 1, check, columns, opaque, sizes[2], fields.rest())


def decoded(
    data: bytes, count: int, above: Sequence[Table] = (), bundle: Bundle | None = None
) -> tuple[bytes, list[Table]]:
    """Return the content of a log frame, and the tables above the next one.

    ``above``: the tables of the frames above it, the first one first. Raises LookupError: a text by a model without it.
    """
    if not count:
        if data:
            raise Damaged("a frame of no bytes that has bytes")
        return b"", [*above]
    parts, past = parts_of(data), Log.after_known_lines()
    for table in above:
        past.join(*table)
    own = Table(parts.columns, parts.opaque, pieces(parts, text_above(above, count), bundle), count)
    found = past.join(*own)
    if digest("pltz log", found, size=8) != parts.check:
        raise Damaged("a log that differs from its check")
    return found, [*above, own]


def text_above(above: Sequence[Table], count: int) -> list[bytes]:
    """Return the pieces of the text above that count for so many bytes of content."""
    found, left = list[bytes](), max(LEAST_ABOVE, PER_BYTE * count)
    for piece in (piece for table in above[::-1] for piece in table.pieces[::-1]):
        left -= len(piece) + 1
        if left < 0:
            break
        found.append(piece)
    return found[::-1]


def pieces(parts: LogParts, above: Sequence[bytes], bundle: Bundle | None) -> list[bytes]:
    """Return the pieces of a frame. ``above``: those of the text above."""
    count = parts.text_count
    if not parts.by_model:
        text = fallback(parts.text, count, prefix=b"".join(piece + b"\xff" for piece in above))
        if text and text[-1] != 0xFF:
            raise Damaged("a text that ends within a piece")
        return text.split(b"\xff")[:-1]
    if bundle is None:
        raise LookupError("a log of a model without its bundle")
    message = next(number for number, name in bundle.special.items() if name == "message")
    tokens = [token for piece in above for token in (message, *bundle.bpe(piece))]
    fields = Fields(parts.text)
    copies = copies_of(fields, count, len(tokens)) if parts.copied else []
    literals = count - sum(length for _, length, _ in copies)
    layout = layout_of(parts.layout, literals)
    found = joined(copies, tokens_of(bundle.model, fields.rest(), literals, layout, tokens), tokens)
    starts = [place for place, token in enumerate(found) if token in bundle.special]
    if starts[:1] != [0][: len(found)] or not {bundle.special[found[place]] for place in starts} <= VOICES:
        raise Damaged("a piece without its voice")
    return [bundle.spell(found[a + 1 : b]) for a, b in zip(starts, [*starts[1:], len(found)], strict=True)]
