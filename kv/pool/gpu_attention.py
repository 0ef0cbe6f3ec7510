"""Attention over pages on a GPU, by the kernels of gpu_kernels.py: one new token per session."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.kv.pool.layer_view import LayerView
from pltz.kv.pool.page_format import TILE, book
from pltz.kv.pool.triton_found import EMULATED, there

if TYPE_CHECKING:
    import torch

MOST_GROUP = 16  # query heads per key head
PROGRAMS = 1056  # per launch, about: 8 for each multiprocessor
LEAST, LONGEST = 128, 1024  # tokens of a split
AT_ONCE = 64  # splits that are joined by one load, at most


@dataclass(frozen=True)
class Launch:
    """The settings that the kernels run with.

    ``chunk``: tokens of a split of pages, a multiple of a tile. ``exact``: of one of exact tokens. ``ahead``: what the
    centre of keys adds is computed for several tiles at once, before the others. ``warps``, ``stages``: Triton's.
    ``registers``: at most, per thread; None for as many as it takes.
    """

    chunk: int
    exact: int = 256
    ahead: bool = False
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    @classmethod
    def of(cls, rows: int, tokens: int) -> Launch:
        """Return how to run: splits of so many tokens that about PROGRAMS programs run.

        Long splits fill the processor with few warps each, short ones are over before anything pays.
        """
        wanted = max(tokens * rows // PROGRAMS, 1)
        chunk = min(max(LEAST, 1 << (wanted - 1).bit_length()), LONGEST)
        if chunk < LONGEST:
            return cls(chunk)
        return cls(chunk, ahead=True, warps=2, registers=168)


def serves(view: LayerView, query_heads: int) -> bool:
    """Return whether `attend` can run: its tensors are on a GPU, and the kernels know their types and sizes."""
    import torch

    form = view.slab.form
    return (
        (view.keys.device.type == "cuda" or EMULATED)
        and there()
        and form.kind in ("q8", "q4")
        and form.dim in (32, 64, 128, 256)
        and view.keys.dtype in (torch.bfloat16, torch.float16)
        and query_heads // form.heads <= MOST_GROUP
    )


def attend(
    view: LayerView,
    query: torch.Tensor,
    scaling: float,
    mass: torch.Tensor | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """Return the attention (B, query heads, D) of queries (B, query heads, D), float32.

    ``scaling``: of scores. ``mass``: (B, heads, M) float32, to which the attention that each block receives is added,
    summed over the query heads of each key head. ``launch``: chosen for None.
    """
    import torch
    import triton

    from pltz.kv.pool import gpu_kernels

    slab, form, device = view.slab, view.slab.form, query.device
    batch, queries, dim = query.shape
    heads, rotary = form.heads, form.rotary
    assert form.centre is not None and rotary is not None  # of q8 and q4
    launch = launch or Launch.of(batch * heads, max(view.most, view.columns))
    page_splits = -(-view.most // launch.chunk)
    splits = page_splits + -(-view.columns // launch.exact)
    wide = triton.next_power_of_2(queries // heads)
    copies = 16 // wide if launch.ahead else 1
    angles = form.angles(view.most, device)
    part = min(slab.block, TILE)
    part_row = view.table.shape[1] * slab.block // part
    sums = torch.empty((batch, queries, splits, dim), device=device)
    ends = torch.empty((batch, queries, splits, 2), device=device)
    out = torch.empty((batch, queries, dim), device=device)
    final = torch.empty((batch, queries), device=device)
    tiles = -(-view.most // TILE)
    aparts = torch.empty((batch, queries, tiles * TILE), device=device) if copies > 1 else final
    parts = final if mass is None else torch.full((batch, queries, part_row), -math.inf, device=device)
    turn, centre = _turn(dim, device), form.centre_on(device)[view.layer]
    fast = not EMULATED and torch.version.hip is None
    sizes = {"HEADS": heads, "GROUP": queries // heads, "DIM": dim}
    q4 = form.kind == "q4"
    most_registers = {} if launch.registers is None or not fast else {"maxnreg": launch.registers}
    gpu_kernels.attend_pages[(splits, batch * heads)](
        query.to(view.keys.dtype).contiguous(), slab.tensors["kv"][view.layer], slab.tensors["scale"][view.layer],
        view.table, view.packed, view.keys, view.values, view.real, centre, angles.tile_cos, angles.tile_sin,
        angles.cos, angles.sin, turn, book(device), sums, ends, parts, aparts, scaling * math.log2(math.e),
        view.columns, view.keys.shape[2], view.table.shape[1], part_row, tiles, launch.chunk, launch.exact,
        page_splits, splits, **sizes, HALF=len(rotary.inv_freq),
        ANGLES=max(16, triton.next_power_of_2(angles.cos.shape[1])), ANGLE_ROW=angles.cos.shape[1], BLOCK=slab.block,
        SINKS=form.sinks, Q4=q4, MASS=mass is not None, FAST=fast, EXACT=EMULATED,
        COPIES=copies, EXACT_TILE=TILE if launch.warps > 2 else TILE // 2, num_warps=launch.warps,
        num_stages=launch.stages, **most_registers,
    )  # fmt: skip
    joined = triton.next_power_of_2(splits)
    gpu_kernels.join_splits[(batch * queries,)](
        sums, ends, centre, turn, out, final, page_splits, splits, **sizes, WIDE=joined, Q4=q4,
        AT_ONCE=min(joined, AT_ONCE),
    )
    if mass is not None:
        shares = (parts - final[..., None]).exp2().unflatten(2, (-1, slab.block // part)).sum(3)
        mass += shares.unflatten(1, (heads, -1)).sum(2)
    return out


@functools.cache
def _turn(dim: int, device: torch.device) -> torch.Tensor:
    """Return the Walsh-Hadamard transform without its root, (dim, dim), even columns first."""
    import torch

    matrix = torch.ones(1, 1)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return torch.cat([matrix[:, 0::2], matrix[:, 1::2]], 1).to(torch.bfloat16).to(device)
