"""Batches of packed sessions: what `generate` gives each, what a pass computes, and what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pltz.datasets import sample_sessions
from pltz.kv.pool.batch_cache import BatchKVCache
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.page_attention import use_pages
from pltz.models.target.cache import cache_argument
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError

LENGTHS, NEW = (150, 40, 300), ((11, 5, 9, 3), (7,), (5, 2))


@pytest.fixture(scope="module")
def target() -> Target:
    target = Target.load("mini-llama", dtype="float32")  # products of bfloat16 depend on the batch
    use_pages(target.model)
    return target


@pytest.fixture(scope="module")
def texts(target: Target) -> list[list[int]]:
    chat = "".join(message["content"] for one in sample_sessions()[:30] for message in one.value["messages"])
    ids = [int(one) for one in target.tokenize(chat)]
    return [ids[1000 * n : 1000 * n + tokens] for n, tokens in enumerate(LENGTHS)]


def session_of(target: Target, pool: BlockPool, ids: Sequence[int], keep: int = 16) -> PackedSession:
    with torch.inference_mode():
        return PackedSession.of(target.prefill(ids)[0], pool, keep=keep)


def generated(target: Target, cache: Any, inputs: dict[str, torch.Tensor], count: int) -> list[list[int]]:
    with torch.inference_mode():
        found = target.model.generate(
            **inputs, **cache_argument(target.model, cache), max_new_tokens=count, min_new_tokens=count,
            do_sample=False, pad_token_id=0,
        )
    return [row[inputs["input_ids"].shape[1] :].tolist() for row in found]


@pytest.mark.parametrize("kind", ["raw", "q4"])
def test_each_session_of_a_batch_continues_as_alone(target: Target, texts: list[list[int]], kind: str) -> None:
    """80 tokens, so that tails are packed on the way."""
    pool = BlockPool.of(target, kind, 4096)
    sessions = [session_of(target, pool, ids) for ids in texts]
    alone = []
    for session, new in zip(sessions, NEW, strict=True):
        cache = BatchKVCache.merge([session], keep=16)
        alone += generated(target, cache, cache.inputs([new]), 80)
        cache.release()
    cache = BatchKVCache.merge(sessions, keep=16)
    found = generated(target, cache, cache.inputs(NEW), 80)
    assert found == alone
    assert all(packed > session.packed for packed, session in zip(cache.packed, sessions, strict=True))
    assert cache.tokens() == [len(ids) + len(new) + 79 for ids, new in zip(texts, NEW, strict=True)]
    if kind == "raw":
        for ids, new, text in zip(texts, NEW, found, strict=True):
            whole = torch.tensor([[*ids, *new]])
            inputs = {"input_ids": whole, "attention_mask": torch.ones_like(whole)}
            assert generated(target, None, inputs, 80)[0] == text
    cache.release()
    for session in sessions:
        session.release()
    assert pool.device.free == pool.device.blocks


def test_beams_share_blocks(target: Target, texts: list[list[int]]) -> None:
    pool = BlockPool.of(target, "raw", 4096)
    session = session_of(target, pool, texts[0])
    cache = BatchKVCache.merge([session], keep=16)
    cache.batch_repeat_interleave(3)
    inputs = cache.inputs([[11], [11], [11]])
    rows = generated(target, cache, inputs, 80)
    assert rows[0] == rows[1] == rows[2] and len({tuple(table) for table in cache.tables}) == 3
    assert len({table[0] for table in cache.tables}) == 1
    cache.reorder_cache(torch.tensor([2, 2]))
    cache.release()
    session.release()
    assert pool.device.free == pool.device.blocks


def test_columns_that_are_still_exact_can_be_dropped(target: Target, texts: list[list[int]]) -> None:
    pool = BlockPool.of(target, "q4", 4096)
    cache = BatchKVCache.merge([session_of(target, pool, texts[0])], keep=16)
    first = generated(target, cache, cache.inputs([[11]]), 9)
    cache.crop(-9)
    assert cache.tokens() == [150] and generated(target, cache, cache.inputs([[11]]), 9) == first
    with pytest.raises(UsageError, match="last 9 columns"):
        cache.crop(-10)


def test_what_is_refused(target: Target, texts: list[list[int]]) -> None:
    pool, other = (BlockPool.of(target, "q4", 1024, host_tokens=1024) for _ in range(2))
    one, two = session_of(target, pool, texts[0]), session_of(target, other, texts[0])
    with pytest.raises(UsageError, match="one pool"):
        BatchKVCache.merge([one, two])
    with pytest.raises(UsageError, match="at least one"):
        BatchKVCache.merge([one]).inputs([[]])
    cache = BatchKVCache.merge([one])
    target.model.set_attn_implementation("sdpa")
    try:
        with pytest.raises(UsageError, match="use_pages"):
            generated(target, cache, cache.inputs([[1]]), 2)
    finally:
        use_pages(target.model)
    with pytest.raises(UsageError, match="merge anew"):
        generated(target, cache, cache.inputs([[1]]), 2)
