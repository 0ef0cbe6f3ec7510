"""Draw the figure of one `python -m pltz.benchmarks speed` with matplotlib (extra ``plots``).

A panel is left out where a run did not measure it: the CUDA engine counts no stages, and --linear and --engines are
optional.
"""

from typing import Any

from pltz.benchmarks.plots import figure as canvas

WAYS = ("encode", "decode")


def panels(found: dict[str, Any], suffix: str) -> bytes:
    """Return the figure as the bytes of a file.

    It has tokens/s by sessions together, microseconds per token by stage and by length, and seconds by engine.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    counted = all(row[f"{way}_us_per_token"] for row in found["rows"] for way in WAYS)
    every = [
        (rates, found["rows"], True),
        (stages, found["rows"], counted),
        (costs, found["linear"], bool(found["linear"])),
        (engines, found.get("engines"), bool(found.get("engines"))),
    ]
    on = found["machine"]
    shown = [(panel, data) for panel, data, measured in every if measured]
    figure = canvas.blank(suffix, 4 * len(shown), 4.2)
    for axes, (panel, data) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        panel(axes, data)
        if on["device"] != "cpu":
            axes.set_xlabel(axes.get_xlabel().replace("CPU ", ""))
            axes.set_ylabel(axes.get_ylabel().replace("CPU ", ""))
        canvas.finish(axes)
    threads = "1 thread" if on["threads"] == 1 else f"{on['threads']} threads"
    cpu = f"{on['cpu']}, {threads}, {on['engine']}"
    figure.suptitle(cpu if on["device"] == "cpu" else on["device"], fontsize=9)
    return canvas.drawn(figure, suffix)


def rates(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw tokens/s by sessions together."""
    for way in WAYS:
        together = [str(row["sessions"]) for row in rows]
        axes.plot(together, [row[f"{way}_tokens_per_s"] for row in rows], "o-", label=way)
    axes.set(xlabel="sessions side by side", ylabel="tokens/s")


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
    axes.set(xlabel="tokens of one session", ylabel="CPU µs per token", xscale="log")


def engines(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw CPU seconds of one session by engine, as points on a logarithmic axis."""
    for way in WAYS:
        seconds = [row[f"{way}_processor_s"] for row in rows]
        axes.plot(seconds, range(len(rows)), "o", label=way)
    axes.set_yticks(range(len(rows)), [row["engine"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", linewidth=0.3)
    axes.set(xlabel="CPU seconds, one session", xscale="log")
