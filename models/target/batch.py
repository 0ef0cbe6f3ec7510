"""PrefillBatch: prefills of many sessions in one pass of the model, each over its own past.

    row 0   . . p p p | s s s s .      past at the right end, new ids at the left; dots are padding
    row 1   p p p p p | s s . . .      that the mask hides, and positions count real tokens alone

Rows of equal lengths need no padding and no mask, so the model's fastest attention serves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.models.target.cache import cache_of, pairs_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache


class PrefillBatch:
    """The rows of one pass.

    ``ids``: all ids of each row, (T,). ``caches``: plain caches that hold the first of them; at least one id
    per row is left to run.
    """

    def __init__(self, ids: Sequence[NDArray[np.int64]], caches: Sequence[DynamicCache | None]) -> None:
        self._caches = caches
        self._past = [0 if c is None else int(c.get_seq_length()) for c in caches]
        self._new = [row[done:] for row, done in zip(ids, self._past, strict=True)]
        self._longest = max(self._past), max(map(len, self._new))  # past, new

    def inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the model's inputs beside the cache: ids (B, S).

        Where rows differ, the mask (B, P + S) and the positions (B, S) are added.
        """
        import torch

        past, new = self._longest
        ids = np.zeros((len(self._new), new), np.int64)
        mask = np.zeros((len(self._new), past + new), np.int64)
        places = np.asarray(self._past)[:, None] + np.arange(new)
        for row, (done, more) in enumerate(zip(self._past, self._new, strict=True)):
            ids[row, : len(more)] = more
            mask[row, past - done : past + len(more)] = 1
            places[row, len(more) :] = done  # padding: any position that there is
        found = {"input_ids": ids}
        if not mask.all():
            found |= {"attention_mask": mask, "position_ids": places}
        return {name: torch.from_numpy(array).to(device) for name, array in found.items()}

    def last(self) -> tuple[list[int], list[int]]:
        """Return the columns in which some row ends, (n,), and for each row the index of its own column, (B,)."""
        ends = [len(more) - 1 for more in self._new]
        columns = sorted(set(ends))
        return columns, [columns.index(end) for end in ends]

    def past(self, config: Any) -> DynamicCache:
        """Return one cache of all rows' pasts, (B, heads, P, D) per layer."""
        rows = [pairs_of(c) if c is not None and c.get_seq_length() else None for c in self._caches]
        filled = next((row for row in rows if row), [])
        pairs = [
            (self._side_by_side(rows, layer, 0), self._side_by_side(rows, layer, 1)) for layer in range(len(filled))
        ]
        return cache_of(pairs, config)

    def _side_by_side(
        self, rows: Sequence[list[tuple[torch.Tensor, torch.Tensor]] | None], layer: int, side: int
    ) -> torch.Tensor:
        """Join K or V of a layer, each row's at the right end: (1, heads, p, D) to (B, heads, P, D)."""
        import torch

        found = [None if row is None else row[layer][side] for row in rows]
        like = next(row for row in found if row is not None)
        shape = (len(found), like.shape[1], self._longest[0], like.shape[3])
        whole = torch.zeros(shape, dtype=like.dtype, device=like.device)
        for number, row in enumerate(found):
            if row is not None:
                whole[number, :, -row.shape[2] :] = row[0]
        return whole

    def split(self, cache: DynamicCache, config: Any) -> list[DynamicCache]:
        """Return each row's cache after the pass, in memory of its own."""
        left = self._longest[0]
        out = []
        for row, (done, more) in enumerate(zip(self._past, self._new, strict=True)):
            span = slice(left - done, left + len(more))
            pairs = pairs_of(cache)
            mine = [(k[row : row + 1, :, span].clone(), v[row : row + 1, :, span].clone()) for k, v in pairs]
            out.append(cache_of(mine, config))
        return out
