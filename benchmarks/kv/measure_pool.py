"""Measure attention over packed pages, and moves of pages over the bus, in the shape of an 8B model on one GPU.

    python -m pltz.benchmarks.kv.measure_pool --help

    python -m pltz.benchmarks.kv.measure_pool > benchmarks/results/pool.json
    python -m pltz.benchmarks.kv.measure_pool --only moves
    python -m pltz.benchmarks.kv.measure_pool --only steps
    python -m pltz.benchmarks.kv.measure_pool --only launches
    python -m pltz.benchmarks.kv.measure_pool --loss ./smollm2 --data chat_test.jsonl.zst --rows 8

Pages hold random codes, in blocks of 16 tokens that are scattered over the pool. 132 tokens per session are exact
beside them. Times of attention are those of CUDA graphs over all layers, the median of the rounds; the peer is the
fastest way to call torch's scaled_dot_product_attention over bf16 keys and values in one piece. `rest` are the products
of the other layers of a step, with random weights. Whole steps are timed, too, alone and beside moves of blocks.
Kernels are first compared with unpack-then-attend.

With ``--loss`` no GPU is needed: it measures what pages lose, as `python -m pltz.experiments kv` measures forms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pltz.datasets.loaders import load
from pltz.kv.calibrate.measure import CHANGED, SIMULATED, compare, sessions_to_rows
from pltz.kv.pool import block_copy, gpu_attention
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.gpu_attention import Launch
from pltz.kv.pool.layer_view import LayerView
from pltz.kv.pool.packed_session import KEEP, PackedSession
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.port.codec import KVCodec, Span
from pltz.kv.port.rotary import Rotary
from pltz.models.session.session import Session
from pltz.models.target.target import Target

if TYPE_CHECKING:
    from pltz.kv.engines.cuda import Launcher
    from pltz.kv.port.arriving import Parts

HEADS, QUERIES, DIM, LAYERS = 8, 32, 128, 32
HIDDEN, INNER, VOCABULARY = 4096, 14336, 128256
EXACT = 132  # four sinks and the tail
BATCHES = {"1 session, 4k": (1, 4096, 32), "32 sessions, 16k": (32, 16384, 6)}  # sessions, tokens, layers that fit
BUILDS = [  # warps, step, CTAs per multiprocessor, unit
    (4, 4, 3, 128), (4, 4, 3, 64), (4, 2, 3, 128), (4, 2, 4, 64), (8, 2, 2, 128), (8, 2, 2, 64), (8, 1, 2, 16),
]  # fmt: skip
BOTH = (Launch(128, 64), Launch(512, 256, 8, 2, 2, 128))  # compared with attention over unpacked KV
ROUNDS = 15
MOVES = 24  # moves in a row, beside which steps are timed


def rotary() -> Rotary:
    """Return the rotary embedding of the shape."""
    return Rotary(500000.0 ** -(torch.arange(DIM // 2, dtype=torch.float64) / (DIM // 2)))


def pages(kind: str, layers: int, dim: int = DIM) -> PageFormat:
    """Return pages with a random centre."""
    draw = torch.Generator().manual_seed(1)
    turn = Rotary(rotary().inv_freq[: dim // 2])
    centre = torch.randn(layers, 2, HEADS, dim, generator=draw)
    return PageFormat(kind, layers, HEADS, dim, torch.bfloat16, turn, centre)


class Case:
    """Sessions of random pages. ``views``: what attention reads of each layer."""

    def __init__(self, kind: str, batch: int, tokens: int, layers: int, block: int = 16, dim: int = DIM) -> None:
        torch.manual_seed(2)
        form = pages(kind, layers, dim)
        self.pool = BlockPool(form, batch * tokens, block=block, device="cuda")
        slab = self.pool.device
        codes = slab.tensors["kv"]
        codes.view(torch.uint8).random_(0, 256)
        slab.tensors["scale"].uniform_(0.05, 0.15)
        if kind == "q8":
            slab.tensors["scale"] /= 64
        table = torch.randperm(slab.blocks, device="cuda").int().reshape(batch, tokens // block)
        packed = torch.full((batch,), tokens, dtype=torch.int32, device="cuda")
        room = 192
        self.exact = torch.randn(layers, 2, batch, HEADS, room, dim, dtype=torch.bfloat16, device="cuda")
        real = torch.ones(batch, room, dtype=torch.uint8, device="cuda")
        self.query = torch.randn(batch, QUERIES, dim, dtype=torch.bfloat16, device="cuda")
        self.views = [
            LayerView(slab, n, table, packed, tokens, self.exact[n, 0], self.exact[n, 1], real, EXACT)
            for n in range(layers)
        ]

    def attend(self, launch: Launch | None = None) -> None:
        """Attend in all layers."""
        for view in self.views:
            gpu_attention.attend(view, self.query, DIM**-0.5, launch)


def compared(kind: str, block: int, dim: int) -> dict[str, Any]:
    """Compare the kernels with attention over unpacked KV, in float32. Returns the largest differences of two ways."""
    case = Case(kind, 3, 1024, 1, block, dim)
    view = case.views[0]
    packed = torch.tensor([1024, 333, 5], dtype=torch.int32, device="cuda")
    view = LayerView(view.slab, 0, view.table, packed, 1024, view.keys, view.values, view.real, view.columns)
    both = [gpu_attention.attend(view, case.query, 0.1, launch) for launch in BOTH]
    object.__setattr__(view.slab.form, "dtype", torch.float32)  # so that nothing is rounded to bf16 on the way
    exact = LayerView(view.slab, 0, view.table, packed, 1024, view.keys.float(), view.values.float(), view.real, EXACT)
    keys, values, real = exact.unpacked()
    group = QUERIES // HEADS
    keys, values = keys.float().repeat_interleave(group, 1), values.float().repeat_interleave(group, 1)
    scores = (case.query.float()[:, :, None] @ keys.mT)[:, :, 0] * 0.1
    weights = scores.masked_fill(~real[:, None], float("-inf")).softmax(-1)
    right = (weights[:, :, None] @ values)[:, :, 0]
    return {
        "compared": f"{kind}, blocks of {block}, heads of {dim}",
        "difference": round(max(float((found - right).abs().max() / right.abs().max()) for found in both), 6),
    }


def graphed(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Return the milliseconds of some work as a CUDA graph, the median of rounds."""
    return timed(captured(work).replay, rounds)


