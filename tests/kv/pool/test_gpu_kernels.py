"""The kernels of the pool, emulated on a CPU: attention against unpack-then-attend, and the copy of blocks.

On a GPU `python -m pltz.benchmarks.kv.measure_pool` compares both before it measures them.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from pltz.kv.pool import block_copy, gpu_attention
from pltz.kv.pool.gpu_attention import Launch
from pltz.plt_codec.engines.cuda import device as gpu
from tests.kv.engines.test_cuda import FLAGS
from tests.kv.pool.pages import HEADS
from tests.kv.pool.test_attention import LENGTHS, expected, view_of
from tests.plt_codec.engines.cuda import emulate

pytestmark = [
    pytest.mark.skipif(not emulate.available(), reason="the emulation needs g++ on x86-64 Linux"),
    pytest.mark.seldom("kv/engines/*", "kv/pool/*", "plt_codec/engines/cuda/*"),
]


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on a CPU."""

    def launcher(device: torch.device, macros: Mapping[str, Any] | None = None) -> emulate.EmulatedDevice:
        text = gpu.whole(block_copy.SOURCE.read_text()) if macros is None else gpu_attention.source()
        flags = os.environ.get(FLAGS, "").split()
        return emulate.EmulatedDevice(emulate.Emulation(macros or {}, flags, text=text))

    monkeypatch.setattr(gpu_attention, "launcher", launcher)
    monkeypatch.setattr(block_copy, "launcher", launcher)


SHAPES = [  # kind, block, dim, frequencies, type, query heads per key head, launch
    ("q4", 16, 64, 32, torch.float16, 3, Launch(128, 64)),
    ("q4", 256, 128, 64, torch.bfloat16, 4, Launch(256, unit=128)),
    ("q4", 16, 128, 64, torch.bfloat16, 4, Launch(128, 32, warps=2, step=2, unit=128)),
    ("q4", 16, 32, 16, torch.bfloat16, 1, Launch(320, 48, warps=2, step=1)),
    ("q4", 16, 256, 100, torch.float16, 9, Launch(128, 64, step=2, unit=32)),
    ("q8", 16, 64, 16, torch.float16, 3, Launch(128, 64)),
    ("q8", 256, 32, 16, torch.bfloat16, 16, Launch(64, 32, warps=2)),
    ("q8", 16, 256, 128, torch.bfloat16, 2, Launch(384, 256, warps=8, step=2, unit=128)),
]


@pytest.mark.parametrize(("kind", "block", "dim", "half", "dtype", "group", "launch"), SHAPES)
def test_attention_is_that_over_unpacked_kv(
    kind: str, block: int, dim: int, half: int, dtype: torch.dtype, group: int, launch: Launch
) -> None:
    view = view_of(kind, block, dim, half, dtype)
    q = torch.randn(len(LENGTHS), HEADS * group, dim, generator=torch.Generator().manual_seed(3)).to(dtype)
    exact = replace(view, keys=view.keys.float(), values=view.values.float())
    object.__setattr__(view.slab.form, "dtype", torch.float32)  # so that unpacking rounds nothing to the KV's type
    right = expected(exact, q.float(), 0.3, group)
    assert (gpu_attention.attend(view, q, 0.3, launch) - right).abs().max() < 2e-3 * right.abs().max()


def test_what_attention_counts_by_is_zero_again() -> None:
    """A second pass over the same pool joins its splits as the first did."""
    view = view_of("q4", 16, 64, 32, torch.float16)
    q = torch.randn(len(LENGTHS), HEADS * 3, 64, generator=torch.Generator().manual_seed(3)).half()
    first = gpu_attention.attend(view, q, 0.3, Launch(64, 64))
    assert not view.slab.ended.any() and torch.equal(gpu_attention.attend(view, q, 0.3, Launch(64, 64)), first)


def test_the_centroids_are_those_of_the_format() -> None:
    """Every code of a row comes back as its centroid: one token, which takes all of the attention."""
    view = view_of("q4", 16, 32, 16, torch.bfloat16)
    codes = view.slab.tensors["kv"][1]
    codes[:] = torch.randint(0, 256, codes.shape, generator=torch.Generator().manual_seed(5)).to(torch.uint8)
    view.slab.tensors["scale"][1] = 1
    only = replace(view, packed=torch.tensor([5, 5, 5], dtype=torch.int32), most=5, columns=0)
    exact = replace(only, keys=only.keys.float(), values=only.values.float())
    object.__setattr__(view.slab.form, "dtype", torch.float32)
    q = torch.randn(len(LENGTHS), HEADS * 3, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    right = exact.unpacked()[1][:, :, 4].repeat_interleave(3, 1)  # the fifth token: the first that is no sink
    assert (gpu_attention.attend(only, q, 0.3) - right).abs().max() < 3e-3 * right.abs().max()


@pytest.mark.parametrize(("most", "each"), [(480, 8), (2, 1)])
@pytest.mark.parametrize("ctas", [1, 3, 64])
def test_blocks_are_copied(ctas: int, most: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy blocks of more words than a CTA has threads, and of fewer, in shares that end anywhere."""
    source, target = random_blocks()
    monkeypatch.setattr(block_copy, "MOST", most)
    monkeypatch.setattr(block_copy, "EACH", each)
    kernels = block_copy.launcher(torch.device("cpu"))
    assert kernels is not None
    block_copy.launch(kernels, source, [1, 6, 3], target, [8, 0, 2], ctas)
    check_copied(source, target)


def random_blocks() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return blocks of a source, and a target of zeros, three layers each."""
    shapes = {"kv": (16, 100), "scale": (16, 6)}
    source = {name: torch.randint(0, 1 << 40, (3, 7, *shape)) for name, shape in shapes.items()}
    return source, {name: torch.zeros(3, 9, *shape, dtype=torch.int64) for name, shape in shapes.items()}


def check_copied(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
    """Check that blocks 1, 6 and 3 of a source are 8, 0 and 2 of the target, and nothing else is there."""
    for name in source:
        assert torch.equal(target[name][:, [8, 0, 2]], source[name][:, [1, 6, 3]])
        assert not target[name][:, [1, 3, 4, 5, 6, 7]].any()
