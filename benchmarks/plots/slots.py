"""Draw the figure of measure_slots.py with matplotlib (extra ``plots``)."""

from typing import Any

from pltz.benchmarks.plots import figure as canvas


def sizes(result: dict[str, Any], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: bytes of plain slot files and of what is kept, against bots.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 6, 3.6)
    axes = figure.subplots()
    rows = result["rows"]
    bots = [row["bots"] for row in rows]
    for name, label in (("plain", "plain slot files"), ("kept", "one base and deltas")):
        axes.plot(bots, [row[name] for row in rows], "o-", markersize=4, label=label)
    for row in rows:
        share = f"{row['kept'] / row['plain']:.1%}"
        axes.annotate(share, (row["bots"], row["kept"]), (0, -12), textcoords="offset points", ha="center", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="bots", ylabel="bytes")
    axes.set_ylim(min(row["kept"] for row in rows) / 2, 2 * max(row["plain"] for row in rows))
    axes.set_title(f"{result['target']}, {result['platform_tokens']:,} tokens of the platform's prompt")
    canvas.finish(axes)
    return canvas.drawn(figure, suffix)
