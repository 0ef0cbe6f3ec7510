"""Draw thaw.json as thaw.png: python benchmarks/plots/thaw.py

thaw.json holds two lines of `pltz bench thaw --json`, first of a GPU, then of a CPU.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
THAWS = "thaw", "thaw, fast layout"  # the thaws of a cold session


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw one panel per machine: milliseconds of each way to the KV, as bars, with the bytes stored for it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        rows = result["rows"][::-1]
        bars = axes.barh([row["way"] for row in rows], [row["ms"] for row in rows], color="C0")
        for bar, row in zip(bars, rows, strict=True):
            bar.set_color("C1" if row["way"] in THAWS else "C0")
        labels = [f" {row['ms']:,.1f} ms, {stored(row['stored_bytes'])}" for row in rows]
        axes.bar_label(bars, labels, fontsize=7)
        axes.set(xscale="log", xlabel="milliseconds")
        axes.set_xlim(right=30 * max(row["ms"] for row in rows))
        axes.tick_params(labelsize=7)
        on = result["machine"]
        name = on["cpu"] if on["device"] == "cpu" else on["device"]
        fast = f", fast layout {result['fast_over_prefill']:.2f}" if "fast_over_prefill" in result else ""
        axes.set_title(
            f"{result['shape']}, {result['tokens']:,} tokens\n"
            f"{name}: thaw / prefill = {result['thaw_over_prefill']:.2f}{fast}",
            fontsize=9,
        )
    figure.savefig(path, dpi=120)


def stored(count: int) -> str:
    """Return the bytes stored for a way, as text."""
    if not count:
        return "nothing stored"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count:,} B"


if __name__ == "__main__":
    lines = (RESULTS / "thaw.json").read_text("utf8").splitlines()
    draw([json.loads(line) for line in lines], RESULTS / "thaw.png")
