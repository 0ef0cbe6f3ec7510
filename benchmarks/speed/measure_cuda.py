"""Test and measure the CUDA engine on a GPU: `python -m pltz.benchmarks.speed.measure_cuda [--bundle BUNDLE]`.

Frames are compared with those of the compiled CPU engine (of torch on the GPU where that is not built). Then
encoding and decoding are timed, also of sessions that grew in turns (the best of some runs, host time included),
then each kernel of one batch. Without a bundle the weights are random, in the shape of one. Encoding is compared
with `torch._int_mm` on the same matrices in the same run. It ends with a line of JSON. Unlike
`python -m pltz.benchmarks speed` it needs no text and times each kernel.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pltz.benchmarks.random_weights import random_weights
from pltz.benchmarks.speed.products import Products
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.engines.cuda.coder import CudaCoder
from pltz.plt_codec.engines.cuda.rows import ROWS
from pltz.plt_codec.engines.native.coder import NativeCoder, available
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.lanes import layout_of
from pltz.plt_codec.types import FrameItem
from pltz.plt_codec.weights import Weights

SHAPES: dict[str, dict[str, int | bool]] = {
    "mini": {"d": 384, "layers": 7, "heads": 6, "kv_heads": 3, "head_dim": 64, "hidden": 1664, "memory": 2048},
    "base": {
        "gated": True, "d": 576, "layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64,
        "hidden": 1536, "memory": 1024,
    },
}  # fmt: skip
CHECKED = 8  # sessions compared with another engine
T = TypeVar("T")


class Timed:
    """A CudaDevice that waits for each kernel and adds up its milliseconds."""

    def __init__(self, device: gpu.CudaDevice):
        self._device = device
        self.spent: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, kernel: str, *args: Any, **options: Any) -> None:
        """Start a kernel and wait for it."""
        cu, stream = self._device._cu, self._device._stream
        events = [gpu._ask(cu.cuEventCreate(0)) for _ in range(2)]
        cu.cuEventRecord(events[0], stream)
        self._device.launch(kernel, *args, **options)
        cu.cuEventRecord(events[1], stream)
        cu.cuEventSynchronize(events[1])
        self.spent.setdefault(kernel, []).append(float(gpu._ask(cu.cuEventElapsedTime(*events))))
        for event in events:
            cu.cuEventDestroy(event)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work itself instead of a graph, whose kernels could not be timed apart."""
        return work

    def report(self, title: str) -> None:
        """Print the times and reset them."""
        print(title)
        for kernel, spent in sorted(self.spent.items(), key=lambda item: -sum(item[1])):
            print(f"  {kernel:14} {sum(spent):9.2f} ms  {len(spent):6} times  {1000 * sum(spent) / len(spent):9.1f} us")
        self.spent = {}


def timed(work: Callable[[], T], repeats: int = 3) -> tuple[T, float]:
    """Return the result and the seconds of the fastest run."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def other_engine(weights: Weights) -> NativeCoder | TokenCoder:
    """Return the engine to compare with: the compiled one, or torch on the GPU."""
    return NativeCoder(weights) if available() else TokenCoder(TorchEngine(weights, "cuda"))


def grown(
    coder: CudaCoder, sessions: list[npt.NDArray[np.int64]], turns: int, fast: bool, repeats: int
) -> dict[str, float]:
    """Return the tokens per second of sessions, (T,) each, that come in turns: all sessions' first turns, and so on.

    Each turn is coded after the tokens of those before it. Raises AssertionError where one does not decode.
    """
    ends = [len(sessions[0]) * n // turns for n in range(turns + 1)]
    spans = list(itertools.pairwise(ends))
    contexts = [[s[max(0, begin - coder.shape.memory) : begin] for s in sessions] for begin, _ in spans]

    def encode() -> list[list[FrameItem]]:
        out = []
        for (begin, end), known in zip(spans, contexts, strict=True):
            layout = layout_of(end - begin, fast=fast)
            parts = [s[begin:end] for s in sessions]
            frames = coder.encode(parts, layouts=layout, contexts=known)
            out.append([FrameItem(f.data, end - begin, layout, c) for f, c in zip(frames, known, strict=True)])
        return out

    items, encode_seconds = timed(encode, repeats)
    decoded, decode_seconds = timed(lambda: [coder.decode(turn) for turn in items], repeats)
    for n, session in enumerate(sessions):
        assert np.array_equal(np.concatenate([turn[n] for turn in decoded]), session)
    total = sum(map(len, sessions))
    return {"encode": total / encode_seconds, "decode": total / decode_seconds}


def main() -> None:
    """Run the command line described at the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", help="bundle, a name or a folder (default: random weights)")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="mini", help="of the random weights")
    parser.add_argument("--sessions", type=int, default=1024, help="sessions coded together")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per session")
    parser.add_argument("--turns", type=int, default=8, help="turns of the sessions that grew")
    parser.add_argument("--repeats", type=int, default=2, help="runs, of which the fastest counts")
    parser.add_argument("--kernels", action="store_true", help="time each kernel too")
    options = parser.parse_args()
    weights = (
        Bundle.load(options.bundle).weights
        if options.bundle
        else random_weights(1, vocab=16384, block=4096, **SHAPES[options.shape])  # type: ignore[arg-type]
    )
    out: dict[str, Any] = {}

    def found(**figures: float) -> None:
        out.update(figures)
        print(*(f"{name} {value:.6g}" for name, value in figures.items()), flush=True)

    start = time.perf_counter()
    coder = CudaCoder(weights)
    found(start_s=time.perf_counter() - start, clusters=coder._device.clusters)
    rng = np.random.default_rng(1)
    sessions = [rng.integers(0, weights.shape.vocab, options.tokens) for _ in range(options.sessions)]
    coder.encode(sessions[:CHECKED])  # warm
    frames, seconds = timed(lambda: coder.encode(sessions), options.repeats)
    found(encode_tokens_s=options.sessions * options.tokens / seconds)
    products = Products(weights, ROWS, "cuda")
    rate = products.macs / products.seconds()
    ours = weights.shape.macs * out["encode_tokens_s"]
    found(int_mm_gmacs_s=rate / 1e9, encode_over_int_mm=ours / rate)
    want = other_engine(weights).encode(sessions[:CHECKED])
    found(same_frames=all(a.data == b.data for a, b in zip(want, frames, strict=False)))
    items = [FrameItem(f.data, options.tokens) for f in frames]
    right = True
    for name, count in (("one", 1), ("eight", 8), ("many", options.sessions)):
        got, seconds = timed(partial(coder.decode, items[:count]), options.repeats + (count < 100))
        right = right and all(np.array_equal(a, b) for a, b in zip(got, sessions, strict=False))
        found(**{f"decode_{name}_s": seconds, f"decode_{name}_tokens_s": count * options.tokens / seconds})
    found(same_tokens=right)
    for name in ("default", "fast"):
        for way, rate in grown(coder, sessions, options.turns, name == "fast", options.repeats).items():
            found(**{f"{options.turns}_turns_{name}_{way}_tokens_s": rate})
    if options.kernels and isinstance(coder._device, gpu.CudaDevice):
        clock = Timed(coder._device)
        coder._device = coder.model.device = clock
        coder.encode(sessions[: options.sessions // 4])
        clock.report("encode")
        coder.decode(items[: options.sessions // 4])
        clock.report("decode")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
