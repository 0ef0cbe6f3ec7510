"""Train a bundle model on one GPU for a given time; evaluate in the default layout; save float weights.

    python train.py --data data --out run1 --seconds 1200

Muon on the matrices, AdamW on the rest; learning rate constant, then linear to zero over the last part. The
roundings of the integer contract are in the loop from the first step. Prints a line each 100 steps, one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections import defaultdict
from pathlib import Path
from queue import Queue
from typing import Any, cast

import numpy as np
import torch
import torch.multiprocessing as mp
from torch.nn.attention.flex_attention import create_block_mask

from pltz.models.bundle import read_weights
from pltz.models.training.batches import KEYS, Sampler, default_lanes, lay
from pltz.models.training.export import restore
from pltz.models.training.net import Net, NetConfig, block_mask


def _worker(folder: str, options: dict[str, Any], rows: int, seed: int, queue: Any) -> None:
    torch.set_num_threads(1)
    sampler = Sampler(Path(folder), seed=seed, **options)
    while True:
        batch = sampler.rows(rows)
        queue.put(torch.from_numpy(np.stack([batch[k] for k in KEYS])))


class Feed:
    """Batches from worker processes, one ahead on the GPU."""

    def __init__(self, folder: Path, options: dict[str, Any], rows: int, workers: int, seed: int):
        ctx = mp.get_context("spawn")
        self.queue: Any = ctx.Queue(maxsize=2 * workers)
        self.processes = [
            ctx.Process(
                target=_worker, args=(str(folder), options, rows, seed * 1000 + i, self.queue), daemon=True
            )
            for i in range(workers)
        ]
        for p in self.processes:
            p.start()
        self.ready: Queue[Any] = Queue(maxsize=2)
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        while True:
            stacked = self.queue.get().pin_memory().cuda(non_blocking=True)
            self.ready.put({k: stacked[i] for i, k in enumerate(KEYS)})

    def next(self) -> dict[str, torch.Tensor]:
        """The next batch, each (rows, row) int32 on the GPU."""
        return self.ready.get()  # type: ignore[no-any-return]


def validation_rows(
    folder: Path, cfg: NetConfig, row: int, limit: int
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Whole sessions (cut at two blocks) in the default layout, at most `limit` bytes a source; bytes a source."""
    stream = np.memmap(folder / "val.bin", np.uint16, "r")
    offsets, source = np.load(folder / "val.offsets.npy"), np.load(folder / "val.source.npy")
    size = np.load(folder / "val.bytes.npy")
    names = {v: k for k, v in json.loads((folder / "sources.json").read_text()).items()}
    used: dict[int, int] = defaultdict(int)
    rows: list[np.ndarray] = []
    current: list[np.ndarray] = []
    fill, doc = 0, 0

    def flush() -> None:
        nonlocal current, fill
        if current:
            pad = np.zeros((7, row - fill), np.int64)
            pad[1], pad[3] = -1, -1
            rows.append(np.concatenate([*current, pad], 1))
        current, fill = [], 0

    for i in range(len(source)):
        n = int(offsets[i + 1] - offsets[i])
        kept = min(n, 2 * cfg.block)
        cost = int(size[i] * kept / n)
        if used[source[i]] + cost > limit:
            continue
        used[source[i]] += cost
        tokens = np.asarray(stream[offsets[i] : offsets[i] + kept], np.int64)
        part = lay(tokens, cfg.block, default_lanes, doc)
        part = np.concatenate([part, np.full((1, part.shape[1]), source[i])])
        doc += 1
        if fill + part.shape[1] > row:
            flush()
        current.append(part)
        fill += part.shape[1]
    flush()
    whole = np.stack(rows, 1).astype(np.int32)
    return {k: whole[i] for i, k in enumerate((*KEYS, "source"))}, {names[k]: v for k, v in used.items()}


