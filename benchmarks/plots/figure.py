"""One style for all figures, drawn with matplotlib (extra ``plots``): no frame, legends below the data, from zero.

An .svg follows the reader's scheme: its text and axes are dark on light, and light on dark. A .png is for light alone.
"""

import io
import re
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

THEME = (
    "<style>svg{--ink:#24292f;--paper:#fff;color:var(--ink);fill:var(--ink)}"
    "@media (prefers-color-scheme:dark){svg{--ink:#d5dbe1;--paper:#0d1117}}</style>"
)
INK, PAPER = ("#000000", "#000", "black"), ("#ffffff", "#fff", "white")
# the colours of matplotlib's cycle, in shades that are legible on white and on black
SHADES = {"#1f77b4": "#4a90c2", "#ff7f0e": "#e08a3c", "#2ca02c": "#5aa469", "#d62728": "#c25b6e", "#9467bd": "#a98ac9"}


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
    """Give some axes the common style, with the legend, if anything has a label, below them in ``columns``.

    A linear axis of values begins at zero and has thousands set apart. A logarithmic one says 10 k and not 10^4.
    """
    from matplotlib.ticker import EngFormatter, FuncFormatter

    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.title.set_fontsize(9)
    for axis, scale, most in (
        (axes.xaxis, axes.get_xscale(), axes.dataLim.x1),
        (axes.yaxis, axes.get_yscale(), axes.dataLim.y1),
    ):
        axis.label.set_fontsize(9)
        if _is_named(axis):
            continue
        if scale == "log":
            axis.set_minor_formatter("")
        large = scale == "log" or most >= 1e6
        axis.set_major_formatter(EngFormatter(sep="") if large else FuncFormatter(lambda value, _: f"{value:,.12g}"))
    if axes.get_yscale() == "linear" and not _is_named(axes.yaxis):
        axes.set_ylim(0, 1.06 * axes.dataLim.y1)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, fontsize=8, frameon=False)


def _is_named(axis: "Axis") -> bool:
    """Return whether the places of an axis have names of their own, and no numbers made of their values."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    return isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator)


def drawn(figure: "Figure", suffix: str) -> bytes:
    """Return the figure as the bytes of a file. ``suffix``: .png or .svg."""
    import matplotlib

    data = io.BytesIO()
    if suffix == ".png":
        figure.savefig(data, format="png", dpi=150)
        return data.getvalue()
    with matplotlib.rc_context({"svg.hashsalt": "pltz"}):
        figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    return _themed(data.getvalue().decode()).encode()


def _themed(svg: str) -> str:
    """Return a drawing whose black and white are those of the reader's scheme."""
    colours = dict.fromkeys(INK, "currentColor") | dict.fromkeys(PAPER, "var(--paper)") | SHADES
    svg = re.sub(r"(?<=[:\" ])(#[0-9a-f]{6}|#[0-9a-f]{3}|black|white)(?=[;\"])", lambda m: colours.get(m[1], m[1]), svg)
    head = svg.index(">", svg.index("<svg")) + 1
    return svg[:head] + THEME + svg[head:]
