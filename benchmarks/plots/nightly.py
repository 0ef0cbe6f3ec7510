"""Draw peak memory and speed of nights against sessions, with matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas


def growth(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file. ``suffix``: .png or .svg. Raises UsageError for another."""
    figure = canvas.blank(suffix, 9, 3.6)
    memory, speed = figure.subplots(1, 2)
    for night, style in (("new", "-"), ("known", "--")):
        mine = [row for row in rows if row["night"] == night]
        counts = [row["sessions"] for row in mine]
        label = "a night with new sessions" if night == "new" else "a night with nothing new"
        memory.plot(counts, [row["peak_memory_mb"] for row in mine], style, marker="o", label=label)
        memory.plot(
            counts,
            [row["freeze_peak_memory_mb"] for row in mine],
            ":",
            marker=".",
            label=f"{label}: freezing",
        )
        speed.plot(counts, [row["per_s"] for row in mine], style, marker="o", label=label)
    memory.set(xscale="log", xlabel="sessions in the source", ylabel="peak memory, MB")
    speed.set(xscale="log", yscale="log", xlabel="sessions in the source", ylabel="sessions per second")
    memory.set_ylim(bottom=0)
    memory.legend()
    speed.legend()
    return canvas.drawn(figure, suffix)
