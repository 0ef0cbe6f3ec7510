"""Operands: the matrices of a calibration on a device, as the products of the form `predictive` take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pltz.kv.engines.streams import CLASS_LEVELS, CLASSES, COARSEST
from pltz.kv.predictive.calibration import BELOW, Calibration

if TYPE_CHECKING:
    import torch

    from pltz.kv.predictive.layer import Layer


class LayerOperands(NamedTuple):
    """The matrices of a layer. Inputs are [embedding, even layer below, odd layer below]. ``encode`` is float32."""

    predict: tuple[torch.Tensor, ...]
    constant: torch.Tensor
    decode: torch.Tensor
    encode: torch.Tensor


class Operands:
    """The matrices of one calibration, and the steps of one operating point, on the device of ``layers``.

    ``layers``: float32 matrices. ``half``: multiply in float16. ``fits``: whether all of them are finite in that type.
    ``steps``: (CLASSES,) float32.
    """

    def __init__(self, calibration: Calibration, layers: Sequence[Layer], point: float, half: bool) -> None:
        import torch

        self.shape, self.point = calibration.shape, point
        self.device = layers[0].decode.device
        self.type = torch.float16 if half else torch.float32
        self.layers = [self._layer(n, layer) for n, layer in enumerate(layers)]
        matrices = [m for layer in self.layers for m in (*layer.predict, layer.decode)]
        self.fits = all(bool(torch.isfinite(m).all()) for m in matrices)
        steps = [2.0 ** ((point + COARSEST - CLASS_LEVELS * c) / 8) for c in range(CLASSES)]
        self.steps = torch.tensor(steps, dtype=torch.float32, device=self.device)

    def _layer(self, number: int, layer: Layer) -> LayerOperands:
        first, *rest = layer.predict
        if number > 1 and number % 2:  # the calibration has the farther layer first
            hidden, width = self.shape.hidden, self.shape.width
            first = first[[*range(hidden), *range(hidden + width, hidden + 2 * width), *range(hidden, hidden + width)]]
        predict = tuple(m.to(self.type).contiguous() for m in (first, *rest))
        decode = layer.decode.to(self.type).contiguous()
        return LayerOperands(predict, layer.constant.contiguous(), decode, layer.encode)

    def inputs(self, embedded: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the first layer, with room for those of all, (T, hidden + 2 width)."""
        import torch

        hidden, width = self.shape.hidden, self.shape.width
        # zeros: torch's product of a part of the columns reads beyond it on a CPU with AMX
        found = torch.zeros((len(embedded), hidden + BELOW * width), dtype=self.type, device=self.device)
        found[:, :hidden] = embedded
        return found

    def column(self, number: int) -> int:
        """Return the column of the inputs from which a layer's rows lie."""
        return self.shape.hidden + number % BELOW * self.shape.width

    def predicted(self, number: int, inputs: torch.Tensor) -> torch.Tensor:
        """Return the prediction of a layer without its constant, (T, width) float32."""
        x = inputs[:, : self.shape.hidden + min(number, BELOW) * self.shape.width]
        *first, last = self.layers[number].predict
        for matrix in first:
            x = x @ matrix
        return product(x, last)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the matrix product of two tensors of one type in float32."""
    import torch

    if a.dtype == torch.float32 or a.device.type != "cuda":
        return a.float() @ b.float()
    found: torch.Tensor = torch.mm(a, b, out_dtype=torch.float32)
    return found
