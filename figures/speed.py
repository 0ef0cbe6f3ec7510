"""Draw speed.json and speed_cuda.json, each the last line of a `pltz bench speed --linear N --json`: python figures/speed.py"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def draw(found: dict[str, Any], path: Path) -> None:
    """Tokens/s by sessions together; microseconds a token by stage; by length of one session."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    rates, stages, costs = figure.subplots(1, 3)
    for way in ("encode", "decode"):
        together = [str(row["sessions"]) for row in found["rows"]]
        rates.plot(together, [row[f"{way}_tokens_per_s"] for row in found["rows"]], "o-", label=way)
        lengths = [one["tokens"] for one in found["linear"]]
        costs.plot(
            lengths,
            [1e6 * one[f"{way}_processor_s"] / one["tokens"] for one in found["linear"]],
            "o-",
            label=way,
        )
    bars = [
        (f"{way}\n{row['sessions']}", row[f"{way}_us_per_token"])
        for way in ("encode", "decode")
        for row in found["rows"]
    ]
    floor = [0.0] * len(bars)
    for stage in bars[0][1]:
        height = [split[stage] for _, split in bars]
        stages.bar([name for name, _ in bars], height, bottom=floor, label=stage)
        floor = [a + b for a, b in zip(floor, height, strict=True)]
    stages.set(ylabel="µs a token")
    rates.set(xlabel="sessions side by side", ylabel="tokens/s")
    costs.set(xlabel="tokens of one session", ylabel="µs of the processor a token", xscale="log")
    for axes in (rates, stages, costs):
        axes.set_ylim(bottom=0)
        axes.legend()
    on = found["machine"]
    cpu = f"{on['cpu']}, {on['threads']} thread(s), {on['engine']}"
    figure.suptitle(cpu if on["device"] == "cpu" else on["device"], fontsize=9)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    for name in ("speed", "speed_cuda"):
        draw(json.loads((HERE / f"{name}.json").read_text("utf8")), HERE / f"{name}.png")
