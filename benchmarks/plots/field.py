"""Draw field.json and field_sample.json: python benchmarks/plots/field.py

Each is the last line of a `pltz bench field --json`.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
RUNS = {"field": "unseen test sessions", "field_sample": "sample sessions"}


def draw(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw bits per byte against bytes per processor second, one panel per run. Encoding is hollow, decoding filled."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(runs), 4.5), layout="constrained")
    for axes, (name, found) in zip(
        figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True
    ):
        for number, coder in enumerate(found["coders"]):
            speeds = [coder["encode_bytes_per_s"], coder["decode_bytes_per_s"]]
            rate, colour = coder["bits_per_byte"], f"C{number}"
            axes.plot(speeds, [rate, rate], "-", color=colour, linewidth=1)
            axes.plot(speeds[:1], [rate], "o", color=colour, markerfacecolor="white")
            axes.plot(speeds[1:], [rate], "o", color=colour)
            axes.annotate(
                coder["name"],
                (max(speeds), rate),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set(
            xscale="log", xlabel="bytes per processor second: encode hollow, decode filled", ylabel="bits per byte"
        )
        axes.set_ylim(bottom=0)
        axes.margins(x=0.2)
        axes.set_title(
            f"{name}: {found['sessions']:,} sessions, {found['content_bytes'] / 1000:,.0f} kB", fontsize=9
        )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    kept = {title: RESULTS / f"{name}.json" for name, title in RUNS.items()}
    draw(
        {title: json.loads(path.read_text("utf8")) for title, path in kept.items() if path.exists()},
        RESULTS / "field.png",
    )
