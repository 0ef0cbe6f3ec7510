"""Draw bytes per session against sessions, as the paper's Table 1, with matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas


def sharing(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file. ``suffix``: .png or .svg. Raises UsageError for another."""
    figure = canvas.blank(suffix, 6, 4)
    axes = figure.subplots()
    for kind in dict.fromkeys(row["prompts"] for row in rows):
        mine = [row for row in rows if row["prompts"] == kind]
        axes.plot(
            [row["sessions"] for row in mine],
            [row["bytes_per_session"] for row in mine],
            marker="o",
            linestyle="--" if kind is None else "-",
            label="flat" if kind is None else f"{kind} shared prompt{'s' * (kind > 1)}",
        )
    axes.set(xscale="log", xlabel="sessions", ylabel="bytes per session, every file counted")
    axes.set_ylim(bottom=0)
    axes.legend()
    return canvas.drawn(figure, suffix)
