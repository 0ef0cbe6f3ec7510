"""Columns of logs that no writer makes: a joiner whose decisions are chosen, and written as it takes them."""

from collections.abc import Iterable, Sequence

from tests.coding.log.sources import from_sources

with from_sources():  # what is compiled has no subclasses of others
    from pltz.coding.log import table
    from pltz.coding.log.bit_coder import BitReader, BitWriter, Model
    from pltz.coding.log.joiner import Joiner
    from pltz.coding.log.past import Slot, led_by
    from pltz.coding.log.walk import Unit


class _ChosenDecisions(BitWriter, BitReader):  # a joiner reads what this writes
    """Writes ``numbers`` in order, and 0 for each bit."""

    def __init__(self, numbers: Iterable[int]) -> None:
        BitWriter.__init__(self)
        self._numbers = iter(numbers)
        self._inside = False

    def number(self, model: Model, value: int = 0, base: int = 0) -> int:
        self._inside = True
        value = BitWriter.number(self, model, next(self._numbers), base)
        self._inside = False
        return value

    def bit(self, model: Model, context: int, bit: int = 0) -> int:
        return BitWriter.bit(self, model, context, bit if self._inside else 0)

    def chosen(self, model: Model, context: int, bit: int) -> None:
        BitWriter.bit(self, model, context, bit)


class _PayingNothing(Joiner):
    """Makes values in ways of one's choice, whatever they cost."""

    ways: list[int]

    def _op(self, slot: Slot, op: int = 0) -> int:
        wanted, base = self.ways.pop(0), slot.op << 5
        for way in slot.ops:
            self._coder.chosen(slot.ways, base | way, int(way == wanted))  # type: ignore[attr-defined]
            if way == wanted:
                break
        slot.ops, slot.op = led_by(slot.ops, wanted), wanted
        return wanted

    def _spend(self, size: int) -> None:
        pass


def columns(
    ways: Sequence[int], numbers: Iterable[int], pieces: Sequence[str], unit: Sequence[int] = (0, 0)
) -> tuple[bytes, str]:
    """Return the columns of a log of one unit, and that. ``unit``: its first numbers; without them a line of JSON."""
    coder = _ChosenDecisions([*unit, *numbers])
    joiner = _PayingNothing(table._past(None), coder, b"", pieces, 1 << 60)
    joiner.ways = [*ways]
    line = joiner._unit(Unit()).decode()
    return bytes([table.VERSION]) + coder.finish(), line
