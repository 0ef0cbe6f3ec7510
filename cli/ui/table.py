"""Plain tables: columns aligned, numbers to the right, no colours.

>>> print(render(["source", "bytes"], [["taskmaster", "1,024"], ["all", "96"]]))
source      bytes
----------  -----
taskmaster  1,024
all            96
"""

from collections.abc import Sequence


def render(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as text: the first column aligned to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(_line(row, widths) for row in lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0])] + [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
    return "  ".join(cells).rstrip()


def pairs(items: Sequence[tuple[str, str]], indent: str = "  ") -> str:
    """Return one line per pair of name and value, with the values aligned."""
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{indent}{name.ljust(width)}  {value}" for name, value in items)
