"""CudaEngine: the form `predictive` on a GPU, by `CudaEncoder` and `CudaDecoder`.

KV of 16 bits is computed with float16 factors first, and with float32 ones where float16 cannot hold a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pltz.kv.engines.cuda import TYPES, DeviceTables, Kernels
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import Calibration
from pltz.kv.predictive.cuda_decoder import CudaDecoder
from pltz.kv.predictive.cuda_encoder import CudaEncoder
from pltz.kv.predictive.host_engine import HostEngine
from pltz.kv.predictive.layer import Layer
from pltz.kv.predictive.operands import Operands

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span


class CudaEngine:
    """An engine on the device of ``layers``. ``otherwise``: takes what the kernels cannot hold."""

    def __init__(
        self,
        kernels: Kernels,
        calibration: Calibration,
        layers: Sequence[Layer],
        rotary: Rotary,
        point: float,
        otherwise: HostEngine,
    ) -> None:
        self._kernels, self._calibration, self._layers, self._rotary = kernels, calibration, layers, rotary
        self._point, self._otherwise = point, otherwise
        self._tables = DeviceTables.of(calibration.tables, layers[0].decode.device)
        self._operands: dict[bool, Operands] = {}

    def encode(self, kv: torch.Tensor, span: Span, embedded: torch.Tensor, classes: NDArray[np.uint8]) -> Parts:
        """Return the parts of KV. See `HostEngine.encode`."""
        for operands in self._tried(kv.dtype):
            encoder = CudaEncoder(self._kernels, self._tables, operands)
            if (found := encoder.encode(kv, span, embedded, classes, self._rotary)) is not None:
                return found
        return self._otherwise.encode(kv, span, embedded, classes)

    def decode(self, parts: Parts, span: Span, embedded: torch.Tensor) -> torch.Tensor:
        """Return the KV of parts. See `HostEngine.decode`."""
        marker = parts["kv.type"]
        for operands in self._tried(marker.dtype) if str(marker.dtype) in TYPES else ():
            decoder = CudaDecoder(self._kernels, self._tables, operands)
            if (found := decoder.decode(parts, span, embedded, self._rotary, marker.dtype)) is not None:
                return found.to(marker.device)
        return self._otherwise.decode(parts, span, embedded)

    def _tried(self, dtype: torch.dtype) -> Iterator[Operands]:
        """Yield matrices in float16, for KV of 16 bits, and in float32. They are made at first use."""
        import torch

        for half in (True, False) if dtype in (torch.float16, torch.bfloat16) else (False,):
            if half not in self._operands:
                self._operands[half] = Operands(self._calibration, self._layers, self._point, half)
            yield self._operands[half]
