"""One style for all figures, drawn with matplotlib (extra ``plots``): no frame, legends below the data."""

import io
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def blank(suffix: str, width: float, height: float) -> "Figure":
    """Return an empty figure, sizes in inches.

    Raises:
        UsageError: ``suffix`` of its file is neither .png nor .svg, or matplotlib is not installed.
    """
    if suffix not in (".png", ".svg"):
        raise UsageError(f"cannot draw {suffix or 'a file without suffix'}: name a .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise UsageError("drawing needs matplotlib: pip install 'pltz[plots]'") from exc
    return Figure(figsize=(width, height), layout="constrained")


def finish(axes: "Axes", *, columns: int = 2) -> None:
    """Give some axes the common style, with the legend, if anything has a label, below them in ``columns``."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns, fontsize=8, frameon=False)


def drawn(figure: "Figure", suffix: str) -> bytes:
    """Return the figure as the bytes of a file. ``suffix``: .png or .svg."""
    data = io.BytesIO()
    figure.savefig(data, format=suffix[1:], dpi=150)
    return data.getvalue()
