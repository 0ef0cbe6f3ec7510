"""Draw the figure of `python -m pltz.experiments joint` with matplotlib (extra ``plots``)."""

from typing import Any

from pltz.benchmarks.plots import figure as canvas

LEAST = 1e-5  # KL below which a point stands at the lower edge
NAMES = {
    "bff": "blocks of 8 sessions fused",
    "bff, centred": "the same, without the mean key",
    "cff": "8 chunks of a session fused",
}


def losses(result: dict[str, Any], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: KL against bits per element, of fused blocks and of smaller forms.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 7, 4.2)
    axes = figure.subplots()
    for strategy, label in NAMES.items():
        rows = sorted((one for one in result["fused"] if one["strategy"] == strategy), key=lambda one: one["bits"])
        axes.plot([one["bits"] for one in rows], [_kl(one) for one in rows], "o-", markersize=3, label=label)
    forms: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(result["forms"], key=lambda one: one["bits"]):
        forms.setdefault(one["form"].split()[0], []).append(one)
    for name, rows in forms.items():
        axes.plot([one["bits"] for one in rows], [_kl(one) for one in rows], "s--", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bits per number of KV, all bytes", ylabel="KL, bits per token")
    axes.set_title(f"{result['target']}, {result['rows']} contexts of {result['context']} tokens")
    canvas.finish(axes, columns=3)
    return canvas.drawn(figure, suffix)


def _kl(one: dict[str, Any]) -> float:
    return max(float(one["kl"]), LEAST)
