"""Draw the figure of learned_kv, decoders of tokens to KV, with matplotlib (extra ``plots``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas

ENDS = {"another session": "the KV of another session", "q4": "q4, which is stored"}
AIM = 0.1  # KL that the issue asked for


def curve(results: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: KL of each decoder against its share of the prefill's compute.

    There is one panel per target, and one mark per run: trained, or with readers solved alone. Raises UsageError:
    ``suffix`` is neither .png nor .svg.
    """
    targets = list(dict.fromkeys(one["target"] for one in results))
    figure = canvas.blank(suffix, 5.4 * len(targets), 4.4)
    for axes, target in zip(figure.subplots(1, len(targets), squeeze=False)[0], targets, strict=True):
        runs = [one for one in results if one["target"] == target]
        for number, (trained, label) in enumerate(((True, "trained"), (False, "readers solved alone"))):
            points = [
                (100 * row["share"], row["loss"]["kl"], row["name"])
                for run in runs for row in run["decoders"]
                if "loss" in row and (row["trained"]["steps"] > 0) == trained
            ]  # fmt: skip
            if points:
                x, y, _ = zip(*points, strict=True)
                axes.plot(x, y, "so"[trained], color=f"C{number}", label=label)
            for n, (share, kl, name) in enumerate(sorted(points)):  # above right, then below left
                at, side = (((3, 5), "left"), ((-3, -11), "right"))[n % 2]
                axes.annotate(name, (share, kl), at, textcoords="offset points", ha=side, fontsize=6)
        found = {row["form"]: row["kl"] for run in runs for row in run.get("ends", [])}
        for number, (name, label) in enumerate(ENDS.items()):
            if name in found:
                axes.axhline(found[name], color=f"C{2 + number}", linestyle="--", linewidth=1, label=label)
        axes.axhline(AIM, color="grey", linewidth=0.6)
        axes.set(xlim=(0, 105), yscale="log", xlabel="compute, % of the prefill", ylabel="KL, bits per token")
        axes.set_title(target)
        canvas.finish(axes)
        axes.yaxis.set_major_formatter("{x:g}")
    return canvas.drawn(figure, suffix)
