"""Draw the figure of measure_first_token.py with matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas
from pltz.benchmarks.plots.thaw import machine_of

DRAWN = "cold", "archive", "warm", "warm, small", "hot"


def lengths(results: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: seconds to the first token by the length of the session.

    There is one panel per target and machine, and one line per way.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        panels.setdefault(f"{result['target']}, {machine_of(result)}", []).append(result)
    figure = canvas.blank(suffix, 5 * len(panels), 4)
    for axes, (title, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        found.sort(key=lambda one: int(one["tokens"]))
        for number, way in enumerate(DRAWN):
            points = [(one["tokens"], row["s"]) for one in found for row in one["rows"] if row["way"] == way]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=f"C{number}", label=way)
        axes.set(xscale="log", yscale="log", xlabel="tokens of the session", ylabel="seconds to the first token")
        counts = [one["tokens"] for one in found]
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xticks([], minor=True)
        axes.set_title(title, fontsize=9)
        canvas.finish(axes, columns=3)
    return canvas.drawn(figure, suffix)
