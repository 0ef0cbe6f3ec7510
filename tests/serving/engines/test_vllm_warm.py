"""Warm KV for vLLM: blocks come back as the same bytes, to the same tokens, and never from a step that failed.

A stand-in of vLLM's scheduler and cache runs the two halves; the last test runs a real vLLM
(PLTZ_VLLM_PYTHON=/path/to/bin/python python -m pytest -m vllm).
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pltz.kv.store.page_folder import PageFolder
from pltz.models.target.checkpoint import resolve
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.serving.engines.cache_rows import CacheRows
from pltz.serving.engines.pages import PageNames, space_of
from pltz.serving.engines.vllm_settings import VllmSettings
from pltz.serving.engines.vllm_warm import WarmPlace, WarmPlan, WarmScheduler, WarmWorker, arrangement_of
from tests.examples import examples
from tests.serving.engines import fake_vllm
from tests.serving.engines.live_vllm import needs_vllm, run_in_vllm

PAGE, BLOCKS, LAYERS = 4, 16, 3
SPACE = b"s" * 16


def place(folder: Path, **changes: Any) -> WarmPlace:
    given: dict[str, Any] = {"folder": str(folder), "budget": 1 << 20, "queue": 1 << 20, "space": SPACE}
    return WarmPlace(**given | changes)


def request(ids: list[int], name: str = "r", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "request_id": name, "all_token_ids": ids, "num_tokens": len(ids), "num_computed_tokens": 0, "mm_features": [],
        "prompt_embeds": None, "lora_request": None, "cache_salt": None, "skip_reading_prefix_cache": False,
    }  # fmt: skip
    return SimpleNamespace(**fields | changes)


def caches(seed: int | None, rows: int = 1, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Return a cache of (blocks, heads, tokens, 2 x head size) per layer, as vLLM 0.32 makes one."""
    made = torch.Generator().manual_seed(seed or 0)
    shape = (BLOCKS * rows, 2, PAGE // rows, 6)
    some = {f"layer {n}": torch.randn(shape, generator=made).to(dtype) for n in range(LAYERS)}
    return some if seed is not None else {name: torch.zeros_like(t) for name, t in some.items()}


class Server:
    """The two halves over one cache, with a step per call. ``seed``: of the KV in its blocks."""

    def __init__(self, at: WarmPlace, seed: int | None, rows: int = 1, about: str = "") -> None:
        self.caches = caches(seed, rows)
        self.scheduler = WarmScheduler(at, PAGE, 1)
        self.worker = WarmWorker(0, CacheRows(self.caches, BLOCKS), about)

    def step(self, one: Any, tokens: int, blocks: list[int], *, invalid: bool = False, seen: bool = True) -> None:
        plan = self.scheduler.plan({one.request_id: tokens}, lambda name: (blocks,))
        self.worker.load(plan)
        self.worker.save(plan)
        if seen:
            self.scheduler.seen(plan.step, {-1} if invalid else set())
        one.num_computed_tokens += tokens

    def wait(self, name: str) -> tuple[int, set[int]]:
        """Run empty steps until a request's blocks arrived. Returns the last step, and the blocks that failed."""
        failed: set[int] = set()
        while True:
            plan = self.scheduler.plan({}, lambda name: None)
            self.worker.load(plan)
            arrived = self.worker.arrived()
            failed |= (now := self.worker.failed())
            self.scheduler.seen(plan.step, now, arrived)
            if name in arrived:
                return plan.step, failed
            time.sleep(0.001)

    def idle(self) -> None:
        """Run the step that follows the last output, and wait for the writer."""
        plan = self.scheduler.plan({}, lambda name: None)
        self.worker.load(plan)
        self.worker.settle()

    def take(self, one: Any, blocks: list[int], fails: set[int] = frozenset()) -> int:  # type: ignore[assignment]
        """Load what is warm for a request. ``fails``: the blocks that must fail. Returns the tokens offered."""
        tokens = self.scheduler.matched(one, 0)
        self.scheduler.allocated(one, blocks, tokens)
        if tokens:
            assert self.wait(one.request_id)[1] == fails
        lost = [n for n, block in enumerate(blocks) if block in fails]
        one.num_computed_tokens = min([tokens, *(n * PAGE for n in lost)])  # as vLLM does
        return tokens


def blocks_of(server: Server, numbers: list[int], rows: int = 1) -> torch.Tensor:
    at = [n * rows + k for n in numbers for k in range(rows)]
    return torch.stack([t[at].reshape(len(numbers), -1) for t in server.caches.values()])


IDS = list(range(100, 115))  # three full blocks of four, and three tokens


@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_come_back_as_the_same_bytes_in_other_places(tmp_path: Path, rows: int) -> None:
    first = Server(place(tmp_path), 1, rows)
    one = request(IDS)
    assert first.take(one, [1, 2, 3, 4]) == 0
    first.step(one, 15, [1, 2, 3, 4])
    first.idle()
    assert first.worker.counts["warm_saved_pages"] == 3

    second = Server(place(tmp_path), None, rows)
    again = request([*IDS[:12], 7, 8], "again")
    assert second.take(again, [9, 5, 7, 8]) == 12
    second.step(again, 2, [9, 5, 7, 8])
    kept = blocks_of(first, [1, 2, 3], rows).view(torch.int16)
    assert torch.equal(blocks_of(second, [9, 5, 7], rows).view(torch.int16), kept)
    untouched = [n for n in range(BLOCKS) if n not in (9, 5, 7)]
    assert not blocks_of(second, untouched, rows).any()
    assert (second.scheduler.offered, second.worker.counts["warm_loaded_pages"]) == (12, 3)
    first.worker.close()
    second.worker.close()


def test_a_token_is_always_left_to_compute(tmp_path: Path) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS[:12])
    server.step(one, 12, [1, 2, 3])  # not followed yet
    server.take(one, [1, 2, 3])
    one.num_computed_tokens = 0
    server.step(one, 12, [1, 2, 3])
    server.idle()
    assert server.scheduler.matched(request(IDS[:12], "b"), 0) == 8
    assert server.scheduler.matched(request(IDS[:13], "c"), 0) == 12
    assert server.scheduler.matched(request(IDS[:13], "d"), 8) == 4  # behind vLLM's own
    assert server.scheduler.matched(request(IDS[:13], "e"), 12) == 0


