"""Draw the figures of `pltz bench kv` and of measure_kv.py with matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pltz.benchmarks.plots import figure as canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OWN = "predictive"
TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)  # bits
LINE, COLUMN, TOP = 0.036, 0.82, 0.98  # height of a name, left of their column and its top, in parts of the axes
HIDDEN = ("control", "pca-2")  # outside of the figure: no loss, and all of it


def curves(results: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: KL against bits per element, one panel per result.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 5.5 * len(results), 4.2)
    for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        rows = [row for row in result["rows"] if row["form"] not in HIDDEN]
        own = sorted((row["bits"], row["kl"]) for row in rows if row["form"].startswith(OWN))
        axes.plot(*zip(*own, strict=True), "o-", color="C1", label=OWN, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="bits per element, all side data counted")
        others = [row for row in rows if not row["form"].startswith(OWN)]
        for row in others:
            colour = "C1" if row["form"] in ("q8", "q4") else "C0"
            axes.plot(row["bits"], row["kl"], "o", color=colour, markersize=4)
        least, most = axes.dataLim.x0 / 1.2, 4 * axes.dataLim.x1  # room for the column of names
        ticks = [bits for bits in TICKS if least <= bits <= most]
        axes.set_xticks(ticks, [f"{bits:g}" for bits in ticks])
        axes.set_xlim(least, most)
        axes.set_ylim(axes.get_ylim())
        _name(axes, [(row["form"], row["bits"], row["kl"]) for row in others])
        axes.set_ylabel("KL, bits per token")
        note = result.get("note", f"{result['sessions']} rows")
        axes.set_title(f"{result['target']}, {result['context']:,} tokens: {note}", fontsize=8)
        axes.grid(which="both", linewidth=0.2)
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)


def _name(axes: "Axes", points: Sequence[tuple[str, float, float]]) -> None:
    """Write names in a column at the right, in the order of the losses of their points, with a thin line to each."""
    to_axes = axes.transData + axes.transAxes.inverted()
    rows = sorted(points, key=lambda point: point[2])
    levels = list[float]()
    for _, bits, loss in rows:
        levels.append(max([float(to_axes.transform((bits, loss))[1]), *(levels[-1:] and [levels[-1] + LINE])]))
    top = TOP
    for number in reversed(range(len(levels))):  # down again where the column is too high
        levels[number] = min(levels[number], top)
        top = levels[number] - LINE
    line = {"arrowstyle": "-", "linewidth": 0.3, "color": "0.6"}
    for (name, bits, loss), level in zip(rows, levels, strict=True):
        place = (COLUMN, level)
        axes.annotate(
            name, (bits, loss), place, textcoords="axes fraction", fontsize=6, va="center", arrowprops=line
        )


def tiers(results: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: milliseconds of a thaw from each form and tier, one panel per result.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 6.5 * len(results), 4)
    for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        rows = sorted(result["rows"], key=lambda row: -row["ms"])
        for place, row in enumerate(rows):
            colour = "C1" if row["way"].startswith(OWN) else "C0"
            axes.hlines(place, 1, row["ms"], color=colour, linewidth=1.5)
            axes.plot(row["ms"], place, "o", color=colour)
            size = f", {row['bytes'] / 1e6:,.0f} MB" if row["bytes"] else ""
            text = f"{row['ms']:,.1f} ms{size}"
            axes.annotate(text, (row["ms"], place), (7, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_yticks(range(len(rows)), [row["way"] for row in rows])
        axes.set(xscale="log", xlabel="milliseconds, median")
        axes.set_xlim(1, 10 * max(row["ms"] for row in rows))
        axes.set_title(f"{result['shape']}, {result['tokens']:,} tokens, {result['machine']['device']}", fontsize=9)
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)
