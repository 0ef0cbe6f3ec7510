"""Exactness across machines: hashes of frequencies on fixed sequences, in every arrangement that must not matter.

    python -m pltz.models.bundle.exactness --device cuda --bundle mini --golden tests/golden/frequencies.json

Each case is a model (random weights, random weights at their limits, a bundle) and a layout. The frequencies
of fixed sequences are computed in one parallel pass, step by step, alone, and among 7 and 64 others. All must
hash to the golden value of the case, on any device, thread count and torch version. `--write` records the
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.engines.torch import BlockJob, Memory, Stepper, TorchEngine
from pltz.plt_codec.lanes import LANE_MARK, Layout
from pltz.plt_codec.weights import CLASS, Weights, random_weights

Ints = npt.NDArray[np.int64]
LAYOUTS = {"default": Layout(), "1 lane": Layout(1, 64), "4 lanes": Layout(4, 40), "16 lanes": Layout(16, 9)}
LENGTHS = (1, 2, 17, 100, 230, 301)  # tokens; with the layouts above: one block and several, whole and cut


class _CheckRun:
    """Several sequences run through one engine, block after block, with a hash of all frequencies in coding order."""

    def __init__(self, engine: TorchEngine, sequences: list[Ints], layout: Layout):
        self.engine, self.sequences = engine, sequences
        self.blocks = [list(layout.blocks(len(s), engine.shape.block)) for s in sequences]
        self.memory: list[Memory | None] = [None] * len(sequences)
        self.hash = [hashlib.blake2b(digest_size=12) for _ in sequences]

    def _rounds(self) -> Iterator[tuple[list[int], list[BlockJob]]]:
        for number in range(max(len(b) for b in self.blocks)):
            chosen = [i for i, b in enumerate(self.blocks) if len(b) > number]
            jobs = []
            for i in chosen:
                block, tokens = self.blocks[i][number], self.sequences[i]
                before = int(tokens[block.start - 1]) if block.start else LANE_MARK
                jobs.append(
                    BlockJob(
                        block,
                        block.inputs(tokens[block.start : block.start + block.tokens], before),
                        self.memory[i],
                    )
                )
            yield chosen, jobs

    def _put(self, i: int, classes: npt.NDArray[np.int64], members: npt.NDArray[np.int64]) -> None:
        for row in zip(classes, members, strict=True):
            for part in row:
                self.hash[i].update(part.astype("<i4").tobytes())

    def parallel(self) -> list[str]:
        """Return the hashes of the parallel pass."""
        for chosen, jobs in self._rounds():
            residuals, memories = self.engine.parallel(jobs)
            for i, job, x, memory in zip(chosen, jobs, residuals, memories, strict=True):
                self.memory[i] = memory
                rows = np.flatnonzero(job.block.predicting().reshape(-1))
                ids = self.sequences[i][job.block.start + job.block.targets().reshape(-1)[rows]]
                x = x[: len(rows)]
                self._put(
                    i, self.engine.class_frequencies(x), self.engine.member_frequencies(x, ids // CLASS)
                )
        return [h.hexdigest() for h in self.hash]

    def stepwise(self) -> list[str]:
        """Return the hashes of the stepper, which computes as decoding does."""
        for chosen, jobs in self._rounds():
            stepper = Stepper(self.engine, jobs)
            for step in range(max(j.block.steps for j in jobs)):
                alive = [n for n in stepper.order if jobs[n].block.steps > step]
                inputs = np.concatenate([_inputs(jobs[n])[step] for n in alive])
                at = np.concatenate([jobs[n].block.start + jobs[n].block.targets()[step] for n in alive])
                x = self.engine.step(stepper, step, inputs, at)
                targets = [jobs[n].block.start + jobs[n].block.targets()[step] for n in alive]
                ids = [
                    self.sequences[chosen[n]][np.minimum(t, len(self.sequences[chosen[n]]) - 1)]
                    for n, t in zip(alive, targets, strict=True)
                ]
                classes = self.engine.class_frequencies(x)
                members = self.engine.member_frequencies(x, np.concatenate(ids) // CLASS)
                row = 0
                for n in alive:
                    active, lanes = jobs[n].block.active(step), jobs[n].block.lanes
                    self._put(chosen[n], classes[row : row + active], members[row : row + active])
                    row += lanes
            for n, memory in zip(stepper.order, stepper.memories(), strict=True):
                self.memory[chosen[n]] = memory
        return [h.hexdigest() for h in self.hash]


def _inputs(job: BlockJob) -> Ints:
    if job.inputs is None:
        raise ValueError("a job without inputs")
    return job.inputs


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


def measure(weights: Weights, layout: Layout, device: str, quick: bool) -> set[str]:
    """Return all hashes of one case: one element if everything agrees."""
    engine = TorchEngine(weights, device)
    sequences = fixed_sequences(weights.shape.vocab)
    crowds = [sequences] if quick else [sequences, (sequences * 2)[:7], (sequences * 11)[:64]]
    found = set()

    def note(hashes: list[str]) -> None:
        found.add(" ".join(hashes[: len(sequences)]))

    for crowd in crowds:
        note(_CheckRun(engine, crowd, layout).parallel())
        note(_CheckRun(engine, crowd, layout).stepwise())
    if not quick:
        note([_CheckRun(engine, [s], layout).stepwise()[0] for s in sequences])
        note([_CheckRun(engine, [s], layout).parallel()[0] for s in sequences])
    return {hashlib.blake2b(f.encode(), digest_size=16).hexdigest() for f in found}


def main() -> int:
    """Run the command line described at the top of this file, and return the exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu")
    p.add_argument("--bundle", default=None)
    p.add_argument("--golden", type=Path, required=True)
    p.add_argument("--quick", action="store_true", help="one crowd only")
    p.add_argument("--write", action="store_true", help="record a case that the file does not have yet")
    a = p.parse_args()
    golden = json.loads(a.golden.read_text()) if a.golden.exists() else {}
    bad, begin = 0, time.time()
    for name, make in models(a.bundle).items():
        for title, layout in LAYOUTS.items():
            weights = make()
            case = f"contract {weights.contract}, {name}, {title}"
            found = measure(weights, layout, a.device, a.quick)
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
