"""Draw thaw.json, lines of `pltz bench thaw --json` (a GPU's first, a CPU's second), as thaw.png: python benchmarks/plot_thaw.py"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "results"
THAWS = "thaw", "thaw, fast layout"  # of a session that is cold


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """A panel a machine: milliseconds of each way to the KV, as bars, with the bytes stored for it."""
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
            f"{result['shape']}, {result['tokens']:,} tokens\n{name}: thaw / prefill = {result['thaw_over_prefill']:.2f}{fast}",
            fontsize=9,
        )
    figure.savefig(path, dpi=120)


def stored(count: int) -> str:
    """Bytes kept for a way."""
    if not count:
        return "nothing stored"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count:,} B"


if __name__ == "__main__":
    lines = (HERE / "thaw.json").read_text("utf8").splitlines()
    draw([json.loads(line) for line in lines], HERE / "thaw.png")
