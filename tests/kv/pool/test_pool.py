"""Blocks of a pool: who holds them, what a full pool says, copies on write, spills, and sessions over them."""

import random

import pytest
import torch

from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession, extended
from pltz.kv.pool.slab import Slab
from pltz.kv.store.store import ANY, KVStore
from pltz.plt_codec.errors import UsageError
from tests.failing import raising
from tests.kv.pool.pages import form, random_kv

KINDS = pytest.mark.parametrize("kind", ["raw", "q8", "q4"])


def pool(kind: str = "q4", blocks: int = 12, host: int = 12, block: int = 16) -> BlockPool:
    return BlockPool(form(kind), blocks * block, block=block, host_tokens=host * block)


@KINDS
@pytest.mark.parametrize("block", [16, 256])
def test_packing_in_steps_gives_the_same_bytes(kind: str, block: int) -> None:
    kv, ours = random_kv(300), pool(kind, blocks=40 if block == 16 else 4, block=block)
    whole = PackedSession.of(kv, ours, keep=7)
    steps = PackedSession.of(kv[:, :, :, :50], ours, keep=0)
    for at in range(50, 300, 25):
        steps.exact = torch.cat([steps.exact, kv[:, :, :, at : at + 25]], 3)
        steps.pack(keep=7)
    assert torch.equal(steps.kv(), whole.kv())


def test_a_session_of_few_tokens_takes_no_block() -> None:
    ours = pool()
    session = PackedSession.of(random_kv(4), ours, keep=0)
    assert (session.blocks, session.tokens, ours.device.free) == ([], 4, 12) and torch.equal(session.kv(), random_kv(4))


def test_a_full_pool_says_what_to_do_and_keeps_what_it_has() -> None:
    ours = pool(blocks=6)
    session = PackedSession.of(random_kv(64), ours, keep=0)
    before = session.kv()
    with pytest.raises(PoolFull, match="2 free blocks of 6 on cpu, and 4 are needed: release or spill"):
        PackedSession.of(random_kv(64, seed=1), ours, keep=0)
    assert ours.device.free == 2 and torch.equal(session.kv(), before)
    session.release()
    session.release()
    assert ours.device.free == 6


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    ours, kv = pool(), random_kv(40)
    one = PackedSession.of(kv[:, :, :, :24], ours, keep=0)  # a block and a half
    other = one.fork()
    assert ours.device.free == 10
    other.exact = torch.cat([other.exact, kv[:, :, :, 24:]], 3)
    other.pack(keep=0)
    assert other.blocks[0] == one.blocks[0] and other.blocks[1] != one.blocks[1]
    assert torch.equal(other.kv(), PackedSession.of(kv, ours, keep=0).kv())
    assert torch.equal(one.kv(), other.kv()[:, :, :, :24])
    with pytest.raises(UsageError, match="others hold"):
        ours.device.write(one.blocks, 0, ours.form.pack(kv[:, :, :, :16], 0))


def test_a_session_that_finds_no_room_for_its_copy_gives_back_the_room_it_found() -> None:
    ours = pool("raw", blocks=3)
    session = PackedSession.of(random_kv(20), ours, keep=0)
    other = session.fork()
    with pytest.raises(PoolFull):  # a block more, and a copy of the last one
        extended(ours, other.blocks, 20, random_kv(20))
    assert ours.device.free == 1
    other.release()
    session.release()
    assert ours.device.free == 3


@pytest.mark.parametrize("to_host", [True, False])
def test_a_move_that_fails_gives_back_the_room_it_took(monkeypatch: pytest.MonkeyPatch, to_host: bool) -> None:
    ours = pool()
    session = PackedSession.of(random_kv(40), ours, keep=0)
    assert ours.host is not None
    held = session.blocks if to_host else ours.spill(session.blocks)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Slab, "copy", raising(RuntimeError("the copy failed")))
        ours.spill(held) if to_host else ours.warm(held)
    assert (ours.device.free, ours.host.free) == ((9, 12) if to_host else (12, 9))


def test_a_session_cut_to_its_sinks_has_no_pages() -> None:
    """Pages of sinks alone would be rows that nobody looks at."""
    ours, kv = pool(), random_kv(40)
    for tokens in (ours.form.sinks + 1, ours.form.sinks, 1, 0):
        session = PackedSession.of(kv, ours, keep=0)
        session.cut(tokens)
        assert session.tokens == tokens and session.packed == (tokens if tokens > ours.form.sinks else 0)
        assert torch.equal(session.kv()[:, :, :, : ours.form.sinks], kv[:, :, :, : min(tokens, ours.form.sinks)])
        session.release()
    assert ours.device.free == 12


def test_blocks_are_held_as_often_as_they_are_retained() -> None:
    slab = pool().device
    blocks = slab.allocate(3)
    slab.retain(blocks[:1])
    slab.release(blocks)
    assert slab.free == 11
    for wrong in (blocks, [12], [-1]):
        with pytest.raises(UsageError, match="held"):
            slab.release(wrong)
    slab.release(blocks[:1])
    assert slab.free == 12
    with pytest.raises(UsageError, match="more often"):
        slab.release(slab.allocate(1) * 2)


@KINDS
def test_spilled_and_warmed_blocks_have_the_same_bytes(kind: str) -> None:
    ours = pool(kind)
    session = PackedSession.of(random_kv(100), ours, keep=10)
    before = session.kv()
    away = ours.spill(session.blocks)
    assert ours.host is not None and (ours.device.free, ours.host.free) == (12, 6)
    other = PackedSession.of(random_kv(120), ours, keep=0)
    with pytest.raises(PoolFull, match="free blocks"):
        ours.warm(away)
    other.release()
    session.blocks = ours.warm(away)
    assert torch.equal(session.kv(), before) and (ours.device.free, ours.host.free) == (6, 12)
    with pytest.raises(PoolFull, match="host_tokens"):
        pool(host=0).spill([])


def test_sizes_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="16 or 256"):
        BlockPool(form("q4"), 100, block=20)
    with pytest.raises(UsageError, match="at least a block"):
        BlockPool(form("q4"), 100, block=256)
    with pytest.raises(PoolFull, match="take fewer tokens"):
        BlockPool(form("q4"), 1 << 44)


def test_no_block_is_lost_or_given_twice() -> None:
    """Any order of calls: sessions keep their bytes, and in the end all blocks are free."""
    draw = random.Random(5)
    ours = pool(blocks=14, host=9)
    store = KVStore(ours.form, ours)
    live: list[tuple[PackedSession, torch.Tensor, list[int]]] = []
    refused = 0
    for _ in range(300):
        act = draw.choice((0, 1, 4, 5))
        try:
            if act < 2:
                ids = [draw.randrange(2), *range(draw.randrange(20, 70))]
                found = store.match(str(draw.randrange(2)), ids, bound=ANY)
                kv = random_kv(len(ids), seed=ids[0])
                if found is None:
                    found = PackedSession.of(kv, ours, keep=3)
                    store.insert("0", ids, found)
                live.append((found, found.kv(), ids))
            elif live:
                session, kv, ids = live[draw.randrange(len(live))]
                if act == 4:
                    live.append((session.fork(), kv, ids))
                elif act == 5:
                    session.release()
                    live = [one for one in live if one[0] is not session]
        except PoolFull:
            refused += 1
        for session, kv, _ in live:
            assert torch.equal(session.kv(), kv)
    assert refused
    for session, _, _ in live:
        session.release()
    store.clear()
    assert ours.host is not None and (ours.device.free, ours.host.free) == (14, 9)
