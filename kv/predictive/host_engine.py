"""HostEngine: streams on the CPU, and layers in C there, or in torch on any device.

    encode   KV --layers--> integers --streams.py--> words            decode   the other way
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pltz.kv.engines.streams import Streams, Tables, decode, encode
from pltz.kv.port.rotary import Rotary, turned
from pltz.kv.predictive.calibration import KVShape
from pltz.kv.predictive.layer import Layer, quantised, restored, rows
from pltz.kv.predictive.steps import steps_of
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span

    Angles = tuple[torch.Tensor, torch.Tensor]


class Layers(Protocol):
    """The matrices of all layers, ready to be multiplied with: `CpuLayers`, by C, or `TorchLayers`.

    ``embedded``: (T, hidden). ``step``: (T, 1). ``angles``: cosines and sines of the tokens' positions.
    """

    def quantise(
        self, kv: torch.Tensor, embedded: torch.Tensor, step: torch.Tensor, angles: Angles
    ) -> NDArray[np.int16]:
        """Return the integers (T, layers, width) of KV (layers, 2, heads, T, D).

        Raises UsageError for NaN and infinity, and where an integer is out of range.
        """

    def restore(
        self, q: NDArray[np.int16], embedded: torch.Tensor, step: torch.Tensor, angles: Angles, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return KV (layers, 2, heads, T, D) of a type from integers. Raises CorruptError where it is not finite."""


class TorchLayers:
    """The layers in torch, layer by layer, for all tokens at once."""

    def __init__(self, layers: Sequence[Layer], shape: KVShape) -> None:
        self._layers, self._shape = layers, shape

    def quantise(
        self, kv: torch.Tensor, embedded: torch.Tensor, step: torch.Tensor, angles: Angles
    ) -> NDArray[np.int16]:
        """Return integers. See `Layers.quantise`."""
        import torch

        cos, sin = angles
        still = torch.stack([turned(kv[:, 0], cos, -sin), kv[:, 1].float()], 1)
        if not bool(torch.isfinite(still).all()):
            raise UsageError("keys or values are not finite: keep them in the form raw")
        return quantised(self._layers, rows(still), embedded, step)

    def restore(
        self, q: NDArray[np.int16], embedded: torch.Tensor, step: torch.Tensor, angles: Angles, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return KV. See `Layers.restore`."""
        import torch

        still = torch.stack(restored(self._layers, q, embedded, step))
        still = still.unflatten(2, (2, self._shape.heads, self._shape.dim)).permute(0, 2, 3, 1, 4)
        kv = torch.stack([turned(still[:, 0], *angles), still[:, 1]], 1).to(dtype)
        if not bool(torch.isfinite(kv).all()):
            raise CorruptError("keys or values are not finite: of a hostile calibration, or too large")
        return kv


class HostEngine:
    """An engine whose integers are coded on the CPU. See `SpanEngine`."""

    def __init__(self, layers: Layers, tables: Tables, rotary: Rotary, point: float) -> None:
        self._layers, self._tables, self._rotary, self._point = layers, tables, rotary, point

    def encode(self, kv: torch.Tensor, span: Span, embedded: torch.Tensor, classes: NDArray[np.uint8]) -> Parts:
        """Return the parts of KV. See `SpanEngine.encode`."""
        import torch

        with torch.inference_mode():
            inputs = embedded, *self._steps_and_angles(span, embedded.device, classes)
            q = self._layers.quantise(kv.to(embedded.device), *inputs)
        streams = encode(q, classes, self._tables, math.floor(self._point))
        parts = {
            "kv.words": torch.from_numpy(streams.words.view(np.int16).copy()),
            "kv.states": torch.from_numpy(streams.states.view(np.int32).copy()),
            "kv.ends": torch.from_numpy(streams.ends.astype(np.int32)),
            "kv.sum": torch.from_numpy(streams.sum),
        }
        return {name: part.to(kv.device) for name, part in parts.items()} | {"kv.type": kv.new_empty(0)}

    def decode(self, parts: Parts, span: Span, embedded: torch.Tensor) -> torch.Tensor:
        """Return the KV of parts. See `SpanEngine.decode`."""
        import torch

        marker = parts["kv.type"]
        words, states, ends, checksum = (parts[f"kv.{n}"].cpu().numpy() for n in ("words", "states", "ends", "sum"))
        streams = Streams(words.view(np.uint16), states.view(np.uint32), ends.astype(np.int64), checksum)
        q, classes = decode(streams, len(span.ids), self._tables, math.floor(self._point))
        with torch.inference_mode():
            inputs = embedded, *self._steps_and_angles(span, embedded.device, classes)
            return self._layers.restore(q, *inputs, marker.dtype).to(marker.device)

    def _steps_and_angles(
        self, span: Span, device: torch.device, classes: NDArray[np.uint8]
    ) -> tuple[torch.Tensor, Angles]:
        import torch

        step = torch.from_numpy(steps_of(classes, self._point)).to(device)
        return step, self._rotary.angles(span.start, len(span.ids), device)
