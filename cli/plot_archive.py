"""Bytes a session against sessions, as the paper's Table 1, drawn with matplotlib (extra ``plots``)."""

import io
from collections.abc import Sequence
from typing import Any

from pltz.plt_codec.errors import UsageError


def sharing(rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """The figure's file. ``suffix``: .png or .svg. Raises UsageError."""
    if suffix not in (".png", ".svg"):
        raise UsageError(f"cannot draw {suffix or 'a file without suffix'}: name a .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise UsageError("drawing needs matplotlib: pip install 'pltz[plots]'") from exc
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind in dict.fromkeys(row["prompts"] for row in rows):
        mine = [row for row in rows if row["prompts"] == kind]
        axes.plot(
            [row["sessions"] for row in mine],
            [row["bytes_a_session"] for row in mine],
            marker="o",
            linestyle="--" if kind is None else "-",
            label="flat" if kind is None else f"{kind} shared prompt{'s' * (kind > 1)}",
        )
    axes.set(xscale="log", xlabel="sessions", ylabel="bytes a session, every file counted")
    axes.set_ylim(bottom=0)
    axes.legend()
    data = io.BytesIO()
    figure.savefig(data, format=suffix[1:], dpi=150)
    return data.getvalue()
