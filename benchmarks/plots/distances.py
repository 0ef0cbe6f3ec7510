"""Draw the matrix of measure_distances.py with matplotlib (extra ``plots``)."""

from typing import Any

import numpy as np

from pltz.benchmarks.plots import figure as canvas


def heat(result: dict[str, Any], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: bytes of each session after each other one, over its bytes alone.

    The sessions stand group by group. Raises UsageError: ``suffix`` is neither .png nor .svg.
    """
    count, groups = len(result["alone"]), result["groups"]
    order = sorted(range(count), key=lambda n: (n % groups, n))
    share = np.array(result["after"], float) / np.array(result["alone"], float)[:, None]
    share = share[np.ix_(order, order)]
    np.fill_diagonal(share, np.nan)  # a session is no neighbour of itself
    figure = canvas.blank(suffix, 5.6, 4.6)
    axes = figure.subplots()
    image = axes.imshow(share, cmap="viridis", interpolation="none")
    ends = np.cumsum([sum(n % groups == g for n in range(count)) for g in range(groups)])
    middles = (ends + np.concatenate([[0], ends[:-1]])) / 2 - 0.5
    names = [f"group {g + 1}" for g in range(groups)]
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.set(xlabel="coded after", ylabel=f"{count} {result['source']}")
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("bytes, over the bytes alone", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    axes.set_title("d_T: bytes of one session after another")
    canvas.finish(axes)
    axes.set_ylim(count - 0.5, -0.5)
    return canvas.drawn(figure, suffix)


def within(result: dict[str, Any]) -> dict[str, float]:
    """Return mean bytes alone, after one of the same group, and after one of another, and after the nearest of each."""
    count, groups = len(result["alone"]), result["groups"]
    after = np.array(result["after"], float)
    group = np.arange(count) % groups
    same = (group[:, None] == group[None, :]) & ~np.eye(count, dtype=bool)
    other = group[:, None] != group[None, :]
    return {
        "alone": float(np.mean(result["alone"])),
        "same group": float(after[same].mean()),
        "another group": float(after[other].mean()),
        "nearest": float(np.where(same | other, after, np.inf).min(axis=1).mean()),
    }