@torch.no_grad()
def evaluate(
    net: Net, data: tuple[dict[str, np.ndarray], dict[str, int]], folder: Path, mask_fn: Any
) -> dict[str, float]:
    """Bits a byte, by source and over all, with the ideal code lengths of the float model."""
    rows, sizes = data
    names = {v: k for k, v in json.loads((folder / "sources.json").read_text()).items()}
    bits: dict[str, float] = defaultdict(float)
    tokens = 0
    for i in range(0, len(rows["input"]), 8):
        batch = {k: torch.from_numpy(v[i : i + 8]).cuda() for k, v in rows.items()}
        x, table = net.body(batch["input"], batch["position"], block_mask(batch, net.cfg.memory, mask_fn))
        target = batch["target"].flatten()
        first, second = net.losses(x.flatten(0, 1), table, target)
        total = (first + second).double() / math.log(2)
        by = torch.zeros(256, dtype=torch.float64, device="cuda").scatter_add_(
            0, batch["source"].flatten().long(), total
        )
        tokens += int((target >= 0).sum())
        for s in by.nonzero().flatten().tolist():
            bits[names[s]] += float(by[s])
    out = {k: bits[k] / 8 / sizes[k] * 8 for k in sizes}
    out["ALL"] = sum(bits.values()) / sum(sizes.values())
    out["bits a token"] = sum(bits.values()) / tokens
    return out


