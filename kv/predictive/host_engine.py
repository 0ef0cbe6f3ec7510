"""HostEngine: streams on the CPU, layers in torch on any device, layer by layer, for all tokens at once.

    encode   KV --layers--> integers --streams.py--> words            decode   the other way
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.engines.streams import Streams, Tables, decode, encode
from pltz.kv.port.rotary import Rotary, at_zero, in_place
from pltz.kv.predictive.calibration import KVShape
from pltz.kv.predictive.layer import Layer, quantised, restored, rows
from pltz.kv.predictive.steps import steps_of
from pltz.plt_codec import CorruptError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span


class HostEngine:
    """An engine whose integers are coded on the CPU. Any thread may call it.

    ``embedded``: (T, hidden) float32, the embeddings of the span's ids on the engine's device.
    """

    def __init__(self, layers: Sequence[Layer], shape: KVShape, tables: Tables, rotary: Rotary, point: float) -> None:
        self._layers, self._shape, self._tables, self._rotary, self._point = layers, shape, tables, rotary, point

    def encode(self, kv: torch.Tensor, span: Span, embedded: torch.Tensor, classes: NDArray[np.uint8]) -> Parts:
        """Return the parts of KV, (layers, 2, heads, T, D), on its device. ``classes``: (T,), each below 16.

        Raises UsageError for KV that is not finite, or too far from its prediction.
        """
        import torch

        with torch.inference_mode():
            still = at_zero(kv.to(embedded.device), span, self._rotary)
            q = quantised(self._layers, rows(still), embedded, self._steps(classes, embedded.device))
        streams = encode(q, classes, self._tables, math.floor(self._point))
        parts = {
            "kv.words": torch.from_numpy(streams.words.view(np.int16).copy()),
            "kv.states": torch.from_numpy(streams.states.view(np.int32).copy()),
            "kv.ends": torch.from_numpy(streams.ends.astype(np.int32)),
            "kv.sum": torch.from_numpy(streams.sum),
        }
        return {name: part.to(kv.device) for name, part in parts.items()} | {"kv.type": kv.new_empty(0)}

    def decode(self, parts: Parts, span: Span, embedded: torch.Tensor) -> torch.Tensor:
        """Return the KV of parts, of the type and on the device of their ``kv.type``. Raises CorruptError."""
        import torch

        marker = parts["kv.type"]
        words, states, ends, checksum = (parts[f"kv.{n}"].cpu().numpy() for n in ("words", "states", "ends", "sum"))
        streams = Streams(words.view(np.uint16), states.view(np.uint32), ends.astype(np.int64), checksum)
        q, classes = decode(streams, len(span.ids), self._tables, math.floor(self._point))
        with torch.inference_mode():
            still = torch.stack(restored(self._layers, q, embedded, self._steps(classes, embedded.device)))
            still = still.unflatten(2, (2, self._shape.heads, self._shape.dim)).permute(0, 2, 3, 1, 4)
            kv = in_place(still, span, self._rotary).to(marker.dtype)
            if not bool(torch.isfinite(kv).all()):
                raise CorruptError("keys or values are not finite: of a hostile calibration, or too large")
            return kv.to(marker.device)

    def _steps(self, classes: NDArray[np.uint8], device: torch.device) -> torch.Tensor:
        import torch

        return torch.from_numpy(steps_of(classes, self._point)).to(device)
