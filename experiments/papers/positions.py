"""Rows of theorem 9: towers that move as a whole, and segments that stand behind other ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of theorem 9: towers that move, and documents that stand behind others."""
    from pltz.experiments.compose.composition import Composer
    from pltz.experiments.compose.segment import Segment
    from pltz.experiments.papers import attention_error
    from pltz.models.target.target import Target

    found = []
    quarter = work.context // 4
    runs = [work.drawn[0][n * quarter : (n + 1) * quarter] for n in range(4)]
    for target in (work.target, Target.load(work.model, work.target.device, "bfloat16")):
        said = attention_error.materialised(target, runs)
        dtype = str(target.model.dtype).removeprefix("torch.")
        found.append(
            PaperRow(
                TOWERS, "Theorem 9", f"a tower that moves whole, in {dtype}: error of keys", f"<= {said['bound']:.1e}",
                f"the turn {said['turn']:.1e}; against a prefill there: keys {said['prefill']:.1e}, values "
                f"{said['value']:.1e}",
                verdict(max(said["prefill"], said["value"]) <= said["bound"], said["turn"] <= said["bound"]),
                "the bound counts the turn alone; a prefill elsewhere rounds every layer anew, so values differ too",
            )
        )  # fmt: skip
    composer, kl = Composer(work.target), {}
    for share in (0.0, 0.15):
        changed = []
        for row in work.drawn:
            parts = [Segment.alone(work.target, row[n * quarter : (n + 1) * quarter]) for n in range(4)]
            changed.append(composer.compose(parts, repair=share).kv)
        kl[share] = work.loss(changed)
    found.append(
        PaperRow(
            TOWERS, "Theorem 9, premise", "segments behind other tokens than before", "not covered",
            f"KL {kl[0.0][0]:.4f}, top-1 {kl[0.0][1]:.1%}; 15 % computed anew: {kl[0.15][0]:.4f}, {kl[0.15][1]:.1%}",
            verdict(kl[0.0][0] > 1e-4), "",
        )
    )  # fmt: skip
    return found