def main() -> None:
    """Command line: see the head of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--row", type=int, default=8192)
    p.add_argument("--power", type=float, default=0.7)
    p.add_argument("--text-share", type=float, default=0.2)
    p.add_argument(
        "--most", type=float, default=2.0, help="times its share of the data that a source may get"
    )
    p.add_argument("--prefix", type=float, default=0.1, help="share of sessions whose beginning is a context")
    p.add_argument("--augment", type=float, default=0.05, help="share of chats rewritten, see augment.py")
    p.add_argument("--muon-lr", type=float, default=0.02)
    p.add_argument("--weight-decay", type=float, default=0.03, help="of the matrices")
    p.add_argument("--adam-lr", type=float, default=0.004)
    p.add_argument(
        "--decay", type=float, default=0.5, help="share of the time over which the rate falls to zero"
    )
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--until", type=float, help="stop after so many of the --seconds; go on later with --resume"
    )
    p.add_argument("--init", type=Path, help="start from the integer weights of a bundle, by folder")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    for field, value in NetConfig().to_dict().items():
        kind: Any = (lambda s: s == "1") if isinstance(value, bool) else type(value)
        p.add_argument("--" + field.replace("_", "-"), type=kind, default=value)
    a = p.parse_args()
    cfg = NetConfig(**{k: getattr(a, k) for k in NetConfig().to_dict()})
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    options = {
        "row": a.row,
        "block": cfg.block,
        "power": a.power,
        "text_share": a.text_share,
        "augment": a.augment,
        "most": a.most,
        "prefix": a.prefix,
        "memory": cfg.memory,
    }
    feed = Feed(a.data, options, a.rows, a.workers, a.seed)
    val = validation_rows(a.data, cfg, a.row, 100_000)
    net = Net(cfg)
    if a.init:
        state = {k: torch.from_numpy(np.asarray(v)).float() for k, v in restore(read_weights(a.init)).items()}
        net.load_state_dict(state)
    net = net.cuda()
    matrices = [q for n, q in net.named_parameters() if n.startswith("blocks") and q.ndim == 2]
    tables = [net.embed]
    rest = [q for n, q in net.named_parameters() if q.ndim < 2 or n in ("classes", "class_shift")]
    muon = torch.optim.Muon(matrices, lr=a.muon_lr, weight_decay=a.weight_decay, momentum=0.95, nesterov=True)
    adam = torch.optim.AdamW(
        [{"params": tables, "lr": a.adam_lr}, {"params": rest, "lr": a.adam_lr}],
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    groups = [(g, g["lr"]) for o in (muon, adam) for g in o.param_groups]
    elapsed, step, tokens = 0.0, 0, 0
    if a.resume:
        saved = torch.load(a.out / "resume.pt", map_location="cuda", weights_only=True)
        net.load_state_dict(saved["net"])
        rates = [lr for _, lr in groups]
        muon.load_state_dict(saved["muon"])
        adam.load_state_dict(saved["adam"])
        groups = [
            (g, lr) for g, lr in zip([g for o in (muon, adam) for g in o.param_groups], rates, strict=True)
        ]
        elapsed, step, tokens = saved["elapsed"], saved["step"], saved["tokens"]
    mask_fn = torch.compile(create_block_mask, dynamic=False)
    torch._dynamo.config.cache_size_limit = 64
    for i, b in enumerate(net.blocks):
        net.blocks[i] = cast(torch.nn.Module, torch.compile(b, dynamic=False))
    for name in ("table", "first_level", "member_hidden", "second_level"):
        setattr(net, name, torch.compile(getattr(net, name), dynamic=False))
    macs = cfg.layers * (cfg.d * cfg.head_dim * (2 * cfg.heads + 2 * cfg.kv_heads) + 2 * cfg.d * cfg.hidden)
    macs += 256 * cfg.d if cfg.head == "two" else cfg.vocab * cfg.d
    print(
        f"{sum(q.numel() for q in net.parameters()) / 1e6:.2f} M parameters, {macs / 1e6:.2f} M multiply-adds a token",
        flush=True,
    )
    begin = clock = time.time()
    first, warm = step, 40
    while True:
        if step == first + 12:  # the clock starts when everything is compiled
            torch.cuda.synchronize()
            print(f"compiled in {time.time() - begin:.0f} s", flush=True)
            begin = clock = time.time()
        now = elapsed + (time.time() - begin if step >= first + 12 else 0.0)
        share = now / a.seconds
        if now >= min(a.seconds, a.until or a.seconds):
            break
        factor = min(1.0, (step + 1) / warm) * min(1.0, (1 - share) / a.decay)
        for g, lr in groups:
            g["lr"] = lr * factor
        batch = feed.next()
        x, table = net.body(batch["input"], batch["position"], block_mask(batch, cfg.memory, mask_fn))
        target = batch["target"].flatten()
        classes, members = net.losses(x.flatten(0, 1), table, target)
        count = (target >= 0).sum()
        loss = (classes + members).sum() / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest + tables, 1.0)
        muon.step()
        adam.step()
        muon.zero_grad(set_to_none=True)
        adam.zero_grad(set_to_none=True)
        tokens += a.rows * a.row
        step += 1
        if step % 100 == 0:
            bits, part = loss.item() / math.log(2), (classes.sum() / count).item() / math.log(2)
            rate = 100 * a.rows * a.row / (time.time() - clock) / 1e6
            print(
                f"step {step:6d}  {now:6.0f} s  {bits:6.3f} bits/token (class {part:.3f})  {rate:.2f} M tokens/s",
                flush=True,
            )
            clock = time.time()
    state = {k.replace("_orig_mod.", ""): v.detach().cpu() for k, v in net.state_dict().items()}
    torch.save(state, a.out / "net.pt")
    (a.out / "config.json").write_text(json.dumps(cfg.to_dict(), indent=1))
    np.save(a.out / "vectors.npy", net.embed.detach().float().cpu().numpy())
    torch.save(
        {
            "net": state,
            "muon": muon.state_dict(),
            "adam": adam.state_dict(),
            "elapsed": now,
            "step": step,
            "tokens": tokens,
        },
        a.out / "resume.pt",
    )
    (a.out / "elapsed.txt").write_text(f"{now:.0f}")
    print(f"saved after {now:.0f} s of training, {step} steps, {tokens} tokens", flush=True)
    for w in feed.processes:
        w.terminate()
    if now < a.seconds:
        return
    result = evaluate(net, val, a.data, mask_fn)
    for key, v in sorted(result.items(), key=lambda kv: -kv[1]):
        print(f"  {key:28s} {v:.3f}")
    line = {
        "config": cfg.to_dict(), "seconds": a.seconds, "steps": step, "tokens": tokens,
        "validation_bits_per_byte": result["ALL"], "bits_per_token": result["bits a token"],
        "options": {k: str(v) for k, v in vars(a).items() if k not in cfg.to_dict()},
    }  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