@pytest.mark.parametrize(
    "changes",
    [{"cache_salt": "s"}, {"mm_features": [1]}, {"prompt_embeds": 1}, {"lora_request": 1}],
)
def test_other_salts_images_and_adapters_get_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    server = Server(place(tmp_path), 1)
    for n, which in enumerate(({}, changes)):
        one = request(IDS, f"r{n}", **which)
        assert server.take(one, [1, 2, 3, 4]) == 0
        server.step(one, 15, [1, 2, 3, 4])
        server.idle()
        assert server.scheduler.matched(request(IDS, f"again {n}"), 0) == 12
    salted = server.scheduler.matched(request(IDS, "last", **changes), 0)
    assert salted == (12 if "cache_salt" in changes else 0)


def test_blocks_of_a_step_that_failed_are_not_kept(tmp_path: Path) -> None:
    """A step over a damaged block computes wrong KV. Steps that were under way with it do, too."""
    first = Server(place(tmp_path), 1)
    one = request(IDS[:9])
    first.take(one, [1, 2, 3])
    first.step(one, 9, [1, 2, 3])
    first.idle()
    [damaged] = [p for p in tmp_path.rglob("*.page") if p.name.startswith(PageNames(PAGE).extend(IDS, 2)[1].hex())]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")

    second = Server(place(tmp_path), 2)
    again = request(IDS, "again")
    assert second.take(again, [5, 6, 7, 8], fails={6}) == 8  # vLLM computes the block again
    assert second.scheduler.matched(again, 0) == 0  # it is offered no more
    second.step(again, 11, [5, 6, 7, 8])
    second.idle()
    assert second.worker.counts["warm_dropped_pages"] == 0 and second.worker.counts["warm_saved_pages"] == 2
    third = Server(place(tmp_path), None)
    assert third.take(request([*IDS, 1], "third"), [1, 2, 3, 4]) == 12
    assert torch.equal(blocks_of(third, [2, 3]), blocks_of(second, [6, 7]))
    assert torch.equal(blocks_of(third, [1]), blocks_of(first, [1]))


