"""Frames, after a context and without (plt_codec/lanes.py): torch engine, compiled engine and second reader."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.engines.native.coder import NativeCoder, available, kernels
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import Encoded, FrameItem
from tests.examples import examples
from tests.plt_codec.cuts import cut
from tests.second_reader.model import Model, tokens_of
from tests.watch import memory_below, noted

Ids = npt.NDArray[np.int64]
MEMORY = 24
WEIGHTS = random_weights(7, block=64, memory=MEMORY)
CONTEXTS = (0, 1, 15, 16, MEMORY - 1, MEMORY, MEMORY + 1, 100)
CODERS = ["torch", *kernels()] if available() else ["torch"]


@cache
def coder(name: str) -> Any:
    """A coder over WEIGHTS: "torch", or a kernel of the compiled engine."""
    if name == "torch":
        return TokenCoder(TorchEngine(WEIGHTS))
    return NativeCoder(WEIGHTS, threads=2, kernel=name)


def ids(seed: int, length: int) -> Ids:
    return np.random.default_rng([seed, length]).integers(0, 512, length)


def items(encoded: Sequence[Encoded], rows: Sequence[Ids], contexts: Sequence[Ids | None]) -> list[FrameItem]:
    return [FrameItem(e.data, len(r), e.layout, c) for e, r, c in zip(encoded, rows, contexts, strict=True)]


@pytest.mark.parametrize("lanes, steps, size", [(1, 512, 90), (4, 8, 40), (1, 16, 20)])
def test_every_engine_writes_what_the_second_reader_decodes(lanes: int, steps: int, size: int) -> None:
    tokens, known = ids(1, size), [ids(2, m) for m in CONTEXTS]
    second = Model(WEIGHTS.shape.to_dict(), dict(WEIGHTS.tensors))
    want = [e.data for e in coder("torch").encode([tokens] * len(known), contexts=known, layouts=Layout(lanes, steps))]
    assert len(set(want)) == len(CONTEXTS)
    for data, context in zip(want, known, strict=True):
        assert tokens_of(second, data, size, (lanes, steps), context.tolist()) == tokens.tolist()
    for name in CODERS:
        got = coder(name).encode([tokens] * len(known), contexts=known, layouts=Layout(lanes, steps))
        assert [e.data for e in got] == want, name
        for back in coder(name).decode(items(got, [tokens] * len(known), known)):
            assert np.array_equal(back, tokens)


@pytest.mark.parametrize("name", CODERS)
def test_no_context_is_no_change_and_only_the_last_tokens_count(name: str) -> None:
    rows = [ids(3, n) for n in (0, 1, 40, 200)]
    plain = coder(name).encode(rows)
    assert coder(name).encode(rows, contexts=[None, ids(1, 0), None, []]) == plain
    long, short = ids(4, 90), ids(4, 90)[-MEMORY:]
    assert coder(name).encode(rows, contexts=[long] * 4) == coder(name).encode(rows, contexts=[short] * 4)


def test_children_of_one_context_run_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(WEIGHTS)
    ran = noted(monkeypatch, engine, "run", lambda inputs: inputs.size)
    rows, known = [ids(n, 10) for n in range(30)], [ids(n % 2, 20) for n in range(30)]
    encoded = TokenCoder(engine).encode(rows, contexts=known)
    assert sum(ran) == 30 * 10 + 2 * 20
    ran.clear()
    TokenCoder(engine).decode(items(encoded, rows, known))
    assert sum(ran) == 30 * 10 + 2 * 20


@pytest.mark.parametrize("name", CODERS)
def test_a_wrong_context_gives_other_tokens_or_is_refused(name: str) -> None:
    """Never the right tokens by silence, never a crash: the content check belongs to who holds one."""
    tokens, context = ids(5, 60), ids(6, 20)
    [e] = coder(name).encode([tokens], contexts=[context])
    for wrong in (None, context[:-1], context[1:], context[::-1], ids(9, 24), ids(9, 1)):
        try:
            [got] = coder(name).decode([FrameItem(e.data, 60, context=wrong)])
        except CorruptError:
            continue
        assert not np.array_equal(got, tokens) and got.min() >= 0 and got.max() < 512


@pytest.mark.parametrize("name", CODERS)
def test_damage_and_lies_behind_a_context(name: str) -> None:
    tokens, context = ids(5, 40), ids(6, 24)
    [e] = coder(name).encode([tokens], contexts=[context])
    seen: list[int] = []
    with pytest.raises(CorruptError, match=r"expected 100000 tokens.*bytes end before"):
        coder(name).decode([FrameItem(e.data, 100_000, context=context)], progress=seen.append)
    assert sum(seen) < 5000
    dice = np.random.default_rng(0)
    for _ in range(10):
        broken = bytearray(e.data)
        broken[dice.integers(len(broken))] ^= int(dice.integers(1, 256))
        item = FrameItem(bytes(broken), 40, context=context)
        try:
            [want] = coder("torch").decode([item])
        except CorruptError as exc:
            with pytest.raises(CorruptError, match=str(exc)):
                coder(name).decode([item])
        else:
            assert np.array_equal(coder(name).decode([item])[0], want)


@pytest.mark.parametrize("name", CODERS)
def test_wrong_calls_are_refused(name: str) -> None:
    row = ids(1, 5)
    with pytest.raises(UsageError, match="a context for each of 2"):
        coder(name).encode([row, row], contexts=[row])
    for bad in ([512], [-1], [[1, 2]], 7):
        with pytest.raises(ContentError):
            coder(name).encode([row], contexts=[np.array(bad)])
        with pytest.raises(ContentError):
            coder(name).decode([FrameItem(b"abc", 5, context=np.array(bad))])


@pytest.mark.parametrize("name", CODERS)
def test_progress_counts_what_is_coded(name: str) -> None:
    seen: list[int] = []
    encoded = coder(name).encode([ids(1, 70)], contexts=[ids(2, 20)], progress=seen.append)
    coder(name).decode(items(encoded, [ids(1, 70)], [ids(2, 20)]), progress=seen.append)
    assert sum(seen) == 140


@pytest.mark.parametrize("name", CODERS)
def test_coded_size_is_the_ideal_size(name: str) -> None:
    rows = [ids(1, size) for size in (60, 130, 300)]
    for row, e in zip(rows, coder(name).encode(rows, layouts=Layout(4, 16)), strict=True):
        assert len(e.data) <= e.ideal_bits / 8 * 1.001 + 2 and e.blocks == -(-len(row) // 64)


@pytest.mark.parametrize(
    "item",
    [
        FrameItem(b"", -1),
        FrameItem(b"", 1 << 40),
        FrameItem(bytes(range(1, 201)) * 2, 256 * 400, Layout(1, 1)),  # 102,400 blocks of one token
    ],
    ids=["negative", "huge", "many blocks"],
)
@pytest.mark.parametrize("name", CODERS)
def test_impossible_counts_are_refused_without_memory(name: str, item: FrameItem) -> None:
    coder(name)
    with memory_below(8e6), pytest.raises(CorruptError):
        coder(name).decode([item])


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 140), st.integers(0, 40), st.integers(0, 2)), max_size=6),
    st.sampled_from([(None, None), (2, 9), (16, 4), (5, 13)]),
)
def test_any_lengths_engines_agree(plan: list[tuple[int, int, int]], layout: tuple[int, int]) -> None:
    rows = [ids(n, size) for n, (size, _, _) in enumerate(plan)]
    known = [ids(seed, m) for _, m, seed in plan]
    first = coder(CODERS[0]).encode(rows, contexts=known, layouts=cut(layout[0], layout[1]))
    last = coder(CODERS[-1] if len(CODERS) < 2 else CODERS[1])
    assert [e.data for e in last.encode(rows, contexts=known, layouts=cut(layout[0], layout[1]))] == [
        e.data for e in first
    ]
    for back, row in zip(last.decode(items(first, rows, known)), rows, strict=True):
        assert np.array_equal(back, row)
