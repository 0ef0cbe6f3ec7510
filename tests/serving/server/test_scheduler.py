"""The scheduler: each session's text is the one it gives alone, whatever runs beside it, waits, or is cancelled."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from pltz.datasets import sample_sessions
from pltz.kv.pool.batch_cache import BatchKVCache
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import Span
from pltz.kv.port.receipt import Receipt
from pltz.kv.store.store import ANY, KVStore
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.serving.server.errors import Refused
from pltz.serving.server.scheduler import Events, Scheduler
from pltz.serving.server.turn import Likelihood, Sampling, Turn, choose
from tests.failing import raising

LENGTHS = (700, 30, 300, 1, 150)
GREEDY = Sampling(24)
Texts = list[list[int]]
Make = Callable[..., Scheduler]


@pytest.fixture(scope="module")
def texts(target: Target) -> Texts:
    chat = "".join(message["content"] for one in sample_sessions()[:30] for message in one.value["messages"])
    ids = [int(one) for one in target.tokenize(chat)]
    return [ids[1000 * n : 1000 * n + tokens] for n, tokens in enumerate(LENGTHS)]


@pytest.fixture
def scheduler_of(target: Target, tmp_path: Path) -> Iterator[Make]:
    """Return what makes schedulers. All blocks come back when they are closed."""
    made: list[Scheduler] = []

    def make(kind: str = "raw", tokens: int = 8192, host_tokens: int = 0, seen: Any = None, **more: Any) -> Scheduler:
        room = {name: more.pop(name) for name in ("folder", "disk_bytes", "form") if name in more}
        store = KVStore.open(target, tokens, host_tokens, kind=kind, **room)
        made.append(Scheduler(target, store, seen or (lambda events: None), **more))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()
        scheduler.store.close()
        scheduler.store.clear()
        slabs = [scheduler.pool.device, *([scheduler.pool.host] if scheduler.pool.host else [])]
        assert all(slab.free == slab.blocks for slab in slabs)


@pytest.fixture
def scheduler(scheduler_of: Make) -> Scheduler:
    return scheduler_of()


def to_the_end(scheduler: Scheduler, *turns: Turn) -> None:
    for turn in turns:
        scheduler.submit(turn)
    while scheduler.step():
        pass


def run(scheduler: Scheduler, *turns: Turn) -> list[list[int]]:
    to_the_end(scheduler, *turns)
    assert [turn.failure for turn in turns] == [""] * len(turns)
    return [turn.new for turn in turns]


def conversation(scheduler: Scheduler, ids: list[int], name: str) -> list[list[int]]:
    """Return the replies of two turns of a session that is alone."""
    replies = []
    for _ in range(2):
        replies += run(scheduler, Turn(ids, GREEDY, name))
        ids = [*ids, *replies[-1], 17, 4, 9]
    return replies


@pytest.mark.parametrize("kind", ["raw", "q8"])
def test_each_session_says_what_it_says_alone(target: Target, texts: Texts, kind: str, scheduler_of: Make) -> None:
    alone = []
    for number, ids in enumerate(texts):
        scheduler = scheduler_of(kind)
        alone.append(conversation(scheduler, ids, str(number)))
    scheduler, asked = scheduler_of(kind), list(texts)
    together: list[list[list[int]]] = [[] for _ in texts]
    for _ in range(2):
        turns = [Turn(ids, GREEDY, str(number)) for number, ids in enumerate(asked)]
        for number, reply in enumerate(run(scheduler, *turns)):
            together[number].append(reply)
            asked[number] = [*asked[number], *reply, 17, 4, 9]
    assert together == alone
    assert scheduler.prefilled < sum(map(len, asked))  # the KV of turns before was there
    if kind == "raw":
        inputs = torch.tensor([texts[0]])
        with torch.inference_mode():
            found = target.model.generate(inputs, max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert found[0, len(texts[0]) :].tolist() == alone[0][0]


def test_a_long_prompt_keeps_nobody_waiting(texts: Texts, scheduler_of: Make) -> None:
    """Each step of a prefill brings a new id of those that decode, and prompts take chunks in rotation."""
    seen: list[Events] = []
    scheduler = scheduler_of(tokens=16384, seen=seen.append)
    first, long, short = Turn(texts[1], Sampling(100)), Turn(texts[0] * 4, GREEDY), Turn(texts[4], GREEDY)
    scheduler.submit(first)
    scheduler.step()
    scheduler.submit(long)
    scheduler.submit(short)
    begun = len(seen)
    while not long.new:
        scheduler.step()
    steps = seen[begun:]
    assert len(steps) == -(-len(long.ids) // 256) + 1
    assert all(Counter(turn for turn, _ in events)[first] == 1 for events in steps)
    assert (short, short.new[0]) in steps[1]  # behind one chunk of the long prompt
    scheduler.close()
    assert long.end == "cancelled"


def test_a_cancelled_turn_leaves_its_session_and_the_others_as_they_were(texts: Texts, scheduler: Scheduler) -> None:
    [alone] = run(scheduler, Turn(texts[0], GREEDY))
    [reply] = run(scheduler, Turn(texts[2], GREEDY, "kept"))
    ids = [*texts[2], *reply, 5, 6]
    [wanted] = run(scheduler, Turn(ids, GREEDY))
    waits, other = Turn(ids, GREEDY, "waits"), Turn(texts[0], GREEDY)
    prefills, decodes = Turn(texts[0] * 2, GREEDY, "new"), Turn([*ids, 3], GREEDY, "kept")
    for turn in (decodes, other, prefills):
        scheduler.submit(turn)
    for _ in range(4):
        scheduler.step()
    scheduler.submit(waits)
    assert decodes.new and not prefills.new
    for turn in (waits, prefills, decodes):
        scheduler.cancel(turn)
    while scheduler.step():
        pass
    assert [turn.end for turn in (waits, prefills, decodes)] == ["cancelled"] * 3 and other.new == alone
    before = scheduler.prefilled
    assert run(scheduler, Turn(ids, GREEDY, "kept")) == [wanted]
    assert scheduler.prefilled - before <= 16 + 3  # what no full block has, the id sampled last, and two new ones


def test_prompts_that_begin_alike_share_their_beginning(texts: Texts, scheduler: Scheduler, scheduler_of: Make) -> None:
    """Later prompts run what is new alone, and say the same."""
    system, asked = texts[0], [texts[2], texts[4], texts[1]]
    alone = [run(scheduler_of(), Turn([*system, *ids], GREEDY))[0] for ids in asked]
    assert run(scheduler, Turn([*system, *asked[0]], GREEDY, "first")) == alone[:1]
    before = scheduler.prefilled
    assert run(scheduler, Turn([*system, *asked[1]], GREEDY), Turn([*system, *asked[2]], GREEDY, "named")) == alone[1:]
    assert 2 * 600 < scheduler.cached <= 2 * len(system) and not scheduler.cached % 32
    assert scheduler.prefilled - before == sum(map(len, (*asked[1:], system, system))) - scheduler.cached


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_over_pages_that_lose_whole_chunks_are_shared(texts: Texts, kind: str, scheduler_of: Make) -> None:
    """A prompt has the same KV, and says the same, whether its beginning was here before or not."""
    system, asked = texts[0], [texts[2], texts[4], texts[1]]
    alone, kv = [], []
    for ids in asked:
        scheduler = scheduler_of(kind)
        alone += run(scheduler, Turn([*system, *ids], GREEDY, "one"))
        kv.append(kv_of(scheduler, [*system, *ids]))
    scheduler = scheduler_of(kind)
    for number, ids in enumerate(asked):
        assert run(scheduler, Turn([*system, *ids], GREEDY, "one" if number else None)) == [alone[number]]
        if number:
            assert torch.equal(kv_of(scheduler, [*system, *ids])[:, :, :, :512], kv[number][:, :, :, :512])
        scheduler.store.discard("default", [*system, *ids, *alone[number]], apart="one")
    assert scheduler.cached == 512 + 512  # 700 and 150, 700 and 30 ids: all but the last chunk, and KEEP after it


def test_what_answers_left_is_not_shared_over_pages_that_lose(texts: Texts, scheduler_of: Make) -> None:
    """Pages of an answer saw an exact tail, which those of the same prompt would not."""
    scheduler = scheduler_of("q8")
    [reply] = run(scheduler, Turn(texts[2], Sampling(300), "long"))
    ids = [*texts[2], *reply, *texts[0]]
    run(scheduler, Turn(ids, GREEDY, "long"))
    assert scheduler.prefilled < len(ids)  # over what was its own
    own = scheduler.cached
    run(scheduler, Turn(ids, GREEDY))
    assert scheduler.cached == own > 0
    small = scheduler_of("q8", chunk=32)  # packed every second chunk only
    run(small, Turn(texts[0], GREEDY), Turn(texts[0], GREEDY))
    assert not small.cached


def kv_of(scheduler: Scheduler, ids: list[int]) -> torch.Tensor:
    """Return the KV of "one"."""
    kv = scheduler.store.match("default", [*ids, 1], apart="one", bound=ANY)
    assert kv is not None
    try:
        return kv.kv()
    finally:
        kv.release()


def test_a_full_pool_lets_turns_wait_and_moves_kv(texts: Texts, scheduler_of: Make) -> None:
    scheduler = scheduler_of(tokens=416, host_tokens=512)
    whole = scheduler_of(tokens=8192)
    asked = [texts[0][80 * number : 80 * number + 300] for number in range(5)]
    for round_ in range(2):
        turns = [Turn(ids, GREEDY, str(number)) for number, ids in enumerate(asked)]
        for turn in turns if not round_ else reversed(turns):  # those that were used last first
            scheduler.submit(turn)
        scheduler.step()
        assert scheduler.counts()["waiting"] > 0
        while scheduler.step():
            pass
        assert [turn.new for turn in turns] == run(whole, *(Turn(ids, GREEDY) for ids in asked)), round_
        asked = [[*ids, *turn.new, 8] for ids, turn in zip(asked, turns, strict=True)]
    found = scheduler.store.stats()
    assert found.spilled and found.warmed and found.dropped
    with pytest.raises(UsageError, match="do not fit in a pool"):
        scheduler.submit(Turn(texts[0], Sampling(400)))


def test_kv_serves_only_the_ids_it_was_computed_from(texts: Texts, scheduler: Scheduler) -> None:
    run(scheduler, Turn(texts[0], GREEDY, "one"))
    changed, before = [*texts[0][:500], 7, *texts[0][501:]], scheduler.prefilled
    [found] = run(scheduler, Turn(changed, GREEDY, "one"))
    assert scheduler.prefilled - before == 700 - 496 and [found] == run(scheduler, Turn(changed, GREEDY))
    scheduler.call(lambda: scheduler.let_go("one", np.asarray([*changed, *found])))
    assert not scheduler.step() and len(scheduler.store.trie.path(scheduler.store._names("default", changed, ""))) == 31


@pytest.mark.parametrize("kind", ["raw", "q4"])
def test_kv_that_was_let_go_comes_back_from_files(texts: Texts, scheduler_of: Make, kind: str, tmp_path: Path) -> None:
    """Let an idle session go, and take it back in this process and in the next one. No file has what is of none."""
    ids = texts[0]
    for number in range(2):
        scheduler = scheduler_of(kind, folder=tmp_path, disk_bytes=1 << 28)
        if not number:
            run(scheduler, Turn(texts[1], GREEDY), Turn(texts[2], GREEDY, "two"))
            while scheduler.store._reclaim(1 << 20, spilled=False):
                scheduler.store.drain()
            assert scheduler.blocks("two", texts[2])[0] and not scheduler.store.name("default", texts[1])
            replies = conversation(scheduler, ids, "one")
            ids = [*ids, *replies[0], 17, 4, 9, *replies[1]]
            [alone] = run(scheduler, Turn([*ids, 3], GREEDY, "one"))
            scheduler.let_go("one", np.asarray([*ids, 3, *alone]))
            scheduler.store.drain()
            assert scheduler.store.tier(scheduler.blocks("one", [*ids, 1])[0]) == "disk"
        turn = Turn([*ids, 3], GREEDY, "one")
        scheduler.fetch(turn)
        assert turn.tiers["disk"] >= (700 if kind == "raw" else 512)
        before = scheduler.prefilled
        [found] = run(scheduler, turn)
        assert scheduler.prefilled - before <= len(ids) + 1 - turn.tiers["disk"] and turn.tiers["memory"] == 0
        if kind == "raw":
            assert found == alone


class Watched(RowForm):
    """A form of raw pages that codes by attention, measured to lose 0.01 bits, and that keeps what it was told."""

    def __init__(self, target: Target) -> None:
        receipt = Receipt("watched", 0, 64, 8, 64, 8.0, 0.01, 0.0, 0.01, 0.01, 1.0, 0.0, 0.01, 0.01)
        super().__init__(PageFormat.of(target, "raw"), receipt)
        self.name, self.exact, self.masses = "watched", False, list[Any]()

    def encode(self, kv: torch.Tensor, span: Span) -> Any:
        self.masses.append(span.observed())
        return super().encode(kv, span)


def test_a_small_form_is_told_the_attention_and_comes_back_to_its_session_alone(
    target: Target, texts: Texts, scheduler_of: Make, tmp_path: Path
) -> None:
    form = Watched(target)
    scheduler = scheduler_of(folder=tmp_path, disk_bytes=1 << 28, form=form, bound=Bound.of(0.01))
    ids = [*texts[0], *run(scheduler, Turn(texts[0], GREEDY, "one"))[0]]
    scheduler.let_go("one", np.asarray([*ids, 3]))
    scheduler.store.drain()
    whole = len(ids) // 16 * 16
    [mass] = form.masses
    assert mass.shape == (whole,) and mass.max() > 10 * np.median(mass) > 0, "as a prefill of its ids shows it"
    stateless, turn = Turn([*ids, 3], GREEDY), Turn([*ids, 3], GREEDY, "one")
    for one, found in ((turn, whole), (stateless, 0)):
        scheduler.fetch(one)
        assert one.tiers["disk"] == found
        before = scheduler.prefilled
        run(scheduler, one)
        assert scheduler.prefilled - before == len(ids) + 1 - found
    assert turn.lost is form and stateless.lost is None and stateless.new == turn.new
    files = set(tmp_path.glob("*/*.safetensors"))
    scheduler.let_go("one", np.asarray([*turn.ids, *turn.new, 3]))
    scheduler.store.drain()
    assert set(tmp_path.glob("*/*.safetensors")) == files, "what was computed over it is in no file"


def test_a_turn_without_new_ids_makes_a_session_hot(texts: Texts, scheduler: Scheduler) -> None:
    run(scheduler, Turn(texts[0], Sampling(0), "one"))
    before = scheduler.prefilled
    [found] = run(scheduler, Turn(texts[0], GREEDY, "one"))
    assert scheduler.prefilled - before == 700 - 688 and [found] == run(scheduler, Turn(texts[0], GREEDY))


def test_a_failure_is_of_one_turn(texts: Texts, monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler) -> None:
    [alone] = run(scheduler, Turn(texts[4], GREEDY))
    broken = Turn(texts[1], GREEDY, halts=raising(ValueError("broken")))
    bad, good = Turn(texts[2], GREEDY), Turn(texts[4], GREEDY)
    once = scheduler._pass
    failed: list[int] = []

    def passes(cache: Any, ids: Any, first: Any) -> torch.Tensor:
        ends = [(at + len(row), row[-1]) for at, row in zip(first, ids, strict=True)]
        if len(bad.new) == 5 and (bad.tokens, bad.new[-1]) in ends:
            failed.append(len(ids))
            raise RuntimeError("no memory")
        return once(cache, ids, first)

    monkeypatch.setattr(scheduler, "_pass", passes)
    to_the_end(scheduler, broken, bad, good)
    assert broken.failure == "ValueError: broken" and "no memory" in bad.failure
    assert good.new == alone and failed[0] == 2


def test_a_turn_that_fails_in_decoding_ends_alone(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler
) -> None:
    """Its prompt runs well each time it begins again. Another batch may fail as a whole, as often as it likes."""
    alone = [run(scheduler, Turn(ids, GREEDY))[0] for ids in (texts[4], texts[1])]
    bad, *good = Turn(texts[2], GREEDY), Turn(texts[4], GREEDY), Turn(texts[1], GREEDY)
    once = scheduler._pass
    failed: list[int] = []

    def passes(cache: Any, ids: Any, first: Any) -> torch.Tensor:
        of_bad = bad.tokens - 1 in first and len(bad.new) > 4
        if all(len(row) == 1 for row in ids) and (of_bad or (len(ids) == 2 and failed.count(2) < 3)):
            failed.append(len(ids))
            raise RuntimeError("no memory")
        return once(cache, ids, first)

    monkeypatch.setattr(scheduler, "_pass", passes)
    to_the_end(scheduler, bad, *good)
    assert "no memory" in bad.failure and failed.count(2) == 3 and failed.count(1) == 1
    assert [turn.new for turn in good] == alone


def test_a_turn_that_cannot_join_the_others_is_told_so(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler
) -> None:
    alone = run(scheduler, Turn(texts[4], GREEDY))[0]
    merge, good, bad = BatchKVCache.merge, Turn(texts[4], GREEDY), Turn(texts[1], GREEDY)

    def merges(sessions: Any) -> BatchKVCache:
        if len(sessions) > 1:
            raise RuntimeError("no memory")
        return merge(sessions)

    monkeypatch.setattr(BatchKVCache, "merge", merges)
    to_the_end(scheduler, good, bad)
    assert "no memory" in bad.failure and bad.end == "error" and good.new == alone


def test_a_turn_that_is_cancelled_during_a_look_for_others_is_told(texts: Texts, scheduler_of: Make) -> None:
    class Later(Turn):
        looks = 0

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name == "cancelled" and len(self.new) == 3:
                self.looks += 1
                self.cancelled = self.looks > 1
            return found

    ended: list[Turn] = []
    scheduler = scheduler_of(seen=lambda events: ended.extend(turn for turn, one in events if one is None))
    later, other = Later(texts[1], GREEDY), Turn(texts[1], GREEDY)
    for turn in (later, other):
        scheduler.submit(turn)
    while len(later.new) < 3:
        scheduler.step()
    scheduler.cancel(other)
    while scheduler.step():
        pass
    assert len(ended) == 2 and other.end == "cancelled" and later.end


def test_a_turn_that_comes_while_all_fail_is_told_so_or_runs(texts: Texts, scheduler: Scheduler) -> None:
    late = Turn(texts[1], GREEDY)
    comes = threading.Thread(target=scheduler.submit, args=(late,))

    class Waiting(deque[Turn]):
        def clear(self) -> None:
            comes.start()
            comes.join(0.3)  # until it has come, or as long as it has to wait
            super().clear()

    scheduler._waiting = Waiting()
    scheduler._fail_all("the test wants it")
    comes.join()
    assert scheduler.step() and late.new


def test_draws_are_those_of_the_seed(texts: Texts, scheduler: Scheduler) -> None:
    drawn = Sampling(20, temperature=1.0, seed=7)
    same, again, other, narrow, cold, greedy = run(
        scheduler, *(Turn(texts[4], how) for how in (drawn, drawn, Sampling(20, temperature=1.0, seed=8))),
        Turn(texts[4], Sampling(20, temperature=1.0, top_p=1e-6, seed=1)),
        Turn(texts[4], Sampling(20, temperature=1e-9, seed=1)), Turn(texts[4], Sampling(20)),
    )
    assert same == again != other and narrow == cold == greedy != same


def test_what_cannot_be_run_is_refused(scheduler: Scheduler, scheduler_of: Make) -> None:
    for ids in ([], [1 << 20], [1] * 9000):
        with pytest.raises((ContentError, UsageError)):
            scheduler.submit(Turn(ids, GREEDY))
    with pytest.raises(UsageError, match="8192 positions"):
        scheduler.submit(Turn([1] * 8000, Sampling(200)))
    small = scheduler_of(tokens=1024)
    small.submit(Turn([1] * 984, GREEDY))
    with pytest.raises(UsageError, match="do not fit in a pool of 1024"):  # a block may be shared, and is copied then
        small.submit(Turn([1] * 1000, GREEDY))
    for wrong in ({"limit": -1}, {"temperature": 3}, {"top_p": 0}, {"seed": -1}, {"temperature": float("nan")}):
        with pytest.raises(UsageError):
            Sampling(**{"limit": 1} | wrong)


def test_the_thread_runs_what_is_submitted(texts: Texts, scheduler: Scheduler) -> None:
    scheduler.start()
    turn = Turn(texts[4], GREEDY, "one")
    scheduler.submit(turn)
    while not scheduler.call(lambda: bool(turn.end)).result(300):
        pass
    assert turn.new and scheduler.store.tier(scheduler.blocks("one", texts[4])[0]) == "device"
    scheduler.close()
    with pytest.raises(Refused, match="ends"):
        scheduler.submit(turn)


def test_penalties_count_what_the_reply_has() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.9, 0.0]])
    for how, new, chosen in (
        (Sampling(1), [0, 0], 0), (Sampling(1, presence=1.2), [0, 0], 1), (Sampling(1, frequency=0.6), [0], 0),
        (Sampling(1, frequency=0.6), [0, 0], 1), (Sampling(1, presence=1.2), [0, 1], 2),
        (Sampling(1, bias=((3, 4.0),)), [], 3), (Sampling(1, presence=-1.2), [1], 1),
    ):
        turn = Turn([1], how, new=list(new))
        assert choose(scores, [turn]) == [chosen] and not turn.likelihoods
    turn = Turn([1], Sampling(1, top=2), new=[0])
    turn.likelihoods += [turn_of_before := Likelihood(0.0, ()), Likelihood(0.0, ())]  # the last of a step that failed
    assert choose(scores, [turn]) == [0] and turn.likelihoods[0] is turn_of_before and len(turn.likelihoods) == 2
    assert turn.likelihoods[1].logprob == pytest.approx(float(torch.log_softmax(scores[0], 0)[0]))
    assert [one for one, _ in turn.likelihoods[1].top] == [0, 1]


def test_a_batch_is_sampled_at_once_and_each_row_as_if_alone() -> None:
    """No row leaves the device, and the vocabulary is passed over as often for one row as for many."""
    torch.manual_seed(5)
    logits = torch.randn(12, 999)
    ways = [
        Sampling(1, temperature=1.0, seed=1), Sampling(1, temperature=0.7, top_p=0.8, seed=2, top=3),
        Sampling(1, frequency=1.0, bias=((7, 2.0),)), Sampling(1),
    ]

    def turns(count: int) -> list[Turn]:
        return [Turn([1], ways[n % 4], new=[3, 3, 4]) for n in range(count)]

    class Calls(TorchFunctionMode):
        def __init__(self) -> None:
            self.names: Counter[str] = Counter()

        def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            small = {"__get__", "__getitem__", "__setitem__", "new_tensor"}
            if isinstance(args[0], torch.Tensor) and args[0].numel() >= 999 and call.__name__ not in small:
                self.names[call.__name__] += 1
            return call(*args, **(kwargs or {}))

    counted = []
    for count in (4, 12):
        with Calls() as calls:
            choose(logits[:count], turns(count))
        counted.append(calls.names)
    assert counted[0] == counted[1] and counted[0]["sort"] == 1 and not counted[0]["cpu"]
    together = turns(12)
    chosen = choose(logits, together)
    for row, turn in enumerate(turns(12)):
        assert choose(logits[row : row + 1], [turn]) == [chosen[row]]
        assert [found.top for found in turn.likelihoods] == [found.top for found in together[row].likelihoods]


def test_draws_have_the_shares_of_the_scores() -> None:
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    for top_p, kept in ((1.0, 4), (0.9, 3), (0.6, 2), (0.4, 1)):
        turn = Turn([1], Sampling(1, temperature=1.0, top_p=top_p, seed=3))
        counts = Counter(choose(shares.log()[None], [turn])[0] for _ in range(2000))
        wanted = shares[:kept] / shares[:kept].sum()
        assert sorted(counts) == list(range(kept))
        assert all(abs(counts[n] / 2000 - float(wanted[n])) < 0.05 for n in range(kept))
