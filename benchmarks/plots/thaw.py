"""Draw the figures of `python -m pltz.experiments thaw` with matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas

THAWS = "thaw", "thaw, fast layout"  # the thaws of a cold session


def ways(results: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: milliseconds of each way to the KV, one panel per machine.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 11, 4.2)
    for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        rows = result["rows"][::-1]
        least = min(row["ms"] for row in rows) / 2
        for place, row in enumerate(rows):
            colour = "C1" if row["way"] in THAWS else "C0"
            axes.hlines(place, least, row["ms"], color=colour, linewidth=1.5)
            axes.plot(row["ms"], place, "o", color=colour)
            text = f"{row['ms']:,.1f} ms, {stored(row['stored_bytes'])}"
            axes.annotate(
                text, (row["ms"], place), (7, 0), textcoords="offset points", va="center", fontsize=7
            )
        axes.set_yticks(range(len(rows)), [row["way"] for row in rows])
        axes.set(xscale="log", xlabel="milliseconds")
        axes.set_xlim(least, 100 * max(row["ms"] for row in rows))
        fast = f", fast layout {result['fast_over_prefill']:.2f}" if "fast_over_prefill" in result else ""
        axes.set_title(
            f"{result['shape']}, {result['tokens']:,} tokens\n"
            f"{machine_of(result)}: thaw / prefill = {result['thaw_over_prefill']:.2f}{fast}",
            fontsize=9,
        )
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)


def turns(results: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: thaw over prefill by the turns that a session was archived in.

    There is one panel per machine and shape, and one line per bundle and layout.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        panels.setdefault(f"{result['shape']}, {result['tokens']:,} tokens, {machine_of(result)}", []).append(result)
    figure = canvas.blank(suffix, 5 * len(panels), 4)
    for axes, (title, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for result in found:
            kinds = dict.fromkeys((row["layout"], _lying(row)) for row in result["turns"])
            for layout, lying in kinds:
                rows = [r for r in result["turns"] if (r["layout"], _lying(r)) == (layout, lying)]
                name = f"{result.get('bundle_name', 'mini')}, {layout} layout{'' if lying == 'apart' else f', {lying}'}"
                style = {"apart": "o-", "joined": "o:", "merged": "o--"}[lying]
                axes.plot([row["turns"] for row in rows], [row["over_prefill"] for row in rows], style, label=name)
        counts = sorted({row["turns"] for result in found for row in result["turns"]})
        axes.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xscale="log", xlabel="turns in which the session was archived", ylabel="thaw / bare prefill")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xticks([], minor=True)
        axes.set(yscale="log")
        axes.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        axes.set_yticks([], minor=True)
        axes.set_title(title, fontsize=9)
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)


def _lying(row: dict[str, Any]) -> str:
    """Return how the turns of a row lie. Results before 2026-11-28 only say whether they were merged."""
    before = "merged" if row.get("merged") else "apart"
    return str(row.get("turns_are", before))


def machine_of(result: dict[str, Any]) -> str:
    """Return the name of the GPU, or of the processor."""
    on = result["machine"]
    return str(on["cpu"] if on["device"] == "cpu" else on["device"])


def stored(count: int) -> str:
    """Return the bytes stored for a way, as text."""
    if not count:
        return "nothing stored"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count:,} B"