def test_steps_under_way_with_a_block_that_failed_are_not_kept(tmp_path: Path) -> None:
    """It may be a block that another connector loads within a step, over which that step and the next compute."""
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 11, [1, 2, 3, 4], seen=False)
    server.step(one, 4, [1, 2, 3, 4], seen=False)  # scheduled before the output was seen
    server.scheduler.seen(1, {9})
    one.num_computed_tokens = 4  # vLLM takes the request back
    server.scheduler.seen(2)
    server.caches["layer 0"][1:5] += 1  # what it computes now
    server.step(one, 11, [1, 2, 3, 4])
    server.idle()
    assert server.worker.counts["warm_dropped_pages"] == 3 and server.worker.counts["warm_saved_pages"] == 2
    assert server.scheduler.matched(request(IDS, "b"), 0) == 0 and len([*tmp_path.rglob("*.page")]) == 2


def test_other_requests_run_while_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read held up every request of the step."""
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    held, reads = threading.Event(), PageFolder.read

    def slow(pages: PageFolder, name: bytes, into: Any) -> bool:
        assert held.wait(60)
        return reads(pages, name, into)

    monkeypatch.setattr(PageFolder, "read", slow)
    waits, runs = request([*IDS, 1], "waits"), request([7, 8, 9, 10, 11], "runs")
    server.scheduler.allocated(waits, [5, 6, 7, 8], server.scheduler.matched(waits, 0))
    assert server.scheduler.matched(runs, 0) == 0
    server.step(runs, 5, [9, 10])  # the plan of this step loads
    server.idle()
    assert server.worker.counts["warm_saved_pages"] == 4 and not server.worker.arrived()
    held.set()
    assert server.wait("waits")[1] == set() and server.worker.counts["warm_loaded_pages"] == 3
    assert torch.equal(blocks_of(server, [5, 6, 7]), blocks_of(server, [1, 2, 3]))
    server.worker.close()


def test_blocks_of_weights_that_changed_while_they_were_read_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    held, begun, reads = threading.Event(), threading.Event(), PageFolder.read

    def slow(pages: PageFolder, name: bytes, into: Any) -> bool:
        found = reads(pages, name, into)
        begun.set()
        assert held.wait(60)
        return found

    monkeypatch.setattr(PageFolder, "read", slow)
    waits = request([*IDS, 1], "waits")
    server.scheduler.allocated(waits, [5, 6, 7, 8], server.scheduler.matched(waits, 0))
    server.idle()
    assert begun.wait(60)
    server.scheduler.clear()
    server.idle()
    held.set()
    assert server.wait("waits")[1] == {5, 6, 7}


def test_ids_that_cannot_be_stop_nobody_else(tmp_path: Path) -> None:
    """An error in vLLM's scheduler would end the engine, with the requests of everybody."""
    server = Server(place(tmp_path), 1)
    bad, late, good = request([-1] * 9, "bad"), request([*IDS[:4], *[1 << 31] * 8], "late"), request(IDS, "good")
    assert [server.scheduler.matched(one, 0) for one in (bad, late, good)] == [0, 0, 0]
    blocks = {"bad": [1, 2, 3], "late": [4, 5, 6], "good": [7, 8, 9, 10]}
    plan = server.scheduler.plan({"bad": 9, "late": 12, "good": 15}, lambda name: (blocks[name],))
    assert [block for _, block in plan.save] == [7, 8, 9]


def test_a_load_that_raises_leaves_no_request_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()

    def broken(*args: Any) -> bool:
        raise ValueError("a defect")

    monkeypatch.setattr(PageFolder, "read", broken)
    again = request([*IDS, 1], "again")
    assert server.take(again, [5, 6, 7, 8], fails={5, 6, 7}) == 12 and again.num_computed_tokens == 0
    assert server.scheduler.matched(again, 0) == 0


