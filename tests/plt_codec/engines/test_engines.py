"""Every engine against the oracle and against each other, at the edges: encoded by each, decoded by each.

The engines: torch, and the compiled one with each kernel that runs here. (CUDA has tests of its own, against the same
reference.) All must give the same bytes, which one decoding by each then shows to come back.
"""

from functools import cache

import numpy as np
import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.engines.native.coder import NativeCoder, available, kernels
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import FrameItem
from pltz.plt_codec.weights import Weights
from tests.plt_codec.cuts import cut
from tests.plt_codec.engines.reference import Oracle, frame, norm

ENGINES = ["torch", *(kernels() if available() else [])]
HEADS = {"d": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 64, "layers": 1, "block": 96, "memory": 40}
OTHERS: dict[str, dict[str, int | bool]] = {  # shapes
    "odd": {
        "vocab": 384, "d": 50, "heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 75, "block": 100, "memory": 37,
    },
    "many classes": {
        "vocab": 16384, "d": 32, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 64, "block": 64, "memory": 16,
    },
    "gated": {"gated": True, "block": 32, "memory": 10},
    "gated, extreme": {"gated": True, "extreme": True, "block": 32, "memory": 10},
}  # fmt: skip
CASES = [
    *OTHERS, "ordinary", "saturated", "all logits equal", "one class wins", "opposite keys", "mild heats", "wild heats",
]
LENGTHS = (1, 2, 95, 96, 97, 150)  # of sessions: one token; about a block; with a memory before


def changed(weights: Weights, **tensors: np.ndarray) -> Weights:
    return Weights(weights.shape, {**weights.tensors, **{k.replace("__", "."): v for k, v in tensors.items()}})


@cache
def model(case: str) -> Weights:
    """A model of another shape, or with heads of 64 dimensions at one of the edges."""
    if case in OTHERS:
        return random_weights(11, **OTHERS[case])  # type: ignore[arg-type]
    weights = random_weights(7, extreme=case == "saturated", **HEADS)  # type: ignore[arg-type]
    t = weights.tensors
    if case == "all logits equal":  # multipliers and biases of the head at 0
        heads = ("class__m", "class__b", "member__m", "member__b")
        return changed(weights, **{k: np.zeros_like(t[k.replace("__", ".")]) for k in heads})
    if case == "one class wins":  # a gap of 2^24: all others get a count of 1 or 2
        bias = np.where(np.arange(len(t["class.b"])) == 1, (1 << 24) - 1, -(1 << 24) + 1)
        return changed(weights, class__b=bias.astype(np.int32))
    if case == "opposite keys":  # token 1 is minus token 0 and keys are queries: scores lie 2 * 192^2 > 2^16 apart
        embed, qkv = t["embed.w"].copy(), t["layer.0.qkv.w"].copy()
        embed[1] = -embed[0]
        scale = t["embed.m"].copy()
        scale[1] = scale[0]
        qkv[4 * 64 : 6 * 64] = qkv[[*range(64), *range(128, 192)]]
        m = np.full_like(t["layer.0.qkv.m"], t["layer.0.qkv.m"][0])
        still = np.ones_like(t["table.phase"])
        return changed(
            weights, embed__w=embed, embed__m=scale, layer__0__qkv__w=qkv, layer__0__qkv__m=m, table__phase=still
        )
    heats = {"mild heats": [0, 1, 1023, 65535], "wild heats": [1024, 65535, 65536, (1 << 31) - 1]}
    return changed(weights, layer__0__heat=np.array(heats[case], np.int32)) if case in heats else weights


@cache
def coder(engine: str, case: str) -> TokenCoder | NativeCoder:
    if engine == "torch":
        return TokenCoder(TorchEngine(model(case), threads=1))
    return NativeCoder(model(case), threads=1, kernel=engine)


def sessions(case: str, lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    """Random ids; where keys shall be opposite, of tokens 0 and 1 alone."""
    rng = np.random.default_rng(11)
    return [rng.integers(0, 2 if case == "opposite keys" else model(case).shape.vocab, n) for n in lengths]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lanes, steps", [(None, None), (16, 5), (5, 19), (32, 128)])
@pytest.mark.parametrize("case", CASES)
def test_coded_by_one_decoded_by_any(case: str, lanes: int | None, steps: int | None, engine: str) -> None:
    """Sessions of unequal lanes that end at different times, side by side: the bytes of the first engine, and back.

    Progress counts every token, both ways."""
    tokens, told = sessions(case), list[int]()
    want = coder(ENGINES[0], case).encode(tokens, layouts=cut(lanes, steps))
    got = coder(engine, case).encode(tokens, layouts=cut(lanes, steps), progress=told.append)
    assert [e.data for e in got] == [e.data for e in want]
    items = [FrameItem(e.data, len(t), e.layout) for e, t in zip(want, tokens, strict=True)]
    back = coder(engine, case).decode(items, progress=told.append)
    assert all(np.array_equal(a, b) for a, b in zip(back, tokens, strict=True)) and sum(told) == 2 * sum(LENGTHS)


@pytest.mark.parametrize("case", CASES)
def test_coded_as_the_oracle_does(case: str) -> None:
    """All engines give the bytes of the first (above); the first gives the oracle's."""
    tokens, layout = sessions(case, (110,))[0], Layout(5, 19)
    [got] = coder(ENGINES[-1], case).encode([tokens], layouts=Layout(5, 19))
    assert got.data == frame(model(case), tokens, layout)


def test_opposite_keys_lie_further_apart_than_16_bits() -> None:
    """The case is what it claims to be."""
    weights = model("opposite keys")
    oracle, shape = Oracle(weights), weights.shape
    x = [weights["embed.w"][u].astype(np.int64) * int(weights["embed.m"][u]) >> 16 for u in (0, 1)]
    (q, k, _), (_, opposite, _) = (oracle._heads(0, norm(a, shape.norm_gain), 0) for a in x)
    assert int(q[0] @ k[0]) - int(q[0] @ opposite[0]) >= 1 << 16


@cache
def long_model() -> Weights:
    return random_weights(3, d=16, layers=1, heads=2, kv_heads=1, head_dim=64, hidden=16, block=16384, memory=64)


@cache
def long_frame() -> tuple[bytes, bytes]:
    """A block of 16384 tokens and one more, and a block of one token, as torch codes them."""
    ids = np.random.default_rng(2).integers(0, 512, 16385)
    return tuple(
        e.data for e in TokenCoder(TorchEngine(long_model(), threads=1)).encode([ids, ids[:1]], layouts=Layout(64, 256))
    )  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [engine for engine in ENGINES[1:] if engine != "plain"])  # it takes a minute
def test_the_longest_block_and_the_shortest(engine: str) -> None:
    ids = np.random.default_rng(2).integers(0, 512, 16385)
    native = NativeCoder(long_model(), threads=2, kernel=engine)
    got = native.encode([ids, ids[:1]], layouts=Layout(64, 256))
    assert tuple(e.data for e in got) == long_frame()
    items = [FrameItem(e.data, n, Layout(64, 256)) for e, n in zip(got, (16385, 1), strict=True)]
    assert [b.tolist() for b in native.decode(items)] == [ids.tolist(), ids[:1].tolist()]
