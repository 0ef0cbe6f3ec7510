"""Measure the share of the time that the shadow of a pool takes, in the shape of an 8B model, and how it recovers.

    python -m pltz.experiments.three_tiers.measure_shadow --folder /var/tmp/shadow --tokens 16384 --new 2048

Each minute, told by a clock that is not waited for, ``--new`` tokens become cold. A pass is timed on both threads,
and its share is that of 60 seconds. At the end the shadow is recovered into an empty pool, and bytes are compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import torch

from pltz.experiments.three_tiers.block_metadata import BlockMetadata, MetadataTable, PrefixPins
from pltz.experiments.three_tiers.shadow import INTERVAL, Shadow
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.prefix_tree import PrefixTree
from pltz.kv.port.rotary import Rotary

LAYERS, HEADS, DIM, BLOCK = 32, 8, 128, 16


class Minutes:
    """A pool of cold blocks, and a clock that stands still. One thread uses it at a time."""

    def __init__(self, folder: Path, tokens: int) -> None:
        rotary = Rotary(10000.0 ** -(torch.arange(DIM // 2, dtype=torch.float64) / (DIM // 2)))
        form = PageFormat("q4", LAYERS, HEADS, DIM, torch.bfloat16, rotary, torch.zeros(LAYERS, 2, HEADS, DIM))
        self.pool = BlockPool(form, BLOCK, block=BLOCK, host_tokens=tokens)
        self.tree = PrefixTree(self.pool)
        self.table = MetadataTable(self.tree)
        self.now = 0.0
        self.shadow = Shadow(folder, bytes(16), self.table, PrefixPins(self.tree), clock=lambda: self.now)

    def fill(self, count: int) -> None:
        """Make blocks of random bytes cold, each a prefix of its own."""
        host = self.pool.host
        assert host is not None
        for block in host.allocate(count):
            name = (len(self.tree) + 1).to_bytes(32, "big")
            for tensor in host.tensors.values():
                tensor[:, block] = torch.randint(0, 255, tensor[:, block].shape, dtype=torch.uint8).to(tensor.dtype)
            self.tree.adopt(name, None, [block])
            self.table.blocks[name] = BlockMetadata("rules", 0.5, 0.0, 0.0, 85, (0, BLOCK), "acme")

    def minute(self) -> float:
        """Let a minute pass, and return the seconds that the shadow took of it."""
        before = self.shadow.stats.seconds
        self.now += INTERVAL
        start = time.perf_counter()
        self.shadow.tick()
        idle = time.perf_counter() - start
        self.shadow.wait()
        return max(self.shadow.stats.seconds - before, idle)


def measure(folder: Path, tokens: int, new: int) -> dict[str, float]:
    """Return the figures of a pool of ``tokens`` tokens that become cold, ``new`` a minute."""
    shutil.rmtree(folder, ignore_errors=True)
    there = Minutes(folder, tokens)
    busy = []
    for _ in range(tokens // new):
        there.fill(new // BLOCK)
        busy.append(there.minute())
    # Minutes after the last new token until all of it is on the disk, then one without work.
    late = 0
    while there.shadow.stats.left:
        busy.append(there.minute())
        late += 1
    quiet = there.minute()
    stats = there.shadow.stats
    there.shadow.close()
    # A new process would recover so; every block is compared.
    start = time.perf_counter()
    back = Minutes(folder, tokens)
    steps = back.shadow.recover()
    seconds = time.perf_counter() - start
    here, same = {step.name: step.blocks for step in there.tree.steps()}, True
    assert there.pool.host is not None and back.pool.host is not None
    for step in back.tree.steps():
        for kind, tensor in back.pool.host.tensors.items():
            same &= torch.equal(tensor[:, list(step.blocks)], there.pool.host.tensors[kind][:, list(here[step.name])])
    return {
        "megabytes": round(stats.bytes / 1e6),
        "megabytes_a_minute": round(new * there.pool.form.token_bytes / 1e6),
        "share_percent": round(100 * sum(busy) / len(busy) / INTERVAL, 3),
        "share_percent_most": round(100 * max(busy) / INTERVAL, 3),
        "caller_percent": round(100 * stats.copying / len(busy) / INTERVAL, 3),
        "quiet_percent": round(100 * quiet / INTERVAL, 4),
        "passes": len(busy),
        "late_passes": late,
        "recover_seconds": round(seconds, 2),
        "recovered": steps,
        "same_bytes": same,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the shadow; removed first")
    parser.add_argument("--tokens", type=int, default=16384, help="of host memory, 33,792 bytes each")
    parser.add_argument("--new", type=int, default=2048, help="tokens that become cold per minute")
    chosen = parser.parse_args()
    print(json.dumps(measure(chosen.folder, chosen.tokens, chosen.new)))


if __name__ == "__main__":
    main()
