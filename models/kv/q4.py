"""Q4Codec: the form `q4-1`: four bits per element, rotated, with sinks exact and a tail of int8. Spec: FORMAT.md.

    keys at position 0, less the segment's mean per channel  --Hadamard per head-->  nearest of 16 centroids x scale

The mean takes away a key bias (Qwen2), which a rotation would spread over all channels. The centroids are those of
Lloyd and Max for a Gaussian, which rotated heads nearly are. The scale is the least-squares one for the chosen
centroids, so no norm needs to be restored. The first four tokens of a session take most of the attention, and the
last ones are read by the next turn: they are kept in more bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pltz.models.kv.codec import Span
from pltz.models.kv.q8 import at_zero, check_scale, check_type, in_place, quantise
from pltz.models.kv.rotary import Rotary
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.models.kv.codec import Parts
    from pltz.models.kv.receipt import Receipt

SINKS = 4  # tokens at the beginning of a session, kept exactly
TAIL = 64  # tokens at the end of a segment, kept in int8
# Lloyd-Max centroids of a Gaussian of variance 1, 16 levels; D = 0.0095
HALF_BOOK = (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6180, 2.0690, 2.7326)
BOOK = tuple(-c for c in reversed(HALF_BOOK)) + HALF_BOOK
NAMES = {"kv.codes", "kv.scale", "kv.mean", "kv.sinks", "kv.tail", "kv.tail.scale"}


class Q4Codec:
    """Rotated four-bit KV. ``rotary``: the target's. ``receipt``: what was measured, if anything."""

    name = "q4-1"
    exact = False

    def __init__(self, rotary: Rotary, receipt: Receipt | None = None) -> None:
        self.rotary, self.receipt = rotary, receipt

    def size(self, kv: torch.Tensor) -> int:
        """Return the most bytes of the parts of ``kv``. See `KVCodec.size`."""
        layers, two, heads, tokens, dim = kv.shape
        rows = layers * two * heads
        tail = min(TAIL, tokens) * (dim + 2)
        return rows * (tokens * (dim // 2 + 2) + tail + 2 * dim + kv.element_size() * SINKS * dim)

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the parts. See `KVCodec.encode`. Raises UsageError unless heads are a power of two."""
        import torch

        dim, tokens = kv.shape[-1], kv.shape[3]
        if dim < 2 or dim & (dim - 1):
            raise UsageError(f"expected heads of a power of two for the form q4, got {dim}")
        still = at_zero(kv, span, self.rotary)
        sinks, tail = _parts(tokens, span.start)
        middle = still[:, :, :, sinks : tokens - tail]
        mean = (middle.mean(3) if middle.shape[3] else still.new_zeros((*still.shape[:3], dim))).half()
        if not bool(torch.isfinite(mean).all()):
            raise UsageError("keys or values are too large for a float16 mean: keep them in the form raw")
        turned = hadamard(middle - mean.float()[:, :, :, None])
        book = torch.tensor(BOOK, device=kv.device)
        edges = (book[1:] + book[:-1]) / 2
        scale = turned.pow(2).mean(-1).sqrt()
        for _ in range(3):  # the best scale for the codes, and the best codes for the scale
            codes = torch.bucketize(turned / scale.clamp_min(1e-20)[..., None], edges)
            picked = book[codes]
            scale = (turned * picked).sum(-1) / picked.pow(2).sum(-1)
        half = scale.half()
        if not bool(torch.isfinite(half).all()):
            raise UsageError("keys or values are too large for a float16 scale: keep them in the form raw")
        codes = torch.bucketize(turned / half.float().clamp_min(2.0**-24)[..., None], edges).to(torch.uint8)
        last = still[:, :, :, tokens - tail :]
        rest, rest_scale = quantise(last, (last.abs().amax(-1) / 127).half())
        return {
            "kv.codes": codes[..., 0::2] | codes[..., 1::2] << 4,
            "kv.mean": mean,
            "kv.scale": half,
            "kv.sinks": kv[:, :, :, :sinks].clone(),
            "kv.tail": rest,
            "kv.tail.scale": rest_scale,
        }

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of the parts. See `KVCodec.decode`."""
        import torch

        packed = parts["kv.codes"]
        book = torch.tensor(BOOK, device=packed.device)
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        middle = hadamard(book[codes.int()] * parts["kv.scale"].float()[..., None])
        middle = middle + parts["kv.mean"].float()[:, :, :, None]
        last = parts["kv.tail"].float() * parts["kv.tail.scale"].float()[..., None]
        sinks = parts["kv.sinks"]
        moved = Span(span.ids, span.start + sinks.shape[3])
        rest = in_place(torch.cat([middle, last], 3), moved, self.rotary)
        return torch.cat([sinks, rest.to(sinks.dtype)], 3)

    def check(self, parts: Parts, tokens: int) -> None:
        """Check the parts. See `KVCodec.check`."""
        import torch

        if set(parts) != NAMES:
            raise CorruptError("expected the parts of the form q4")
        codes, sinks, rest, mean = parts["kv.codes"], parts["kv.sinks"], parts["kv.tail"], parts["kv.mean"]
        if sinks.dim() != 5 or sinks.shape[1] != 2 or not sinks.is_floating_point():
            raise CorruptError("expected keys and values of the first tokens")
        layers, two, heads, first, dim = sinks.shape
        if first not in (0, min(SINKS, tokens)) or dim < 2 or dim & (dim - 1):
            raise CorruptError("expected no sinks, or the first four tokens")
        tail = min(TAIL, tokens - first)
        rows = (layers, two, heads)
        right = (
            codes.shape == (*rows, tokens - first - tail, dim // 2)
            and codes.dtype == torch.uint8
            and rest.shape == (*rows, tail, dim)
            and rest.dtype == torch.int8
            and mean.shape == (*rows, dim)
        )
        if not right or mean.dtype != torch.float16 or not bool(torch.isfinite(mean).all()):
            raise CorruptError(f"the parts of the form q4 do not fit {tokens} ids")
        check_scale(parts["kv.scale"], codes.shape[:-1])
        check_scale(parts["kv.tail.scale"], rest.shape[:-1])
        check_type(sinks.new_empty(0))


def _parts(tokens: int, start: int) -> tuple[int, int]:
    """Return the number of sinks and of tokens of the tail."""
    sinks = min(SINKS, tokens) if start == 0 else 0
    return sinks, min(TAIL, tokens - sinks)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Return the orthonormal Walsh-Hadamard transform of the last dimension, a power of two; its own inverse."""
    import torch

    shape, size = x.shape, x.shape[-1]
    half = 1
    while half < size:
        x = x.reshape(-1, size // (2 * half), 2, half)
        x = torch.stack([x[:, :, 0] + x[:, :, 1], x[:, :, 0] - x[:, :, 1]], 2)
        half *= 2
    turned: torch.Tensor = x.reshape(shape) / math.sqrt(size)
    return turned
