"""Q8Codec: the form `q8-1`: int8 per token and head, keys at position 0. Spec: FORMAT.md, "q8-1".

The mean of each channel is subtracted, which takes away a key bias. The first four tokens of a session are kept as
they are: most attention goes to them, and their values are so small that a mean would drown them (KL 0.00037 in
place of 0.00012 without any mean; SmolLM2-135M).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.kv.engines.cuda import HEADS, TYPES, Kernels, kernels_on
from pltz.kv.port.codec import CompactForm, Span
from pltz.kv.port.rotary import Rotary
from pltz.plt_codec import CorruptError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.receipt import Receipt

LARGEST = 127
SINKS = 4  # tokens at the beginning of a session, kept exactly


class Q8Codec(CompactForm):
    """Int8 with one float16 scale per token and head. ``rotary``: the target's. ``receipt``: what was measured."""

    name = "q8-1"
    exact = False

    def __init__(self, rotary: Rotary, receipt: Receipt | None = None) -> None:
        self.rotary, self.receipt = rotary, receipt

    def size(self, kv: torch.Tensor) -> int:
        """Return the bytes of the parts of ``kv``. See `KVCodec.size`."""
        layers, two, heads, tokens, dim = kv.shape
        return kv.numel() + layers * two * heads * (2 * (tokens + dim) + SINKS * dim * kv.element_size())

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return codes and scales. See `KVCodec.encode`."""
        still = at_zero(kv, span, self.rotary)
        sinks = sinks_of(span, kv.shape[3])
        mean = mean_of(still[:, :, :, sinks:])
        rest = still[:, :, :, sinks:] - mean.float()[:, :, :, None]
        codes, scale = quantise(rest, (rest.abs().amax(-1) / LARGEST).half())
        return {"kv.codes": codes, "kv.mean": mean, "kv.scale": scale, "kv.sinks": kv[:, :, :, :sinks].clone()}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of codes and scales. See `KVCodec.decode`."""
        import torch

        sinks, codes = parts["kv.sinks"], parts["kv.codes"]
        if (kernels := unpacking(sinks)) is not None:
            turn = self.rotary.angles(span.start, len(span.ids), sinks.device)
            return kernels.unpack(codes, parts["kv.scale"], parts["kv.mean"], sinks, turn)
        still = codes.float() * parts["kv.scale"].float()[..., None]
        still = still + parts["kv.mean"].float()[:, :, :, None]
        moved = Span(span.ids, span.start + sinks.shape[3])
        return torch.cat([sinks, in_place(still, moved, self.rotary).to(sinks.dtype)], 3)

    def check(self, parts: Parts, tokens: int) -> None:
        """Check codes and scales. See `KVCodec.check`."""
        import torch

        if set(parts) != {"kv.codes", "kv.mean", "kv.scale", "kv.sinks"}:
            raise CorruptError("expected codes, a mean, scales and sinks")
        codes, scale = parts["kv.codes"], parts["kv.scale"]
        rows, first, dim = check_sinks(parts["kv.sinks"], tokens)
        if codes.dtype != torch.int8 or codes.shape != (*rows, tokens - first, dim):
            raise CorruptError(f"expected int8 codes of {tokens} ids, found {codes.dtype} {tuple(codes.shape)}")
        check_scale(scale, torch.Size((*rows, tokens - first)))
        check_scale(parts["kv.mean"], torch.Size((*rows, dim)))


def unpacking(sinks: torch.Tensor) -> Kernels | None:
    """Return the kernels that decode parts on the device of ``sinks``, or None where torch does."""
    known = sinks.shape[-1] in HEADS and str(sinks.dtype) in TYPES
    return kernels_on(sinks.device) if known else None


def sinks_of(span: Span, tokens: int) -> int:
    """Return the number of tokens kept exactly."""
    return min(SINKS, tokens) if span.start == 0 else 0


def check_sinks(sinks: torch.Tensor, tokens: int) -> tuple[tuple[int, int, int], int, int]:
    """Return (layers, 2, heads), the number of sinks, and the size of a head. Raises CorruptError."""
    import torch

    if sinks.dim() != 5 or sinks.shape[1] != 2 or not sinks.is_floating_point():
        raise CorruptError("expected keys and values of the first tokens")
    layers, two, heads, first, dim = sinks.shape
    if first not in (0, min(SINKS, tokens)):
        raise CorruptError("expected no sinks, or the first four tokens")
    if not bool(torch.isfinite(sinks).all()):
        raise CorruptError("keys or values of the first tokens are not finite")
    return (layers, two, heads), first, dim


def mean_of(still: torch.Tensor) -> torch.Tensor:
    """Return the mean of each channel over the tokens, float16. Raises UsageError where that cannot hold it."""
    import torch

    mean = still.mean(3) if still.shape[3] else still.new_zeros(still.shape[:3] + still.shape[4:])
    if not bool(torch.isfinite(mean.half()).all()):
        raise UsageError("keys or values are too large for a float16 mean: keep them in the form raw")
    return mean.half()


def at_zero(kv: torch.Tensor, span: Span, rotary: Rotary) -> torch.Tensor:
    """Return KV (layers, 2, heads, T, D) in float32 with keys at position 0. Raises UsageError for NaN and infinity."""
    import torch

    if kv.dim() != 5 or kv.shape[1] != 2 or kv.shape[-1] < 2 * len(rotary.inv_freq):
        raise UsageError(f"expected keys and values of the target, got {tuple(kv.shape)}")
    still = torch.stack([rotary.turn(kv[:, 0], span.start, back=True), kv[:, 1].float()], 1)
    if not bool(torch.isfinite(still).all()):
        raise UsageError("keys or values are not finite: keep them in the form raw")
    return still


def in_place(still: torch.Tensor, span: Span, rotary: Rotary) -> torch.Tensor:
    """Return KV in float32 with keys at their positions."""
    import torch

    return torch.stack([rotary.turn(still[:, 0], span.start), still[:, 1]], 1)


def quantise(values: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes and their scales. Raises UsageError where a float16 cannot hold a scale."""
    import torch

    if not bool(torch.isfinite(scale).all()):
        raise UsageError("keys or values are too large for a float16 scale: keep them in the form raw")
    divisor = scale.float().clamp_min(2.0**-24)[..., None]
    return (values / divisor).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def check_type(marker: torch.Tensor) -> None:
    """Check the empty tensor that tells the type of the KV. Raises CorruptError."""
    if marker.shape != (0,) or not marker.is_floating_point():
        raise CorruptError("expected an empty tensor of the KV's float type")


def check_scale(scale: torch.Tensor, shape: torch.Size) -> None:
    """Check scales. Raises CorruptError."""
    import torch

    if scale.dtype != torch.float16 or scale.shape != shape or not bool(torch.isfinite(scale).all()):
        raise CorruptError(f"expected finite float16 numbers of shape {tuple(shape)}, found {tuple(scale.shape)}")
