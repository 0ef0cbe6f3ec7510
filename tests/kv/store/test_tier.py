"""The ports of the store: other codecs and other tiers than those that ship, in one list with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from pltz.archive import NO_SEGMENT
from pltz.kv.port.codec import RAW, CompactForm, KVCodec, Span
from pltz.kv.port.receipt import Receipt
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.kv.store.tier import DeviceTier, HostTier, StoredBlock, Tier, TierStats
from pltz.plt_codec.errors import CorruptError, UsageError
from tests.kv.store.conftest import SPACE, Blocks, held, put
from tests.kv.store.peek import nodes

if TYPE_CHECKING:
    from pltz.kv.port.arriving import Parts

RAW_SIZE = 4 * 72  # bytes of a block of four tokens, 32 of them ids and tokens
SEGMENT = b"segment..."


class Planes(CompactForm):
    """An exact form: bytes 0, 1, 2 and 3 of every float32, each plane a tensor of its own."""

    name, exact, receipt = "planes", True, None

    def size(self, kv: torch.Tensor) -> int:
        return kv.numel() * 4

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        if kv.dtype != torch.float32:
            raise UsageError("planes are of float32")
        planes = kv.contiguous().view(torch.uint8).reshape(*kv.shape, 4)
        return {f"kv.{n}": planes[..., n].contiguous() for n in range(4)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        stacked = torch.stack([parts[f"kv.{n}"] for n in range(4)], -1)
        return stacked.view(torch.float32).squeeze(-1)

    def outline(self, parts: Parts) -> torch.Tensor:
        return torch.empty(parts["kv.0"].shape, dtype=torch.float32, device="meta")

    def check(self, parts: Parts, tokens: int) -> None:
        shapes = {(t.dtype, t.shape) for t in parts.values()}
        if list(parts) != [f"kv.{n}" for n in range(4)] or len(shapes) != 1:
            raise CorruptError("expected four planes alike")
        dtype, shape = shapes.pop()
        if dtype != torch.uint8 or len(shape) != 5 or shape[1] != 2 or shape[3] != tokens:
            raise CorruptError("expected planes of bytes")


class Rounded(CompactForm):
    """A form that is not exact: signed bytes. Its bound is twice what it takes."""

    name, exact = "rounded", False
    receipt = Receipt("rounded", 0, 4, 8, 100, 8.0, 0.01, 0.0, 0.01, 0.1, 0.99, 0.0, 0.02, 0.03)

    def size(self, kv: torch.Tensor) -> int:
        return 2 * kv.numel()

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        return {"kv.bytes": kv.round().to(torch.int8)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        return parts["kv.bytes"].to(torch.float32)

    def check(self, parts: Parts, tokens: int) -> None:
        if list(parts) != ["kv.bytes"] or parts["kv.bytes"].dtype != torch.int8:
            raise CorruptError("expected signed bytes")


class Drawer:
    """A shared tier in a dict, which never makes room."""

    name = "drawer"

    def __init__(self, most: int = 100, codec: KVCodec = RAW) -> None:
        self.most, self.codec = most, codec
        self.blocks: dict[tuple[bytes, str], StoredBlock] = {}

    def read(self, space: bytes, segment: bytes, codecs: Sequence[KVCodec]) -> StoredBlock | None:
        found = (self.blocks.get((space + segment, codec.name)) for codec in codecs)
        return next((stored for stored in found if stored is not None), None)

    def write(
        self,
        space: bytes,
        segment: bytes,
        stored: StoredBlock,
        in_use: frozenset[bytes] = frozenset(),
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        if len(self.blocks) >= self.most or not wanted():
            return False
        block = stored.block.recode(self.codec)
        self.blocks[space + segment, block.codec.name] = StoredBlock(block, stored.parent, stored.born)
        return True

    def discard(self, space: bytes, segment: bytes) -> None:
        self.blocks = {key: block for key, block in self.blocks.items() if key[0] != space + segment}

    def clear(self) -> None:
        self.blocks = {}

    def stats(self) -> TierStats:
        used = sum(stored.block.size for stored in self.blocks.values())
        return TierStats(self.codec.name, 0, used, len(self.blocks))


class Attic(HostTier):
    """A further tier of memory, below the host."""

    name = "attic"


def test_a_segment_goes_down_any_list_of_tiers_and_comes_up_again(blocks: Blocks, clock: Any) -> None:
    tiers: list[Tier] = [DeviceTier(RAW_SIZE), HostTier(RAW_SIZE, codec=Planes()), Attic(RAW_SIZE), Drawer(1), Drawer()]
    with pytest.raises(UsageError, match="different names"):
        HotStore(tiers)
    tiers[-1].name = "queue"  # type: ignore[misc]
    with pytest.raises(UsageError, match="none of them queue"):
        HotStore(tiers)
    tiers[-1].name = "last drawer"  # type: ignore[misc]
    store = HotStore(tiers, clock=clock)
    put(store, blocks, clock, 1, 2, 3, 4, 5, 6, drain=True)
    stats = store.stats()
    assert {name: tier.blocks for name, tier in stats.tiers.items()} == {
        "device": 1, "host": 1, "attic": 1, "drawer": 1, "last drawer": 2, "queue": 0,
    }  # fmt: skip
    assert [tier.form for tier in stats.tiers.values()] == ["raw", "planes", "raw", "raw", "raw", "raw"]
    assert (stats.tiers["host"].used, stats.tiers["host"].tokens, stats.dropped) == (RAW_SIZE, 4, 0)
    node = next(n for n in nodes(store) if n.tier is tiers[1])
    assert node.block.codec.name == "planes" and bool((node.block.kv == 5).all())
    for number in (1, 2, 3, 4, 5, 6):
        store.drain()
        assert held(store, blocks, number) == (["device"], ["raw"]), "whatever form it came from"
        clock.now += 1000


def test_a_form_has_its_own_file(blocks: Blocks, tmp_path: Path) -> None:
    raw, rounded = DiskTier(tmp_path, 1 << 20), DiskTier(tmp_path, 1 << 20, Rounded())
    stored = StoredBlock(blocks(7), NO_SEGMENT, 0)
    assert rounded.write(SPACE, SEGMENT, stored)
    assert raw.read(SPACE, SEGMENT, [RAW]) is None and raw.damaged == 0
    found = raw.read(SPACE, SEGMENT, [RAW, Rounded()])
    assert found is not None and found.block.codec.name == "rounded" and bool((found.block.kv == 7).all())
    assert raw.write(SPACE, SEGMENT, found), "a block that is not exact keeps its form and its name"
    assert [path.name for path in tmp_path.glob("*/*")] == [f"{SEGMENT.hex()}.rounded.safetensors"]
    assert raw.write(SPACE, SEGMENT, stored)
    exact = raw.read(SPACE, SEGMENT, [RAW, Rounded()])
    assert exact is not None and exact.block.codec.name == "raw"
    raw.discard(SPACE, SEGMENT)
    assert not list(tmp_path.glob("*/*"))


def test_a_file_of_parts_is_checked_by_its_codec(blocks: Blocks, tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, 1 << 20, Planes())
    assert disk.write(SPACE, SEGMENT, StoredBlock(blocks(7, logits=True), NO_SEGMENT, 0))
    path = disk.path(SPACE, SEGMENT, "planes")
    assert [name for name in load_file(path) if name.startswith("kv")] == [f"kv.{n}" for n in range(4)]
    found = disk.read(SPACE, SEGMENT, [Planes()])
    assert found is not None and bool((found.block.kv == 7).all()) and found.block.logits is not None

    class Other(Planes):
        def check(self, parts: Parts, tokens: int) -> None:
            raise CorruptError("not so")

    assert disk.read(SPACE, SEGMENT, [Other()]) is None and disk.damaged == 1 and not path.exists()


@pytest.mark.parametrize("name", ["", "Raw", "a/b", "a.b", "x" * 65])
def test_a_form_without_a_plain_name_is_not_written(blocks: Blocks, tmp_path: Path, name: str) -> None:
    codec = Rounded()
    codec.name = name
    with pytest.raises(UsageError, match="expected a form"):
        DiskTier(tmp_path, 1 << 20, codec)


def test_a_codec_that_cannot_hold_a_block_leaves_it_to_the_next_tier(blocks: Blocks, tmp_path: Path) -> None:
    one = blocks(1)
    half = KVBlock.raw(one.kv.to(torch.float16), one.ids, one.tokens, 0)
    drawer = Drawer()
    store = HotStore([DeviceTier(1 << 20, codec=Planes()), DiskTier(tmp_path, 1 << 20, Planes()), drawer])
    assert store.insert(SPACE, SEGMENT, NO_SEGMENT, half)
    store.drain()
    assert len(drawer.blocks) == 1
    assert store.stats().tiers["device"].used == 0
