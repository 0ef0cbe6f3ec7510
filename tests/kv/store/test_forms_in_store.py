"""Lossy forms in the tiers of a store, and thaws that allow a loss or do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pltz.archive import NO_SEGMENT
from pltz.kv.calibrate.fitting import Plan, calibrate
from pltz.kv.calibrate.measure import watched
from pltz.kv.forms.q4 import Q4Codec
from pltz.kv.forms.q8 import Q8Codec
from pltz.kv.port.codec import RAW, KVCodec
from pltz.kv.port.receipt import Receipt
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import Calibration
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.kv.store.tier import HostTier, StoredBlock
from pltz.kv.thaw.thawed import kv_difference
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError
from tests.archive.towers import SessionArchive, thawer_of
from tests.kv.store.peek import nodes

ROOM = 1 << 26
SPACE, SEGMENT, PARENT = b"a target........", b"segment...", b"parent...."


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
    exact = thawer_of(cold, kin, store).thaw("a/1")
    store.drain()
    assert exact.kl == 0
    stats = store.stats().tiers[tier]
    assert stats.form == codec.name and stats.blocks > 0
    raw = HotStore.open(ROOM)
    thawer_of(cold, kin, raw).thaw("a/1")
    if form == "q8":
        assert stats.used < raw.stats().tiers["device"].used
    again = thawer_of(cold, kin, store).thaw("a/1")
    store.drain()
    assert again.kl == 0 and kv_difference(exact.cache, again.cache) < 1e-4, "from its tokens"
    lossy = thawer_of(cold, kin, store, max_kl=codec.receipt.most).thaw("a/1")
    assert lossy.kl == codec.receipt.most and 0 < kv_difference(exact.cache, lossy.cache) < 0.6
    assert (lossy.token_ids == exact.token_ids).all() and lossy.kl_recall == codec.receipt.most_recall
    assert lossy.beyond == max(len(exact.token_ids) - 80, 0) and exact.beyond == again.beyond == 0
    less = thawer_of(cold, kin, store, max_kl=0.99 * codec.receipt.most).thaw("a/1")
    assert less.kl == 0 and kv_difference(exact.cache, less.cache) < 1e-4


def test_what_is_computed_over_lossy_kv_is_not_kept(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]
) -> None:
    store = HotStore.open(0, ROOM, forms={"host": codecs["q8"]})
    thawer_of(cold, kin, store).thaw("a/1")
    store.drain()
    blocks = store.stats().tiers["host"].blocks
    found = thawer_of(cold, kin, store, max_kl=1.0).thaw("a/2")  # over the base of a/1
    assert found.kl > 0 and store.stats().tiers["host"].blocks == blocks
    assert found.beyond == len(found.token_ids) - 80 > 0, "nobody measured so long a context"


def test_a_receipt_of_no_loss_makes_no_form_exact(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]
) -> None:
    """Asked for exact KV a store has none, and what is computed over the lossy KV is not kept as if it were exact."""
    measured = codecs["q8"].receipt
    assert measured is not None
    none = replace(measured, kl=0.0, kl_error=0.0, kl99=0.0, most=0.0)
    store = HotStore.open(ROOM, ROOM, forms={"host": Q8Codec(Rotary.of(kin), Receipt.of(none.to_dict()))})
    first = HotStore.open(0, ROOM, forms={"host": Q8Codec(Rotary.of(kin), none)})
    thawer_of(cold, kin, first).thaw("a/1")
    first.close()
    for node in nodes(first):
        assert store.insert(node.space, node.segment, node.parent, node.block, node.born)
        with store.hold(node.space, [node.segment]) as lease:
            assert not lease.blocks
    expected = thawer_of(cold, kin).thaw("a/2").cache
    over = thawer_of(cold, kin, store, max_kl=1.0).thaw("a/2")  # over the base of a/1
    assert kv_difference(expected, over.cache) > 1e-4, "it was served from the small form"
    assert over.lossy and not over.kl
    assert not any(node.block.codec.exact for node in nodes(store))
    again = thawer_of(cold, kin, store).thaw("a/2")
    assert kv_difference(expected, again.cache) < 1e-4 and not again.lossy


class Slow:
    """A tier of memory whose copies wait, and then fail or not."""

    name, budget, codec = "slow", ROOM, RAW

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        self.keeps = True

    def size(self, block: KVBlock) -> int:
        return block.size

    def keep(self, block: KVBlock) -> KVBlock | None:
        self.meanwhile()
        if self.failure is not None:
            raise self.failure
        return block if self.keeps else None


def raw(tokens: int = 8) -> KVBlock:
    ids = np.arange(tokens, dtype=np.int32)
    return KVBlock.raw(torch.randn(2, 2, 1, tokens, 4), ids, ids, 0)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("a bug")])
def test_a_move_that_is_broken_off_leaves_the_books_right(failure: BaseException) -> None:
    slow = Slow()
    store = HotStore([slow, HostTier(ROOM)])
    slow.failure = failure
    with pytest.raises(type(failure)):
        store.insert(SPACE, SEGMENT, NO_SEGMENT, raw())
    assert store.stats().tiers["slow"].used == 0 and not nodes(store)
    slow.failure, slow.keeps = None, False
    assert store.insert(SPACE, SEGMENT, NO_SEGMENT, raw())
    slow.failure = failure
    with pytest.raises(type(failure)):
        store.hold(SPACE, [SEGMENT])
    assert [(node.leases, node.moving) for node in nodes(store)] == [(0, False)]
    assert store.stats().tiers["slow"].used == 0
    slow.failure, slow.keeps = None, True
    with store.hold(SPACE, [SEGMENT]) as lease:
        assert lease.tiers == ["slow"]


def test_exact_kv_on_disk_is_found_below_a_lossy_block_in_memory(codecs: dict[str, KVCodec], tmp_path: Path) -> None:
    store = HotStore.open(0, ROOM, ROOM, folder=tmp_path, forms={"host": codecs["q8"]})
    exact = KVBlock.raw(torch.randn(2, 2, 2, 8, 8), np.arange(8, dtype=np.int32), np.arange(8, dtype=np.int32), 0)
    assert DiskTier(tmp_path, ROOM).write(SPACE, SEGMENT, StoredBlock(exact, NO_SEGMENT, 0))
    assert store.insert(SPACE, SEGMENT, NO_SEGMENT, replace(exact).recode(codecs["q8"]))
    with store.hold(SPACE, [SEGMENT], max_kl=float("inf")) as lossy:
        assert lossy.blocks[0].codec.name == "q8-1"
        with store.hold(SPACE, [SEGMENT]) as beside:  # the lossy one is in use
            assert torch.equal(beside.blocks[0].kv, exact.kv)
        assert lossy.blocks[0].codec.name == "q8-1" and store.stats().tiers["host"].blocks == 1
    with store.hold(SPACE, [SEGMENT]) as lease:
        assert torch.equal(lease.blocks[0].kv, exact.kv), "its use did not move it where it would lose something"
    assert not any(node.leases for node in nodes(store))


def test_a_file_that_does_not_say_its_ids_counts_none(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, ROOM)
    path = disk.path(SPACE, SEGMENT)
    path.parent.mkdir()
    for data in (b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"[]", (1 << 60).to_bytes(8, "little") + b"[" * 70_000):
        path.write_bytes(data)
        stats = disk.stats()
        assert (stats.used, stats.blocks, stats.tokens) == (len(data), 1, 0)


@pytest.mark.parametrize(("form", "kept"), [("q8", True), ("q4", False), ("predictive", False)])
def test_a_model_that_shows_no_attention_has_no_forms_that_code_by_it(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec], form: str, kept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their receipts were measured with attention, so they say nothing about KV without it."""
    monkeypatch.setattr("pltz.kv.calibrate.watch.Watch._products", lambda *_, **__: None)
    store = HotStore.open(0, ROOM, forms={"host": codecs[form]})
    thawer = thawer_of(cold, kin, store, max_kl=float("inf"))
    exact = thawer.thaw("a/1")
    store.drain()
    assert bool(store.stats().tiers["host"].blocks) == kept
    again = thawer.thaw("a/1")
    assert bool(again.kl) == kept and (kept or kv_difference(exact.cache, again.cache) < 1e-4)


