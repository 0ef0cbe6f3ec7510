"""Draw speed.json, speed_avx2.json and speed_cuda.json, all at once: python benchmarks/plots/speed.py

Each is the line of JSON of one command:

    cd benchmarks/results
    pltz bench speed --threads 1 --rounds 6 --linear 1048576 --llama --engines --startup --json > speed.json
    pltz bench speed --threads 1 --rounds 3 --linear 262144 --llama --engines --startup --json > speed_avx2.json
    pltz bench speed --device cuda --together 1,4,16,1024 --rounds 2 --linear 1048576 --json > speed_cuda.json

A panel is left out where a run did not measure it: the CUDA engine counts no stages, and --linear and --engines are
optional.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
WAYS = ("encode", "decode")


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw tokens/s by sessions together, microseconds per token by stage and by length, and seconds by engine."""
    from matplotlib.figure import Figure

    counted = all(row[f"{way}_us_per_token"] for row in found["rows"] for way in WAYS)
    panels = [
        (rates, found["rows"], True),
        (stages, found["rows"], counted),
        (costs, found["linear"], bool(found["linear"])),
        (engines, found.get("engines"), bool(found.get("engines"))),
    ]
    shown = [(panel, data) for panel, data, measured in panels if measured]
    figure = Figure(figsize=(4 * len(shown), 3.5), layout="constrained")
    for axes, (panel, data) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        panel(axes, data)
        axes.legend()
    on = found["machine"]
    cpu = f"{on['cpu']}, {on['threads']} thread(s), {on['engine']}"
    figure.suptitle(cpu if on["device"] == "cpu" else on["device"], fontsize=9)
    figure.savefig(path, dpi=110)


def rates(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw tokens/s by sessions together."""
    for way in WAYS:
        together = [str(row["sessions"]) for row in rows]
        axes.plot(together, [row[f"{way}_tokens_per_s"] for row in rows], "o-", label=way)
    axes.set(xlabel="sessions side by side", ylabel="tokens/s")
    axes.set_ylim(bottom=0)


def stages(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw microseconds per token, with the stages stacked."""
    bars = [(f"{way}\n{row['sessions']}", row[f"{way}_us_per_token"]) for way in WAYS for row in rows]
    floor = [0.0] * len(bars)
    for stage in bars[0][1]:
        height = [split[stage] for _, split in bars]
        axes.bar([name for name, _ in bars], height, bottom=floor, label=stage)
        floor = [a + b for a, b in zip(floor, height, strict=True)]
    axes.set(ylabel="µs per token")


def costs(axes: Any, lengths: list[dict[str, Any]]) -> None:
    """Draw microseconds per token by length of one session."""
    for way in WAYS:
        cost = [1e6 * one[f"{way}_processor_s"] / one["tokens"] for one in lengths]
        axes.plot([one["tokens"] for one in lengths], cost, "o-", label=way)
    axes.set(xlabel="tokens of one session", ylabel="processor µs per token", xscale="log")
    axes.set_ylim(bottom=0)


def engines(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw processor seconds of one session by engine, from 0.01 s up."""
    for i, way in enumerate(WAYS):
        places = [n + 0.4 * i for n in range(len(rows))]
        axes.barh(places, [row[f"{way}_processor_s"] for row in rows], height=0.4, label=way)
    axes.set_yticks([n + 0.2 for n in range(len(rows))], [row["engine"] for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="seconds of the processor, one session", xscale="log")
    axes.xaxis.set_minor_formatter("")


if __name__ == "__main__":
    for name in ("speed", "speed_avx2", "speed_cuda"):
        draw(json.loads((RESULTS / f"{name}.json").read_text("utf8")), RESULTS / f"{name}.png")
