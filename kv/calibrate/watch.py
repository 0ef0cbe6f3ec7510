"""Watch: see during a prefill how much attention each token receives from the last queries.

    with Watch([len(ids)]) as watch:
        cache, logits = target.prefill(ids)
    mass = watch.mass(0, len(ids))

The watch sees the calls of torch that its own thread makes: `scaled_dot_product_attention`, or the softmax of eager
attention. Other kernels of transformers (flash, flex, those of a hub) return no weights. They are given queries and
keys, so the attention of the last queries is computed beside them, for one row at a time. The model stays as it is, its
KV is bit for bit the same, and other threads that use it notice nothing. A model that attends past transformers'
`AttentionInterface` shows no mass, and neither does one with soft caps, sinks of its own or windows.

Every second layer and every fourth of the last 64 queries are looked at. Neighbouring queries and layers look at much
the same tokens, so their step differs by 0.13 octaves from the step by all of them (experiments/LOG.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

QUERIES, STRIDE = 16, 4  # queries looked at, and the distance between two of them
EVERY = 2  # layers: of so many the last is looked at
CHANGES = ("softcap", "sliding_window", "s_aux", "position_bias")  # arguments by which a kernel weighs otherwise
_here = threading.local()  # .watch: the innermost one of the thread


class Watch(TorchFunctionMode):
    """Sum the attention received in one pass of a model, all layers and heads, on its device.

    ``new``: ids that the pass runs for each row of its batch; a row's own come first, and padding after them.
    """

    def __init__(self, new: Sequence[int]) -> None:
        super().__init__()
        self.new = new
        self.shape = (0, 0, 0, 0)  # of the last pass: rows, heads, queries, keys
        self.count = 0  # its layers so far
        self.total: list[torch.Tensor] = []  # (keys,) of each row

    def __enter__(self) -> Self:
        """Begin to watch."""
        _tell_kernels()
        self._outer, _here.watch = getattr(_here, "watch", None), self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: object) -> None:
        """Watch no more."""
        _here.watch = self._outer
        super().__exit__(*failure)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and look at what it attends to, if it does."""
        given = kwargs or {}
        found = func(*args, **given)
        if func is torch.nn.functional.scaled_dot_product_attention:
            self._products(*args, **given)
        elif func is torch.nn.functional.softmax and found.dim() == 4 and self._looks(*found.shape):
            for row, rows in enumerate(self._rows(len(found), found.shape[2])):
                self._add(row, found[row, :, rows.start : rows.stop : STRIDE])
        return found

    def mass(self, row: int, tokens: int) -> NDArray[np.float32] | None:
        """Return the attention that each of a row's ``tokens`` received, (tokens,), or None where none was seen."""
        if len(self.total) != len(self.new):  # of no pass, or of rows that ran one by one
            return None
        total = self.total[row]
        if len(self.total) > 1:  # past at the right end, new ids at the left
            middle = len(total) - self.shape[2]
            total = total[middle + self.new[row] - tokens : middle + self.new[row]]
        if len(total) != tokens:
            return None
        found: NDArray[np.float32] = (total / (self.count // EVERY)).cpu().numpy()
        return found

    def _products(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Add the attention of some queries: (B, heads, S, D) to keys (B, heads or fewer, T, D)."""
        if query.dim() != 4 or (attn_mask is not None and attn_mask.dim() != 4):
            return
        columns, keys = query.shape[2], key.shape[2]
        if not self._looks(len(query), query.shape[1], columns, keys):
            return
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        for row, rows in enumerate(self._rows(len(query), columns)):
            some = query[row, :, rows.start : rows.stop : STRIDE].float() * scale
            some = some.reshape(key.shape[1], -1, some.shape[-1])  # (kv heads, group n, D)
            scores = (some @ key[row].float().mT).unflatten(1, (-1, len(rows)))  # (kv heads, group, n, T)
            if attn_mask is None:
                near = min(keys, columns - rows.start)  # the others are before every query
                last = torch.tensor(rows)[:, None] + keys - columns
                ahead = torch.arange(keys - near, keys)[None] > last
                scores[..., keys - near :].masked_fill_(ahead.to(scores.device), float("-inf"))
            else:
                mask = attn_mask[min(row, len(attn_mask) - 1), 0, rows.start : rows.stop : STRIDE]
                scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
            self._add(row, scores.flatten(0, 1).softmax(-1))

    def kernel(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, given: Mapping[str, Any]) -> None:
        """Look at a call of a kernel that shows no weights.

        Args:
            query, key: (B, heads, S, D) and (B, heads or fewer, T, D).
            mask: as the kernel takes it: None, a tensor, or a BlockMask of flex attention.
            given: its other arguments.
        """
        causal = given.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if any(given.get(name) is not None for name in CHANGES):
            return
        if isinstance(mask, torch.Tensor) and mask.dim() == 4:
            mask = mask[..., : key.shape[2]]
        elif len(query) > 1 or not causal or (isinstance(mask, torch.Tensor) and not mask.all()):
            return  # rows with padding, whose mask is the kernel's own
        else:
            mask = None
        with torch.no_grad():
            self._products(query, key, key, mask, scale=given.get("scaling"))

    def _looks(self, rows: int, heads: int, columns: int, keys: int) -> bool:
        """Count a layer of a pass, and return whether it is looked at. A pass of another shape begins anew."""
        if self.shape != (rows, heads, columns, keys):
            self.shape, self.total, self.count = (rows, heads, columns, keys), [], 0
        self.count += 1
        return self.count % EVERY == 0

    def _rows(self, count: int, columns: int) -> list[range]:
        """Return the columns of the queries that are looked at in each row, ascending."""
        ends = [max(end, 1) for end in self.new] if count > 1 else [columns]
        return [range(max(end - (QUERIES - 1) * STRIDE - 1, (end - 1) % STRIDE), end, STRIDE) for end in ends]

    def _add(self, row: int, shares: torch.Tensor) -> None:
        """Add attention (heads, n, keys)."""
        mean = shares.float().mean((0, 1))
        if row == len(self.total):
            self.total.append(mean)
        else:
            self.total[row] += mean


def _tell_kernels() -> None:
    """Let the kernels of transformers that show no weights tell the watch of their thread. Others are left alone."""
    from transformers import AttentionInterface

    for name, kernel in list(AttentionInterface().items()):
        if name != "sdpa" and not name.startswith("paged|") and not hasattr(kernel, "tells"):
            AttentionInterface.register(name, _telling(kernel))


def _telling(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(kernel)
    def attend(module: Any, query: torch.Tensor, key: Any, value: Any, mask: Any, *args: Any, **given: Any) -> Any:
        watch: Watch | None = getattr(_here, "watch", None)
        seen = None if watch is None else (watch.shape, watch.count)
        found = kernel(module, query, key, value, mask, *args, **given)
        if watch is not None and seen == (watch.shape, watch.count) and isinstance(key, torch.Tensor):
            watch.kernel(module, query, key, mask, given)
        return found

    attend.tells = True  # type: ignore[attr-defined]
    return attend
