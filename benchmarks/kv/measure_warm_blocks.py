"""Measure how long steps wait while vLLM's warm blocks are saved and loaded, in the shape of an 8B model.

    python -m pltz.benchmarks.kv.measure_warm_blocks --device cuda --folder /nvme/tmp

The two halves of `vllm_warm` run without vLLM, over a cache of random blocks, beside made-up steps: products of 32
rows. Steps of ``--step`` tokens save their blocks. Then all are loaded into other blocks while steps run: with the
files dropped from the page cache, and from it. Loaded blocks are compared with those that were saved.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from pltz.cli.bench import machine
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import SIZE
from pltz.serving.engines.cache_rows import CacheRows
from pltz.serving.engines.vllm_warm import WarmPlace, WarmPlan, WarmWorker

PAGE, HEADS, DIM = 16, 8, 128
ROWS, WIDTH, PRODUCTS = 32, 4096, 260  # of a step on a GPU; a CPU runs one product


class Steps:
    """Made-up steps on a device."""

    def __init__(self, device: str) -> None:
        self.gpu = device == "cuda"
        self.weights = torch.randn((WIDTH, WIDTH), device=device, dtype=torch.bfloat16)
        self.rows = torch.randn((ROWS, WIDTH), device=device, dtype=torch.bfloat16)

    def run(self) -> None:
        """Start a step."""
        rows = self.rows
        for _ in range(PRODUCTS if self.gpu else 1):
            rows = (rows @ self.weights).clamp(-1, 1)

    def timed(self, work: Callable[[], object]) -> float:
        """Return the milliseconds that some work takes, on the host and the device."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return 1e3 * (time.perf_counter() - start)

    def wait(self) -> None:
        """Wait for the device."""
        if self.gpu:
            torch.cuda.synchronize()


def measure(folder: Path, device: str, layers: int, tokens: int, step: int) -> dict[str, Any]:
    """Return milliseconds of steps, saves and loads. Raises CorruptError where loaded blocks differ."""
    count = tokens // PAGE
    shape = 2 * count + 1, HEADS, PAGE, 2 * DIM
    caches = {f"layer {n}": torch.randn(shape, device=device, dtype=torch.bfloat16) for n in range(layers)}
    rows, steps = CacheRows(caches, shape[0]), Steps(device)
    here, there = range(1, 1 + count), list(range(1 + count, 1 + 2 * count))[::-1]
    names = [os.urandom(32) for _ in here]
    for _ in range(3):
        steps.run()
    alone = statistics.median(steps.timed(steps.run) for _ in range(15))
    found: dict[str, Any] = {"tokens": tokens, "bytes": rows.size * count}
    found |= {"step_ms": round(alone, 2), "step_tokens": step}
    place = WarmPlace(str(folder), 2 * rows.size * count + (1 << 30), 1 << 40, bytes(SIZE))
    with working(rows) as worker:
        saves = []
        for number, at in enumerate(range(0, count, step // PAGE)):
            part = list(zip(names, here, strict=True))[at : at + step // PAGE]
            plan = WarmPlan(number + 1, place, save=part, verdicts=[(number, True)])
            saves.append(round(steps.timed(lambda plan=plan: run(steps, worker, plan)), 2))  # type: ignore[misc]
        worker.load(WarmPlan(number + 2, place, verdicts=[(number + 1, True)]))
        worker.settle()
        found["steps_that_save_ms"] = saves
        for source in ("disk", "page cache"):
            out = source == "disk" and sum(map(dropped, folder.rglob("*.page"))) == count
            for cache in caches.values():
                cache[there] = 0
            plan = WarmPlan(number + 3, place, load={"request": list(zip(names, there, strict=True))})
            start = time.perf_counter()
            waits = [steps.timed(lambda plan=plan: run(steps, worker, plan))]  # type: ignore[misc]
            while not worker.arrived():
                waits.append(steps.timed(steps.run))
            total = 1e3 * (time.perf_counter() - start)
            if worker.failed() or not all(torch.equal(c[list(here)], c[there]) for c in caches.values()):
                raise CorruptError("blocks that were loaded are not those that were saved")
            found[source] = {
                "all_ms": round(total, 1), "longest_step_ms": round(max(waits), 2), "steps": len(waits),
                "out_of_page_cache": out,
            }  # fmt: skip
    return found


@contextmanager
def working(rows: CacheRows) -> Iterator[WarmWorker]:
    """Give a worker that is closed at the end."""
    worker = WarmWorker(0, rows, "")
    try:
        yield worker
    finally:
        worker.close()


def run(steps: Steps, worker: WarmWorker, plan: WarmPlan) -> None:
    """Run a step with its plan, as vLLM does: the load behind the forward pass is started, then the save."""
    steps.run()
    worker.load(plan)
    worker.save(plan)


def dropped(path: Path) -> bool:
    """Drop a file from the page cache. Returns whether it is out."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(handle, [bytearray(1)], os.fstat(handle).st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # a file system that does not tell
        return False
    finally:
        os.close(handle)
    return False


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", help="on the disk that is measured; that of temporary files by default")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--step", type=int, default=2048, help="tokens that a step computes")
    given = parser.parse_args()
    folder = Path(mkdtemp(dir=given.folder))
    try:
        found = measure(folder, given.device, given.layers, given.tokens, given.step)
    finally:
        shutil.rmtree(folder)
    print(json.dumps({"benchmark": "warm_blocks"} | found | {"machine": machine.describe(None, given.device, None)}))


if __name__ == "__main__":
    main()
