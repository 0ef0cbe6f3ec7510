"""Figures drawn with matplotlib (extra ``plots``), as the bytes of their files."""

import io
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank(suffix: str, width: float, height: float) -> "Figure":
    """Return an empty figure, sizes in inches. ``suffix`` of its file: .png or .svg. Raises UsageError for another."""
    if suffix not in (".png", ".svg"):
        raise UsageError(f"cannot draw {suffix or 'a file without suffix'}: name a .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise UsageError("drawing needs matplotlib: pip install 'pltz[plots]'") from exc
    return Figure(figsize=(width, height), layout="constrained")


def drawn(figure: "Figure", suffix: str) -> bytes:
    """Return the figure as the bytes of a file."""
    data = io.BytesIO()
    figure.savefig(data, format=suffix[1:], dpi=150)
    return data.getvalue()
