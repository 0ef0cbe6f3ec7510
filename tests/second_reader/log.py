"""Log frames, as coding/FORMAT.md describes them."""

import itertools
import struct
from collections.abc import Sequence

from tests.second_reader.fields import Fields, Newer, copies_of, fallback, refuse
from tests.second_reader.model import Bundle, digest, sequence_of
from tests.second_reader.ppmd import by_ppmd
from tests.second_reader.table import Log

VOICES = {"user", "assistant", "tool", "system", "function", "message"}
MODEL, COPIED, LAYOUT, PACKED, RECALLS = 1, 2, 4, 8, 16  # bits of a head
LEAST_ABOVE, PER_BYTE = 1 << 16, 16

# A table as a frame has it: columns, opaque bytes, pieces, and the bytes that it makes. Those of a log, in their order,
# are what is above the next one.
Table = tuple[bytes, bytes, list[bytes], int]


def decoded(
    data: bytes, count: int, above: Sequence[Table] = (), bundle: Bundle | None = None, before: Sequence[bytes] = ()
) -> tuple[bytes, list[Table]]:
    """Return the content of a log frame, and the tables above the next one.

    ``above``: the tables of the frames above it, the first first. ``before``: all contents before it, for recalls.
    """
    if not count:
        refuse(data, "a frame of no bytes that has bytes")
        return b"", [*above]
    fields = Fields(data)
    head, check = fields.number(1), fields.take(8)
    refuse(head >> 5, f"a log frame of head {head}", Newer)
    refuse(head & (COPIED | LAYOUT) and not head & MODEL, "copies or lanes in a log without tokens")
    columns_size, opaque_size, text_size = (fields.varint() for _ in range(3))
    opaque_count = fields.varint() if head & PACKED else opaque_size
    whole, recalls = count, list[tuple[int, int]]()
    if head & RECALLS:
        count, number, size = (fields.varint() for _ in range(3))
        refuse(not 0 < count <= whole or number > 6 * count + 1024, "own bytes or recalls that are too many")
        planes = fallback(fields.take(size), 12 * number)
        recalls = [struct.unpack("<Iq", planes[at::number]) for at in range(number)]
    columns, opaque = fields.take(columns_size), fallback(fields.take(opaque_size), opaque_count)
    past = Log()
    if not head & MODEL:
        last = _text_above(above, max(LEAST_ABOVE, count // 4))
        text = by_ppmd(fields.rest(), text_size, b"".join(piece + b"\xff" for piece in last))
        *pieces, rest = text.split(b"\xff")
        refuse(rest, "a text that ends within a piece")
    elif bundle:
        pieces = _pieces(fields, head, text_size, _text_above(above, max(LEAST_ABOVE, PER_BYTE * count)), bundle)
    else:
        raise LookupError("a log of a model without its bundle")
    for table in above:
        past.join(*table)
    own = past.join(columns, opaque, pieces, count)
    found = _recalled(own, recalls, b"".join(before))
    refuse(len(found) != whole or digest("pltz log", found, size=8) != check, "a log that differs from its check")
    return found, [*above, (columns, opaque, pieces, count)]


def _recalled(own: bytes, recalls: Sequence[tuple[int, int]], log: bytes) -> bytes:
    """Return a content by its own bytes and its recalls. ``log``: what is before it."""
    found, at, place = b"", 0, 0
    for quotes, difference in recalls:
        begin = at
        for _ in range(quotes):
            at = own.find(b'"', at) + 1
            refuse(not at, "a recall behind no quote")
        if quotes:
            place += at - begin + difference
            end = log.find(b'"', max(0, place))
            end -= log[end - 1 : end] == b"\\"
            refuse(not 0 <= place < end, "a passage that is not in the log, or has no end")
            found, place = found + own[begin:at] + log[place:end], end
    return found + own[at:]


def _text_above(above: Sequence[Table], most: int) -> list[bytes]:
    """Return the pieces of the text above that have so many bytes."""
    pieces = [piece for table in above for piece in table[2]]
    ends = itertools.accumulate(len(piece) + 1 for piece in pieces[::-1])
    return pieces[len(pieces) - sum(end <= most for end in ends) :]


def _pieces(fields: Fields, head: int, count: int, above: Sequence[bytes], bundle: Bundle) -> list[bytes]:
    """Return the pieces of a text by the model. ``above``: those of the text above."""
    message = next(number for number, name in bundle.special.items() if name == "message")
    past = [token for piece in above for token in (message, *bundle.bpe(piece))]
    copies = copies_of(fields, count, len(past)) if head & COPIED else []
    tokens = sequence_of(bundle.model, fields.rest(), count, head >> 2 & 1, past, copies)
    segments = bundle.segments(tokens)
    refuse(not {name for name, _ in segments} <= VOICES, "a piece without its voice")
    return [piece for _, piece in segments]
