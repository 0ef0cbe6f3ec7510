"""Lossy forms in the tiers of a store, and thaws that allow a loss or do not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from pltz.archive.kv_store import HotStore, Thawer, Wanted
from pltz.archive.kv_store.disk_tier import DiskTier
from pltz.archive.kv_store.kv_block import KVBlock
from pltz.archive.kv_store.refiner import MOST, Refiner
from pltz.archive.kv_store.tier import StoredBlock
from pltz.archive.sessions import SessionArchive
from pltz.archive.thaw import kv_difference
from pltz.models.kv.calibration import Calibration
from pltz.models.kv.codec import KVCodec
from pltz.models.kv.fitting import Plan, calibrate
from pltz.models.kv.measure import prefilled
from pltz.models.kv.predictive import PredictiveCodec
from pltz.models.kv.q4 import Q4Codec
from pltz.models.kv.q8 import Q8Codec
from pltz.models.kv.rotary import Rotary
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ModelError, UsageError

ROOM = 1 << 26
SPACE, SEGMENT, PARENT = b"a target........", b"segment.........", b"parent.........."


@pytest.fixture(scope="module")
def codecs(kin: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, KVCodec]:
    """Return the forms of a target, with the receipts of a calibration on random ids."""
    rows = np.random.default_rng(0).integers(3, kin.vocab_size, (12, 88)).astype(np.int32)
    found: Calibration = calibrate(kin, rows[:4], rows[4:], Plan(80, 8, 2, tmp_path_factory.mktemp("work")))
    rotary, embedding = Rotary.of(kin), kin.model.get_input_embeddings().weight.detach()
    return {
        "q8": Q8Codec(rotary, found.receipt("q8-1")),
        "q4": Q4Codec(rotary, found.receipt("q4-1")),
        "predictive": PredictiveCodec(found, rotary, embedding, -24),
    }


@pytest.mark.parametrize("form", ["q8", "q4", "predictive"])
@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_a_tier_keeps_a_form_that_only_those_get_who_allow_its_loss(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec], form: str, tier: str, tmp_path: Path
) -> None:
    codec = codecs[form]
    assert codec.receipt is not None
    budgets = {"device": (ROOM,), "host": (0, ROOM), "disk": (0, 0, ROOM)}[tier]
    folder = {"folder": tmp_path / "warm"} if tier == "disk" else {}
    store = HotStore.open(*budgets, forms={tier: codec}, **folder)  # type: ignore[arg-type]
    exact = Thawer(cold, kin, store).thaw("a/1")
    assert exact.kl == 0
    stats = store.stats().tiers[tier]
    assert stats.form == codec.name and stats.blocks > 0
    raw = HotStore.open(ROOM)
    Thawer(cold, kin, raw).thaw("a/1")
    if form == "q8":
        assert stats.used < raw.stats().tiers["device"].used
    again = Thawer(cold, kin, store).thaw("a/1")
    assert again.kl == 0 and kv_difference(exact.cache, again.cache) < 1e-4, "from its tokens"
    lossy = Thawer(cold, kin, store, max_kl=codec.receipt.most).thaw("a/1")
    assert lossy.kl == codec.receipt.most and 0 < kv_difference(exact.cache, lossy.cache) < 0.6
    assert (lossy.token_ids == exact.token_ids).all()
    less = Thawer(cold, kin, store, max_kl=0.99 * codec.receipt.most).thaw("a/1")
    assert less.kl == 0 and kv_difference(exact.cache, less.cache) < 1e-4


def test_what_is_computed_over_lossy_kv_is_not_kept(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]
) -> None:
    store = HotStore.open(0, ROOM, forms={"host": codecs["q8"]})
    Thawer(cold, kin, store).thaw("a/1")
    blocks = store.stats().tiers["host"].blocks
    found = Thawer(cold, kin, store, max_kl=1.0).thaw("a/2")  # over the base of a/1
    assert found.kl > 0 and store.stats().tiers["host"].blocks == blocks


@pytest.fixture
def small_first(cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]) -> Any:
    """Return a store whose only copy of a/1 is small, with room for the exact one, and a thawer that refines."""
    store = HotStore.open(ROOM, ROOM, forms={"host": codecs["q8"]})
    other = HotStore.open(0, ROOM, forms={"host": codecs["q8"]})
    Thawer(cold, kin, other).thaw("a/1")
    for node in other._nodes.values():
        assert store.insert(node.space, node.segment, node.parent, node.block, node.born)
    thawer = Thawer(cold, kin, store, max_kl=1.0, refine=True)
    yield store, thawer
    thawer.close()


def test_a_small_form_answers_at_once_and_exact_kv_takes_its_place(
    cold: SessionArchive, kin: Target, small_first: Any
) -> None:
    store, thawer = small_first
    expected = Thawer(cold, kin).thaw("a/1")
    first = thawer.thaw("a/1")
    assert first.kl > 0 and kv_difference(expected.cache, first.cache) > 1e-4
    exact = first.exact.result(60)
    assert exact.kl == 0 and exact.exact is None and kv_difference(expected.cache, exact.cache) < 1e-4
    assert (exact.token_ids == first.token_ids).all()
    again = thawer.thaw("a/1")
    assert again.kl == 0 and again.exact is None and kv_difference(expected.cache, again.cache) < 1e-4
    assert {node.block.codec.name for node in store._nodes.values()} == {"raw"}
    assert store.stats().tiers["device"].blocks == len(store._nodes) and store.stats().tiers["host"].used == 0


def test_those_who_ask_meanwhile_share_one_prefill(small_first: Any) -> None:
    _, thawer = small_first
    go = Event()

    class Patient(Refiner):
        def submit(self, key: Any, work: Any) -> Any:
            return super().submit(key, lambda: work() if go.wait(60) else None)  # type: ignore[arg-type,return-value]

    thawer._refiner = Patient()
    first, second = thawer.thaw("a/1"), thawer.thaw("a/1")
    assert first.kl > 0 and second.kl > 0 and first.exact is second.exact and not first.exact.done()
    go.set()
    assert first.exact.result(60).kl == 0


def test_a_failure_in_the_background_leaves_the_small_form(
    small_first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, thawer = small_first

    def out_of_memory(*_: Any, **__: Any) -> Any:
        raise ModelError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Target, "prefill", out_of_memory)
        patch.setattr(Target, "prefill_many", out_of_memory)
        first = thawer.thaw("a/1")
        with pytest.raises(ModelError, match="no room"):
            first.exact.result(60)
    assert first.kl > 0 and {node.block.codec.name for node in store._nodes.values()} == {"q8-1"}
    assert thawer.thaw("a/1").exact.result(60).kl == 0, "and is refined the next time"


def test_exact_and_lossy_thaws_of_one_batch_do_not_mix(kin: Target, cold: SessionArchive, small_first: Any) -> None:
    _, thawer = small_first
    lossy, exact = thawer._board(Wanted("a/1")), thawer._board(Wanted("a/1"), 0.0)
    other = thawer._board(Wanted("a/2"), 0.0)  # on the same base
    answers = [thawer._answer(flight) for flight in (lossy, exact, other)]
    assert answers[0].kl > 0 and answers[1].kl == answers[2].kl == 0
    for name, answer in (("a/1", answers[1]), ("a/2", answers[2])):
        assert kv_difference(Thawer(cold, kin).thaw(name).cache, answer.cache) < 1e-4


def test_only_those_who_allow_a_loss_may_refine(cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]) -> None:
    lossy = HotStore.open(ROOM, forms={"device": codecs["q8"]})
    for hot, max_kl in ((None, 1.0), (HotStore.open(ROOM), 0.0), (HotStore([lossy.memory[0]]), 1.0)):
        with pytest.raises(UsageError, match="refine"):
            Thawer(cold, kin, hot, max_kl=max_kl, refine=True)


def test_too_many_that_wait_are_not_refined() -> None:
    refiner, go = Refiner(), Event()
    waiting = [refiner.submit(n, lambda: go.wait(60)) for n in range(MOST)]  # type: ignore[arg-type,return-value]
    assert refiner.submit("more", lambda: None) is None and refiner.submit(3, lambda: None) is waiting[3]  # type: ignore[arg-type,return-value]
    go.set()
    refiner.close()
    assert waiting[0] is not None and waiting[0].done()
    refiner.close()


def test_statistics_count_tokens_and_bytes_of_each_form_and_tier(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec], tmp_path: Path
) -> None:
    forms = {"host": codecs["q8"], "disk": codecs["predictive"]}
    small, room = codecs["q8"], 60_000  # bytes: a/1 fits the device, and so does little else
    store = HotStore.open(room, room // 10, ROOM, folder=tmp_path / "warm", forms=forms)
    ids = sum(len(Thawer(cold, kin, store).thaw(f"a/{n}").token_ids) for n in (1, 2, 3, 4))
    assert ids > 0 and store.stats().demoted > 0
    stats = store.stats()
    for name, tier in stats.tiers.items():
        assert tier.blocks == sum(form.blocks for form in tier.forms.values()), name
        assert tier.used == sum(form.used for form in tier.forms.values()), name
        assert tier.tokens == sum(form.tokens for form in tier.forms.values()), name
    assert stats.tiers["device"].tokens > 0 and stats.tiers["disk"].tokens > 0
    assert set(stats.tiers["device"].forms) == {"raw"} and set(stats.tiers["host"].forms) <= {small.name}
    below = stats.tiers["disk"].forms
    assert set(below) <= {small.name, codecs["predictive"].name}, "a lossy block keeps its form"
    before = sum(form.hit_tokens for tier in stats.tiers.values() for form in tier.forms.values())
    Thawer(cold, kin, store, max_kl=float("inf")).thaw("a/1")
    after = store.stats()
    assert sum(f.hit_tokens for tier in after.tiers.values() for f in tier.forms.values()) > before == stats.hit_tokens
    assert DiskTier(tmp_path / "warm", ROOM).stats().forms == {
        name: replace(form, hit_tokens=0) for name, form in after.tiers["disk"].forms.items() if form.blocks
    }


def test_a_file_that_does_not_say_its_ids_counts_none(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, ROOM)
    path = disk.path(SPACE, SEGMENT)
    path.parent.mkdir()
    for data in (b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"[]", (1 << 60).to_bytes(8, "little") + b"[" * 70_000):
        path.write_bytes(data)
        stats = disk.stats()
        assert (stats.used, stats.blocks, stats.tokens) == (len(data), 1, 0)


def test_a_model_that_shows_no_attention_is_kept_without_it(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.models.kv.watch.Watch._products", lambda *_, **__: None)
    store = HotStore.open(0, ROOM, forms={"host": codecs["q4"]})
    Thawer(cold, kin, store).thaw("a/1")
    assert store.stats().tiers["host"].blocks > 0
    assert all(node.block.mass is None for node in store._nodes.values())


def test_a_block_that_does_not_decode_is_made_from_its_tokens(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]
) -> None:
    store = HotStore.open(0, ROOM, forms={"host": codecs["predictive"]})
    exact = Thawer(cold, kin, store).thaw("a/1")
    for node in store._nodes.values():
        node.block.parts["kv.sum"][0] ^= 1
    again = Thawer(cold, kin, store, max_kl=float("inf")).thaw("a/1")
    assert again.kl == 0 and kv_difference(exact.cache, again.cache) < 1e-4


def test_forms_of_tiers_that_are_none_are_refused(codecs: dict[str, KVCodec]) -> None:
    with pytest.raises(UsageError, match="device, host and disk"):
        HotStore.open(ROOM, forms={"tape": codecs["q8"]})


@pytest.mark.parametrize("form", ["q8", "q4", "predictive"])
def test_a_damaged_file_of_any_form_is_a_miss(
    kin: Target, codecs: dict[str, KVCodec], form: str, tmp_path: Path
) -> None:
    codec = codecs[form]
    ids = np.arange(3, 43, dtype=np.int32)
    block = KVBlock.raw(prefilled(kin, ids), ids, ids, 0)
    disk = DiskTier(tmp_path, ROOM, codec)
    path = disk.path(SPACE, SEGMENT, codec.name)
    rng = np.random.default_rng(0)

    def fresh() -> bytes:
        assert disk.write(SPACE, SEGMENT, StoredBlock(block, PARENT, 0))
        return path.read_bytes()

    whole = fresh()
    found = disk.read(SPACE, SEGMENT, [codec])
    assert found is not None and found.block.kv.shape == block.kv.shape
    assert codec.receipt is not None and f'\\"kl\\": {codec.receipt.kl}'.encode() in whole
    for n in range(40):
        hurt = bytearray(whole)
        if n % 4 == 3:
            del hurt[int(rng.integers(len(hurt))) :]
        else:
            hurt[int(rng.integers(len(hurt)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(hurt)
        assert disk.read(SPACE, SEGMENT, [codec]) is None and not path.exists()
    fresh()
    os.rename(path, disk.path(SPACE, PARENT, codec.name))
    assert disk.read(SPACE, PARENT, [codec]) is None, "of another segment"


def test_a_forged_file_never_breaks_the_reader(
    kin: Target, codecs: dict[str, KVCodec], tmp_path: Path, forged: Callable[[bytes, Any], bytes]
) -> None:
    """A file whose checksum is right, with any other bytes: a miss, or KV of the right shape, or CorruptError."""
    from pltz.plt_codec.errors import CorruptError

    codec = codecs["predictive"]
    ids = np.arange(3, 43, dtype=np.int32)
    block = KVBlock.raw(prefilled(kin, ids), ids, ids, 0)
    disk = DiskTier(tmp_path, ROOM, codec)
    path = disk.path(SPACE, SEGMENT, codec.name)
    assert disk.write(SPACE, SEGMENT, StoredBlock(block, PARENT, 0))
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    outcomes = {"miss": 0, "corrupt": 0, "kv": 0}
    for _ in range(150):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(forged(whole, rng))
        found = disk.read(SPACE, SEGMENT, [codec])
        if found is None:
            outcomes["miss"] += 1
            continue
        try:
            assert found.block.kv.shape[3] == len(found.block.ids)
            outcomes["kv"] += 1
        except CorruptError:
            outcomes["corrupt"] += 1
    assert outcomes["miss"] > 0 and outcomes["corrupt"] > 0, outcomes


@pytest.fixture
def forged() -> Callable[[bytes, Any], bytes]:
    """Return a function that changes a byte of a small file, mostly behind its header, and puts the checksums right."""
    import xxhash

    def forge(data: bytes, rng: Any) -> bytes:
        hurt = bytearray(data)
        end = 8 + int.from_bytes(data[:8], "little")
        low, high = (0, end) if rng.random() < 0.3 else (end + 32, len(hurt))
        hurt[int(rng.integers(low, high))] = int(rng.integers(256))
        hurt[end : end + 32] = xxhash.xxh3_128_digest(hurt[:end]) + xxhash.xxh3_128_digest(hurt[end + 32 :])
        return bytes(hurt)

    return forge
