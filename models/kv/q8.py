"""Q8Codec: the form `q8-1`: int8 per token and head, keys at position 0. Spec: FORMAT.md, "q8-1"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.models.kv.codec import Span
from pltz.models.kv.rotary import Rotary
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.models.kv.codec import Parts
    from pltz.models.kv.receipt import Receipt

LARGEST = 127


class Q8Codec:
    """Int8 with one float16 scale per token and head. ``rotary``: the target's. ``receipt``: what was measured."""

    name = "q8-1"
    exact = False

    def __init__(self, rotary: Rotary, receipt: Receipt | None = None) -> None:
        self.rotary, self.receipt = rotary, receipt

    def size(self, kv: torch.Tensor) -> int:
        """Return the bytes of the parts of ``kv``. See `KVCodec.size`."""
        return kv.numel() + 2 * (kv.numel() // max(kv.shape[-1], 1))

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return codes and scales. See `KVCodec.encode`."""
        still = at_zero(kv, span, self.rotary)
        scale = (still.abs().amax(-1) / LARGEST).half()
        codes, scale = quantise(still, scale)
        return {"kv.codes": codes, "kv.scale": scale, "kv.type": kv.new_empty(0)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of codes and scales. See `KVCodec.decode`."""
        still = parts["kv.codes"].float() * parts["kv.scale"].float()[..., None]
        return in_place(still, span, self.rotary).to(parts["kv.type"].dtype)

    def check(self, parts: Parts, tokens: int) -> None:
        """Check codes and scales. See `KVCodec.check`."""
        import torch

        if set(parts) != {"kv.codes", "kv.scale", "kv.type"}:
            raise CorruptError("expected codes, scales and a type")
        codes, scale = parts["kv.codes"], parts["kv.scale"]
        check_type(parts["kv.type"])
        if codes.dtype != torch.int8 or codes.dim() != 5 or codes.shape[1] != 2 or codes.shape[3] != tokens:
            raise CorruptError(f"expected int8 codes of {tokens} ids, found {codes.dtype} {tuple(codes.shape)}")
        check_scale(scale, codes.shape[:-1])


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
        raise CorruptError(f"expected finite float16 scales of shape {tuple(shape)}, found {tuple(scale.shape)}")
