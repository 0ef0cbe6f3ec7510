"""Draw the figure of `python -m pltz.experiments stack` with matplotlib (extra ``plots``)."""

from typing import Any

from pltz.benchmarks.plots import figure as canvas

SERIES = {"kv_alone": "KV, each session its own", "kv": "KV, shared", "coded": "coded tokens"}


def both(result: dict[str, Any], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: bytes at every level to the left, milliseconds to the right.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 11, 4)
    left, right = figure.subplots(1, 2)
    levels = result["levels"]
    for place, (name, label) in enumerate(SERIES.items()):
        places = [n + 0.27 * (place - 1) for n in range(len(levels))]
        left.barh(places, [row[name] for row in levels], 0.25, label=label)
    segments = [f"{row['segments']:,} {row['level']}{'s' * (row['segments'] > 1)}" for row in levels]
    left.set_yticks(range(len(levels)), [name.replace("communitys", "communities") for name in segments])
    left.invert_yaxis()
    left.set(xscale="log", xlabel="bytes")
    left.set_title(f"{result['target']}, {result['kv_per_token']:,} bytes of KV per token")
    tiers = result["tiers"][::-1]
    least = min(row["ms"] for row in tiers) / 2
    for place, row in enumerate(tiers):
        right.hlines(place, least, row["ms"], color="C0", linewidth=1.5)
        right.plot(row["ms"], place, "o", color="C0")
        text = f"{row['ms']:,.1f} ms"
        right.annotate(text, (row["ms"], place), (7, 0), textcoords="offset points", va="center", fontsize=7)
    right.set_yticks(range(len(tiers)), [row["tier"] for row in tiers])
    right.set(xscale="log", xlabel="milliseconds to a session's KV")
    right.set_xlim(least, 10 * max(row["ms"] for row in tiers))
    for axes in (left, right):
        canvas.finish(axes, columns=1)
    return canvas.drawn(figure, suffix)
