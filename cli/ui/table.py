"""Plain tables: columns aligned, numbers to the right, no colours.

>>> print(render(["source", "bytes"], [["taskmaster", "1,024"], ["all", "96"]]))
source      bytes
----------  -----
taskmaster  1,024
all            96
"""

from collections.abc import Collection, Sequence


def render(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[str] = ()) -> str:
    """Return the table as text: the first column and those in ``left`` aligned to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    align = [str.ljust if name in (head[0], *left) else str.rjust for name in head]
    cells = ([put(cell, w) for put, cell, w in zip(align, row, widths, strict=True)] for row in lines)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def pairs(items: Sequence[tuple[str, str]], indent: str = "  ") -> str:
    """Return one line per pair of name and value, with the values aligned."""
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{indent}{name.ljust(width)}  {value}" for name, value in items)
