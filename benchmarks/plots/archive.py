"""Draw the figures of `python -m pltz.experiments archive` with matplotlib (extra ``plots``).

`sharing` draws bytes per session against sessions, as the paper's Table 1. `growth` draws sessions that grow.
"""

from collections.abc import Sequence
from typing import Any

from pltz.benchmarks.plots import figure as canvas


def sharing(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file. ``suffix``: .png or .svg. Raises UsageError for another."""
    figure = canvas.blank(suffix, 6, 4)
    axes = figure.subplots()
    for kind in dict.fromkeys(row["prompts"] for row in rows):
        mine = [row for row in rows if row["prompts"] == kind]
        axes.plot(
            [row["sessions"] for row in mine],
            [row["bytes_per_session"] for row in mine],
            marker="o",
            linestyle="--" if kind is None else "-",
            label="flat" if kind is None else f"{kind} shared prompt{'s' * (kind > 1)}",
        )
    axes.set(xscale="log", xlabel="sessions", ylabel="bytes per session, every file counted")
    canvas.finish(axes)
    return canvas.drawn(figure, suffix)


def growth(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: bytes stored and seconds spent, per session, as turns arrive.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 9, 4)
    stored, spent = figure.subplots(1, 2)
    for row in rows:
        tokens, marker = row["tokens_after_put"], "o" if row["puts"] == 1 else "."
        label = row["way"] if row["sessions"] == 1 else f"{row['sessions']} sessions {row['way']}"
        stored.plot(tokens, row["bytes_per_session_after_put"], "-", marker=marker, label=label)
        seconds = [s / row["sessions"] for s in row["seconds_after_put"]]
        spent.plot(tokens, seconds, "-", marker=marker, label=label)
    stored.set(xlabel="tokens of a session", ylabel="bytes per session, every file counted")
    spent.set(xlabel="tokens of a session", ylabel="seconds per session, all puts so far")
    for axes in (stored, spent):
        axes.set_xlim(left=0)
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)
