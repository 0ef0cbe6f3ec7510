"""FrozenTarget: a target that never changes, in batches: its exact KV, and what it says after a changed one.

KV is kept as rows here: (B, T, layers, width), float32, with keys at position 0 before values, over all heads. The
first `SINKS` tokens of a context always stay exact, in every experiment: attention rests on them, and to compute them
costs 4 tokens of a prefill.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pltz.experiments.compose.raw_codec import CompactForm
from pltz.kv.calibrate.measure import CHANGED, SIMULATED
from pltz.kv.port.codec import Span
from pltz.kv.port.rotary import Rotary
from pltz.models.target.cache import cache_argument, cache_of, pairs_of

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.arriving import Parts
    from pltz.models.target.target import Target

SINKS = 4  # tokens
Change = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]  # ids (B, T), exact rows -> changed rows


class FrozenTarget:
    """Wraps a target whose gradients are off. ``layers``, ``heads``, ``dim``: of its KV; ``width``: of a row."""

    def __init__(self, target: Target, rotary: Rotary | None = None) -> None:
        """Raises ModelError where the keys of the target cannot be turned."""
        self.target, self.rotary = target, rotary or Rotary.of(target)
        self.model: Any = target.model.requires_grad_(False)
        import torch

        with torch.inference_mode():
            found = pairs_of(target.prefill([0])[0])
        self.layers, self.heads, self.dim = len(found), found[0][0].shape[1], found[0][0].shape[3]
        self.width = 2 * self.heads * self.dim

    @property
    def device(self) -> torch.device:
        """Return the device of the target."""
        return self.target.device

    def exact(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of the KV of ids (B, T), (B, T, layers, width)."""
        import torch

        with torch.no_grad():
            cache = cache_of([], self.model.config)
            self.model(input_ids=ids, **cache_argument(self.model, cache), logits_to_keep=1)
            kv = torch.stack([torch.stack(pair) for pair in pairs_of(cache)])
            return self.rows(kv)

    def rows(self, kv: torch.Tensor) -> torch.Tensor:
        """Return KV (layers, 2, B, heads, T, dim) as rows."""
        import torch

        still = torch.stack([self.rotary.turn(kv[:, 0], 0, back=True), kv[:, 1].float()], 1)
        return still.permute(2, 4, 0, 1, 3, 5).flatten(3)

    def kv(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows as KV (layers, 2, B, heads, T, dim), float32, keys at their positions."""
        import torch

        still = rows.unflatten(3, (2, self.heads, self.dim)).permute(2, 3, 0, 4, 1, 5)
        return torch.stack([self.rotary.turn(still[:, 0], 0), still[:, 1]], 1)

    def says(self, rows: torch.Tensor, follow: torch.Tensor) -> torch.Tensor:
        """Return natural log probabilities, (B, n - 1, vocabulary), of the ids (B, n) that follow a context.

        Gradients flow to the rows.
        """
        kv = self.kv(rows).to(self.model.dtype)
        cache = cache_of(((layer[0], layer[1]) for layer in kv), self.model.config)
        logits = self.model(input_ids=follow, **cache_argument(self.model, cache)).logits[:, :-1]
        found: torch.Tensor = logits.float().log_softmax(-1)
        return found

    def loss(self, exact: torch.Tensor, changed: torch.Tensor, follow: torch.Tensor) -> torch.Tensor:
        """Return the KL in bits per token, a scalar, of what is said after changed rows. Sinks are put back."""
        import torch

        with torch.no_grad():
            right = self.says(exact, follow)
        got = self.says(with_sinks(exact, changed), follow)
        return (right.exp() * (right - got)).sum(-1).mean() / math.log(2)


def with_sinks(exact: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    """Return changed rows (B, T, ...) whose first tokens are the exact ones."""
    import torch

    return torch.cat([exact[:, :SINKS], changed[:, SINKS:]], 1)


class ChangedForm(CompactForm):
    """A form of KV that an experiment makes, for `measure.compare`.

    ``change``: ids and exact rows to changed rows; it runs in `decode`, so that its time is measured. ``bits``: of an
    element, beside the sinks; 0 where tokens are all that is kept.
    """

    exact = False
    receipt = None

    def __init__(self, name: str, frozen: FrozenTarget, change: Change, bits: float) -> None:
        self.name, self.frozen, self.change, self.bits = name, frozen, change, bits

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the KV, and the size of what is kept of it as the name of an empty part."""
        sinks = kv[:, :, :, :SINKS].numel() if self.bits else 0
        bits = self.bits * (kv.numel() - sinks) + 16 * sinks
        return {CHANGED: kv, f"{SIMULATED}{round(bits)}": kv.new_empty(0)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the changed KV, (layers, 2, heads, T, dim)."""
        import torch

        kv = parts[CHANGED]
        ids = torch.as_tensor(span.ids).long()[None].to(kv.device)
        with torch.no_grad():
            exact = self.frozen.rows(kv[:, :, None])
            return self.frozen.kv(with_sinks(exact, self.change(ids, exact)))[:, :, 0].to(kv.dtype)

    def check(self, parts: Parts, tokens: int) -> None:
        """Accept everything: nothing of it is ever read from a file."""
