"""Rotary: the rotary embedding of a target, to turn its keys back to position 0 and to their positions again.

    key at position p  =  key at 0 * cos(p w) + half-swapped key at 0 * sin(p w)        w: the model's own frequencies

Keys at position 0 are alike wherever they stand, so they are predicted and quantised better, and one set serves any
position. The angles are computed in float64 and the turn in float32. `yarn` multiplies cos and sin by a factor that
keys keep; the turn is by the plain cos and sin.

`Rotary.of` tries the turn on the target itself: keys of one token in layer 0, at several positions, must coincide
once turned back. So a target that embeds positions in another way is refused, and never turned wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pltz.models import is_plain, pairs_of
from pltz.plt_codec import ModelError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.codec import Span
    from pltz.models import Target

KINDS = {"default", "linear", "llama3", "yarn", "proportional"}  # of scaling: frequencies that never change
TRIED = 48  # tokens of the trial
TOLERANCE = 0.02  # of the largest key: bf16 keys differ by 0.004 from rounding


@dataclass(frozen=True, eq=False)
class Rotary:
    """A rotation of the first ``2 * len(inv_freq)`` dimensions of keys. ``inv_freq``: (n,) float64."""

    inv_freq: torch.Tensor
    _kept: dict[torch.device, torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, target: Target) -> Rotary:
        """Return the rotation of a target, tried on it. Raises ModelError with the reason where it has none."""
        import torch

        reason = refusal(target.model.config)
        if reason:
            raise ModelError(f"the keys of this target cannot be turned: {reason}. Keep its KV in the form raw")
        found = {
            tuple(m.inv_freq.double().tolist())
            for m in target.model.modules()
            if isinstance(getattr(m, "inv_freq", None), torch.Tensor)
        }
        if len(found) != 1:
            raise ModelError(
                "the keys of this target cannot be turned: expected one set of rotary frequencies, "
                f"found {len(found)}. Keep its KV in the form raw"
            )
        rotary = cls(torch.tensor(found.pop(), dtype=torch.float64))
        rotary._try(target)
        return rotary

    def turn(self, keys: torch.Tensor, start: int, *, back: bool = False) -> torch.Tensor:
        """Return keys (..., T, D) at positions ``start`` onwards, from position 0; with ``back`` the other way.

        The result is float32.
        """
        cos, sin = self.angles(start, keys.shape[-2], keys.device)
        return turned(keys, cos, -sin if back else sin)

    def angles(self, start: int, tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of positions ``start`` onwards, (tokens, n) float32 each, on a device."""
        import torch

        where = device if device.type == "cuda" else "cpu"  # which has float64 for sure
        position = torch.arange(start, start + tokens, dtype=torch.float64, device=where)
        angle = position[:, None] * self._there(torch.device(where))
        return angle.cos().float().to(device), angle.sin().float().to(device)

    def _there(self, device: torch.device) -> torch.Tensor:
        """Return the frequencies on a device. They are kept: a copy would make the host wait for the device."""
        if device not in self._kept:
            self._kept[device] = self.inv_freq.to(device)
        return self._kept[device]

    def _try(self, target: Target) -> None:
        import torch

        with torch.inference_mode():
            cache, _ = target.prefill([min(7, target.vocab_size - 1)] * TRIED)
            if not is_plain(cache):
                raise ModelError(
                    "the keys of this target cannot be turned: some layers keep a window or a state only. "
                    "Keep its KV in the form raw"
                )
            keys = pairs_of(cache)[0][0][0].float()  # (heads, T, D)
            if keys.shape[-1] < 2 * len(self.inv_freq):
                raise ModelError("the keys of this target cannot be turned: more frequencies than dimensions")
            still = self.turn(keys, 0, back=True)
            apart = (still - still[:, :1]).abs().max() / keys.abs().max().clamp_min(1e-20)
        if float(apart) > TOLERANCE:
            raise ModelError(
                "the keys of this target cannot be turned: those of one token differ at other positions "
                f"by {float(apart):.2g} after turning back. Keep its KV in the form raw"
            )


def turned(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return keys (..., T, D) turned by angles, whose cosines and sines are (T, half), in float32."""
    import torch

    half = cos.shape[-1]
    keys = keys.float()
    left, right, rest = keys[..., :half], keys[..., half : 2 * half], keys[..., 2 * half :]
    return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)


def refusal(config: Any) -> str:
    """Return why the keys of a model cannot be turned, as far as its config says; "" where it does not object."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(text, "kv_lora_rank", None):
        return "multi-head latent attention keeps no keys"
    types = getattr(text, "layer_types", None) or ()
    if any(kind != "full_attention" for kind in types):
        return f"its layers include {next(kind for kind in types if kind != 'full_attention')}"
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True) and not types:
        return "its layers keep a sliding window"
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    several = [v for v in scaling.values() if isinstance(v, dict)] or [scaling]
    for one in several:
        kind = one.get("rope_type") or one.get("type") or "default"
        if kind not in KINDS:
            return f"its rotary scaling is {kind}, whose frequencies depend on the length"
    return ""


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
