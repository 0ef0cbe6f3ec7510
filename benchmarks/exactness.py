"""Exactness across machines: hashes of the reference engine's frequencies on fixed sequences.

    python -m pltz.benchmarks.exactness --device cuda --bundle mini --golden tests/golden/frequencies.json

Each case is a model (random weights, random weights at their limits, a bundle) and a layout. The frequencies
of fixed sequences are computed in one pass and step by step. Both must hash to the golden value of the case, on any
device, thread count and torch version. Other engines are compared with this one in tests. `--write` records the
values of this machine in a new file: for a new contract version or a new bundle, never to make a test pass.
Prints one line per case and a JSON line last. The exit code is 1 on a mismatch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.engines.torch import Memory, TorchEngine
from pltz.plt_codec.lanes import LANE_MARK, Layout
from pltz.plt_codec.weights import CLASS, Weights

Ints = npt.NDArray[np.int64]
LAYOUTS = {"1 lane": Layout(1, 64), "4 lanes": Layout(4, 40), "16 lanes": Layout(16, 9)}
LENGTHS = (1, 2, 17, 100, 230, 301)  # tokens; with the layouts above: one block and several, whole and cut


def hashes(engine: TorchEngine, tokens: Ints, layout: Layout) -> tuple[str, str]:
    """Return the hash of all frequencies of a sequence (T,), in coding order: in one pass, and step by step."""
    found = [hashlib.blake2b(digest_size=12) for _ in range(2)]
    memories = [Memory.empty(engine) for _ in range(2)]
    for block in layout.blocks(len(tokens)):
        own = tokens[block.start : block.start + block.tokens]
        inputs = block.inputs(own, int(tokens[block.start - 1]) if block.start else LANE_MARK)
        at, ids = block.targets(), own[block.targets().reshape(-1)[: block.tokens]]
        whole = engine.run(inputs, block.start + at, memories[0])
        steps = [engine.run(inputs[n : n + 1], block.start + at[n : n + 1], memories[1]) for n in range(block.steps)]
        for number, x in enumerate((whole, torch.cat(steps))):
            x = x[: block.tokens]
            classes, members = engine.class_frequencies(x), engine.member_frequencies(x, ids // CLASS)
            for row in zip(classes, members, strict=True):
                for part in row:
                    found[number].update(part.astype("<i4").tobytes())
        memories = [memory.after(block, engine.shape.memory) for memory in memories]
    return found[0].hexdigest(), found[1].hexdigest()


def fixed_sequences(vocab: int, lengths: tuple[int, ...] = LENGTHS) -> list[Ints]:
    """Return the sequences (T,): ids from a fixed stream of raw words.

    Short runs are repeated so that attention has something to find.
    """
    raw = np.random.PCG64(2026)
    out = []
    for n in lengths:
        ids = (raw.random_raw(n) % np.uint64(vocab)).astype(np.int64)
        ids[n // 2 :] = ids[: n - n // 2]
        out.append(ids)
    return out


def models(bundle: str | None) -> dict[str, Callable[[], Weights]]:
    """Return, by case name, a function that makes the weights of the case."""

    def small(seed: int, **shape: Any) -> Callable[[], Weights]:
        return lambda: random_weights(seed, block=128, memory=48, **shape)

    mini = {"vocab": 16384, "d": 192, "heads": 6, "hidden": 1664}
    base = {"vocab": 1024, "d": 576, "heads": 9, "hidden": 1536}
    out = {
        "random": small(1),
        "extreme": small(2, extreme=True),
        "wide": small(3, layers=2, kv_heads=3, head_dim=64, **mini),
        "gated": small(4, gated=True),
        "gated extreme": small(5, extreme=True, gated=True),
        "gated wide": small(6, layers=2, kv_heads=3, head_dim=64, gated=True, **base),
    }
    if bundle:
        out["bundle " + Bundle.load(bundle).id.hex()] = lambda: Bundle.load(bundle).weights
    return out


def measure(weights: Weights, layout: Layout, device: str) -> set[str]:
    """Return all hashes of one case: one element if everything agrees."""
    engine = TorchEngine(weights, device)
    rows = [hashes(engine, tokens, layout) for tokens in fixed_sequences(weights.shape.vocab)]
    return {hashlib.blake2b(" ".join(way).encode(), digest_size=16).hexdigest() for way in zip(*rows, strict=True)}


def main() -> int:
    """Run the command line described at the top of this file, and return the exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu")
    p.add_argument("--bundle", default=None)
    p.add_argument("--golden", type=Path, required=True)
    p.add_argument("--write", action="store_true", help="record a case that the file does not have yet")
    a = p.parse_args()
    golden = json.loads(a.golden.read_text()) if a.golden.exists() else {}
    bad, begin = 0, time.time()
    for name, make in models(a.bundle).items():
        for title, layout in LAYOUTS.items():
            weights = make()
            case = f"contract {weights.contract}, {name}, {title}"
            found = measure(weights, layout, a.device)
            if a.write and case not in golden and len(found) == 1:
                golden[case] = next(iter(found))
            ok = found == {golden.get(case)}
            bad += not ok
            print(f"{'ok  ' if ok else 'BAD '} {case}: {' '.join(sorted(found))}", flush=True)
    if a.write:
        a.golden.write_text(json.dumps(golden, indent=1) + "\n")
    print(
        json.dumps(
            {"device": a.device, "gpu": torch.cuda.get_device_name() if a.device.startswith("cuda") else None,
             "torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(),
             "machine": platform.machine(), "mismatches": bad, "seconds": round(time.time() - begin, 1)}
        )
    )  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
