"""SpanEngine: computes the form `predictive`, at one operating point of one calibration, on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span


class SpanEngine(Protocol):
    """Encodes and decodes. Any thread may call it.

    ``embedded``: (T, hidden) float32, the embeddings of the span's ids on the engine's device.
    """

    def encode(self, kv: torch.Tensor, span: Span, embedded: torch.Tensor, classes: NDArray[np.uint8]) -> Parts:
        """Return the parts of KV, (layers, 2, heads, T, D), on its device. ``classes``: (T,), each below 16.

        Raises UsageError for KV that is not finite, or too far from its prediction.
        """

    def decode(self, parts: Parts, span: Span, embedded: torch.Tensor) -> torch.Tensor:
        """Return the KV of parts, of the type and on the device of their ``kv.type``. Raises CorruptError."""
