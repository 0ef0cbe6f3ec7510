"""Layer: the matrices of a calibrated layer, and what is computed with them, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.kv.predictive.calibration import BELOW, Calibration
from pltz.plt_codec import CorruptError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray


class Layer(NamedTuple):
    """The matrices of one layer, float32. ``encode``, ``decode``: (width, width), inverse to each other.

    ``predict``: one or two matrices whose product is (inputs, width). ``constant``: (width,).
    """

    predict: tuple[torch.Tensor, ...]
    constant: torch.Tensor
    encode: torch.Tensor
    decode: torch.Tensor

    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        """Return the prediction in components, (T, width). ``x``: (T, inputs)."""
        import torch

        for matrix in self.predict[:-1]:
            x = x @ matrix
        return torch.addmm(self.constant, x, self.predict[-1])


def layers_of(calibration: Calibration, device: torch.device | str = "cpu") -> list[Layer]:
    """Return the matrices of all layers on a device. Raises CorruptError where a basis has no inverse."""
    import torch

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(calibration.tensors[name])).to(device)

    basis = tensor("basis").float() * tensor("basis.scale")[..., None]
    constant = tensor("constant")
    found = []
    for n in range(calibration.shape.layers):
        scale = tensor(f"predict.{n}.in")[:, None] * tensor(f"predict.{n}.out")
        predict: tuple[torch.Tensor, ...] = (tensor(f"predict.{n}").float() * scale,)
        if f"spread.{n}" in calibration.tensors:
            predict += (tensor(f"spread.{n}").float() * tensor(f"spread.{n}.scale")[:, None],)
        try:
            inverse = torch.linalg.inv(basis[n].double()).float()
        except RuntimeError as exc:
            raise CorruptError(f"the basis of layer {n} of the calibration has no inverse") from exc
        layer = Layer(predict, constant[n], inverse, basis[n])
        if not all(bool(torch.isfinite(matrix).all()) for matrix in (*predict, inverse)):
            raise CorruptError(f"the matrices of layer {n} of the calibration are not finite")
        found.append(layer)
    return found


def rows(still: torch.Tensor) -> list[torch.Tensor]:
    """Return the rows of each layer, (T, width), of KV (layers, 2, heads, T, D) with keys at position 0."""
    return [layer.permute(2, 0, 1, 3).flatten(1) for layer in still]


def inputs_of(embedded: torch.Tensor, decoded: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the inputs of the next layer's predictor, (T, inputs). ``decoded``: of all layers below."""
    import torch

    return torch.cat([embedded, *decoded[max(len(decoded) - BELOW, 0) :]], 1)


def quantised(
    layers: Sequence[Layer], y: Sequence[torch.Tensor], embedded: torch.Tensor, step: torch.Tensor
) -> NDArray[np.int16]:
    """Return the integers (T, layers, width) of rows ``y``. Raises UsageError where one is out of range."""
    import torch

    decoded: list[torch.Tensor] = []
    found = []
    for layer, row in zip(layers, y, strict=True):
        p = layer.predicted(inputs_of(embedded, decoded))
        q = ((row @ layer.encode - p) / step).round()
        if len(q) and not bool(q.abs().max() < 1 << 15):
            raise UsageError("keys or values are further from their prediction than this form can say")
        decoded.append((p + q * step) @ layer.decode)
        found.append(q.to(torch.int16).cpu())
    return torch.stack(found, 1).numpy()


def restored(
    layers: Sequence[Layer], q: NDArray[np.int16], embedded: torch.Tensor, step: torch.Tensor
) -> list[torch.Tensor]:
    """Return the rows of each layer, (T, width) float32, from integers (T, layers, width)."""
    import torch

    integers = torch.from_numpy(q).to(embedded.device)
    decoded: list[torch.Tensor] = []
    for n, layer in enumerate(layers):
        p = layer.predicted(inputs_of(embedded, decoded))
        decoded.append((p + integers[:, n].float() * step) @ layer.decode)
    return decoded
