"""The ideal code length of the validation sessions under a float net, in the default layout.

The integer engine is not used, so this is far quicker than coding. The two agree within a fraction of a per
cent (tests/models/test_training.py).

    python -m pltz.models.training.validation run --streams data    # the net of `run`; ends with a line of JSON
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask

from pltz.models.training import rounded
from pltz.models.training.batches import KEYS, default_lanes, lay
from pltz.models.training.net import Net, built, compile_net, mask_of

TOGETHER = 8  # rows per pass
LANES = 16  # at most; a grid is at most so many positions longer than its tokens


def rows(folder: Path, block: int, row: int, limit: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return rows (n, row) of whole sessions in the default layout, and their content bytes by source.

    Sessions are cut at two blocks and at a row. Each source gets up to `limit` content bytes. Beside KEYS
    there is `source`, the source number of each position.
    """
    stream = np.memmap(folder / "val.bin", np.uint16, "r")
    offsets, source, size = (np.load(folder / f"val.{part}.npy") for part in ("offsets", "source", "bytes"))
    names = {v: k for k, v in json.loads((folder / "sources.json").read_text()).items()}
    used: dict[str, int] = defaultdict(int)
    made: list[np.ndarray] = []
    current: list[np.ndarray] = []
    for i, number in enumerate(source):
        count = int(offsets[i + 1] - offsets[i])
        kept = min(count, 2 * block, max(1, row - 2 * LANES))
        if row >= 2 * block:
            kept = min(count, 2 * block)
        cost = int(size[i] * kept / count)
        if used[names[number]] + cost > limit:
            continue
        used[names[number]] += cost
        part = lay(np.asarray(stream[offsets[i] : offsets[i] + kept], np.int64), block, default_lanes, i)
        if sum(p.shape[1] for p in current) + part.shape[1] > row:
            made.append(_padded(current, row))
            current = []
        current.append(np.concatenate([part, np.full((1, part.shape[1]), number)]))
    made += [_padded(current, row)] if current else []
    whole = np.stack(made, 1).astype(np.int32)
    return {k: whole[i] for i, k in enumerate((*KEYS, "source"))}, dict(used)


def _padded(parts: list[np.ndarray], row: int) -> np.ndarray:
    """Return one row of several sessions. The padding has no target and sees nothing."""
    whole = np.concatenate(parts, 1)
    pad = np.zeros((len(KEYS) + 1, row - whole.shape[1]), np.int64)
    pad[KEYS.index("target")] = pad[KEYS.index("doc")] = -1
    return np.concatenate([whole, pad], 1)


@torch.no_grad()
def bits_per_byte(net: Net, folder: Path, row: int, limit: int, device: str) -> dict[str, float]:
    """Return bits per content byte by source, and over all as ALL.

    The net is moved to the device, and compiled on a GPU.
    """
    found, sizes = rows(folder, net.cfg.block, row, limit)
    names = {v: k for k, v in json.loads((folder / "sources.json").read_text()).items()}
    net, mask = net.to(device), create_block_mask
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
        mask = torch.compile(create_block_mask, dynamic=False)
        compile_net(net)
    bits = torch.zeros(256, dtype=torch.float64)
    for i in range(0, len(found["input"]), TOGETHER):
        batch = {k: torch.from_numpy(v[i : i + TOGETHER]).to(device) for k, v in found.items()}
        x, table = net.body(batch["input"], batch["position"], mask_of(batch, net.cfg.memory, mask))
        first, second = net.losses(x.flatten(0, 1), table, batch["target"].flatten())
        total = ((first + second).double() / math.log(2)).cpu()
        bits.scatter_add_(0, batch["source"].flatten().long().cpu(), total)
    out = {names[i]: round(float(bits[i]) / sizes[names[i]], 4) for i in names if sizes.get(names[i])}
    return {**out, "ALL": round(float(bits.sum()) / max(1, sum(sizes.values())), 4)}


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("net", type=Path, help="folder of a rounded net")
    p.add_argument("--streams", type=Path, required=True, help="folder of token streams")
    p.add_argument("--row", type=int, default=8192, help="tokens a row")
    p.add_argument("--limit", type=int, default=100_000, help="content bytes a source")
    a = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps(bits_per_byte(built(rounded.read(a.net)), a.streams, a.row, a.limit, device)))


if __name__ == "__main__":
    main()
