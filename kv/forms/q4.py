"""Q4Codec: the form `q4-1`: four bits per element, rotated, with sinks exact and some tokens in int8. Spec: FORMAT.md.

    keys at position 0, less the segment's mean per channel  --Hadamard per head-->  nearest of 16 centroids x scale

The mean takes away a key bias (Qwen2), which a rotation would spread over all channels. The centroids are those of
Lloyd and Max for a Gaussian, which rotated heads nearly are. The scale is the least-squares one for the chosen
centroids, so no norm needs to be restored. The first four tokens of a session take most of the attention: they are
kept as they are. The 96 tokens that received most of the rest are kept in int8. KV without that attention is refused.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.forms.q8 import (
    SINKS,
    at_zero,
    check_scale,
    check_sinks,
    in_place,
    mean_of,
    quantise,
    sinks_of,
    unpacking,
)
from pltz.kv.port.codec import CompactForm, Span
from pltz.kv.port.rotary import Rotary
from pltz.plt_codec import CorruptError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.receipt import Receipt

FINE = 96  # tokens kept in int8
# Lloyd-Max centroids of a Gaussian of variance 1, 16 levels; D = 0.0095
HALF_BOOK = (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6180, 2.0690, 2.7326)
BOOK = tuple(-c for c in reversed(HALF_BOOK)) + HALF_BOOK
NAMES = {"kv.codes", "kv.scale", "kv.mean", "kv.sinks", "kv.fine", "kv.fine.at", "kv.fine.scale"}


class Q4Codec(CompactForm):
    """Rotated four-bit KV. ``rotary``: the target's. ``receipt``: what was measured, if anything."""

    name = "q4-1"
    exact = False

    def __init__(self, rotary: Rotary, receipt: Receipt | None = None) -> None:
        self.rotary, self.receipt = rotary, receipt

    def size(self, kv: torch.Tensor) -> int:
        """Return the most bytes of the parts of ``kv``. See `KVCodec.size`."""
        layers, two, heads, tokens, dim = kv.shape
        rows = layers * two * heads
        fine = min(FINE, tokens) * (dim + 2)
        return rows * (tokens * (dim // 2 + 2) + fine + 2 * dim + kv.element_size() * SINKS * dim) + 4 * FINE

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the parts. See `KVCodec.encode`.

        Raises UsageError unless heads are a power of two, and for a span without a mass.
        """
        import torch

        dim, tokens = kv.shape[-1], kv.shape[3]
        if dim < 2 or dim & (dim - 1):
            raise UsageError(f"expected heads of a power of two for the form q4, got {dim}")
        still = at_zero(kv, span, self.rotary)
        sinks, fine = _parts(tokens, span)
        others = np.delete(np.arange(tokens), np.concatenate([np.arange(sinks), fine]))
        mean = mean_of(still[:, :, :, sinks:])
        still = still - mean.float()[:, :, :, None]
        turned = hadamard(still[:, :, :, torch.from_numpy(others).to(kv.device)])
        codes, half = levels(turned)
        at = torch.from_numpy(fine).to(kv.device)
        seen = still[:, :, :, at]
        rest, rest_scale = quantise(seen, (seen.abs().amax(-1) / 127).half())
        return {
            "kv.codes": codes[..., 0::2] | codes[..., 1::2] << 4,
            "kv.mean": mean,
            "kv.scale": half,
            "kv.sinks": kv[:, :, :, :sinks].clone(),
            "kv.fine": rest,
            "kv.fine.at": at.int(),
            "kv.fine.scale": rest_scale,
        }

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of the parts. See `KVCodec.decode`."""
        import torch

        packed = parts["kv.codes"]
        book = _book(packed.device)
        if (kernels := unpacking(parts["kv.sinks"])) is not None:
            turn = self.rotary.angles(span.start, len(span.ids), packed.device)
            middle_parts = packed, parts["kv.scale"], parts["kv.fine.at"], book
            fine_parts = parts["kv.fine"], parts["kv.fine.scale"]
            return kernels.unpack(*fine_parts, parts["kv.mean"], parts["kv.sinks"], turn, middle_parts)
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        scale = parts["kv.scale"].float() * codes.shape[-1] ** -0.5
        middle = butterflies(book[codes.int()] * scale[..., None])
        fine = parts["kv.fine"].float() * parts["kv.fine.scale"].float()[..., None]
        sinks, at = parts["kv.sinks"], parts["kv.fine.at"].long()
        still = middle.new_zeros((*middle.shape[:3], middle.shape[3] + len(at), middle.shape[4]))
        others = torch.ones(still.shape[3], dtype=torch.bool, device=still.device)
        others[at - sinks.shape[3]] = False
        still[:, :, :, others] = middle
        still[:, :, :, ~others] = fine
        still = still + parts["kv.mean"].float()[:, :, :, None]
        moved = Span(span.ids, span.start + sinks.shape[3])
        return torch.cat([sinks, in_place(still, moved, self.rotary).to(sinks.dtype)], 3)

    def check(self, parts: Parts, tokens: int) -> None:
        """Check the parts. See `KVCodec.check`."""
        import torch

        if set(parts) != NAMES:
            raise CorruptError("expected the parts of the form q4")
        codes, sinks, rest, at = (parts[f"kv.{name}"] for name in ("codes", "sinks", "fine", "fine.at"))
        rows, first, dim = check_sinks(sinks, tokens)
        if dim < 2 or dim & (dim - 1):
            raise CorruptError("expected heads of a power of two")
        fine = min(FINE, tokens - first)
        right = (
            codes.shape == (*rows, tokens - first - fine, dim // 2)
            and codes.dtype == torch.uint8
            and rest.shape == (*rows, fine, dim)
            and rest.dtype == torch.int8
            and at.shape == (fine,)
            and at.dtype == torch.int32
        )
        if not right:
            raise CorruptError(f"the parts of the form q4 do not fit {tokens} ids")
        if fine and not (first <= int(at[0]) and int(at[-1]) < tokens and bool((at[1:] > at[:-1]).all())):
            raise CorruptError("the places of the fine tokens are not ascending, or beyond the others")
        check_scale(parts["kv.mean"], torch.Size((*rows, dim)))
        check_scale(parts["kv.scale"], codes.shape[:-1])
        check_scale(parts["kv.fine.scale"], rest.shape[:-1])


def _parts(tokens: int, span: Span) -> tuple[int, NDArray[np.int64]]:
    """Return the number of sinks, and the places of the fine tokens, ascending."""
    sinks = sinks_of(span, tokens)
    order = np.argsort(span.observed()[sinks:], kind="stable") + sinks
    return sinks, np.sort(order[max(len(order) - FINE, 0) :]).astype(np.int64)


def levels(turned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of rotated rows (..., D), uint8 below 16, and their scales (...), float16.

    Raises UsageError where a float16 cannot hold a scale.
    """
    import torch

    book = _book(turned.device)
    edges = (book[1:] + book[:-1]) / 2
    scale = turned.pow(2).mean(-1).sqrt()
    for _ in range(3):  # the best scale for the codes, and the best codes for the scale
        codes = torch.bucketize(turned / scale.clamp_min(1e-20)[..., None], edges)
        picked = book[codes]
        scale = (turned * picked).sum(-1) / picked.pow(2).sum(-1)
    half = scale.half()
    if not bool(torch.isfinite(half).all()):
        raise UsageError("keys or values are too large for a float16 scale: keep them in the form raw")
    return torch.bucketize(turned / half.float().clamp_min(2.0**-24)[..., None], edges).to(torch.uint8), half


@functools.cache
def _book(device: torch.device) -> torch.Tensor:
    """Return the centroids on a device. They are kept: a copy from the host would make it wait for the device."""
    import torch

    return torch.tensor(BOOK, device=device)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Return the orthonormal Walsh-Hadamard transform of the last dimension, a power of two; its own inverse."""
    return butterflies(x * x.shape[-1] ** -0.5)


def butterflies(x: torch.Tensor) -> torch.Tensor:
    """Return the sums and differences of the transform. The kernel has the same order, so the same roundings."""
    import torch

    shape, size = x.shape, x.shape[-1]
    half = 1
    while half < size:
        x = x.reshape(-1, size // (2 * half), 2, half)
        x = torch.stack([x[:, :, 0] + x[:, :, 1], x[:, :, 0] - x[:, :, 1]], 2)
        half *= 2
    return x.reshape(shape)
