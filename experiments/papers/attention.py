"""Rows of theorem 19, remark 20 and corollary 21: what coarse keys do to the output of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    import torch

    from pltz.experiments.papers.work import Work


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of theorem 19, remark 20 and corollary 21."""
    from pltz.experiments.kv_peers import PeerForm, turboquant
    from pltz.experiments.papers import attention_error

    said = attention_error.drift(work.target, work.drawn[0][: work.context])
    fine = [said["bits"][bits] for bits in ("4", "6", "8")]
    two, per_bit = said["bits"]["2"], abs(said["per_bit"] - 1) < 0.25
    run = min(64, work.context // 8)

    def coarse(first: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, float]]:
        def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
            x, part = kv.clone(), slice(first, first + run)
            x[:, :, :, part], _ = turboquant(2)(kv[:, :, :, part])
            return x, 16.0 * kv.numel()

        return change

    middle = work.context // 2
    lost = work.forms([(f"{at}", PeerForm(f"{at}", coarse(at))) for at in (0, 4, middle)])
    base, later, far = (lost[f"{at}"]["kl"] for at in (0, 4, middle))
    return [
        PaperRow(
            TOWERS, "Theorem 19", "error of attention's output when keys of 64 tokens are quantised", "<= the bound",
            f"at 4 to 8 bits at most {max(one['most'] for one in fine):.2f} of it; at 2 bits {two['above']:.1%} of "
            f"{said['cases']:,} cases above, up to {two['most']:.0f} times",
            verdict(all(one["most"] <= 1 for one in fine) and two["most"] <= 1, all(one["most"] <= 1 for one in fine)),
            "it is of first order: an error of logits above 1 is not small",
        ),
        PaperRow(
            TOWERS, "Theorem 19, scaling", "octaves of error per bit; power of the attention mass", "1; 0.5",
            f"{said['per_bit']:.2f}; {said['power']:.2f}",
            verdict(per_bit and abs(said["power"] - 0.5) < 0.1, per_bit),
            "the second moment in the bound grows with the mass as well, so little mass matters less than its root",
        ),
        PaperRow(
            TOWERS, "Corollary 21", "the base takes the fewest bits", "least harm",
            f"{run} tokens at 2 bits: KL {base:.4f} for the first ones, {later:.4f} from the fifth on, {far:.4f} in "
            "the middle", verdict(base <= far, later <= 2 * far),
            "the first four tokens are attention sinks and stand in the base; behind them the claim is nearer",
        ),
    ]  # fmt: skip
