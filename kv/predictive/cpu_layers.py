"""CpuLayers: the layers of the predictive form on a CPU, by layers.c. Spec: FORMAT.md, "predictive-3".

Blocks of tokens pass through all layers, each thread with blocks of its own. torch would take one product after the
other for all tokens: it waits for all its threads after each, and writes every result to memory anew. Without a C
compiler `predictive.py` does that.

Two products of a layer need no token: W = B D, and shift = constant D. They are made once, when the codec is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.kv.engines.streams import shared_out
from pltz.plt_codec.errors import CorruptError, UsageError

try:
    from pltz.kv.predictive import _layers
except ImportError:  # no C compiler at the installation
    _layers = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray

    from pltz.kv.predictive.calibration import KVShape
    from pltz.kv.predictive.layer import Layer

    Angles = tuple[torch.Tensor, torch.Tensor]

TOKENS = 128  # of a block
WIDEST = 64  # bytes of a vector, at most
NOT_FINITE, TOO_FAR = 1, 2


class CpuLayers:
    """Matrices of all layers, ready for layers.c. ``shape``: of the calibrated target's KV."""

    def __init__(self, layers: Sequence[Layer], shape: KVShape) -> None:
        import torch

        self.shape, self.heads = shape, (shape.hidden, shape.heads, shape.dim)
        none = np.zeros((0, 0), np.float32)
        found: list[NDArray[np.float32]] = []
        for layer in layers:
            *reduce, spread = layer.predict
            joined = spread @ layer.decode, torch.atleast_2d(layer.constant) @ layer.decode
            matrices = (*joined, layer.decode, spread, layer.constant, layer.encode)
            found.append(np.ascontiguousarray(reduce[0].numpy()) if reduce else none)
            found += [np.ascontiguousarray(matrix.numpy()) for matrix in matrices]
        self.matrices = tuple(found)

    @staticmethod
    def there() -> bool:
        """Return whether the compiled part is installed."""
        return _layers is not None

    def restore(
        self, q: NDArray[np.int16], embedded: torch.Tensor, step: torch.Tensor, angles: Angles, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return KV (layers, 2, heads, T, D) of a type from integers (T, layers, width).

        ``embedded``: (T, hidden). ``step``: (T, 1). ``angles``: cosines and sines of the tokens' positions.
        Raises CorruptError where a number is not finite.
        """
        import torch

        direct = dtype if dtype in (torch.float32, torch.bfloat16) else torch.float32
        kv = torch.empty((self.shape.layers, 2, self.shape.heads, len(q), self.shape.dim), dtype=direct)
        room = kv.flatten().view(torch.uint8).numpy()  # numpy has no bfloat16
        faults = self._run(_layers.restore, len(q), embedded, step, angles, q, room, kv.element_size())
        kv = kv.to(dtype)
        if max(faults) or not (dtype == direct or bool(torch.isfinite(kv).all())):
            raise CorruptError("keys or values are not finite: of a hostile calibration, or too large")
        return kv

    def quantise(
        self, kv: torch.Tensor, embedded: torch.Tensor, step: torch.Tensor, angles: Angles
    ) -> NDArray[np.int16]:
        """Return the integers (T, layers, width) of KV (layers, 2, heads, T, D). The rest is as for `restore`.

        Raises UsageError for NaN and infinity, and where an integer is out of range.
        """
        shape, tokens = self.shape, kv.shape[3]
        q = np.empty((tokens, shape.layers, shape.width), np.int16)
        exact = np.ascontiguousarray(kv.float().numpy())
        fault = max(self._run(_layers.quantise, tokens, embedded, step, angles, q, exact, exact.itemsize))
        if fault == NOT_FINITE:
            raise UsageError("keys or values are not finite: keep them in the form raw")
        if fault == TOO_FAR:
            raise UsageError("keys or values are further from their prediction than this form can say")
        return q

    def _run(
        self,
        work: Callable[..., int],
        tokens: int,
        embedded: torch.Tensor,
        step: torch.Tensor,
        angles: Angles,
        q: NDArray[np.int16],
        kv: NDArray[Any],
        size: int,
    ) -> list[int]:
        """Return what ``work`` found in each thread's tokens."""
        inputs = [np.ascontiguousarray(part.numpy()) for part in (embedded, step, *angles)]

        def some(first: int, last: int) -> int:
            part = (min(first * TOKENS, tokens), min(last * TOKENS, tokens))
            return work(self.matrices, *self.heads, *inputs, q, kv, size, *part, WIDEST)

        return shared_out(-(-tokens // TOKENS), some)
