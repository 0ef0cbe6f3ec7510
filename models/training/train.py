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
from pltz.models.training.net import Net, NetConfig, block_mask, divergence, nats


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


def gentle(net: Net, rate: float) -> torch.optim.Optimizer:
    """AdamW for a net that starts from pretrained weights: each matrix moves in proportion to its own size, gains stay as they were equalised."""
    groups: list[dict[str, Any]] = []
    for name, q in net.named_parameters():
        size = float(q.detach().float().square().mean().sqrt())
        if "norm_" in name:
            q.requires_grad_(False)
        elif name.startswith("blocks") and q.ndim == 2:
            groups.append({"params": [q], "lr": rate * size})
        else:
            lr = {"embed": 3 * rate * size, "classes": 1e-4, "class_shift": 0.02}.get(name, 2e-3)
            groups.append({"params": [q], "lr": lr})
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def compile_head(net: Net) -> None:
    """Compile blocks and both levels of the head."""
    for i, b in enumerate(net.blocks):
        net.blocks[i] = cast(torch.nn.Module, torch.compile(b, dynamic=False))
    for name in ("table", "class_logits", "member_hidden", "member_logits"):
        setattr(net, name, torch.compile(getattr(net, name), dynamic=False))


def load_teacher(folder: Path) -> Net:
    """A trained net, frozen, on the GPU, compiled."""
    net = Net(NetConfig(**json.loads((folder / "config.json").read_text())))
    net.load_state_dict({k: v.float() for k, v in torch.load(folder / "net.pt", weights_only=True).items()})
    net = net.cuda().eval().requires_grad_(False)
    compile_head(net)
    return net


compiled_nats = torch.compile(nats, dynamic=False)
compiled_divergence = torch.compile(divergence, dynamic=False)


def distilled(
    net: Net,
    teacher: Net,
    x: torch.Tensor,
    table: torch.Tensor,
    known: tuple[torch.Tensor, torch.Tensor],
    target: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nats of class, of member, and of both levels against the teacher's probabilities, (T,) each in the head's order.

    x (T, d) and table are the student's, `known` the same of the teacher. Rows without a target cost nothing.
    """
    keep = target >= 0
    cls, order = torch.sort(target.clamp(min=0).long() >> 7)
    member, keep = (target.clamp(min=0).long() & 127)[order], keep[order]
    with torch.no_grad():
        sure = teacher.levels(known[0].flatten(0, 1), known[1], order, cls)
    classes, members = net.levels(x, table, order, cls)
    far = compiled_divergence(classes, sure[0]) + compiled_divergence(members, sure[1])
    return compiled_nats(classes, cls) * keep, compiled_nats(members, member) * keep, far * keep


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
    p.add_argument(
        "--start",
        type=Path,
        help="start from the float weights of a run or of transplant.py, by folder; its shape counts",
    )
    p.add_argument(
        "--relative-lr",
        type=float,
        default=0.003,
        help="gated: AdamW's rate for a matrix, in root mean squares of it",
    )
    p.add_argument("--teacher", type=Path, help="run folder of a trained net with the same tokenizer")
    p.add_argument(
        "--teacher-share",
        type=float,
        default=0.6,
        help="of the loss: divergence from the teacher, the rest is the tokens' own",
    )
    p.add_argument("--warm", type=int, default=40, help="steps until the full rate")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    for field, value in NetConfig().to_dict().items():
        kind: Any = (lambda s: s == "1") if isinstance(value, bool) else type(value)
        p.add_argument("--" + field.replace("_", "-"), type=kind, default=value)
    a = p.parse_args()
    cfg = NetConfig(**{k: getattr(a, k) for k in NetConfig().to_dict()})
    if a.start:
        cfg = NetConfig(**json.loads((a.start / "config.json").read_text()))
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
    if a.start:
        net.load_state_dict(torch.load(a.start / "net.pt", weights_only=True))
    net = net.cuda()
    teacher = load_teacher(a.teacher) if a.teacher else None
    matrices = [q for n, q in net.named_parameters() if n.startswith("blocks") and q.ndim == 2]
    tables = [net.embed]
    rest = [q for n, q in net.named_parameters() if q.ndim < 2 or n in ("classes", "class_shift")]
    if cfg.gated:
        optimizers = [gentle(net, a.relative_lr)]
    else:
        optimizers = [
            torch.optim.Muon(
                matrices, lr=a.muon_lr, weight_decay=a.weight_decay, momentum=0.95, nesterov=True
            ),
            torch.optim.AdamW(tables + rest, lr=a.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]
    groups = [(g, g["lr"]) for o in optimizers for g in o.param_groups]
    elapsed, step, tokens = 0.0, 0, 0
    if a.resume:
        saved = torch.load(a.out / "resume.pt", map_location="cuda", weights_only=True)
        net.load_state_dict(saved["net"])
        rates = [lr for _, lr in groups]
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        groups = list(zip([g for o in optimizers for g in o.param_groups], rates, strict=True))
        elapsed, step, tokens = saved["elapsed"], saved["step"], saved["tokens"]
    mask_fn = torch.compile(create_block_mask, dynamic=False)
    torch._dynamo.config.cache_size_limit = 64
    compile_head(net)
    macs = sum(q.numel() for q in matrices) + (256 * cfg.d if cfg.head == "two" else cfg.vocab * cfg.d)
    print(
        f"{sum(q.numel() for q in net.parameters()) / 1e6:.2f} M parameters, {macs / 1e6:.2f} M multiply-adds a token",
        flush=True,
    )
    begin = clock = time.time()
    first = step
    while True:
        if step == first + 12:  # the clock starts when everything is compiled
            torch.cuda.synchronize()
            print(f"compiled in {time.time() - begin:.0f} s", flush=True)
            begin = clock = time.time()
        now = elapsed + (time.time() - begin if step >= first + 12 else 0.0)
        share = now / a.seconds
        if now >= min(a.seconds, a.until or a.seconds):
            break
        factor = min(1.0, (step + 1) / a.warm) * min(1.0, (1 - share) / a.decay)
        for g, lr in groups:
            g["lr"] = lr * factor
        batch = feed.next()
        mask = block_mask(batch, cfg.memory, mask_fn)
        x, table = net.body(batch["input"], batch["position"], mask)
        target = batch["target"].flatten()
        count = (target >= 0).sum()
        if teacher:
            with torch.no_grad():
                known = teacher.body(batch["input"], batch["position"], mask)
            classes, members, far = distilled(net, teacher, x.flatten(0, 1), table, known, target)
            loss = ((1 - a.teacher_share) * (classes + members) + a.teacher_share * far).sum() / count
        else:
            classes, members = net.losses(x.flatten(0, 1), table, target)
            loss = (classes + members).sum() / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters() if cfg.gated else rest + tables, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens += a.rows * a.row
        step += 1
        if step % 100 == 0:
            part = (classes.sum() / count).item() / math.log(2)
            bits = part + (members.sum() / count).item() / math.log(2)
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
            "optimizers": [o.state_dict() for o in optimizers],
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
