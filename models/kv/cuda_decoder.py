"""CudaDecoder: decodes the form `predictive` on a GPU, layer by layer.

    beside:  entropy decoding of a section of four layers, then of the next                       decode_streams
    main:    wait for the layer's section -> inputs x P -> + constant + q x step -> x D -> place      two products

The host copies the words and launches everything. It waits once, for the checksum at the end. Products of float16
factors with float32 sums serve KV in 16 bits. Where a factor is beyond float16, and for KV in float32, all products are
float32: seven times slower.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.models.kv.calibration import BELOW
from pltz.models.kv.cuda import DeviceTables, Kernels, SideStream
from pltz.models.kv.streams import CLASS_LEVELS, CLASSES, COARSEST, WRONG_END, check, verify
from pltz.plt_codec.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from pltz.models.kv.calibration import Calibration
    from pltz.models.kv.codec import Parts, Span
    from pltz.models.kv.predictive import Layer
    from pltz.models.kv.rotary import Rotary

class Operands(NamedTuple):
    """The matrices of a layer as the products take them. Inputs are [embedding, even layer below, odd layer below]."""

    predict: tuple[torch.Tensor, ...]
    constant: torch.Tensor
    decode: torch.Tensor


class CudaDecoder:
    """Decodes streams of one calibration and operating point on the device of its matrices.

    ``layers``: float32 matrices. ``half``: multiply in float16.
    """

    def __init__(
        self, kernels: Kernels, calibration: Calibration, layers: Sequence[Layer], point: float, half: bool
    ) -> None:
        import torch

        self.shape, self.point = calibration.shape, point
        self.device = layers[0].decode.device
        self._kernels, self._tables = kernels, DeviceTables.of(calibration.tables, self.device)
        self._operand = torch.float16 if half else torch.float32
        self._layers = [self._operands(n, layer) for n, layer in enumerate(layers)]
        matrices = [m for layer in self._layers for m in (*layer.predict, layer.decode)]
        self._fits = all(bool(torch.isfinite(m).all()) for m in matrices)
        steps = [2.0 ** ((point + COARSEST - CLASS_LEVELS * c) / 8) for c in range(CLASSES)]
        self._steps = torch.tensor(steps, dtype=torch.float32, device=self.device)

    def _operands(self, number: int, layer: Layer) -> Operands:
        first, *rest = layer.predict
        if number > 1 and number % 2:  # the calibration has the farther layer first
            hidden, width = self.shape.hidden, self.shape.width
            first = first[[*range(hidden), *range(hidden + width, hidden + 2 * width), *range(hidden, hidden + width)]]
        predict = tuple(m.to(self._operand).contiguous() for m in (first, *rest))
        return Operands(predict, layer.constant.contiguous(), layer.decode.to(self._operand).contiguous())

    def decode(
        self, parts: Parts, span: Span, embedded: torch.Tensor, rotary: Rotary, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Return the KV of the streams, (layers, 2, heads, T, D), on the device, or None where float16 cannot hold it.

        ``embedded``: (T, hidden). Raises CorruptError where the streams are damaged.
        """
        import torch

        shape, tokens, device = self.shape, len(span.ids), self.device
        if not self._fits:
            return None
        ends, checksum = (parts[f"kv.{name}"].cpu().numpy() for name in ("ends", "sum"))
        words, states = parts["kv.words"], parts["kv.states"]
        check(ends.astype(np.int64), states.shape, len(words), tokens, shape.layers, shape.width)
        words, states, on_device = (t.to(device, non_blocking=True) for t in (words, states, parts["kv.ends"]))
        streams = self._kernels.streams(words, on_device, states, self._tables, math.floor(self.point), tokens)
        with torch.inference_mode(), SideStream(device) as side:
            ready = {
                first: side.run(functools.partial(streams.decode, first, last)) for first, last in streams.sections()
            }
            size = (shape.layers, 2, shape.heads, tokens, shape.dim)
            kv = torch.empty(size, dtype=dtype, device=device)
            # zeros: torch's product of a part of the columns reads beyond it on a CPU with AMX
            inputs = torch.zeros((tokens, shape.hidden + 2 * shape.width), dtype=self._operand, device=device)
            inputs[:, : shape.hidden] = embedded
            beyond = torch.zeros(1, dtype=torch.int32, device=device)
            turn = rotary.angles(span.start, tokens, device)
            for number, layer in enumerate(self._layers):
                if number in ready:
                    ready[number]()
                if number == 0:
                    step = self._steps[streams.classes.long()]
                self._layer(number, layer, inputs, streams.q[number], step, turn, kv[number], beyond)
        if bool(streams.bad):
            raise CorruptError(WRONG_END)
        verify(streams.sums(), checksum)
        return None if bool(beyond) else kv

    def _layer(
        self,
        number: int,
        layer: Operands,
        inputs: torch.Tensor,
        q: torch.Tensor,
        step: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        kv: torch.Tensor,
        beyond: torch.Tensor,
    ) -> None:
        """Set the KV of one layer, (2, heads, T, D), and its rows in the inputs of the layers above."""
        import torch

        hidden, width = self.shape.hidden, self.shape.width
        x = inputs[:, : hidden + min(number, BELOW) * width]
        for matrix in layer.predict[:-1]:
            x = x @ matrix
        components = torch.empty(q.shape, dtype=self._operand, device=self.device)
        self._kernels.add_residual(product(x, layer.predict[-1]), layer.constant, q, step, components, beyond)
        column = hidden + number % 2 * width
        self._kernels.place_layer(product(components, layer.decode), turn, kv, inputs, column, beyond)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the matrix product of two tensors of one type in float32."""
    import torch

    if a.dtype == torch.float32 or a.device.type != "cuda":
        return a.float() @ b.float()
    found: torch.Tensor = torch.mm(a, b, out_dtype=torch.float32)
    return found
