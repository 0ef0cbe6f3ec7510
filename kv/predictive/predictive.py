"""PredictiveCodec: the form `predictive-1`: about half a bit per element. Spec: FORMAT.md, "predictive-1".

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

import functools
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.engines.cuda import kernels_on
from pltz.kv.engines.streams import LANES, SUM, groups, sections, stream_count
from pltz.kv.port.arriving import replaced, shells
from pltz.kv.port.codec import Span
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import FINER, PREDICTIVE, Calibration
from pltz.kv.predictive.cuda_engine import CudaEngine
from pltz.kv.predictive.host_engine import HostEngine
from pltz.kv.predictive.layer import Layer, layers_of
from pltz.kv.predictive.steps import classes_of
from pltz.plt_codec import CorruptError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.receipt import Receipt

LEAST_POINT, MOST_POINT = -64, 32  # operating points: 8 log2 of the step of a token of class 3
NAMES = {"kv.words", "kv.states", "kv.ends", "kv.sum", "kv.type"}


class PredictiveCodec:
    """The entropy-coded form at one operating point.

    ``embedding``: (vocabulary, hidden) weights of the target, on the device that computes. ``point``: 8 log2 of the
    step, a multiple of 1/16; tables know its floor. ``layers``: of `layers_of`, to share them between codecs.

    Raises UsageError for a point out of range, and for an embedding of another shape.
    """

    exact = False

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
        sign = "m" if point < 0 else ""
        self.name = f"{PREDICTIVE}-{calibration.digest.hex()}-{sign}{abs(round(point * FINER))}"
        self.receipt: Receipt | None = calibration.receipt(PREDICTIVE, point)

    @functools.cached_property
    def _engine(self) -> HostEngine | CudaEngine:
        """Return what computes here: a GPU with its kernels, else torch. Chosen at the first use."""
        host = HostEngine(self.layers, self.calibration.shape, self.tables, self.rotary, self.point)
        kernels = kernels_on(self.embedding.device)
        if kernels is None:
            return host
        return CudaEngine(kernels, self.calibration, self.layers, self.rotary, self.point, host)

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return words, states and ends. See `KVCodec.encode`."""

        shape = self.calibration.shape
        if kv.dim() != 5 or kv.shape[:3] + kv.shape[4:] != (shape.layers, 2, shape.heads, shape.dim):
            raise UsageError(f"expected the KV of the calibrated target, got {tuple(kv.shape)}")
        if kv.shape[3] != len(span.ids):
            raise UsageError(f"expected the KV of {len(span.ids)} ids, got {kv.shape[3]}")
        return self._engine.encode(kv, span, self._embedded(span), classes_of(span, kv.shape[3]))

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of the streams, where the parts are. See `KVCodec.decode`."""
        return self._engine.decode(parts, span, self._embedded(span))

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
        if parts["kv.type"].shape != (0,) or not parts["kv.type"].is_floating_point():
            raise CorruptError("expected an empty tensor of the KV's float type")
        if parts["kv.sum"].dtype != torch.uint8 or parts["kv.sum"].shape != (SUM,):
            raise CorruptError("expected a checksum of 8 bytes")
        layers, width = self.tables.level.shape
        count, parts_of = groups(tokens, layers * width), (sections(layers, width), stream_count(layers, width))
        if (words.dtype, states.dtype, ends.dtype) != (torch.int16, torch.int32, torch.int32) or words.dim() != 1:
            raise CorruptError("the streams are of other types")
        if ends.shape != (parts_of[0], count) or states.shape != (parts_of[1], count, LANES):
            raise CorruptError(f"expected {count} groups of streams for {tokens} ids, found {tuple(ends.shape)}")

    def _embedded(self, span: Span) -> torch.Tensor:
        import torch

        ids = torch.from_numpy(np.asarray(span.ids, np.int64))
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.embedding):
            raise CorruptError("ids beyond the vocabulary of the calibrated target")
        return self.embedding[ids.to(self.embedding.device)].float()
