"""CudaEncoder: encodes the form `predictive` on a GPU, in a stream of its own beside the one that serves.

    per layer:   keys at position 0 -> y E - (inputs x P + constant) -> / step, rounded: q -> inputs of the next layer
    at the end:  what each token has seen -> words are counted -> words are written         look_ahead, encode_streams

Predictions are computed as CudaDecoder does, from its matrices. What floats round differently elsewhere changes which
integers are chosen, and not what they decode to. E and the residual are float32: keys with a bias lose nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pltz.kv.engines.cuda import BackgroundStream, DeviceTables, Kernels
from pltz.kv.engines.streams import checksum
from pltz.kv.port.rotary import turned
from pltz.kv.predictive.operands import Operands, product
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span
    from pltz.kv.port.rotary import Rotary

LARGEST = (1 << 15) - 1  # an integer


class CudaEncoder:
    """Encodes KV with one calibration and operating point on the device of its matrices."""

    def __init__(self, kernels: Kernels, tables: DeviceTables, operands: Operands) -> None:
        self._kernels, self._tables, self._operands = kernels, tables, operands

    def encode(
        self, kv: torch.Tensor, span: Span, embedded: torch.Tensor, classes: NDArray[np.uint8], rotary: Rotary
    ) -> Parts | None:
        """Return the parts of KV, (layers, 2, heads, T, D), on its device, or None where float16 cannot hold a factor.

        ``embedded``: (T, hidden). ``classes``: (T,), each below 16. The host waits; the current stream does not.
        Raises UsageError for KV that is not finite, or too far from its prediction.
        """
        import torch

        operands, device = self._operands, self._operands.device
        if not operands.fits:
            return None
        with torch.inference_mode(), BackgroundStream(device) as beside:
            kinds = torch.from_numpy(classes).to(device)
            q, largest, finite = self._integers(kv, span, embedded, operands.steps[kinds.long()][:, None], rotary)
            if not bool(finite):
                raise UsageError("keys or values are not finite: keep them in the form raw")
            if len(span.ids) and not bool(largest <= LARGEST):
                if operands.type == torch.float16:
                    return None
                raise UsageError("keys or values are further from their prediction than this form can say")
            coded, sums = self._kernels.encode(q, kinds, self._tables, math.floor(operands.point))
            parts = {
                "kv.words": coded.words.to(kv.device),
                "kv.states": coded.states.to(kv.device),
                "kv.ends": coded.ends.to(kv.device),
            }
            beside.keep(*parts.values())
        return parts | {"kv.sum": torch.from_numpy(checksum(sums)).to(kv.device), "kv.type": kv.new_empty(0)}

    def _integers(
        self, kv: torch.Tensor, span: Span, embedded: torch.Tensor, step: torch.Tensor, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the integers, (layers, T, width) int16, the size of the largest, and whether all KV is finite."""
        import torch

        operands, shape, tokens = self._operands, self._operands.shape, len(span.ids)
        device = operands.device
        q = torch.empty((shape.layers, tokens, shape.width), dtype=torch.int16, device=device)
        largest, finite = torch.zeros((), device=device), torch.ones((), dtype=torch.bool, device=device)
        inputs = operands.inputs(embedded)
        cos, sin = rotary.angles(span.start, tokens, device)
        for number, layer in enumerate(operands.layers):
            keys, values = kv[number].to(device)
            still = torch.stack([turned(keys, cos, -sin), values.float()])
            finite &= torch.isfinite(still).all()
            y = still.permute(2, 0, 1, 3).flatten(1)
            predicted = operands.predicted(number, inputs) + layer.constant
            found = ((y @ layer.encode - predicted) / step).round()
            if tokens:
                largest = torch.maximum(largest, found.abs().max())  # NaN stays NaN
            q[number] = found.clamp(-LARGEST, LARGEST).to(torch.int16)
            column = operands.column(number)
            rows = product((predicted + found * step).to(operands.type), layer.decode)
            inputs[:, column : column + shape.width] = rows
        return q, largest, finite