def test_what_another_connector_failed_to_load_is_not_kept_either(tmp_path: Path) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4], invalid=True)
    server.idle()
    assert server.worker.counts["warm_saved_pages"] == 0 and not [*tmp_path.rglob("*.page")]


def test_nothing_is_kept_before_its_step_was_seen(tmp_path: Path) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4], seen=False)
    server.idle()
    assert not [*tmp_path.rglob("*.page")]
    server.scheduler.seen(1)
    server.idle()
    assert len([*tmp_path.rglob("*.page")]) == 3


def test_drafts_are_not_kept(tmp_path: Path) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS[:7])
    server.take(one, [1, 2])
    plan = server.scheduler.plan({"r": 8}, lambda name: ([1, 2],))  # seven ids that are known, one that is guessed
    assert len(plan.save) == 1


def test_another_kernel_misses(tmp_path: Path) -> None:
    first = Server(place(tmp_path), 1, about="flash")
    one = request(IDS)
    first.take(one, [1, 2, 3, 4])
    first.step(one, 15, [1, 2, 3, 4])
    first.idle()
    other = Server(place(tmp_path), None, about="triton")
    assert other.take(request(IDS, "again"), [1, 2, 3, 4], fails={1, 2, 3}) == 12
    assert not any(t.any() for t in other.caches.values()) and not [*tmp_path.rglob("*.page")]


def test_a_full_queue_drops_blocks_and_goes_on(tmp_path: Path) -> None:
    server = Server(place(tmp_path, queue=10), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    assert server.worker.counts["warm_dropped_pages"] == 3 and server.worker._bytes == 0


def test_without_memory_blocks_are_computed_again_and_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not enough memory")

    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    again = request([*IDS, 5], "again")
    monkeypatch.setattr(torch, "empty", full)
    assert server.take(again, [5, 6, 7, 8], fails={5, 6, 7}) == 12
    server.step(again, 16, [5, 6, 7, 8])
    server.idle()
    counts = server.worker.counts
    assert (counts["warm_failed_pages"], counts["warm_dropped_pages"], server.worker._bytes) == (3, 1, 0)


def test_a_reset_removes_all_and_what_comes_is_of_this_server_only(tmp_path: Path) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    server.scheduler.clear()
    assert server.scheduler.matched(request(IDS, "b"), 0) == 0
    again = request(IDS, "again")
    server.take(again, [1, 2, 3, 4])
    server.step(again, 15, [1, 2, 3, 4])
    server.idle()
    assert server.scheduler.matched(request(IDS, "c"), 0) == 12
    assert WarmScheduler(place(tmp_path), PAGE, 1).matched(request(IDS, "d"), 0) == 0


def test_what_runs_on_over_a_reset_is_not_kept(tmp_path: Path) -> None:
    """Blocks that new weights compute behind blocks of the old ones are of neither."""
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 8, [1, 2, 3, 4])
    server.scheduler.clear()
    server.step(one, 7, [1, 2, 3, 4])
    server.idle()
    assert not [*tmp_path.rglob("*.page")]
    one.num_computed_tokens = 0  # vLLM takes it back, and asks again
    assert server.take(one, [5, 6, 7, 8]) == 0
    server.step(one, 15, [5, 6, 7, 8])
    server.idle()
    assert server.scheduler.matched(request(IDS, "b"), 0) == 12


