"""The CUDA engine against the compiled or the torch engine: on a GPU where there is one, and on a CPU by emulation.

The emulation runs the same kernel sources thread by thread, so models and sequences are small here.
"""

import ctypes
import itertools
import sys
from functools import cache
from math import isqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle.bundle import coder_of
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.engines.cuda.batch import by_context, few_shared
from pltz.plt_codec.engines.cuda.coder import CudaCoder
from pltz.plt_codec.engines.cuda.pack import GRID, MOST_SHARED, cluster_memory, grid_plan, macros, tiles
from pltz.plt_codec.engines.cuda.structs import BATCH, SESSION
from pltz.plt_codec.engines.cuda.work import (
    GATED,
    PLAIN,
    SequenceWork,
    StepTimes,
    all_steps,
    key_room,
    longest_apart,
    most_lanes,
    plan_slots,
)
from pltz.plt_codec.engines.native.coder import NativeCoder
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import Encoded, FrameItem
from pltz.plt_codec.weights import RESIDUAL_MAX, Weights
from tests.plt_codec.cuts import cut
from tests.plt_codec.engines.cuda import emulate
from tests.plt_codec.engines.reference import gained
from tests.watch import noted

SHAPES: dict[str, dict[str, int | bool]] = {
    "small": {"layers": 1},
    "extreme": {"extreme": True, "block": 64, "memory": 30, "layers": 1},
    "odd": {
        "vocab": 384, "d": 50, "layers": 1, "heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 75,
        "block": 100, "memory": 37,
    },
    "split": {
        "vocab": 256, "d": 100, "heads": 6, "kv_heads": 3, "head_dim": 24, "hidden": 200, "block": 64, "memory": 30,
    },
    "wide": {
        "vocab": 128 * 40, "d": 136, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 24, "hidden": 400,
        "block": 64, "memory": 30,
    },
    "many classes": {
        "vocab": 128 * 136, "d": 72, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 64, "hidden": 64,
    },
    "chunks": {
        "vocab": 384, "d": 136, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 24, "hidden": 1400,
        "block": 64, "memory": 30,
    },
    "chunks, short": {  # a cluster has less of queries, keys and values than of classes
        "vocab": 384, "d": 136, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "hidden": 72,
        "block": 64, "memory": 30,
    },
    "warm": {"layers": 1, "block": 64, "memory": 30},
    "cold": {"layers": 2, "block": 64, "memory": 30},
    "gated": {"gated": True},
    "gated, odd": {
        "gated": True, "vocab": 384, "d": 50, "layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 75,
        "block": 100, "memory": 37,
    },
    "gated, extreme": {"gated": True, "extreme": True, "block": 64, "memory": 30, "layers": 1},
    "gated, base": {
        "gated": True, "d": 576, "layers": 1, "heads": 9, "kv_heads": 3, "head_dim": 64, "hidden": 160,
        "block": 64, "memory": 30,
    },
    "gated, warm edges": {"gated": True, "block": 64, "memory": 30, "hidden": 300},
    "gated, flood": {
        "gated": True, "extreme": True, "d": 1024, "layers": 1, "heads": 4, "kv_heads": 1, "head_dim": 64,
        "hidden": 200, "block": 64, "memory": 30,
    },
}  # fmt: skip
LAYOUTS = [(None, None), (3, 7), (16, 4), (32, 3), (40, 2)]
LENGTHS = (0, 1, 3, 55, 130)


def emulated(test: Any) -> Any:
    """Mark a test of the kernels by emulation, which runs where a file of this engine changed."""
    where = pytest.mark.skipif(not emulate.available(), reason="the emulation needs g++ on x86-64 Linux")
    return where(pytest.mark.seldom("plt_codec/engines/cuda/*", "plt_codec/engines/*.py", "plt_codec/*.py")(test))


def every_second(names: list[str], layouts: list[tuple[int | None, int | None]]) -> list[tuple[str, Any, Any]]:
    """Return every second pair of a model and a layout, as on a chessboard. A GPU runs all pairs."""
    return [(name, *layout) for i, name in enumerate(names) for j, layout in enumerate(layouts) if (i + j) % 2 == 0]


on_gpu = pytest.mark.skipif(gpu.count() == 0, reason="no NVIDIA GPU, or pltz[cuda] is not installed")


@cache
def model(name: str) -> Weights:
    """A random model of one of SHAPES, some tensors of which are at_the_bounds()."""
    weights = random_weights(5, **SHAPES[name])  # type: ignore[arg-type]
    rng, tensors = np.random.default_rng(8), weights.tensors
    for kind in name.split():
        tensors = {k: at_the_bounds(kind, k, v, rng) for k, v in tensors.items()}
    return Weights(weights.shape, tensors)