def timed(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Return the milliseconds of some work, the median of rounds."""
    work()
    found = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return float(statistics.median(found))


def peer(batch: int, tokens: int, layers: int) -> tuple[float, str]:
    """Return the milliseconds of the fastest attention of torch over bf16 KV, and how it was called."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch.nn.functional.scaled_dot_product_attention
    shape = (layers, 2, batch, HEADS, tokens + EXACT, DIM)
    kv = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
    query = torch.randn(batch, QUERIES, 1, DIM, dtype=torch.bfloat16, device="cuda")
    grouped = query.view(batch, HEADS, QUERIES // HEADS, DIM)
    ways: dict[str, Any] = {
        "grouped rows": lambda k, v: attend(grouped, k, v),
        "enable_gqa": lambda k, v: attend(query, k, v, enable_gqa=True),
    }
    found: dict[str, float] = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        for name, way in ways.items():
            try:
                with sdpa_kernel(backend):
                    key = f"{backend.name.lower()}, {name}"
                    found[key] = graphed(lambda: [way(*layer) for layer in kv])  # noqa: B023
            except RuntimeError:
                continue
    best = min(found, key=found.__getitem__)
    return found[best], best


def rest(batch: int) -> float:
    """Return the milliseconds of the products of a step beside attention, all layers and the head."""
    sizes = [(HIDDEN, (QUERIES + 2 * HEADS) * DIM), (HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN)]
    weights = [torch.randn(a, b, dtype=torch.bfloat16, device="cuda") * 0.01 for a, b in sizes]
    head = torch.randn(HIDDEN, VOCABULARY, dtype=torch.bfloat16, device="cuda") * 0.01
    rows = [torch.randn(batch, len(weight), dtype=torch.bfloat16, device="cuda") for weight in weights]

    def step() -> None:
        for _ in range(LAYERS):
            for row, weight in zip(rows, weights, strict=True):
                row @ weight
        rows[0] @ head

    return graphed(step)


def attention(name: str) -> list[dict[str, Any]]:
    """Measure a batch: bf16, q8 and q4."""
    batch, tokens, layers = BATCHES[name]
    by_peer, how = peer(batch, tokens, layers)
    torch.cuda.empty_cache()
    beside = rest(batch)
    rows = []
    for kind in ("bf16", "q8", "q4"):
        took = by_peer
        if kind != "bf16":
            case = Case(kind, batch, tokens, layers)
            took = graphed(case.attend)
            launched = timed(case.attend, 5)
            del case
            torch.cuda.empty_cache()
        whole = took * LAYERS / layers
        rows.append(
            {
                "attention": name, "kind": kind, "ms_per_layer": round(took / layers, 5),
                "tokens_per_s": round(1000 * batch / whole), "of_bf16": round(by_peer / took, 3),
                "ms_rest": round(beside, 3), "share_of_step": round(whole / (whole + beside), 3),
                "step_of_bf16": round((by_peer * LAYERS / layers + beside) / (whole + beside), 3),
            }
            | ({"how": how} if kind == "bf16" else {"ms_per_layer_launched_from_python": round(launched / layers, 5)})
        )  # fmt: skip
    return rows


class DecodingStep:
    """A whole step of decoding: attention of all layers between the products of each, and those of the head.

    ``kind``: bf16 by cuDNN, or pages. Weights and layers of KV come round again where they would not fit.
    """

    def __init__(self, name: str, kind: str) -> None:
        batch, tokens, layers = BATCHES[name]
        sizes = [(HIDDEN, (QUERIES + 2 * HEADS) * DIM), (HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN)]
        self.weights = [torch.randn(a, b, dtype=torch.bfloat16, device="cuda") * 0.01 for a, b in sizes]
        self.head = torch.randn(HIDDEN, VOCABULARY, dtype=torch.bfloat16, device="cuda") * 0.01
        self.rows = [torch.randn(batch, len(weight), dtype=torch.bfloat16, device="cuda") for weight in self.weights]
        self.case = None if kind == "bf16" else Case(kind, batch, tokens, layers)
        if self.case is None:
            shape = (layers, 2, batch, HEADS, tokens + EXACT, DIM)
            self.kv = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
            self.query = torch.randn(batch, QUERIES, 1, DIM, dtype=torch.bfloat16, device="cuda")
        self.layers = layers

    def run(self) -> None:
        """Run the step."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        for number in range(LAYERS):
            self.rows[0] @ self.weights[0]
            if self.case:
                view = self.case.views[number % self.layers]
                gpu_attention.attend(view, self.case.query, DIM**-0.5)
            else:  # the fastest way that `peer` found
                key, value = self.kv[number % self.layers]
                attend = torch.nn.functional.scaled_dot_product_attention
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    attend(self.query, key, value, enable_gqa=True)
            for row, weight in zip(self.rows[1:], self.weights[1:], strict=True):
                row @ weight
        self.rows[0] @ self.head


def captured(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Return some work as a CUDA graph."""
    side: Any = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def steps(name: str) -> list[dict[str, Any]]:
    """Measure whole steps, each as one graph, and those with q4 pages beside the kernel that moves blocks."""
    rows: list[dict[str, Any]] = []
    batch, bf16 = BATCHES[name][0], 0.0
    for kind in ("bf16", "q8", "q4"):
        torch.cuda.empty_cache()
        step = DecodingStep(name, kind)
        graph = captured(step.run)
        took = timed(graph.replay)
        bf16 = bf16 or took
        rows.append({"step": name, "kind": kind, "ms": round(took, 3), "of_bf16": round(bf16 / took, 3)})
        rows[-1]["tokens_per_s"] = round(1000 * batch / took)
        if kind == "q4":
            rows += [{"step": name, "kind": kind} | row for row in beside(graph, took)]
        del graph, step
    return rows


def beside(graph: torch.cuda.CUDAGraph, alone: float, tokens: int = 4096, block: int = 16) -> list[dict[str, Any]]:
    """Measure steps while blocks move in another stream, and the moves, with slots that are scattered and side by side.

    ``alone``: milliseconds of a step alone.
    """
    pool = BlockPool(pages("q4", LAYERS), 2 * tokens, block=block, host_tokens=2 * tokens, device="cuda")
    kernels = block_copy.launcher(pool.device.device)
    assert pool.host is not None and kernels is not None
    draw = torch.Generator().manual_seed(4)
    some = torch.randperm(pool.device.blocks, generator=draw)[: tokens // block].tolist()
    device, host = pool.device.tensors, pool.host.tensors
    rows = []
    for scattered, spills in itertools.product((True, False), (True, False)):
        slots = some if scattered else range(len(some))
        ends = (device, some, host, slots) if spills else (host, slots, device, some)
        moving = partial(_often, moving_by(kernels, ends, spills)["by_kernel" if scattered else "by_engine"])
        moved = timed(moving)
        side: Any = torch.cuda.Stream()
        times, spans = [], []
        for _ in range(5):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3 + max(2, int(0.8 * moved / alone)))]
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                marks[0].record()
                moving()
                marks[1].record()
            for mark in marks[2:]:
                mark.record()
                graph.replay() if mark is not marks[-1] else None
            torch.cuda.synchronize()
            spans.append(marks[0].elapsed_time(marks[1]))
            times += [
                one.elapsed_time(other)
                for one, other in itertools.pairwise(marks[2:])
                if marks[0].elapsed_time(other) < spans[-1]
            ]
        rows.append(
            {
                "beside": "spill" if spills else "warm", "scattered": scattered,
                "ms": round(float(statistics.median(times)), 3) if times else None,
                "longest_ms": round(max(times, default=0.0), 3), "steps": len(times), "ms_alone": round(alone, 3),
                "move_ms": round(float(statistics.median(spans)) / MOVES, 3),
                "move_ms_alone": round(moved / MOVES, 3),
            }
        )  # fmt: skip
    return rows


def moving_by(
    kernels: Launcher, ends: tuple[block_copy.Tensors, Sequence[int], block_copy.Tensors, Sequence[int]], spills: bool
) -> dict[str, Callable[[], None]]:
    """Return the two ways to start a move. ``ends``: tensors and blocks of its source and of its target."""
    ctas = block_copy.SPILLING if spills else block_copy.WARMING
    return {
        "by_engine": lambda: block_copy.by_engine(*ends, spills, kernels),
        "by_kernel": lambda: block_copy.launch(kernels, *ends, ctas),
    }


def _often(work: Callable[[], Any]) -> None:
    """Do some work as often as MOVES says."""
    for _ in range(MOVES):
        work()


def launches(name: str) -> list[dict[str, Any]]:
    """Measure each way to run the kernels on `q4` pages, the fastest first, and how far it is from the chosen one."""
    batch, tokens, layers = BATCHES[name]
    case = Case("q4", batch, tokens, layers)
    chosen = Launch.of(batch * HEADS, tokens, QUERIES // HEADS, DIM)
    right = gpu_attention.attend(case.views[0], case.query, DIM**-0.5, chosen)
    rows = []
    for chunk in (chosen.chunk // 2, chosen.chunk, 2 * chosen.chunk):
        for warps, step, ctas, unit in BUILDS:
            way = Launch(chunk, chosen.exact, warps, step, ctas, unit)
            found = gpu_attention.attend(case.views[0], case.query, DIM**-0.5, way)
            row: dict[str, Any] = {"launches": name, "chosen": way == chosen} | vars(way)
            row["ms_per_layer"] = round(graphed(lambda: case.attend(way)) / layers, 5)  # noqa: B023
            row["difference"] = round(float((found - right).abs().max() / right.abs().max()), 6)
            rows.append(row)
    return sorted(rows, key=lambda row: row["ms_per_layer"])


def moves(tokens: int, block: int, scattered: bool) -> list[dict[str, Any]]:
    """Measure a spill and a warming of blocks, and plain copies of as many bytes over the bus.

    Blocks are scattered over the device. ``scattered``: over the host, too; else they lie side by side there, as they
    do after a spill into a host with room. ``ms_by_engine`` and ``ms_by_kernel`` are the two ways to choose from,
    without the host's wait for a spill.
    """
    pool = BlockPool(pages("q4", LAYERS), 32768, block=block, host_tokens=32768, device="cuda")
    assert pool.host is not None
    blocks = pool.device.allocate(pool.device.blocks)
    slots = pool.host.allocate(pool.host.blocks)
    pool.device.tensors["kv"].random_(0, 256)
    pool.device.tensors["scale"].uniform_(0.05, 0.15)
    draw = torch.Generator().manual_seed(4)
    some = torch.randperm(len(blocks), generator=draw)[: tokens // block].tolist()
    others = torch.randperm(len(slots), generator=draw)[: tokens // block].tolist() if scattered else slots
    others = others[: tokens // block]
    size = tokens * pool.form.token_bytes
    there = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    here = torch.empty(size, dtype=torch.uint8, device="cuda")
    kernels = block_copy.launcher(here.device)
    assert kernels is not None
    rows = []
    for spills in (True, False):
        (one, blocks_of_one), (other, blocks_of_other) = ends = (pool.device, some), (pool.host, others)
        if not spills:
            (one, blocks_of_one), (other, blocks_of_other) = reversed(ends)
        args = one.tensors, blocks_of_one, other.tensors, blocks_of_other
        plain = (there, here) if spills else (here, there)
        bus = timed(lambda: plain[0].copy_(plain[1], non_blocking=True))  # noqa: B023
        for tensor in other.tensors.values():
            tensor.zero_()
        took = timed(lambda: one.copy(blocks_of_one, other, blocks_of_other))  # noqa: B023
        same = all(
            torch.equal(pool.device.tensors[part][:, some].cpu(), pool.host.tensors[part][:, others])
            for part in pool.host.tensors
        )
        ways = {name: timed(start) for name, start in moving_by(kernels, args, spills).items()}
        rows.append(
            {
                "move": "spill" if spills else "warm", "tokens": tokens, "block": block, "scattered": scattered,
                "MB": round(size / 1e6, 1), "ms": round(took, 3),
                "GB_per_s": round(size / took / 1e6, 1), "bus_GB_per_s": round(size / bus / 1e6, 1),
                "of_bus": round(bus / took, 3), **{f"ms_{way}": round(ms, 3) for way, ms in ways.items()},
                "same_bytes": same,
            }
        )  # fmt: skip
    return rows


class Pages:
    """Pages as a form, for the measurement of forms. ``keep``: tokens at the end that stay exact."""

    exact, receipt = False, None

    def __init__(self, pages: PageFormat, keep: int) -> None:
        self.pages, self.keep = pages, keep
        self.name = f"{pages.kind} pages, {keep} exact"

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the KV as it comes back, and its size."""
        pool = BlockPool(self.pages, kv.shape[3] + 16, device=kv.device)
        session = PackedSession.of(kv, pool, keep=self.keep)
        bits = 8 * (session.packed * self.pages.token_bytes + session.exact.nbytes)
        return {CHANGED: session.kv(), f"{SIMULATED}{bits}": torch.empty(0)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return that KV."""
        return parts[CHANGED]

    def check(self, parts: Parts, tokens: int) -> None:
        """Do nothing: nothing was read."""

    def near(self, parts: Parts, device: torch.device) -> Parts:
        """Return the parts where they are."""
        return parts


def loss(target: Target, sessions: Iterable[Session], rows: int, context: int, new: int) -> list[dict[str, Any]]:
    """Measure what pages lose on rows of sessions."""
    ids = sessions_to_rows(target, sessions, rows, context + new)
    kinds = {kind: PageFormat.of(target, kind) for kind in ("q8", "q4")}
    codecs: list[KVCodec] = [Pages(kinds["q8"], KEEP), Pages(kinds["q4"], KEEP), Pages(kinds["q4"], 0)]
    return [found.row() for found in compare(target, ids, context, [(codec.name, codec) for codec in codecs])]


def main() -> None:
    """Run all measurements and print a line of JSON for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", metavar="TARGET", help="measure what pages of this target lose, and nothing else")
    parser.add_argument("--data", metavar="FILE", help="sessions for --loss")
    parser.add_argument("--rows", type=int, default=8, help="sessions of --loss (8)")
    parser.add_argument("--context", type=int, default=1536, help="tokens that are packed (1536)")
    parser.add_argument("--new", type=int, default=256, help="tokens that are scored after them (256)")
    parts = ["moves", "launches", "attention", "steps"]
    parser.add_argument("--only", choices=parts, help="measure this alone; launches are measured on no other occasion")
    given = parser.parse_args()
    if given.loss:
        target = Target.load(given.loss, dtype="float32")
        for row in loss(target, load(given.data), given.rows, given.context, given.new):
            print(json.dumps(row), flush=True)
        return
    if not torch.cuda.is_available():
        parser.exit(2, "measure_pool: no GPU here, and it measures one\n")
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    with torch.inference_mode():
        if given.only in (None, "attention"):
            for kind in ("q4", "q8"):
                for block, dim in ((16, 128), (256, 128), (16, 64)):
                    print(json.dumps(compared(kind, block, dim)), flush=True)
        if given.only in (None, "moves"):
            for tokens, block, scattered in itertools.product((4096, 16384), (16, 256), (True, False)):
                for row in moves(tokens, block, scattered):
                    print(json.dumps(row), flush=True)
        for name in BATCHES:
            if given.only == "launches":
                for row in launches(name):
                    print(json.dumps(row), flush=True)
            if given.only in (None, "attention"):
                for row in attention(name):
                    print(json.dumps(row), flush=True)
            if given.only in (None, "steps"):
                for row in steps(name):
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