def test_what_is_being_written_at_a_reset_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights may have changed before the reset, so these blocks may be of others than their folder says."""
    server = Server(place(tmp_path), 1)
    go, begun, write = threading.Event(), threading.Event(), PageFolder.write

    def late(pages: PageFolder, name: bytes, pieces: Any) -> bool:
        begun.set()
        assert go.wait(60)
        return write(pages, name, pieces)

    monkeypatch.setattr(PageFolder, "write", late)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 8, [1, 2, 3, 4])
    server.step(one, 4, [1, 2, 3, 4])  # a block of its own, which waits behind those that are written
    server.step(one, 1, [1, 2, 3, 4])
    assert begun.wait(60)
    server.scheduler.clear()
    timer = threading.Timer(0.1, go.set)
    timer.start()
    server.idle()
    timer.join()
    assert not [*tmp_path.rglob("*.page")] and server.worker._bytes == 0
    counts = server.worker.counts
    assert (counts["warm_saved_pages"], counts["warm_dropped_pages"]) == (2, 1)


def test_who_wants_all_of_a_prompt_computed_gets_none(tmp_path: Path) -> None:
    """vLLM sets this for log-probabilities of the prompt, which warm tokens would not have."""
    server = Server(place(tmp_path), 1)
    one = request(IDS, skip_reading_prefix_cache=True)
    assert server.take(one, [1, 2, 3, 4]) == 0
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    assert server.take(request(IDS, "again", skip_reading_prefix_cache=True), [5, 6, 7, 8]) == 0
    assert server.take(request(IDS, "other"), [5, 6, 7, 8]) == 12


def test_a_request_that_waits_looks_for_each_page_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(place(tmp_path), 1)
    one = request(IDS)
    server.take(one, [1, 2, 3, 4])
    server.step(one, 15, [1, 2, 3, 4])
    server.idle()
    looked: list[bytes] = []
    has = PageFolder.has

    def seen(pages: PageFolder, name: bytes) -> bool:
        looked.append(name)
        return has(pages, name)

    monkeypatch.setattr(PageFolder, "has", seen)
    waits = request([*IDS, 1, 2], "waits")
    assert [server.scheduler.matched(waits, computed) for computed in (4, 4, 8, 12, 4)] == [8, 8, 4, 0, 8]
    names = PageNames(PAGE).extend(waits.all_token_ids, 4)
    assert looked == [*names[1:4], names[3], names[3], names[3], *names[1:4]]  # the last one is missing
    assert server.take(waits, [5, 6, 7, 8]) == 12
    for path in tmp_path.rglob("*.page"):
        path.unlink()
    waits.num_computed_tokens = 0
    assert server.take(waits, [5, 6, 7, 8]) == 0  # preempted: pages may have left since


def test_a_page_is_offered_once_all_workers_have_it(tmp_path: Path) -> None:
    scheduler = WarmScheduler(place(tmp_path), PAGE, 2)
    workers = [WarmWorker(rank, CacheRows(caches(rank), BLOCKS), "") for rank in range(2)]
    one = request(IDS)
    scheduler.matched(one, 0)
    plan = scheduler.plan({"r": 15}, lambda name: ([1, 2, 3, 4],))
    sound = WarmPlan(2, plan.place, verdicts=[(1, True)])
    for n, worker in enumerate(workers):
        worker.load(plan)
        worker.save(plan)
        worker.load(sound)
        worker.settle()
        assert scheduler.matched(request(IDS, f"again {n}"), 0) == (12 if n else 0)


@settings(max_examples=examples(30))
@given(ids=st.lists(st.integers(0, (1 << 31) - 1), min_size=0, max_size=30), page=st.integers(1, 9), data=st.data())
def test_names_are_equal_where_all_tokens_before_are(ids: list[int], page: int, data: st.DataObject) -> None:
    count = len(ids) // page
    names = PageNames(page).extend(ids, count)
    cut = data.draw(st.integers(0, count))
    grown = PageNames(page)
    grown.extend(ids, cut)
    assert grown.extend(ids, count) == names and len(set(names)) == count
    salted = PageNames(page, "").extend(ids, count)
    assert not set(salted) & set(names)
    if count:
        at = data.draw(st.integers(0, count * page - 1))
        other = PageNames(page).extend([*ids[:at], ids[at] ^ 1, *ids[at + 1 :]], count)
        assert [a == b for a, b in zip(names, other, strict=True)] == [n < at // page for n in range(count)]


def test_names_refuse_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="4 token ids for page 0"):
        PageNames(4).extend([1, 2, 3], 1)
    with pytest.raises(UsageError, match="2\\^31"):
        PageNames(1).extend([-1], 1)
    with pytest.raises(UsageError, match="pages of 1"):
        PageNames(0)


class FullAttentionSpec(SimpleNamespace):
    """Has the name of vLLM's class."""


