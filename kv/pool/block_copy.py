"""The indexed copy of blocks over all layers, within a memory and between device and page-locked host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def copy_blocks(source: torch.Tensor, blocks: Sequence[int], target: torch.Tensor, to: Sequence[int]) -> None:
    """Set ``target[:, to]`` to ``source[:, blocks]``; both are (layers, blocks, ...) and contiguous.

    Within one memory it is one call of torch. Between memories blocks are gathered first, so that the bus sees one
    copy.
    """
    import torch

    if not len(blocks):
        return
    here = torch.tensor(list(blocks), device=source.device)
    there = torch.tensor(list(to), device=target.device)
    target.index_copy_(1, there, source.index_select(1, here).to(target.device))
