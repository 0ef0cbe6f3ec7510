"""CudaDecoder: decodes the form `predictive` on a GPU, layer by layer.

    beside:  copy the words of a section -> entropy decoding of the stream that it completes       decode_streams
    main:    wait for the layer's integers -> inputs x P -> + constant + q x step -> x D -> place  two products

While a section is read, copied or decoded, the products of the layers below run. The host waits once, for the checksum
at the end. Products of float16 factors with float32 sums serve KV in 16 bits.
Where a factor is beyond float16, and for KV in float32, all products are float32: seven times slower.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.engines.cuda import BESIDE, DeviceStreams, DeviceTables, Kernels, SideStreams
from pltz.kv.engines.streams import WRONG_END, check, sections_there, verify
from pltz.kv.port.arriving import ArrivingParts, shells
from pltz.kv.predictive.operands import Operands, product
from pltz.plt_codec import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pltz.kv.engines.cuda import DecodedStreams
    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span
    from pltz.kv.port.rotary import Rotary

COPIES = 0  # the stream beside that copies words; the others decode


class CudaDecoder:
    """Decodes streams of one calibration and operating point on the device of its matrices."""

    def __init__(self, kernels: Kernels, tables: DeviceTables, operands: Operands) -> None:
        self._kernels, self._tables, self._operands = kernels, tables, operands

    def decode(
        self, parts: Parts, span: Span, embedded: torch.Tensor, rotary: Rotary, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Return the KV of the streams, (layers, 2, heads, T, D), on the device, or None where float16 cannot hold it.

        ``parts``: on the device, or not, or still arriving. ``embedded``: (T, hidden). Raises CorruptError for damaged
        ones.
        """
        import torch

        operands, device, tokens = self._operands, self._operands.device, len(span.ids)
        shape = operands.shape
        if not operands.fits:
            return None
        ends, given = parts["kv.ends"].cpu().numpy(), shells(parts)["kv.words"]
        check(ends.astype(np.int64), parts["kv.states"].shape, len(given), tokens, shape.layers, shape.width)
        here = given.device == device and not isinstance(parts, ArrivingParts)
        words = given if here else torch.empty(len(given), dtype=torch.int16, device=device)
        states, on_device = (parts[f"kv.{name}"].to(device, non_blocking=True) for name in ("states", "ends"))
        coded = DeviceStreams(words, on_device, states, self._tables, math.floor(operands.point), tokens)
        streams = self._kernels.decoded(coded)
        with torch.inference_mode(), SideStreams(device) as side:
            kv = torch.empty((shape.layers, 2, shape.heads, tokens, shape.dim), dtype=dtype, device=device)
            inputs = operands.inputs(embedded)
            beyond = torch.zeros(1, dtype=torch.int32, device=device)
            turn = rotary.angles(span.start, tokens, device)
            for first, last in _arriving(streams, parts, words, side):
                if first == 0:
                    step = operands.steps[streams.classes.long()]
                for number in range(first, last):
                    self._layer(number, inputs, streams.q[number], step, turn, kv[number], beyond)
        if bool(streams.bad):
            raise CorruptError(WRONG_END)
        verify(streams.sums(), parts["kv.sum"].cpu().numpy())
        return None if bool(beyond) else kv

    def _layer(
        self,
        number: int,
        inputs: torch.Tensor,
        q: torch.Tensor,
        step: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        kv: torch.Tensor,
        beyond: torch.Tensor,
    ) -> None:
        """Set the KV of one layer, (2, heads, T, D), and its rows in the inputs of the layers above."""
        import torch

        layer = self._operands.layers[number]
        components = torch.empty(q.shape, dtype=self._operands.type, device=q.device)
        predicted = self._operands.predicted(number, inputs)
        self._kernels.add_residual(predicted, layer.constant, q, step, components, beyond)
        column = self._operands.column(number)
        self._kernels.place_layer(product(components, layer.decode), turn, kv, inputs, column, beyond)


def _arriving(
    streams: DecodedStreams, parts: Parts, words: torch.Tensor, side: SideStreams
) -> Iterator[tuple[int, int]]:
    """Yield layers, from and to, whose integers the current stream waits for, in their order.

    ``words``: those of ``parts``, or room for them on the device, which this fills as they arrive.
    """
    given, left, lane = shells(parts)["kv.words"], streams.steps(), 0
    for section in sections_there(parts, streams.layers, streams.width):
        copied, part = None, slice(section.begin, section.end)
        if words is not given:
            copied = side.run(functools.partial(words[part].copy_, given[part], non_blocking=True), COPIES)
        while left and left[0][1] <= section.last:
            first, last = left.pop(0)
            lane = lane % (BESIDE - 1) + 1 if streams.many else 1  # the sections of one stream in their order
            side.wait(side.run(functools.partial(streams.decode, first, last), lane, copied))
            yield first, last