def configuration(tmp_path: Path, **changes: Any) -> tuple[Any, Any]:
    extra = {"journal": str(tmp_path / "j"), "warm": str(tmp_path / "w"), "warm_bytes": 1 << 20, "target": "ab" * 16}
    config = fake_vllm.config(str(resolve("mini-llama")), **extra)
    config.kv_transfer_config.kv_load_failure_policy = "recompute"
    config.parallel_config = SimpleNamespace(world_size=1, rank=0, tensor_parallel_size=1, pipeline_parallel_size=1)
    config.cache_config = SimpleNamespace(cache_dtype="auto")
    config.compilation_config = SimpleNamespace()
    for name, value in {
        "dtype": "bfloat16", "quantization": None, "max_model_len": 99,
        "hf_config": SimpleNamespace(to_json_string=lambda: "{}"),
    }.items():  # fmt: skip
        setattr(config.model_config, name, value)
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec(block_size=PAGE), layer_names=["layer 0", "layer 1"])
    cache = SimpleNamespace(kv_cache_groups=[group], num_blocks=BLOCKS, kv_cache_layout="NHD")
    return config, cache


def test_the_connector_joins_both_halves_and_shows_their_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = fake_vllm.install(monkeypatch)
    config, cache = configuration(tmp_path)
    scheduler = module.PltzConnector(config, fake_vllm.Role.SCHEDULER, cache)
    worker = module.PltzConnector(config, fake_vllm.Role.WORKER, cache)
    worker.register_kv_caches(caches(1))
    shown: dict[str, Any] = {}
    numbers = [1, 2, 3, 4]
    try:
        for name, tokens in (("first", 0), ("second", 12)):
            one = request(IDS, name)
            assert scheduler.get_num_new_matched_tokens(one, 0) == (tokens, tokens > 0)
            held = SimpleNamespace(get_block_ids=lambda: (numbers,))
            scheduler.update_state_after_alloc(one, held, tokens)
            for scheduled, ended in (({name: 15 - tokens}, set()), ({}, {name})):
                state = SimpleNamespace(get_block_ids=lambda name: (numbers,))
                output = SimpleNamespace(
                    num_scheduled_tokens=scheduled, finished_req_ids=ended, kv_connector_block_state=state
                )
                worker.bind_connector_metadata(scheduler.build_connector_meta(output))
                worker.start_load_kv(None)
                worker.wait_for_save()
                arrived = worker.get_finished(ended)[1]
                while tokens and scheduled and not arrived:
                    time.sleep(0.001)
                    arrived = worker.get_finished(ended)[1]
                assert worker.get_block_ids_with_load_errors() == set()
                done = SimpleNamespace(
                    kv_connector_worker_meta=worker.build_connector_worker_meta(), invalid_block_ids=set(),
                    finished_recving=arrived,
                )  # fmt: skip
                scheduler.update_connector_output(done)
            worker._worker.settle()
            assert not scheduler._scheduler._following
        for half in (scheduler, worker):
            stats = half.get_kv_connector_stats()
            shown |= stats.data["warm"]
            assert stats.reduce()
        assert shown["scheduler"] == {"warm_offered_tokens": 12}
        assert (shown["0"]["warm_saved_pages"], shown["0"]["warm_loaded_pages"]) == (3, 3)
        both = module.PltzStats(data={"warm": {"0": shown["0"]}}).aggregate(
            module.PltzStats(data={"warm": {"scheduler": shown["scheduler"]}, "figures": {}})
        )
        assert both.data["warm"] == shown and both.reduce()["pltz warm_loaded_pages"] == 3
        assert scheduler.reset_cache() is True and not [*tmp_path.rglob("*.page")]
    finally:
        scheduler.shutdown()
        worker.shutdown()


