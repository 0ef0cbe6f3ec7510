"""Draw peak memory and speed of nights against sessions, with matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas


def growth(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 9, 4.2)
    memory, speed = figure.subplots(1, 2)
    for night, style in (("new", "-"), ("known", "--")):
        mine = [row for row in rows if row["night"] == night]
        counts = [row["sessions"] for row in mine]
        label = "new sessions" if night == "new" else "nothing new"
        memory.plot(counts, [row["peak_memory_mb"] for row in mine], style, marker="o", label=label)
        freezing = [row["freeze_peak_memory_mb"] for row in mine]
        memory.plot(counts, freezing, ":", marker=".", label=f"{label}, freezing alone")
        speed.plot(counts, [row["per_s"] for row in mine], style, marker="o", label=label)
    memory.set(xscale="log", xlabel="sessions in the source", ylabel="peak memory of a night, MB")
    speed.set(xscale="log", yscale="log", xlabel="sessions in the source", ylabel="sessions per second")
    memory.set_ylim(top=1.1 * max(row["peak_memory_mb"] for row in rows))
    for axes in (memory, speed):
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)
