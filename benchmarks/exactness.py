"""Exactness across machines: hashes of the frames of fixed sequences.

    python -m pltz.benchmarks.exactness --device cuda --bundle mini --golden tests/golden/frames.json

Each case is a model (random weights, random weights at their limits, a bundle) and a layout. Fixed sequences are
encoded, side by side and each alone, and decoded again. All frames must hash to the golden value of the case, on any
device and number of threads. `--write` records the values of this machine in a new file: for a new contract version or
a new bundle, never to make a test pass.
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

from pltz.benchmarks.random_weights import random_weights
from pltz.coding.parts import Coder
from pltz.models.bundle.bundle import Bundle, coder_of
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import FrameItem
from pltz.plt_codec.weights import Weights

Ints = npt.NDArray[np.int64]
LAYOUTS = {"1 lane": Layout(1, 64), "4 lanes": Layout(4, 40), "16 lanes": Layout(16, 9)}
LENGTHS = (1, 2, 17, 100, 230, 301)  # tokens; with the layouts above: one block and several, whole and cut


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


def measure(coder: Coder, vocab: int, layout: Layout) -> set[str]:
    """Return the hashes of the frames of one case: one element if all ways agree, and all frames decode."""
    sequences = fixed_sequences(vocab)
    together = coder.encode(sequences, layouts=layout)
    alone = [coder.encode([ids], layouts=layout)[0] for ids in sequences]
    items = [FrameItem(one.data, len(ids), one.layout) for one, ids in zip(together, sequences, strict=True)]
    back = coder.decode(items)
    whole = all(np.array_equal(found, ids) for found, ids in zip(back, sequences, strict=True))
    hashes = {hashlib.blake2b(b"".join(f.data for f in way), digest_size=16).hexdigest() for way in (together, alone)}
    return hashes | (set() if whole else {"not decoded"})


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
            found = measure(coder_of(weights, a.device), weights.shape.vocab, layout)
            if a.write and case not in golden and len(found) == 1:
                golden[case] = next(iter(found))
            ok = found == {golden.get(case)}
            bad += not ok
            print(f"{'ok  ' if ok else 'BAD '} {case}: {' '.join(sorted(found))}", flush=True)
    if a.write:
        a.golden.write_text(json.dumps(golden, indent=1) + "\n")
    print(
        json.dumps(
            {"device": a.device, "python": platform.python_version(), "machine": platform.machine(),
             "mismatches": bad, "seconds": round(time.time() - begin, 1)}
        )
    )  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
