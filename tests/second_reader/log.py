"""Log frames, as coding/FORMAT.md describes them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.second_reader.fields import Fields, Newer, copies_of, fallback, refuse
from tests.second_reader.model import Bundle, digest, sequence_of
from tests.second_reader.ppmd import Coder, Model
from tests.second_reader.table import Log

VOICES = {"user", "assistant", "tool", "system", "function", "message"}
MODEL, COPIED, LAYOUT, PACKED = 1, 2, 4, 8  # bits of a head
LEAST_ABOVE, PER_BYTE = 1 << 16, 16

# A table as a frame has it: columns, opaque bytes, pieces, and the bytes that it makes. Those of a log, in their order,
# are what is above the next one.
Table = tuple[bytes, bytes, list[bytes], int]


def decoded(
    data: bytes, count: int, above: Sequence[Table] = (), bundle: Bundle | None = None
) -> tuple[bytes, list[Table]]:
    """Return the content of a log frame, and the tables above the next one.

    ``above``: the tables of the frames above it, the first one first. Raises LookupError: a text by a model without it.
    """
    if not count:
        refuse(data, "a frame of no bytes that has bytes")
        return b"", [*above]
    fields = Fields(data)
    head, check = fields.number(1), fields.take(8)
    refuse(head >> 4, f"a log frame of head {head}", Newer)
    refuse(head & (COPIED | LAYOUT) and not head & MODEL, "copies or lanes in a log without tokens")
    columns_size, opaque_size, text_size = (fields.varint() for _ in range(3))
    opaque_count = fields.varint() if head & PACKED else opaque_size
    columns, opaque = fields.take(columns_size), fallback(fields.take(opaque_size), opaque_count)
    past = Log()
    if not head & MODEL:
        before = _text_above(above, max(LEAST_ABOVE, count // 4))
        text = by_ppmd(fields.rest(), text_size, b"".join(piece + b"\xff" for piece in before))
        *pieces, rest = text.split(b"\xff")
        refuse(rest, "a text that ends within a piece")
    elif bundle:
        pieces = _pieces(fields, head, text_size, _text_above(above, max(LEAST_ABOVE, PER_BYTE * count)), bundle)
    else:
        raise LookupError("a log of a model without its bundle")
    for table in above:
        past.join(*table)
    found = past.join(columns, opaque, pieces, count)
    refuse(digest("pltz log", found, size=8) != check, "a log that differs from its check")
    return found, [*above, (columns, opaque, pieces, count)]


def by_ppmd(data: bytes, count: int, past: bytes) -> bytes:
    """Return the text of PPMd bytes after a past."""
    kind = data[0] if count else 0
    if not kind:
        refuse(len(data) != count + bool(count), "a text of another size")
        return data[1:]
    refuse(kind > 2, "a model of no writer")
    refuse(count > 4096 * (len(data) + 16), "more text than PPMd bytes can have")
    coder, begun = Coder(data[1:]), primed() if kind == 2 else Model()
    model = Model(begun)
    model.code(past, begun=begun)
    found = model.code(b"", count, coder, begun)
    more = len(data) - 1 - (coder.at - 4)
    refuse(more > 1 or (more == 1 and not data[-1]), "a stream that goes on behind its text")
    return found


@cache
def primed() -> Model:
    """Return the model that has seen the primer."""
    data = (Path(__file__).parents[2] / "plt_codec/primer.ppmd").read_bytes()
    model = Model()
    model.code(by_ppmd(data[4:], int.from_bytes(data[:4], "little"), b""))
    return model


def _text_above(above: Sequence[Table], most: int) -> list[bytes]:
    """Return the pieces of the text above that have so many bytes."""
    found, left = list[bytes](), most
    for piece in (piece for _, _, pieces, _ in above[::-1] for piece in pieces[::-1]):
        left -= len(piece) + 1
        if left < 0:
            break
        found.append(piece)
    return found[::-1]


def _pieces(fields: Fields, head: int, count: int, above: Sequence[bytes], bundle: Bundle) -> list[bytes]:
    """Return the pieces of a text by the model. ``above``: those of the text above."""
    message = next(number for number, name in bundle.special.items() if name == "message")
    past = [token for piece in above for token in (message, *bundle.bpe(piece))]
    copies = copies_of(fields, count, len(past)) if head & COPIED else []
    tokens = sequence_of(bundle.model, fields.rest(), count, head >> 2 & 1, past, copies)
    segments = bundle.segments(tokens)
    refuse(not {name for name, _ in segments} <= VOICES, "a piece without its voice")
    return [piece for _, piece in segments]