def test_a_server_does_not_start_where_warm_kv_could_be_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = fake_vllm.install(monkeypatch)

    def opened(change: Any) -> None:
        config, cache = configuration(tmp_path)
        change(config, cache)
        module.open_warm(VllmSettings.parse(config.kv_transfer_config.kv_connector_extra_config), config, cache)

    def window(config: Any, cache: Any) -> None:
        cache.kv_cache_groups *= 2

    def put(name: str, part: str, value: Any) -> Any:
        return lambda config, cache: setattr(getattr(config, part) if part else config, name, value)

    opened(lambda config, cache: None)
    for change, message in [
        (put("kv_load_failure_policy", "kv_transfer_config", "fail"), "recompute"),
        (window, "one group of layers with full attention"),
        (put("decode_context_parallel_size", "parallel_config", 2), "decode_context_parallel_size"),
        (put("calculate_kv_scales", "cache_config", True), "scales"),
        (put("speculative_config", "", SimpleNamespace(method="eagle")), "draft model"),
    ]:
        with pytest.raises(UsageError, match=message):
            opened(change)
    with pytest.raises(ModelError, match="name them"):
        opened(lambda config, cache: config.kv_transfer_config.kv_connector_extra_config.update(target=""))


def test_another_model_or_setting_has_another_space(tmp_path: Path) -> None:
    config, cache = configuration(tmp_path)
    plain = space_of("vllm", SPACE, arrangement_of(config, cache, "1"))
    assert plain == space_of("vllm", SPACE, arrangement_of(config, cache, "1"))
    others = [space_of("vllm", SPACE, arrangement_of(config, cache, "2")), space_of("vllm", b"t" * 16, {})]
    config.model_config.hf_config.to_json_string = lambda: '{"rope_theta": 2}'
    others.append(space_of("vllm", SPACE, arrangement_of(config, cache, "1")))
    config.cache_config.cache_dtype = "fp8"
    others.append(space_of("vllm", SPACE, arrangement_of(config, cache, "1")))
    assert len({plain, *others}) == 5


@pytest.mark.parametrize(
    "given",
    [{"warm": "w"}, {"warm_bytes": 5}, {"warm": "w", "warm_bytes": 0}, {"warm": "", "warm_bytes": 5},
     {"warm": "w", "warm_bytes": "5"}, {"warm": "w", "warm_bytes": 5, "warm_queue": 0},
     {"warm": "w", "warm_bytes": 5, "warm_queue": True}],
)  # fmt: skip
def test_the_settings_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="warm"):
        VllmSettings.parse({"journal": "j", **given})


@pytest.mark.vllm
@pytest.mark.slow
@needs_vllm
def test_a_real_vllm_prefills_no_warm_session_again(tmp_path: Path) -> None:
    """Run five servers on one folder: the first one, one over damage, two beside other connectors, one after a restart.

    The others are vLLM's ExampleConnector, and its OffloadingConnector with plain copies (`vllm_cpu_offload`).
    """
    out: dict[str, Any] = {}
    for what in ("first", "damaged", "multi", "offload", "second"):
        if what == "damaged":
            for number, path in enumerate(sorted(tmp_path.rglob("*.page"))):
                if number % 3 == 0:
                    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
        result = tmp_path / "result.json"
        run_in_vllm("vllm_warm_program", resolve("mini-llama"), tmp_path, what, result)
        out[what] = json.loads(result.read_text())
        print(what, {name: value for name, value in out[what].items() if name not in ("asked", "continued")})
        print([(asked["cached"], round(asked["ms"])) for asked in out[what]["asked"]])
    first = out["first"]["asked"][0]
    whole = (out["first"]["prompt"] - 1) // 32 * 32
    assert [asked["cached"] for asked in out["first"]["asked"]] == [0, whole, 0]
    assert [asked["cached"] for asked in out["second"]["asked"]] == [whole, whole, whole]
    assert out["damaged"]["asked"][1]["cached"] == whole and out["damaged"]["counters"]["vllm:pltz_warm_failed_pages"]
    for one in out.values():
        for asked in one["asked"]:
            assert asked["answer"] == first["answer"] and asked["chances"] == first["chances"]
        assert one["continued"] == out["first"]["continued"] and one["continued cached"] > whole
        assert one["together"][:4] == one["together"][4:] == out["first"]["together"][:4]
        assert one["free after aborts"]
        assert one["counters"]["vllm:external_prefix_cache_hits"] > 0
    assert out["offload"]["asked"][0]["cached"] == out["offload"]["asked"][1]["cached"] == whole
    assert out["second"]["after a reset"] == 0
