"""Draw requests, bytes and dollars of simulate_scale.py against sessions, with matplotlib (extra ``plots``)."""

from collections.abc import Callable, Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas

REQUESTS = ("GET", "PUT", "LIST", "DELETE")


def costs(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file. Sizes that were not made are hollow.

    Raises UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 10, 4.4)
    values: dict[str, Callable[[dict[str, float]], float]] = {
        "requests": lambda cost: sum(cost[kind] for kind in REQUESTS),
        "bytes read and written": lambda cost: cost["read"] + cost["written"],
        "dollars": lambda cost: cost["dollars"],
    }
    for axes, (label, value) in zip(figure.subplots(1, len(values)), values.items(), strict=True):
        for name in rows[-1]["costs"]:
            mine = [row for row in rows if name in row["costs"]]
            counts, found = [row["sessions"] for row in mine], [value(row["costs"][name]) for row in mine]
            [drawn] = axes.plot(counts, found, label=name)
            for modelled, face in ((False, drawn.get_color()), (True, "none")):
                some = [n for n, row in enumerate(mine) if row["modelled"] == modelled]
                points = [counts[n] for n in some], [found[n] for n in some]
                axes.plot(*points, "o", color=drawn.get_color(), markerfacecolor=face, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="sessions in the archive", ylabel=label)
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)
