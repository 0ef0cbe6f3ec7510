"""Attention over pages on a GPU, by attend_pages.cu: one new token per session."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.engines import cuda
from pltz.kv.engines.cuda import Launcher
from pltz.kv.pool.layer_view import LayerView
from pltz.kv.pool.page_format import HALF_BOOK
from pltz.plt_codec import ModelError, device as gpu

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).with_name("attend_pages.cu")
MOST_GROUP = 16  # query heads per key head
SHARE = 128  # multiprocessors among which tokens are divided, about


@dataclass(frozen=True)
class Launch:
    """The settings that the kernel runs with.

    ``chunk``: tokens of a split of pages, a multiple of ``unit``. ``exact``: of one of exact tokens. ``warps``: of a
    CTA. ``step``: tiles of 16 tokens that a warp takes at once. ``unit``: tokens that it takes one after the other, up
    to 64; or 128, two pieces of 64 in turn, for up to four query heads per key head. ``ctas``: that a multiprocessor
    has registers for.
    """

    chunk: int
    exact: int = 256
    warps: int = 4
    step: int = 4
    ctas: int = 3
    unit: int = 64

    @classmethod
    def of(cls, rows: int, tokens: int, group: int, dim: int) -> Launch:
        """Return how to run: ``rows`` of ``tokens`` tokens, with ``group`` query heads each.

        Few tokens are divided among many warps, so that they are over soon. Of many, each warp takes more at once.
        """
        each = max(tokens * rows // SHARE, 1)
        if dim > 128 or group > 8:  # sums fill the registers
            return cls(_power(each // 4, 256, 4096), 64, 4, 2, 2)
        if each < 4096:
            return cls(_power(each // 2, 256, 1024), 64, 8, 1, 2, 16)
        return cls(_power(each // 8, 1024, 4096), 256, 4, 2, 3, 128 if group <= 4 else 64)


def _power(tokens: int, least: int, most: int) -> int:
    """Return the power of two from ``tokens`` on, within limits that are powers of two."""
    return min(max(least, 1 << (max(tokens, 1) - 1).bit_length()), most)


def serves(view: LayerView, query_heads: int) -> bool:
    """Return whether `attend` can run: its tensors are on a GPU, and the kernel knows their types and sizes."""
    import torch

    form, device = view.slab.form, view.keys.device
    known = (
        form.kind in ("q8", "q4")
        and form.dim in (32, 64, 128, 256)
        and view.keys.dtype in (torch.bfloat16, torch.float16)
        and query_heads // form.heads <= MOST_GROUP
        and device.type == "cuda"
    )
    if not known:
        return False
    macros = shape(view, query_heads, _launch(view, query_heads))
    return int(macros["P_SHARED"]) <= cuda.most_shared(device) and launcher(device, macros) is not None


def _launch(view: LayerView, query_heads: int) -> Launch:
    batch, heads, _, dim = view.keys.shape
    return Launch.of(batch * heads, max(view.most, view.columns), query_heads // heads, dim)


def shape(view: LayerView, query_heads: int, launch: Launch) -> dict[str, int | str]:
    """Return the macros of the kernel for a view."""
    form, halves = view.slab.form, view.keys.element_size()
    assert form.rotary is not None and halves == 2
    dim, group, q4 = form.dim, query_heads // form.heads, form.kind == "q4"
    angles = max(-(-len(form.rotary.inv_freq) // 16), 1) * 16
    columns = -(-group // 8) * 8
    row = dim if q4 else 2 * dim
    of_warp = launch.step * (32 * (row // 4 + 8) + 8 * row) + 8 * angles * (1 + (launch.unit > 64))
    room = max(launch.warps * of_warp, 4 * max(launch.warps, 2) * group * dim)
    ends = launch.warps * columns * 8 + 48
    return {
        "P_HEADS": form.heads, "P_GROUP": group, "P_COLUMN_TILES": columns // 8, "P_DIM": dim,
        "P_DIM_ROOT": f"{dim**-0.5!r}f", "P_Q4": int(q4), "P_BF16": int("bfloat16" in str(view.keys.dtype)),
        "P_BLOCK": view.slab.block, "P_ANGLES": angles, "P_TURNED": len(form.rotary.inv_freq), "P_SINKS": form.sinks,
        "P_WARPS": launch.warps, "P_STEP": launch.step, "P_UNIT": launch.unit, "P_CTAS": launch.ctas, "P_ROOM": room,
        "P_SHARED": room + angles // 16 * 4096 + columns * (2 * dim + 8 * angles + 8) + ends, **_book(),
    }  # fmt: skip


@functools.cache
def _book() -> dict[str, str]:
    """Return the macros of the centroids: low and high bytes of the eight magnitudes, in float16 and bfloat16."""
    halves = [int(np.float16(c).view(np.uint16)) for c in HALF_BOOK]
    brains = [int(np.float32(c).view(np.uint32)) for c in HALF_BOOK]
    brains = [(bits + 0x7FFF + (bits >> 16 & 1)) >> 16 for bits in brains]
    macros: dict[str, str] = {}
    for name, numbers in (("HALF", halves), ("BF16", brains)):
        for part, shift in (("LOW", 0), ("HIGH", 8)):
            words = struct.unpack("<II", bytes(number >> shift & 255 for number in numbers))
            macros |= {f"P_{name}_{part}{n}": f"{word:#x}u" for n, word in enumerate(words)}
    return macros


@functools.cache
def source() -> str:
    """Return the kernel as one text."""
    return gpu.whole(SOURCE.read_text("utf8"))


def launcher(device: torch.device, macros: Mapping[str, int | str]) -> Launcher | None:
    """Return what launches the kernel on a GPU, compiled for the macros of a shape, None where it cannot run."""
    options = tuple(f"-D{name}={value}" for name, value in macros.items())
    return cuda.compiled(cuda.number_of(device), source(), options)


def attend(view: LayerView, query: torch.Tensor, scaling: float, launch: Launch | None = None) -> torch.Tensor:
    """Return the attention (B, query heads, D) of queries (B, query heads, D), float32.

    ``scaling``: of scores. ``launch``: chosen for None.
    """
    import torch

    slab, form, device = view.slab, view.slab.form, query.device
    batch, queries, dim = query.shape
    assert form.centre is not None  # of q8 and q4
    launch = launch or _launch(view, queries)
    page_splits = -(-view.most // launch.chunk)
    splits = page_splits + -(-view.columns // launch.exact)
    macros = shape(view, queries, launch)
    kernels = launcher(device, macros)
    if kernels is None:
        raise ModelError("the kernel of attention over pages does not compile on this machine")
    angles = form.angles(view.most, device)
    # one piece of memory: sums and ends of the splits
    sums = torch.empty((batch * queries * splits * (dim + 2),), device=device)
    ends = sums[batch * queries * splits * dim :]
    out = torch.empty((batch, queries, dim), device=device)
    centre = form.centre_on(device)[view.layer]
    rows = batch * form.heads
    ended = slab.ended if rows <= len(slab.ended) else torch.zeros(rows, dtype=torch.int32, device=device)
    pointers = cuda.addresses(
        query.to(view.keys.dtype).contiguous(), slab.tensors["kv"][view.layer], slab.tensors["scale"][view.layer],
        view.table, view.packed, view.keys, view.values, view.real, centre, angles.tile_cos, angles.tile_sin,
        angles.places, sums, ends, out, ended,
    )  # fmt: skip
    numbers = view.columns, view.keys.shape[2], view.table.shape[1], launch.chunk, launch.exact, page_splits
    scale = ctypes.c_float(scaling * math.log2(math.e))
    kernels.launch(
        "attend_pages", (form.heads, splits, batch), 32 * launch.warps,
        [*pointers, scale, *map(ctypes.c_int, numbers)], int(macros["P_SHARED"]),
    )  # fmt: skip
    return out
