"""A prefill that is queued behind the decoder counts only when its ids are proved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pltz import PutRequest
from pltz.kv.store.stage_timer import StageTimer
from pltz.kv.store.store import HotStore
from pltz.kv.thaw.thawed import KV_NOISE, kv_difference
from pltz.kv.thaw.thawer import Thawer
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from pltz.plt_codec.engines.queued import Queued, Told
from pltz.plt_codec.errors import CorruptError, ModelError
from tests.archive.towers import SessionArchive, thawer_of

IDS = np.arange(100, 180)
ROOM = 1 << 26


@dataclass
class Gpu:
    """Decode as the codec does, and tell before it returns, as a GPU does. ``tell``: makes the tokens it tells."""

    codec: Any
    inner: Callable[..., Any]
    tell: Callable[["Gpu", np.ndarray], None]
    told: int = 0

    def decode_queued(self, batch: Sequence[Any], told: Told) -> Any:
        found, self._told = self.inner(batch), told
        self.tell(self, found[0])
        return found

    def say(self, tokens: np.ndarray, count: int | None = None, device: str = "cpu") -> None:
        memory = np.ascontiguousarray(tokens, np.int32)
        self.told += 1
        self._told(Queued(memory.ctypes.data, len(memory) if count is None else count, 0, device))


def gpu(
    cold: SessionArchive, monkeypatch: pytest.MonkeyPatch, tell: Callable[[Gpu, np.ndarray], None]
) -> Gpu:
    """The archive's first codec as a GPU's."""
    codec: Any = cold.archive.codecs[0]
    made = Gpu(codec, codec.decode, tell)
    monkeypatch.setattr(codec, "decode_queued", made.decode_queued)
    return made


@pytest.fixture
def ran(kin: Target, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how often the target was prefilled ahead, and in total."""
    counts = {"ahead": 0, "passes": 0}

    def counted(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            counts[name] += 1
            return inner(*args, **more)

        return run

    monkeypatch.setattr(kin, "prefill_queued", counted("ahead", kin.prefill_queued))
    monkeypatch.setattr(kin, "_run", counted("passes", kin._run))
    return counts


def check(thawer: Thawer, kin: Target) -> None:
    thawed = thawer.thaw("ids")
    assert thawed.token_ids.tolist() == IDS.tolist()
    cache, logits = kin.prefill(IDS)
    assert kv_difference(cache, thawed.cache) <= KV_NOISE["float32"]
    assert int(logits.argmax()) == int(thawed.logits.argmax())
    assert thawed.timings["total"] == pytest.approx(sum(v for k, v in thawed.timings.items() if k != "total"))


@pytest.mark.parametrize("stored", [False, True])
def test_ids_are_run_once_and_kept(
    cold: SessionArchive, kin: Target, ran: dict[str, int], monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    device = gpu(cold, monkeypatch, lambda g, tokens: g.say(tokens))
    thawer = thawer_of(cold, kin, HotStore.open(ROOM) if stored else None)
    check(thawer, kin)
    assert ran == {"ahead": 1, "passes": 2}, "one of the thaw, one of the check"
    check(thawer, kin)
    assert (
        ran == ({"ahead": 1, "passes": 3} if stored else {"ahead": 2, "passes": 4})
        and device.told == 2 - stored
    )


def other_tokens(g: Gpu, tokens: np.ndarray) -> None:
    """The decoder tries twice, the first time from a damaged record: which of both was run nobody knows."""
    g.say(tokens[::-1])
    g.say(tokens)


def fewer(g: Gpu, tokens: np.ndarray) -> None:
    g.say(tokens, count=len(tokens) - 1)


def elsewhere(g: Gpu, tokens: np.ndarray) -> None:
    g.say(tokens, device="cuda:1")


def as_many_others(g: Gpu, tokens: np.ndarray) -> None:
    g.say(tokens[::-1])


@pytest.mark.parametrize("stored", [False, True])
def test_a_prefill_over_as_many_other_ids_is_dropped(
    cold: SessionArchive, kin: Target, ran: dict[str, int], monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    gpu(cold, monkeypatch, as_many_others)
    thawer = thawer_of(cold, kin, HotStore.open(ROOM) if stored else None)
    check(thawer, kin)
    assert ran == {"ahead": 1, "passes": 3}, "one ahead, one of the thaw, one of the check"
    check(thawer, kin)


@pytest.mark.parametrize("tell", [other_tokens, as_many_others, fewer, elsewhere])
def test_what_may_be_other_ids_is_not_taken(
    cold: SessionArchive,
    kin: Target,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[Gpu, np.ndarray], None],
) -> None:
    gpu(cold, monkeypatch, tell)
    check(thawer_of(cold, kin, HotStore.open(ROOM)), kin)


@pytest.mark.parametrize(
    "failure", [ModelError("out of memory"), RuntimeError("CUDA"), TypeError("no such array")]
)
def test_a_failure_ahead_is_none_of_the_thaw(
    cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: Any) -> Any:
        raise failure

    gpu(cold, monkeypatch, lambda g, tokens: g.say(tokens))
    monkeypatch.setattr(kin, "prefill_queued", fail)
    check(thawer_of(cold, kin, HotStore.open(ROOM)), kin)


def test_ids_beyond_the_vocabulary_do_not_reach_the_target(
    cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a damaged stream gives until the decoder says so: the thaw ends in its error, and nothing is kept."""

    def damaged(g: Gpu, tokens: np.ndarray) -> None:
        g.say(np.full(len(tokens), 1 << 20))
        raise CorruptError("the bitstring does not decode: it is damaged, or another bundle wrote it")

    seen = []
    inner = kin.prefill_queued

    def prefill(ids: Any) -> Any:
        seen.append(ids)
        return inner(ids)

    monkeypatch.setattr(kin, "prefill_queued", prefill)
    gpu(cold, monkeypatch, damaged)
    hot = HotStore.open(ROOM)
    with pytest.raises(CorruptError, match="damaged"):
        thawer_of(cold, kin, hot).thaw("ids")
    assert seen and all(int(ids.max()) < kin.vocab_size for ids in seen)
    assert hot.stats().inserted == 0


@pytest.mark.parametrize("name", ["a/0", "text", "plain"])
def test_sessions_that_are_no_ids_are_not_run_ahead(
    cold: SessionArchive, kin: Target, ran: dict[str, int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gpu(cold, monkeypatch, lambda g, tokens: g.say(tokens))
    thawer_of(cold, kin, None).thaw(name)
    assert ran["ahead"] == 0


def test_nor_are_several_at_once_nor_what_is_too_long_for_a_pass(
    cold: SessionArchive, kin: Target, ran: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(cold, monkeypatch, lambda g, tokens: g.say(tokens))
    list(cold.put([PutRequest("more", Session("ids", IDS[::-1].copy()))]))
    from pltz.kv.thaw.thawer import Wanted

    thawer_of(cold, kin, None).thaw_many([Wanted("ids"), Wanted("more")])
    check(thawer_of(cold, kin, None, chunk=len(IDS) - 1), kin)
    assert ran["ahead"] == 0


@pytest.mark.parametrize("stored", [False, True])
def test_records_are_looked_up_once_before_the_decoder_and_not_without_a_store(
    cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    for end in (30, 50, 80):
        list(cold.put([PutRequest("grown", Session("ids", IDS[:end]))]))
    thawer, asked = thawer_of(cold, kin, HotStore.open(ROOM) if stored else None), list[bytes]()
    record = thawer._towers.record

    def counted(segment: bytes) -> Any:
        asked.append(segment)
        return record(segment)

    monkeypatch.setattr(thawer._towers, "record", counted)
    assert thawer.thaw("grown").token_ids.tolist() == IDS.tolist()
    assert len(asked) == len(set(asked)) == 3 * stored


def test_a_codec_on_a_cpu_tells_nobody(cold: SessionArchive, kin: Target, ran: dict[str, int]) -> None:
    check(thawer_of(cold, kin, None), kin)
    assert ran["ahead"] == 0


def test_stages_that_ran_into_each_other_are_told_apart(kin: Target) -> None:
    timer = StageTimer(kin.device)
    for stage in ("read", "decode", "prefill"):
        timer.end(stage)
    before = timer.since(0.0, 0.0)
    timer.split("decode", "prefill", before["decode"] / 2)
    after = timer.since(0.0, 0.0)
    assert after["decode"] == before["decode"] / 2
    assert after["decode"] + after["prefill"] == pytest.approx(before["decode"] + before["prefill"])
    timer.split("decode", "prefill", 1e9)
    assert timer.since(0.0, 0.0)["prefill"] == 0
