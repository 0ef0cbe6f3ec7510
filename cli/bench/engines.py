"""Measure every CPU engine of this machine on the same session: torch, and the compiled engine per instruction set.

They take turns, round by round, and the best round of each counts. All frames are compared, so only engines that agree
get a table of speeds.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pltz.benchmarks.timing import Time, check, frame_items, timed
from pltz.cli.ui.table import render
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

    from pltz.models.session.parts import Coder
    from pltz.plt_codec.weights import Weights


def engines(weights: "Weights", threads: int | None) -> "dict[str, Coder]":
    """Return name and coder of each engine that runs here, the compiled ones first, fastest first."""
    from pltz.plt_codec.engines.native.coder import NativeCoder, kernels
    from pltz.plt_codec.engines.token_coder import TokenCoder
    from pltz.plt_codec.engines.torch import TorchEngine

    compiled: dict[str, Coder] = {f"compiled, {k}": NativeCoder(weights, threads, k) for k in kernels()}
    return compiled | {"torch": TokenCoder(TorchEngine(weights, "cpu", threads))}


def measure(
    coders: "dict[str, Coder]",
    session: "np.ndarray[Any, Any]",
    lanes: int,
    steps: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """Return the seconds that each coder takes to encode and decode a session, in wall and in processor time.

    Raises:
        ModelError: two coders give different frames, or a session is decoded wrongly.
    """
    found: dict[tuple[str, str], list[Time]] = {}
    frames = set()
    for _ in range(rounds):
        for name, coder in coders.items():
            spent, encoded = timed(partial(coder.encode, [session], lanes=lanes, steps=steps))
            found.setdefault((name, "encode"), []).append(spent)
            spent, decoded = timed(partial(coder.decode, frame_items(encoded, [session])))
            found.setdefault((name, "decode"), []).append(spent)
            check([session], decoded)
            frames.add(encoded[0].data)
    if len(frames) != 1:
        raise ModelError(f"engines give {len(frames)} frames for one session: expected equal ones, no speed is valid")
    return [
        {"engine": name}
        | {
            f"{way}{clock}_s": round(min(getattr(t, kind) for t in found[name, way]), 4)
            for way in ("encode", "decode")
            for clock, kind in (("", "wall"), ("_processor", "busy"))
        }
        for name in coders
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures as text: processor time, then wall time."""
    names = [f"{way}{clock}_s" for clock in ("_processor", "") for way in ("encode", "decode")]
    head = ["engine, seconds", "encode processor", "decode processor", "encode wall", "decode wall"]
    return render(head, [[row["engine"], *(f"{row[name]:.2f}" for name in names)] for row in rows])