def at_the_bounds(kind: str, tensor: str, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a tensor with some values at their bounds.

    warm: heats at the end of what the kernels multiply in one step. cold: heats of 0, where all keys weigh the same,
    and 1. edges: biases and gains at their ends.
    flood: weights nearly all positive, so that logits pass 2^30 and sums of squares 2^53."""
    if kind == "warm" and tensor.endswith("heat"):
        return np.arange((1 << 22) - len(v), 1 << 22, dtype=v.dtype)
    if kind == "cold" and tensor.endswith("heat"):
        return np.arange(len(v), dtype=v.dtype) % 2
    if kind == "edges" and tensor.startswith(("layer.0.norm", "norm", "table.act")):
        ends = np.iinfo(v.dtype)
        return rng.choice([ends.min, ends.min + 1, -1, 0, 1, 5000, ends.max], v.shape).astype(v.dtype)
    if kind == "edges" and tensor.endswith(".b"):
        return rng.choice([1 - (1 << 24), -700, 0, 700, (1 << 24) - 1], v.shape).astype(v.dtype)
    if kind == "flood" and v.dtype == np.int8:
        return np.where(rng.random(v.shape) < 0.05, -127, 127).astype(v.dtype)
    return v


@cache
def reference(name: str) -> TokenCoder | NativeCoder | CudaCoder:
    """The compiled engine on it, or torch's: test_coder.py holds that their frames are the same."""
    return coder_of(model(name), threads=1)


def sequences(name: str) -> list[np.ndarray]:
    """Random ids of LENGTHS."""
    rng = np.random.default_rng(3)
    return [rng.integers(0, model(name).shape.vocab, n) for n in LENGTHS]


@cache
def frames(name: str, lanes: int | None, steps: int | None) -> list[Encoded]:
    """What the reference encodes."""
    return reference(name).encode(sequences(name), layouts=cut(lanes, steps))


@cache
def emulation(name: str) -> emulate.Emulation:
    """Return the kernels for one of SHAPES."""
    shape = {**macros(model(name)), "P_HELD": 1, **grid_plan(model(name).shape, 2)}
    return emulate.Emulation(shape)


def coder(name: str, clusters: int, grid: int = 0, gated: int = 0) -> CudaCoder:
    """Return a coder on the emulation.

    clusters: 0 decodes by the kernels for many sessions. grid: 2 by grid.cu.
    gated: 2 by gated.cu.
    """
    device = emulate.EmulatedDevice(emulation(name), clusters, grid, gated)
    return CudaCoder(model(name), on=device)


def items(name: str, lanes: int | None, steps: int | None) -> list[FrameItem]:
    return [
        FrameItem(f.data, len(s), cut(lanes, steps))
        for f, s in zip(frames(name, lanes, steps), sequences(name), strict=True)
    ]


@emulated
@pytest.mark.parametrize("file", gpu.SOURCES)
def test_each_file_of_kernels_needs_no_other_but_its_headers(file: str) -> None:
    """grid.cu took 20 names from cluster.cu, and gated.cu two from batch.cu, because they stood before it."""
    for name in ("small", "gated"):
        emulate.check(gpu.whole((gpu.HERE / file).read_text("utf8")), macros(model(name)))


@emulated
@pytest.mark.parametrize(
    "name,lanes,steps", every_second(["small", "extreme", "odd", "gated", "gated, extreme", "gated, odd"], LAYOUTS)
)
def test_emulated_encode(name: str, lanes: int | None, steps: int | None) -> None:
    done: list[int] = []
    got = coder(name, 0).encode(sequences(name), layouts=cut(lanes, steps), progress=done.append)
    want = frames(name, lanes, steps)
    assert [g.data for g in got] == [w.data for w in want]
    assert [(g.blocks, g.layout) for g in got] == [(w.blocks, w.layout) for w in want]
    assert [g.ideal_bits for g in got] == pytest.approx([w.ideal_bits for w in want]) and sum(done) == sum(LENGTHS)


@emulated
@pytest.mark.parametrize("name", ["small", "extreme", "odd", "gated", "gated, extreme", "gated, odd"])
@pytest.mark.parametrize("lanes,steps", [(3, 7), (40, 2)])
def test_emulated_decode_of_many(name: str, lanes: int | None, steps: int | None) -> None:
    done: list[int] = []
    got = coder(name, 0).decode(items(name, lanes, steps), progress=done.append)
    for g, s in zip(got, sequences(name), strict=True):
        assert np.array_equal(g, s)
    assert sum(done) == sum(LENGTHS)


def watched(c: CudaCoder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each kernel that a coder launches from now on."""
    return noted(monkeypatch, c._device, "launch", lambda kernel: kernel)


@emulated
@pytest.mark.parametrize(
    "name,lanes,steps,few",
    [("small", None, None, True), ("extreme", 1, 40, True), ("odd", 1, 60, True), ("gated, odd", 1, 60, True),
     ("small", 4, 15, True), ("small", 5, 12, False), ("odd", 2, 30, True), ("odd", 3, 20, False)],
)  # fmt: skip
def test_emulated_decode_of_many_of_few_lanes(
    name: str, lanes: int | None, steps: int | None, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and behind contexts; up to eight queries per key head take the attention that reads each key once."""
    c = coder(name, 0)
    launched = watched(c, monkeypatch)
    for got, text in zip(c.decode(items(name, lanes, steps)[:4]), sequences(name)[:4], strict=True):
        assert np.array_equal(got, text)
    assert ("attend" in launched) == (not few) and ("attend_few" in launched or not few)
    check_contexts(c, name, lanes, steps, only=slice(2, 6))


@emulated
def test_few_lanes_of_many_keys_take_the_other_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    c = coder("small", 0)
    launched, shape = watched(c, monkeypatch), model("small").shape
    need = few_shared(shape, SequenceWork(130, Layout(1, 512)))
    for few, more, kernels in (
        (need, 0, {"attend_few"}), (need - 1, need, {"attend_few"}), (need - 1, need - 1, {"attend", "attend_few"})
    ):  # fmt: skip
        monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.FEW_SHARED", few)
        monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.FEWER_SHARED", more)
        (got,) = c.decode(items("small", None, None)[4:])
        assert np.array_equal(got, sequences("small")[4])
        assert {name for name in launched if name.startswith("attend")} == kernels
        each_layer = launched.count("attend_few") // launched.count("to_out")
        assert each_layer == 1 + (more > few), "one launch, or one more with more shared memory"
        launched.clear()


@emulated
def test_many_slots_are_shared_out_to_the_threads_of_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slots a thread, sequences that wait for a slot, and several blocks, alone and behind shared contexts."""
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.rows.COLLECTORS", 32)
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.SLOTS", 70)
    c, shape = coder("extreme", 0), model("extreme").shape
    rng = np.random.default_rng(6)
    texts = [rng.integers(0, shape.vocab, 1 + n % 13) for n in range(88)]
    texts[40] = rng.integers(0, shape.vocab, shape.block + 3)
    above = [rng.integers(0, shape.vocab, n) for n in (shape.memory, 5)]
    known = [None if n % 5 == 0 else above[n % 2] for n in range(len(texts))]
    want = reference("extreme").encode(texts, contexts=known)
    sent = [FrameItem(w.data, len(t), context=k) for w, t, k in zip(want, texts, known, strict=True)]
    for decoded, text in zip(c.decode(sent), texts, strict=True):
        assert np.array_equal(decoded, text)


def test_those_behind_one_context_take_slots_side_by_side() -> None:
    """Order as many as there are slots; the others, none of which needs more room than these, come by room."""
    sessions = np.zeros(7, SESSION)
    sessions["context"], sessions["total"] = [1, 0, -1, 1, 0, 0, 1], [9, 8, 7, 6, 5, 4, 3]
    rooms = [640, 512, 512, 256, 256, 64, 128]
    assert by_context(sessions, rooms, 5) == [2, 1, 4, 0, 3, 6, 5]
    assert by_context(sessions, rooms, 7) == [2, 1, 4, 5, 0, 3, 6]


@emulated
def test_sequences_of_few_and_many_lanes_are_decoded(monkeypatch: pytest.MonkeyPatch, name: str = "small") -> None:
    """Each slot is served by the attention that suits it, and so in each step where keys grow beyond what one has."""
    c = coder(name, 0)
    launched, shape = watched(c, monkeypatch), model(name).shape
    need = few_shared(shape, SequenceWork(130, Layout(1, 40)))
    mixed = [items(name, 1, 40)[4], items(name, 40, 2)[4], items(name, 3, 7)[3], items(name, 1, 40)[3]]
    for most in (need, need - 4 * 64 * shape.heads // shape.kv_heads):
        monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.FEW_SHARED", most)
        monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.FEWER_SHARED", most)
        for got, n in zip(c.decode(mixed), (4, 4, 3, 3), strict=True):
            assert np.array_equal(got, sequences(name)[n])
        assert {"attend", "attend_few"} <= set(launched)
        launched.clear()


@emulated
@pytest.mark.parametrize("name", ["small", "odd"])
def test_sequences_of_different_layouts_are_encoded_together(name: str) -> None:
    """Also where they take more iterations, or fewer slots, than all would of one layout."""
    cuts = [(1, 40), (40, 2), (3, 7), (16, 4)] * 2
    numbers = [4, 4, 3, 4, 2, 1, 4, 3]
    texts = [sequences(name)[n] for n in numbers]
    layouts = [Layout(*one) for one in cuts]
    got = coder(name, 0).encode(texts, layouts=layouts)
    assert [g.data for g in got] == [frames(name, *one)[n].data for n, one in zip(numbers, cuts, strict=True)]
    assert [g.layout for g in got] == layouts


@emulated
@pytest.mark.parametrize("name,lanes,steps", [("small", 16, 4), ("extreme", 16, 4), ("split", 16, 4)])
def test_emulated_decode_by_clusters(name: str, lanes: int | None, steps: int | None) -> None:
    c = coder(name, 2)
    assert c.clusters([SequenceWork(130, Layout(16, 4))]) == 1
    for g, s in zip(c.decode(items(name, lanes, steps)), sequences(name), strict=True):
        assert np.array_equal(g, s)


@emulated
@pytest.mark.parametrize(("one", "cluster"), [(1.0, 9.0), (9.0, 1.0), (1.0, 1.0)])
def test_emulated_decode_of_the_longest_apart(one: float, cluster: float, monkeypatch: pytest.MonkeyPatch) -> None:
    c = coder("small", 2, 2)
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.PLAIN", StepTimes(one, cluster, 1000.0))
    runs = noted(monkeypatch, c, "_decode_part", lambda data: len(data))
    for g, s in zip(c.decode(items("small", 16, 4)), sequences("small"), strict=True):
        assert np.array_equal(g, s)
    assert len(runs) > 1 and sum(runs) == sum(n > 0 for n in LENGTHS)


def test_the_longest_are_decoded_apart_where_that_takes_less_time() -> None:
    """A long one keeps the kernel for many at a step for it alone; clusters decode seven of them side by side."""
    few, many = [7, 14, 21], [500] * 900
    assert longest_apart([32_000, 31_000, *[16_000] * 7, *many], 2, few, 7, PLAIN) == (0, 14)
    assert longest_apart([64_000, *[9000] * 7, *many], 2, few, 7, PLAIN) == (1, 7)
    assert longest_apart([32_000] * 7 + many, 0, few, 7, PLAIN) == (0, 7)
    assert longest_apart(many, 2, few, 7, PLAIN) == (0, 0) and longest_apart([100], 0, [], 7, PLAIN) == (0, 0)
    assert longest_apart([9000, 10], 2, [], 1, GATED) in {(1, 0), (2, 0)}
    assert longest_apart([8000] * 21 + many, 2, few, 7, PLAIN) == (0, 0), "one for all is not slower"


@emulated
@pytest.mark.parametrize("name", ["small", "extreme", "warm", "cold"])
def test_emulated_decode_by_the_whole_gpu(name: str) -> None:
    c = coder(name, 2, 2)
    assert c.alone([SequenceWork(130, Layout(16, 4))])
    assert not c.alone([SequenceWork(130, Layout(16, 4))] * 5) and not c.alone([SequenceWork(130, Layout(40, 2))])
    done: list[int] = []
    whole = items(name, 16, 4)[1:]  # three blocks; fewer tokens than lanes; one
    for i, s in zip(whole[::-1], sequences(name)[::-1], strict=False):
        (got,) = c.decode([i], progress=done.append)
        assert np.array_equal(got, s)
    assert sum(done) == sum(LENGTHS)


@emulated
@pytest.mark.parametrize("name,lanes,steps,first,last", [
    ("gated", 16, 4, 2, 4),
    ("gated, extreme", 17, 3, 4, 5),
    pytest.param("gated, base", 32, 2, 3, 4, marks=pytest.mark.slow),
    pytest.param("gated, odd", 3, 7, 3, 4, marks=pytest.mark.slow),
    pytest.param("gated, warm edges", 24, 5, 4, 5, marks=pytest.mark.slow),
])
def test_emulated_decode_of_a_gated_bundle_by_a_gpu(name: str, lanes: int, steps: int, first: int, last: int) -> None:
    """One block and several, lanes one step short, a last block of few tokens; behind a context too."""
    c, work = coder(name, 0, gated=2), SequenceWork(130, Layout(lanes, steps))
    assert c.gated([work]) and not c.gated([work] * 5) and not c.gated([SequenceWork(130, Layout(33, 3))])
    done: list[int] = []
    for i, s in list(zip(items(name, lanes, steps), sequences(name), strict=True))[first:last]:
        (got,) = c.decode([i], progress=done.append)
        assert np.array_equal(got, s)
    assert sum(done) == sum(LENGTHS[first:last])
    check_contexts(c, name, lanes, steps, only=slice(6, 7))


@emulated
@pytest.mark.parametrize(
    "name,lanes,steps", [("split", 16, 4), ("chunks", 16, 4), ("chunks", 32, 2), ("chunks, short", 32, 2)]
)
def test_emulated_whole_gpu_where_a_row_has_several_chunks(name: str, lanes: int, steps: int) -> None:
    """A warp then has several pieces of weights, and their order counts: with one chunk it cannot be wrong."""
    (got,) = coder(name, 2, 2).decode(items(name, lanes, steps)[3:4])
    assert np.array_equal(got, sequences(name)[3])


@emulated
@pytest.mark.slow
@pytest.mark.parametrize("name,lanes,steps", every_second(["split", "many classes"], LAYOUTS[1:]))
def test_emulated_round_trip_of_other_shapes(name: str, lanes: int | None, steps: int | None) -> None:
    """Decode the longest text on many lanes alone: on few it takes most of the time."""
    c = coder(name, 2)
    got = c.encode(sequences(name), layouts=cut(lanes, steps))
    assert [g.data for g in got] == [w.data for w in frames(name, lanes, steps)]
    count = len(LENGTHS) if (lanes or 0) > 3 else 4
    for g, s in zip(c.decode(items(name, lanes, steps)[:count]), sequences(name)[:count], strict=True):
        assert np.array_equal(g, s)


def row_of(total: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """(d,) residuals whose squares sum to `total`: random ones, and 48 for what is left."""
    x = rng.standard_normal(d - 48)
    for _ in range(50):  # 99 % of the total, however many come to stand at the bound
        x = np.clip(x * np.sqrt(0.99 * total / (x * x).sum()), -RESIDUAL_MAX, RESIDUAL_MAX)
    out = [int(v) for v in x]
    rest = total - sum(v * v for v in out)
    for _ in range(48):
        out.append(min(RESIDUAL_MAX, isqrt(rest)))
        rest -= out[-1] ** 2
    assert rest == 0
    return np.array(out)


def check_norms(device: gpu.Device, weights: Weights) -> None:
    """Run norms() on rows where the root, the quotient or the rounding is close, with gains that show each unit."""
    rng = np.random.default_rng(4)
    d, gain = weights.shape.d, weights.shape.norm_gain
    roots = [1000, 1 << 16, 1 << 17, 3 << 20, (1 << 26) + 1, 94906267, 127_000_000, 127_000_001]
    beyond = range(94906268, 95000000, 4)  # r^2 - 1 is no double, the nearest is r^2
    roots += [r for r in beyond if (gain << 32) // r != (gain << 32) // (r - 1)][:8]
    xs = [row_of(r * r + more, d, rng) for r in roots for more in (-1, 0, 2 * r, 2 * r + 1)]
    xs += [np.full(d, v) for v in (0, 1, -1, RESIDUAL_MAX, -RESIDUAL_MAX)] + [np.eye(1, d, dtype=np.int64)[0]]
    at = {name: device.alloc(size) for name, size in (("state", 256), ("x", 4 * d), ("gains", 4 * d), ("out", d))}
    state = np.zeros(1, BATCH)
    state["rows"] = 1
    device.upload(at["state"], state)
    for x in xs:
        scale = (gain << 32) // max(1, isqrt(int((x * x).sum())))
        unit = (x * scale + (1 << 31)) >> 32
        edge = 253 << 19  # between 126 and 127
        first = -(-edge // np.maximum(1, np.abs(unit)))  # the least gain that gives 127; one less of the unit: 126
        for gains in (
            np.sign(unit) * first, np.sign(unit) * (first - 1), np.full(d, (1 << 31) - 1), np.full(d, -(1 << 31)),
        ):
            device.upload(at["x"], x.astype(np.int32))
            device.upload(at["gains"], gains.astype(np.int32))
            device.launch("norms", (1, 1, 1), 256, [ctypes.c_void_p(at[n]) for n in ("state", "x", "gains", "out")])
            out = np.zeros(d, np.int8)
            device.download(at["out"], out)
            assert np.array_equal(out, gained(x, gain, gains))


@emulated
def test_emulated_norms_with_gains() -> None:
    c = coder("gated, flood", 0)
    check_norms(c._device, c.weights)


@on_gpu
def test_norms_with_gains_on_a_gpu() -> None:
    c = CudaCoder(model("gated, flood"))
    check_norms(c._device, c.weights)


@emulated
@pytest.mark.parametrize(
    "name,clusters,grid,gated",
    [("small", 0, 0, 0), ("small", 2, 0, 0), ("small", 2, 2, 0), ("gated", 0, 0, 0), ("gated", 0, 0, 2)],
)
@pytest.mark.parametrize("damage", ["empty", "ones", "cut"])
def test_emulated_damage_is_named(name: str, clusters: int, grid: int, gated: int, damage: str) -> None:
    whole = frames(name, 16, 4)[-1].data
    data = {"empty": b"", "ones": b"\xff" * 100, "cut": whole[:40]}[damage]
    with pytest.raises(CorruptError) as ours:
        coder(name, clusters, grid, gated=gated).decode([FrameItem(data, 130, Layout(16, 4))])
    with pytest.raises(CorruptError) as theirs:
        reference(name).decode([FrameItem(data, 130, Layout(16, 4))])
    assert str(ours.value) == str(theirs.value)


@emulated
def test_wrong_content_is_refused() -> None:
    c = coder("small", 0)
    for bad in (np.array([-1]), np.array([512]), np.zeros((2, 2), np.int64)):
        with pytest.raises(ContentError):
            c.encode([bad])
    with pytest.raises(UsageError):
        c.encode([np.array([1])], layouts=Layout(65, 1))
    with pytest.raises(CorruptError):
        c.decode([FrameItem(b"", -1)])


def test_rooms_hold_every_block() -> None:
    """key_room against the blocks themselves: memory of the block before, or the context, and the block's own grid."""
    shape = model("odd").shape
    for (lanes, steps), first in itertools.product(LAYOUTS, (0, 1, 36, 37)):
        layout = cut(lanes, steps) or Layout(1, 512)
        for tokens in range(1, 350, 7):
            kept, most, widest, steps_all = first, 0, 0, 0
            for block in layout.blocks(tokens, first):
                most = max(most, kept + block.steps * block.lanes)
                kept = int((block.targets() >= block.tokens - shape.memory).sum())
                widest, steps_all = max(widest, block.lanes), steps_all + block.steps
            work = SequenceWork(tokens, layout, first)
            assert most <= key_room(shape, work) <= shape.memory + max(min(tokens, layout.full), 200) + 3 * 64
            apart = first // 32 * 32  # keys that the first block reads elsewhere, and no later one
            later = max(most - apart if tokens <= layout.full else 0, most - first)
            assert later <= key_room(shape, work, in_place=True) <= key_room(shape, work) and most_lanes(work) == widest
            assert all_steps(work) == steps_all


def test_slots_stay_within_memory() -> None:
    shape = model("odd").shape
    each = 128 * shape.kv_heads * shape.layers
    needs = sorted((key_room(shape, SequenceWork(n, Layout(4, 16))) for n in range(1, 200)), reverse=True)
    for memory in (0, 10_000, 1 << 20, 1 << 30):
        rooms = plan_slots(shape, needs, 50, memory)
        assert 1 <= len(rooms) <= 50
        assert len(rooms) == 1 or sum(rooms) * each <= memory
        assert rooms == sorted(rooms, reverse=True)


def test_a_kernel_is_granted_more_shared_memory_when_a_later_launch_asks_for_it() -> None:
    granted: list[int] = []

    class Driver:
        CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="most")

        def cuModuleGetFunction(self, module: object, name: bytes) -> tuple[int, bytes]:
            return 0, name

        def cuFuncSetAttribute(self, function: bytes, name: str, value: int) -> tuple[int]:
            granted.append(value)
            return (0,)

    device = object.__new__(gpu.CudaDevice)
    vars(device).update(_cu=Driver(), _module=None, _functions={}, _granted={})
    for size in (1 << 10, 60 << 10, 50 << 10, 60 << 10, 96 << 10, 1 << 10):
        assert device.function("attend_few", size, 1) == b"attend_few"
    assert granted == [60 << 10, 96 << 10]


def test_tiles_put_weights_where_the_kernels_look() -> None:
    w = np.arange(70 * 100, dtype=np.int64).reshape(70, 100).astype(np.int8)
    packed = tiles(w).reshape(-1)
    for row, column in ((0, 0), (7, 63), (8, 64), (69, 99)):
        at = ((row // 8 * 2 + column // 64) * 8 + row % 8) * 64 + column % 64
        assert packed[at] == w[row, column]
    assert len(packed) == 128 * 128


def test_bounds_that_permit_32_bits_are_checked() -> None:
    hot = {name: macros(model(name))["P_HOT"] for name in SHAPES}
    assert [name for name in SHAPES if macros(model(name))["P_COLD"]] == ["cold"]
    wide = {name: macros(model(name))["P_WIDE"] for name in SHAPES}
    assert {n for n in hot if hot[n]} == {"extreme", "gated, extreme", "gated, flood"}
    assert {n for n in wide if wide[n]} == {"gated, flood"}


def test_a_cluster_of_the_shipped_shape_fits() -> None:
    wide = random_weights(1, d=384, heads=6, kv_heads=3, head_dim=64, hidden=1664, layers=7, vocab=16384)
    assert cluster_memory(wide.shape) <= MOST_SHARED
    assert grid_plan(wide.shape)["P_GRID"] == GRID and grid_plan(wide.shape)["P_GRID_LANES"] == 32
    assert grid_plan(wide.shape)["P_GRID_WIDE_SHARED"] <= MOST_SHARED


def test_kernels_that_do_not_compile_say_so_in_the_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'pltz.cu({n}): error: identifier "x{n}" is undefined' for n in range(40)]
    log = "\n\n".join(lines).encode() + b"\0"

    def fill(program: int, buffer: Any) -> None:
        ctypes.memmove(buffer, log, len(log))

    nvrtc = SimpleNamespace(
        nvrtcVersion=lambda: (0, 13, 0), nvrtcCreateProgram=lambda *_: (0, 1), nvrtcCompileProgram=lambda *_: (6,),
        nvrtcGetProgramLogSize=lambda _: (0, len(log)), nvrtcGetProgramLog=fill, nvrtcDestroyProgram=lambda _: (0,),
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(nvrtc=nvrtc))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(gpu.CompileError) as caught:
        gpu.compile_text("x0;", 120)
    said = str(caught.value)
    assert "sm_120" in said and lines[0] in said and lines[5] in said and lines[6] not in said
    assert "pip install -U 'pltz[cuda]'" in said and "\0" not in said


def test_the_kernels_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NVRTC, where it is installed; no GPU needed. What was compiled is kept and found again."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        code = gpu.compile_kernels(macros(model("small")), 90)
    except RuntimeError as exc:  # bindings without the library
        pytest.skip(str(exc))
    assert code[:4] == b"\x7fELF"
    (kept,) = (tmp_path / "pltz").iterdir()
    kept.write_bytes(b"from the cache")
    assert gpu.compile_kernels(macros(model("small")), 90) == b"from the cache"


@on_gpu
@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("lanes,steps", LAYOUTS)
@pytest.mark.parametrize("limits", [(0, 0), (3, 0), (3, 9)])
def test_on_a_gpu(
    name: str, lanes: int | None, steps: int | None, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.CLUSTER_LIMIT", limits[0])
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.GRID_LIMIT", limits[1])
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.GATED_LIMIT", limits[1])
    c = CudaCoder(model(name))
    got = c.encode(sequences(name), layouts=cut(lanes, steps))
    assert [g.data for g in got] == [w.data for w in frames(name, lanes, steps)]
    for g, s in zip(c.decode(items(name, lanes, steps)), sequences(name), strict=True):
        assert np.array_equal(g, s)


def behind(name: str) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Return random ids, of one block and of several, and the contexts.

    Some have none; there is each length that counts, and shared ones.
    """
    shape, rng = model(name).shape, np.random.default_rng(9)
    many = [1, 31, 33, shape.memory - 1, shape.memory, shape.memory + 1, 3 * shape.memory, 0]
    known: list[np.ndarray | None] = [rng.integers(0, shape.vocab, n) for n in many]
    known += [known[1], known[5], None]
    return [rng.integers(0, shape.vocab, n) for n in [7, 60, 130, 33, 1, 70, 20, 5, 90, 2, 40]], known


def check_contexts(c: CudaCoder, name: str, lanes: int | None, steps: int | None, *, only: slice = slice(None)) -> None:
    """Frames behind contexts are the reference's, and decode, all together."""
    all_texts, all_known = behind(name)
    texts, known = all_texts[only], all_known[only]
    want = reference(name).encode(texts, contexts=known, layouts=cut(lanes, steps))
    got = c.encode(texts, contexts=known, layouts=cut(lanes, steps))
    assert [(g.data, g.blocks) for g in got] == [(w.data, w.blocks) for w in want]
    sent = [FrameItem(w.data, len(t), cut(lanes, steps), k) for w, t, k in zip(want, texts, known, strict=True)]
    for decoded, text in zip(c.decode(sent), texts, strict=True):
        assert np.array_equal(decoded, text)


@emulated
@pytest.mark.parametrize(
    "name,lanes,steps", [("small", None, None), ("extreme", 3, 7), ("gated", 16, 4), ("gated, odd", 3, 7)]
)
def test_emulated_contexts_of_many(name: str, lanes: int | None, steps: int | None) -> None:
    check_contexts(coder(name, 0), name, lanes, steps)


@emulated
def test_emulated_contexts_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """More contexts than run side by side, more sequences than slots, and memory for few contexts at a time."""
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.contexts.SLOTS", 2)
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.ENCODE_SLOTS", 2)
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.batch.SLOTS", 3)
    c = coder("extreme", 0)
    check_contexts(c, "extreme", 16, 4)
    monkeypatch.setattr(c._device, "room", lambda: 16 * 1024)
    check_contexts(c, "extreme", 3, 7)


@on_gpu
@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("lanes,steps", LAYOUTS)
@pytest.mark.parametrize("limits", [(0, 0), (3, 0), (3, 9)])
def test_contexts_on_a_gpu(
    name: str, lanes: int | None, steps: int | None, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven together, and few enough for each of the other ways."""
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.CLUSTER_LIMIT", limits[0])
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.GRID_LIMIT", limits[1])
    monkeypatch.setattr("pltz.plt_codec.engines.cuda.coder.GATED_LIMIT", limits[1])
    c = CudaCoder(model(name))
    check_contexts(c, name, lanes, steps)
    for first in range(0, 11, 3):
        check_contexts(c, name, lanes, steps, only=slice(first, first + 3))


Cut = tuple[int, int | None, int | None]  # tokens, lanes, steps


def links(name: str, layouts: list[Cut]) -> tuple[list[FrameItem], list[np.ndarray]]:
    """Return a chain of frames of (tokens, lanes, steps) each, after the tokens of those before it, and their ids.

    The fourth is encoded alone."""
    rng, vocab = np.random.default_rng(21), model(name).shape.vocab
    known = rng.integers(0, vocab, 5)
    above, out, texts = known, list[FrameItem](), list[np.ndarray]()
    for tokens, lanes, steps in layouts:
        text, alone = rng.integers(0, vocab, tokens), len(out) == 3
        (frame,) = reference(name).encode([text], contexts=[None if alone else above], layouts=cut(lanes, steps))
        out.append(FrameItem(frame.data, tokens, cut(lanes, steps), None if out else known))
        if alone:
            out[-1] = FrameItem(frame.data, tokens, cut(lanes, steps), known[:0])
        texts.append(text)
        above = np.concatenate([above, text])
    return out, texts


CHAIN: list[Cut] = [(20, 4, 8), (30, 16, 4), (0, None, None), (9, 3, 8)]
CHAIN += [(80, 32, 2), (1, 1, 1), (40, 40, 2), (70, 16, 2)]
CHAIN += [(12, 2, 6), (9, None, None)]
MIXED: list[Cut] = [(64, 32, 2), (16, 16, 1), (96, 32, 1), (7, 3, 8), (32, 32, 1), (40, 16, 4)]  # widths of grid.cu


@emulated
@pytest.mark.parametrize("name,grid,gated", [("small", 2, 0), ("extreme", 2, 0), ("gated", 0, 2)])
def test_emulated_chain(name: str, grid: int, gated: int) -> None:
    """Links of several blocks, of each kernel and of none, contexts shorter and longer than M, an empty link."""
    c = coder(name, 2 if grid else 0, grid, gated=gated)
    sent, texts = links(name, CHAIN)
    done: list[int] = []
    got = c.decode_chain(sent, progress=done.append)
    assert [g.tolist() for g in got] == [t.tolist() for t in texts] and sum(done) == sum(map(len, texts))
    assert c.decode_chain([]) == []


@emulated
def test_damage_in_a_chain_is_named() -> None:
    c = coder("small", 2, 2)
    sent, _ = links("small", [(20, 4, 8), (130, 16, 4), (9, 3, 8)])
    sent[1] = FrameItem(sent[1].data[:20], 130, Layout(16, 4))
    with pytest.raises(CorruptError, match="damaged"):
        c.decode_chain(sent)


@emulated
def test_layouts_of_sequences_decoded_together_differ() -> None:
    """Two by the whole GPU: the kernel has room for the wider one, which stands second."""
    c = coder("small", 2, 2)
    mixed = [items("small", 16, 4)[4], items("small", 32, 2)[3]]
    for got, n in zip(c.decode(mixed), (4, 3), strict=True):
        assert np.array_equal(got, sequences("small")[n])


@on_gpu
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_chain_on_a_gpu(name: str) -> None:
    c = CudaCoder(model(name))
    chains: list[list[Cut]] = [CHAIN, CHAIN[:2], [(33, 8, 5)] * 70, [(n, None, None) for n in range(1, 60, 7)]]
    chains += [[(32 * steps, 32, steps), *MIXED] for steps in range(1, 17)]
    for layouts in chains:
        sent, texts = links(name, layouts)
        assert [g.tolist() for g in c.decode_chain(sent)] == [t.tolist() for t in texts]
