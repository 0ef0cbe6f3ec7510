"""Columns of logs that no writer makes: a joiner whose decisions are chosen, and written as it takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.coding.log.sources import from_sources

with from_sources():  # what is compiled has no subclasses of others
    from pltz.coding.log import table
    from pltz.coding.log.bit_coder import BitReader, BitWriter, Model
    from pltz.coding.log.joiner import Joiner
    from pltz.coding.log.past import Field, led_by
    from pltz.coding.log.walk import Unit


class _ChosenDecisions(BitWriter, BitReader):  # a joiner reads what this writes
    """Writes ``numbers`` in order, and for a bit of a context what ``bits`` says, else 0."""

    def __init__(self, numbers: Iterable[int], bits: Mapping[int, Iterable[int]]) -> None:
        BitWriter.__init__(self)
        self._numbers, self._bits = iter(numbers), {context: iter(said) for context, said in bits.items()}
        self._inside = False

    def number(self, model: Model, value: int = 0, base: int = 0) -> int:
        self._inside = True
        value = BitWriter.number(self, model, next(self._numbers), base)
        self._inside = False
        return value

    def bit(self, model: Model, context: int, bit: int = 0) -> int:
        if not self._inside:
            bit = next(self._bits.get(context, iter(())), 0)
        return BitWriter.bit(self, model, context, bit)

    def chosen(self, model: Model, context: int, bit: int) -> None:
        BitWriter.bit(self, model, context, bit)


class _PayingNothing(Joiner):
    """Makes values in ways of one's choice, whatever they cost."""

    ways: list[int]

    def _op(self, field: Field, op: int = 0) -> int:
        wanted, base = self.ways.pop(0), (field.op << 1 | self._odd) << 5
        for way in field.ops:
            self._coder.chosen(field.slot.ways, base | way, int(way == wanted))  # type: ignore[attr-defined]
            if way == wanted:
                break
        if field.ops[0] != wanted:
            self._odd = 1
            field.ops, field.slot.ops = led_by(field.ops, wanted), led_by(field.slot.ops, wanted)
        field.op = wanted
        return wanted

    def _spend(self, size: int) -> None:
        pass


def columns(
    ways: Sequence[int], numbers: Iterable[int], pieces: Sequence[str], bits: Mapping[int, Iterable[int]]
) -> tuple[bytes, str]:
    """Return the columns of a log of one line of JSON, and that line."""
    coder = _ChosenDecisions([0, 0, *numbers], bits)
    joiner = _PayingNothing(table._past(None), coder, b"", pieces, 1 << 60)
    joiner.ways = [*ways]
    line = joiner._unit(Unit()).decode()
    return bytes([table.VERSION]) + coder.finish(), line
