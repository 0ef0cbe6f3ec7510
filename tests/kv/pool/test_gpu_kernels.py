"""The kernels of Triton, emulated on a CPU: attention against unpack-then-attend, the copy of blocks, the look-up."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from pltz.kv.pool.page_format import BOOK

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

ATTENTION = """
import torch
import tests.kv.pool.test_attention as t
from pltz.kv.pool import gpu_attention

for kind, block, dim, half in [("q4", 16, 64, 32), ("q4", 256, 128, 64), ("q8", 16, 64, 16), ("q8", 256, 32, 16)]:
    view = t.view_of(kind, block, dim, half, torch.float16)
    q = torch.randn(len(t.LENGTHS), t.HEADS * t.GROUP, dim, generator=torch.Generator().manual_seed(3))
    assert gpu_attention.serves(view, q.shape[1])
    right, weights = t.expected(view, q.half().float(), 0.3)
    pages = torch.nn.functional.pad(weights[:, :, : view.most], (0, view.table.shape[1] * block - view.most))
    by_block = pages.unflatten(2, (-1, block)).sum(3).unflatten(1, (t.HEADS, t.GROUP)).sum(2)
    for chunk, exact, ahead, warps in [(128, 64, False, 4), (128, 256, True, 4), (320, 64, True, 2)]:
        mass = torch.zeros(len(t.LENGTHS), t.HEADS, view.table.shape[1])
        launch = gpu_attention.Launch(chunk, exact, ahead, warps)
        found = gpu_attention.attend(view, q, 0.3, mass, launch)
        assert (found - right).abs().max() < 2e-3 * right.abs().max(), (kind, launch)
        assert (mass - by_block).abs().max() < 3e-3, (kind, launch)
"""
COPY = """
import torch
from pltz.kv.pool import block_copy

block_copy.PIECE = 64
for spills in (True, False):
    source = {"kv": torch.randint(0, 1 << 40, (3, 7, 16, 10)), "scale": torch.rand(3, 7, 16, 6)}
    target = {"kv": torch.zeros(3, 9, 16, 10, dtype=torch.int64), "scale": torch.zeros(3, 9, 16, 6)}
    block_copy.by_kernel(source, [1, 6, 3], target, [8, 0, 2], spills)
    for name in source:
        assert torch.equal(target[name][:, [8, 0, 2]], source[name][:, [1, 6, 3]])
        assert not target[name][:, [1, 3, 4, 5, 6, 7]].any()
"""


@pytest.mark.parametrize("code", [ATTENTION, COPY], ids=["attention", "copy"])
def test_emulated_kernels(code: str) -> None:
    """In a process of its own: Triton is told at its import to emulate."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def permuted(low: int, high: int, selector: int) -> int:
    """Return what PTX `prmt` gives: bytes of two words by the nibbles of a selector."""
    octets = [word >> 8 * n & 255 for word in (low, high) for n in range(4)]
    return sum(octets[selector >> 4 * n & 7] << 8 * n for n in range(4))


def executed(code: str, given: int) -> list[int]:
    """Return $0 to $3 after the instructions of an inline text, $4 being given."""
    kept = {"$4": given}
    for line in code.strip("{}\n").splitlines():
        name, rest = line.rstrip(";").split(" ", 1)
        if name == ".reg":
            continue
        target, *sources = (part.strip() for part in rest.split(","))
        values = [kept[part] if part in kept else int(part, 0) for part in sources]
        first, second = values[0], values[-1]
        kept[target] = {
            "and.b32": first & second, "xor.b32": first ^ second, "shl.b32": first << (second & 31) & 0xFFFFFFFF,
            "shr.b32": first >> (second & 31), "mov.b32": first,
            "prmt.b32": permuted(first, values[1], second) if len(values) == 3 else 0,
        }[name]  # fmt: skip
    return [kept[f"${n}"] for n in range(4)]


def test_the_look_up_gives_the_centroids() -> None:
    from pltz.kv.pool import gpu_kernels

    draw = np.random.default_rng(0)
    for word in map(int, [0, 0xFFFFFFFF, 0x76543210, 0xFEDCBA98, *draw.integers(0, 1 << 32, 40)]):
        octets = [word >> 8 * n & 255 for n in range(4)]
        right = np.array([BOOK[octet & 15] for octet in octets] + [BOOK[octet >> 4] for octet in octets])
        half = np.array(executed(gpu_kernels.FLOAT16.value, word), "<u4").view("<u2")
        assert (abs(half.view(np.float16) - right) <= 4e-4 * abs(right)).all()
        brain = np.array(executed(gpu_kernels.BFLOAT16.value, word), "<u4").view("<u2").astype("<u4") << 16
        assert (abs(brain.view(np.float32) - right) <= 4e-3 * abs(right)).all()
