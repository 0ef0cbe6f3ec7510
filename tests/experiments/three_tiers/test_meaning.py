"""Blocks with a meaning: metadata, pins, prompts of layers, reservations, and the loop that moves blocks."""

from __future__ import annotations

import pytest
import torch

from pltz.experiments.three_tiers.block_metadata import MetadataTable, PrefixPins, PromptSection
from pltz.experiments.three_tiers.context_pipeline import ContextPipeline, PromptLayer
from pltz.experiments.three_tiers.memory_loop import MemoryLoop, Thresholds
from pltz.experiments.three_tiers.reservation import Reservation
from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.prefix_tree import PrefixTree
from pltz.plt_codec.errors import UsageError
from tests.kv.pool.pages import form, random_kv

STABLE = list(range(1000, 1040))


class Clock:
    """A clock that is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def table_of(blocks: int = 20, host: int = 0, kind: str = "raw", clock: Clock | None = None) -> MetadataTable:
    pool = BlockPool(form(kind), blocks * 16, host_tokens=host * 16)
    return MetadataTable(PrefixTree(pool), clock=clock or Clock())


def ids(number: int, count: int = 64) -> list[int]:
    return [number, *range(100, 99 + count)]


def add(table: MetadataTable, number: int, source: str, importance: float = 0.5, count: int = 64) -> list[bytes]:
    """Put a session into the tree, described as of one source, and return the names of its steps."""
    session = PackedSession.of(random_kv(count, seed=number), table.tree.pool, keep=0)
    table.tree.insert("acme", ids(number, count), session)
    session.release()
    return table.describe("acme", ids(number, count), [PromptSection(source, 0, count, importance)])


# ---- metadata


def test_a_full_pool_gives_up_the_source_of_the_lowest_priority() -> None:
    """The least recently used block would be one of the rules."""
    table = table_of(12)
    table.tree.rank = table.rank
    rules, turn = add(table, 0, "rules"), add(table, 1, "user_turn")
    add(table, 2, "memories", count=96)
    assert all(name in table.tree for name in rules)
    assert [name in table.tree for name in turn] == [True, True, False, False]
    assert table.prune() == 2 and turn[3] not in table.blocks


def test_pinned_prefixes_stay() -> None:
    table = table_of(12)
    pins = PrefixPins(table.tree)
    kept, gone = add(table, 0, "rules"), add(table, 1, "rules")
    name = pins.pin("acme", ids(0)[:32])
    assert name == kept[1] and pins.pins == {name: 1}
    add(table, 2, "rules", count=96)
    assert [n in table.tree for n in kept + gone] == [True, True, False, False] + [True] * 4
    with pytest.raises(PoolFull):
        PackedSession.of(random_kv(11 * 16), table.tree.pool, keep=0)
    assert kept[1] in table.tree
    pins.unpin(name)
    PackedSession.of(random_kv(12 * 16), table.tree.pool, keep=0)
    assert kept[1] not in table.tree
    with pytest.raises(UsageError, match="not pinned"):
        pins.unpin(name)
    assert pins.pin("acme", ids(0)) is None


def test_a_clear_ends_pins_and_what_comes_again_has_none() -> None:
    table = table_of(12)
    pins = PrefixPins(table.tree)
    add(table, 0, "rules")
    name = pins.pin("acme", ids(0)[:32])
    assert name is not None
    table.tree.clear("acme", ids(0)[:16])
    assert not pins.pins
    add(table, 0, "rules")
    assert not pins.pins and pins.pin("acme", ids(0)[:32]) == name
    assert pins.pins == {name: 1}
    pins.unpin(name)
    with pytest.raises(UsageError, match="not pinned"):
        pins.unpin(name)
    longer = pins.pin("acme", ids(0)[:48])
    assert longer is not None and longer != name and pins.pins == {longer: 1}
    assert [step.pins for step in table.tree.steps() if step.name in (name, longer)] == [1, 1]


# ---- prompts of layers


def layers(chat: list[int], memories: int = 100) -> list[PromptLayer]:
    return [
        PromptLayer("rules", STABLE[:20], stable=True),
        PromptLayer("capabilities", STABLE[20:], stable=True),
        PromptLayer("memories", list(range(2000, 2000 + memories)), budget=20),
        PromptLayer("user_turn", chat),
    ]


def run(pipeline: ContextPipeline, chat: list[int]) -> tuple[int, bool, int]:
    """Run a turn: the tokens that were known, whether the prefix was, and the length of the prompt."""
    context = pipeline.build(layers(chat))
    known = 0
    if context.session is not None:
        known = context.session.tokens
        context.session.release()
    session = PackedSession.of(random_kv(len(context.ids)), pipeline.tree.pool, keep=0)
    pipeline.done(context, session)
    session.release()
    return known, context.known, len(context.ids)


def test_the_stable_prefix_is_reused_and_pinned_and_budgets_follow_the_room() -> None:
    table = table_of(40)
    pins = PrefixPins(table.tree)
    pipeline = ContextPipeline("acme", table, pins)
    assert run(pipeline, [1] * 10) == (0, False, 40 + 100 + 10)  # 5 x 20 memories in an empty pool
    assert len(pins.pins) == 1
    known, same, _ = run(pipeline, [2] * 10)
    assert same and known >= 32
    busy = table.tree.pool.device.allocate(table.tree.pool.device.free)
    assert pipeline.factor() == 1.0
    context = pipeline.build(layers([3]))
    assert len(context.ids) == 40 + 20 + 1 and context.session is not None
    assert context.sections[2] == PromptSection("memories", 40, 60, 0.5)
    table.tree.pool.device.release(busy[:9])
    assert 1 < pipeline.factor() < 5
    sources = {table.blocks[name].source for name in table.tree.names("acme", context.ids[:48])}
    assert sources == {"rules", "capabilities"}


# ---- reservations


@pytest.mark.parametrize("kind", ["raw", "q4"])
def test_a_reservation_is_cold_until_it_is_warmed(kind: str) -> None:
    pool = table_of(12, 12, kind).tree.pool
    assert pool.host is not None
    bet = Reservation(pool, "memories", 100)
    assert (pool.host.free, pool.device.free, bet.filled) == (5, 12, False)
    with pytest.raises(UsageError, match="nothing was filled"):
        bet.warm()
    session = PackedSession.of(random_kv(70), pool, keep=10)
    expected = session.kv()
    bet.fill(session)
    session.release()
    assert pool.device.free == 12 and bet.filled
    found = bet.warm()
    assert torch.equal(found.kv(), expected) and pool.host.free == 12
    found.release()
    bet.release()
    assert (pool.device.free, pool.host.free) == (12, 12)


# ---- the loop


def test_the_loop_moves_the_lowest_scores_out_and_brings_high_ones_back() -> None:
    clock = Clock()
    table = table_of(20, 40, clock=clock)
    low = add(table, 0, "user_turn", 0.1)
    high = add(table, 1, "axioms", 0.9)
    middle = add(table, 2, "memories", 0.5, count=12 * 16 - 1)
    loop = MemoryLoop(table, Thresholds(promote=0.6, demote=0.9, aim=0.75), clock=clock)
    assert loop.tick() is None
    clock.now += 60
    cycle = loop.tick()
    assert cycle is not None and (cycle.observed.device, cycle.demoted, cycle.promoted) == (0.95, 4, 0)
    where = {step.name: step.spilled for step in table.tree.steps()}
    assert [where[name] for name in low] == [True] * 4 and not any(where[name] for name in high + middle)
    assert loop.tick() is None
    table.tree.move(high + middle, to_host=True)
    cycle = loop.cycle()
    where = {step.name: step.spilled for step in table.tree.steps()}
    assert cycle.promoted == 4 and not any(where[name] for name in high)
    assert all(where[name] for name in low + middle)