def test_a_block_that_a_form_cannot_hold_is_no_failure_of_the_disk(codecs: dict[str, KVCodec], tmp_path: Path) -> None:
    ids = np.arange(3, 43, dtype=np.int32)
    disk = DiskTier(tmp_path, ROOM, codecs["q4"])
    block = KVBlock.raw(torch.randn(2, 2, 2, 40, 8), ids, ids, 0)  # without the attention
    assert not disk.write(SPACE, SEGMENT, StoredBlock(block, PARENT, 0))
    assert disk.stats().failed == 0 and disk.usage() == (0, 0)


def test_attention_survives_an_exact_file(kin: Target, codecs: dict[str, KVCodec], tmp_path: Path) -> None:
    """A block that comes back from a file is coded as its receipt was measured."""
    ids = np.arange(3, 43, dtype=np.int32)
    kv, seen = watched(kin, ids)
    assert seen is not None
    block = replace(KVBlock.raw(kv.bfloat16(), ids, ids, 0), mass=seen)
    expected = block.recode(codecs["predictive"])
    store = HotStore.open(0, 0, ROOM, folder=tmp_path)
    assert store.insert(SPACE, SEGMENT, NO_SEGMENT, block)
    store.close()
    found = DiskTier(tmp_path, ROOM).read(SPACE, SEGMENT)
    assert found is not None and found.block.mass is not None and (found.block.mass == seen).all()
    kept = HostTier(ROOM, codec=codecs["predictive"]).keep(found.block)
    assert kept is not None and kept.mass is None
    assert all(torch.equal(kept.parts[name], part) for name, part in expected.parts.items())


def test_a_block_that_does_not_decode_is_made_from_its_tokens(
    cold: SessionArchive, kin: Target, codecs: dict[str, KVCodec]
) -> None:
    store = HotStore.open(0, ROOM, forms={"host": codecs["predictive"]})
    exact = thawer_of(cold, kin, store).thaw("a/1")
    store.drain()
    for node in nodes(store):
        node.block.parts["kv.sum"][0] ^= 1
    again = thawer_of(cold, kin, store, max_kl=float("inf")).thaw("a/1")
    assert again.kl == 0 and kv_difference(exact.cache, again.cache) < 1e-4


def test_forms_of_tiers_that_are_none_are_refused(codecs: dict[str, KVCodec]) -> None:
    with pytest.raises(UsageError, match="device, host and disk"):
        HotStore.open(ROOM, forms={"tape": codecs["q8"]})
