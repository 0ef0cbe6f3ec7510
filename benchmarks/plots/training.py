"""Draw the loss of a training run with matplotlib (extra ``plots``)."""

from typing import Any

import numpy as np

from pltz.benchmarks.plots import figure as canvas

NEAR = 9  # lines of the log in a mean


def loss(result: dict[str, Any], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: bits per token of the training data, and a running mean, by tokens.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    tokens = np.array(result["steps"]) * result["tokens_per_step"] / 1e6
    bits = np.array(result["bits_per_token"])
    figure = canvas.blank(suffix, 6.4, 3.6)
    axes = figure.subplots()
    axes.plot(tokens, bits, ".", color="C0", markersize=3, alpha=0.5, label="a few seconds")
    mean = np.convolve(bits, np.ones(NEAR) / NEAR, "valid")
    axes.plot(tokens[NEAR // 2 : NEAR // 2 + len(mean)], mean, "-", color="C1", label=f"mean of {NEAR}")
    axes.set(xlabel="million tokens", ylabel="bits per token, training data", title=result["run"])
    canvas.finish(axes)
    return canvas.drawn(figure, suffix)
