"""Tests and measures the CUDA engine on the GPU at hand: `python -m pltz.plt_codec.cuda.measure [--bundle FOLDER]`.

Frames are compared with the compiled CPU engine's, then decoding and encoding are timed (best of three, host time included),
then each kernel of one batch. Without a bundle: random weights of the shape of the bundle `mini`. Ends with a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pltz.plt_codec.cuda import device as gpu
from pltz.plt_codec.cuda.coder import CudaCoder
from pltz.plt_codec.item import FrameItem
from pltz.plt_codec.native import NativeCoder
from pltz.plt_codec.weights import Shape, Weights, random_weights

TOKENS = 4096
CHECKED = 8  # sessions compared with the CPU
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
        """No graph: its kernels could not be told apart."""
        return work

    def report(self, title: str) -> None:
        """Print and forget."""
        print(title)
        for kernel, spent in sorted(self.spent.items(), key=lambda item: -sum(item[1])):
            print(
                f"  {kernel:14} {sum(spent):9.2f} ms  {len(spent):6} times  {1000 * sum(spent) / len(spent):9.1f} us"
            )
        self.spent = {}


def timed(work: Callable[[], T], repeats: int = 3) -> tuple[T, float]:
    """Result and seconds of the fastest run."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def read(folder: Path) -> Weights:
    """The weights of a bundle folder, unchecked against its hashes."""
    from safetensors.numpy import load_file

    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return Weights(Shape(**json.loads((folder / "bundle.json").read_text("utf8"))["shape"]), tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="bundle folder (default: random weights)")
    parser.add_argument("--sessions", type=int, default=1024, help="sessions coded together")
    parser.add_argument("--kernels", action="store_true", help="time each kernel too")
    options = parser.parse_args()
    weights = (
        read(options.bundle)
        if options.bundle
        else random_weights(
            1,
            vocab=16384,
            d=384,
            layers=7,
            heads=6,
            kv_heads=3,
            head_dim=64,
            hidden=1664,
            block=4096,
            memory=2048,
        )
    )
    start = time.perf_counter()
    coder = CudaCoder(weights)
    out: dict[str, Any] = {"start_s": time.perf_counter() - start, "clusters": coder._device.clusters}
    rng = np.random.default_rng(1)
    sessions = [rng.integers(0, weights.shape.vocab, TOKENS) for _ in range(options.sessions)]
    coder.encode(sessions[:CHECKED])  # warm
    frames, seconds = timed(lambda: coder.encode(sessions), 2)
    out["encode_tokens_s"] = options.sessions * TOKENS / seconds
    want = NativeCoder(weights).encode(sessions[:CHECKED])
    out["same_frames"] = all(a.data == b.data for a, b in zip(want, frames, strict=False))
    items = [FrameItem(f.data, TOKENS) for f in frames]
    right = True
    for name, count in (("one", 1), ("eight", 8), ("many", options.sessions)):
        got, seconds = timed(partial(coder.decode, items[:count]), 3 if count < 100 else 2)
        right = right and all(np.array_equal(a, b) for a, b in zip(got, sessions, strict=False))
        out[f"decode_{name}_s"], out[f"decode_{name}_tokens_s"] = seconds, count * TOKENS / seconds
    out["same_tokens"] = right
    if options.kernels and isinstance(coder._device, gpu.CudaDevice):
        clock = Timed(coder._device)
        coder._device = clock
        coder.encode(sessions[: options.sessions // 4])
        clock.report("encode")
        coder.decode(items[: options.sessions // 4])
        clock.report("decode")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
