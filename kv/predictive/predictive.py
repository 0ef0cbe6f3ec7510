"""PredictiveCodec: the form `predictive-3`: about half a bit per element. Spec: FORMAT.md, "predictive-3".

Per layer, from the first to the last, for all tokens at once:

    x          embedding of the token, decoded KV of the two layers below (keys at position 0)
    p          = x P                                            the prediction, in components
    c          = y E - p                                        the residual, in components
    q          = round(c / step of the token)                   the integers that are stored
    y decoded  = (p + q step) D                                 D is the inverse of E

The encoder predicts from decoded values, as the decoder does, so the loss of a layer does not add to the next one's.
D comes from the residual's covariance under the measured effect of an error on what the target says next (its
Fisher information), so one step fits all components of all layers, keys and values alike. A token's step depends on
the attention it received: one of 16 classes. `streams.py` codes integers by tables that depend on integers only, so
they are the same on every machine; only p and D y are floats, and their rounding stays rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.kv.engines.cuda import TYPES, DeviceTables, Kernels, kernels_on
from pltz.kv.engines.streams import (
    CLASS_LEVELS,
    CLASSES,
    COARSEST,
    LANES,
    SUM,
    Streams,
    decode,
    encode,
    groups,
    sections,
    stream_count,
)
from pltz.kv.forms.q8 import at_zero, check_type, in_place
from pltz.kv.port.arriving import replaced, shells
from pltz.kv.port.codec import Span
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import BELOW, FINER, PREDICTIVE, Calibration
from pltz.kv.predictive.cpu_layers import CpuLayers
from pltz.kv.predictive.cuda_decoder import CudaDecoder
from pltz.kv.predictive.cuda_encoder import CudaEncoder
from pltz.kv.predictive.operands import Operands
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.receipt import Receipt

LEAST_POINT, MOST_POINT = -64, 32  # operating points: 8 log2 of the step of a token of class 3
SINKS, SINK_FINER = 4, 4.3  # tokens at the beginning of a session; octaves
TAIL, TAIL_FINER = 128, 1.0  # tokens at the end of a segment; octaves
EXPONENT, FINEST, COARSE = 0.35, -2.0, 1.5  # of the mass; octaves
MIDDLE = 3  # the class of a step of exactly one
NAMES = {"kv.words", "kv.states", "kv.ends", "kv.sum", "kv.type"}


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


class PredictiveCodec:
    """The entropy-coded form at one operating point.

    ``embedding``: (vocabulary, hidden) weights of the target, on the device that computes. ``point``: 8 log2 of the
    step, a multiple of 1/16; tables know its floor. ``layers``: of `layers_of`, to share them between codecs.

    Raises UsageError for a point out of range, and for an embedding of another shape.
    """

    exact = False
    compact = True

    def __init__(
        self,
        calibration: Calibration,
        rotary: Rotary,
        embedding: torch.Tensor,
        point: float,
        layers: list[Layer] | None = None,
    ) -> None:
        if not LEAST_POINT <= point <= MOST_POINT or point * FINER % 1:
            raise UsageError(f"expected an operating point from {LEAST_POINT} to {MOST_POINT}, in 1/16, got {point}")
        if embedding.dim() != 2 or embedding.shape[1] != calibration.shape.hidden:
            raise UsageError(f"expected an embedding of width {calibration.shape.hidden}, got {tuple(embedding.shape)}")
        self.calibration, self.rotary, self.embedding, self.point = calibration, rotary, embedding, point
        self.layers = layers or layers_of(calibration, embedding.device)
        self.tables = calibration.tables
        self._operands: dict[bool, Operands] = {}
        self._tables: DeviceTables | None = None
        on_cpu = embedding.device.type == "cpu" and CpuLayers.there()
        self._cpu = CpuLayers(self.layers, calibration.shape) if on_cpu else None
        sign = "m" if point < 0 else ""
        self.name = f"{PREDICTIVE}-{calibration.digest.hex()}-{sign}{abs(round(point * FINER))}"
        self.receipt: Receipt | None = calibration.receipt(PREDICTIVE, point)

    def size(self, kv: torch.Tensor) -> int:
        """Return the most bytes of the parts of ``kv``. See `KVCodec.size`.

        An integer takes at most 48 bits; a block settles at what it really takes.
        """
        shape, tokens = self.calibration.shape, kv.shape[3]
        elements, count = shape.layers * shape.width, groups(tokens, shape.layers * shape.width)
        sizes = (shape.layers, shape.width)
        each = 4 * LANES * stream_count(*sizes) + 4 * sections(*sizes)  # bytes per group
        return 6 * tokens * elements + 2 * tokens + count * each + SUM

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return words, states and ends. See `KVCodec.encode`."""
        import torch

        shape = self.calibration.shape
        if kv.dim() != 5 or kv.shape[:3] + kv.shape[4:] != (shape.layers, 2, shape.heads, shape.dim):
            raise UsageError(f"expected the KV of the calibrated target, got {tuple(kv.shape)}")
        if kv.shape[3] != len(span.ids):
            raise UsageError(f"expected the KV of {len(span.ids)} ids, got {kv.shape[3]}")
        if (found := self._encoded_on_gpu(kv, span)) is not None:
            return found
        device = self.embedding.device
        with torch.inference_mode():
            classes = classes_of(span, kv.shape[3])
            embedded, step = self._embedded(span), self._steps(classes)
            if self._cpu is not None:
                angles = self.rotary.angles(span.start, len(span.ids), device)
                q = self._cpu.quantise(kv.to(device), embedded, step, angles)
            else:
                q = quantised(self.layers, rows(at_zero(kv.to(device), span, self.rotary)), embedded, step)
        streams = encode(q, classes, self.tables, math.floor(self.point))
        parts = {
            "kv.words": torch.from_numpy(streams.words.view(np.int16).copy()),
            "kv.states": torch.from_numpy(streams.states.view(np.int32).copy()),
            "kv.ends": torch.from_numpy(streams.ends.astype(np.int32)),
            "kv.sum": torch.from_numpy(streams.sum),
        }
        return {name: part.to(kv.device) for name, part in parts.items()} | {"kv.type": kv.new_empty(0)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of the streams, where the parts are. See `KVCodec.decode`."""
        import torch

        marker = parts["kv.type"]
        if (found := self._decoded_on_gpu(parts, span)) is not None:
            return found.to(marker.device)
        words, states, ends, checksum = (parts[f"kv.{n}"].cpu().numpy() for n in ("words", "states", "ends", "sum"))
        streams = Streams(words.view(np.uint16), states.view(np.uint32), ends.astype(np.int64), checksum)
        q, classes = decode(streams, len(span.ids), self.tables, math.floor(self.point))
        shape = self.calibration.shape
        with torch.inference_mode():
            embedded, step = self._embedded(span), self._steps(classes)
            if self._cpu is not None:
                angles = self.rotary.angles(span.start, len(span.ids), embedded.device)
                return self._cpu.restore(q, embedded, step, angles, marker.dtype).to(marker.device)
            still = restored(self.layers, q, embedded, step)
            kv = torch.stack(still).unflatten(2, (2, shape.heads, shape.dim))  # (layers, T, 2, heads, D)
            kv = in_place(kv.permute(0, 2, 3, 1, 4), span, self.rotary).to(marker.device, marker.dtype)
            if not bool(torch.isfinite(kv).all()):
                raise CorruptError("keys or values are not finite: of a hostile calibration, or too large")
            return kv

    def near(self, parts: Parts, device: torch.device) -> Parts:
        """Return the parts with their type on a device, where decoding puts the KV. See `KVCodec.near`.

        Words stay where they are. A GPU copies them section by section, so that it begins before all have arrived.
        """
        return replaced(parts, "kv.type", parts["kv.type"].to(device))

    def check(self, parts: Parts, tokens: int) -> None:
        """Check the streams' types and shapes. See `KVCodec.check`."""
        import torch

        if set(parts) != NAMES:
            raise CorruptError("expected words, states, ends, a checksum and a type")
        parts = shells(parts)
        words, states, ends = parts["kv.words"], parts["kv.states"], parts["kv.ends"]
        check_type(parts["kv.type"])
        if parts["kv.sum"].dtype != torch.uint8 or parts["kv.sum"].shape != (SUM,):
            raise CorruptError("expected a checksum of 8 bytes")
        layers, width = self.tables.level.shape
        count, parts_of = groups(tokens, layers * width), (sections(layers, width), stream_count(layers, width))
        if (words.dtype, states.dtype, ends.dtype) != (torch.int16, torch.int32, torch.int32) or words.dim() != 1:
            raise CorruptError("the streams are of other types")
        if ends.shape != (parts_of[0], count) or states.shape != (parts_of[1], count, LANES):
            raise CorruptError(f"expected {count} groups of streams for {tokens} ids, found {tuple(ends.shape)}")

    def _encoded_on_gpu(self, kv: torch.Tensor, span: Span) -> Parts | None:
        """Return the parts from the GPU that computes, or None where torch and C do the work."""
        import torch

        classes, found = classes_of(span, kv.shape[3]), None
        for half in (True, False) if kv.dtype in (torch.float16, torch.bfloat16) else (False,):
            if found is None and (on := self._on_gpu(half)) is not None:
                found = CudaEncoder(*on).encode(kv, span, self._embedded(span), classes, self.rotary)
        return found

    def _decoded_on_gpu(self, parts: Parts, span: Span) -> torch.Tensor | None:
        """Return the KV from the GPU that computes, or None where C and torch do the work."""
        import torch

        dtype, found = parts["kv.type"].dtype, None
        if str(dtype) not in TYPES:
            return None
        for half in (True, False) if dtype != torch.float32 else (False,):
            if found is None and (on := self._on_gpu(half)) is not None:
                found = CudaDecoder(*on).decode(parts, span, self._embedded(span), self.rotary, dtype)
        return found

    def _on_gpu(self, half: bool) -> tuple[Kernels, DeviceTables, Operands] | None:
        """Return what the GPU computes with, factors in float16 or float32, or None where there is no GPU."""
        kernels = kernels_on(self.embedding.device)
        if kernels is None:
            return None
        if self._tables is None:
            self._tables = DeviceTables.of(self.tables, self.embedding.device)
        if half not in self._operands:
            self._operands[half] = Operands(self.calibration, self.layers, self.point, half)
        return kernels, self._tables, self._operands[half]

    def _embedded(self, span: Span) -> torch.Tensor:
        import torch

        ids = torch.from_numpy(np.asarray(span.ids, np.int64))
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.embedding):
            raise CorruptError("ids beyond the vocabulary of the calibrated target")
        return self.embedding[ids.to(self.embedding.device)].float()

    def _steps(self, classes: NDArray[np.uint8]) -> torch.Tensor:
        import torch

        return torch.from_numpy(steps_of(classes, self.point)).to(self.embedding.device)


def steps_of(classes: NDArray[np.uint8], point: float) -> NDArray[np.float32]:
    """Return the step of each token, (T, 1). ``classes``: (T,)."""
    table = [2.0 ** ((point + COARSEST - CLASS_LEVELS * c) / 8) for c in range(CLASSES)]
    return np.array(table, np.float32)[classes][:, None]


def classes_of(span: Span, tokens: int) -> NDArray[np.uint8]:
    """Return the class of each token, (T,): finer where attention looks, for sinks, and for the tail.

    Raises UsageError for a span without a mass.
    """
    octaves, mass = np.zeros(tokens), span.observed().astype(np.float64)
    if tokens:
        octaves = np.clip(-EXPONENT * np.log2(np.maximum(mass / max(mass.mean(), 1e-30), 1e-6)), FINEST, COARSE)
    position = np.arange(tokens)
    octaves = octaves - SINK_FINER * (position + span.start < SINKS) - TAIL_FINER * (position >= tokens - TAIL)
    classes: NDArray[np.uint8] = np.clip(np.rint(MIDDLE - 2 * octaves), 0, CLASSES - 1).astype(np.uint8)
    return classes


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
