"""The small forms of a target's KV: rows of pages, and `predictive`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.codec import KVCodec
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import Calibration
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.models import Target
from pltz.plt_codec import UsageError


def kv_forms(
    target: Target,
    calibration: str | os.PathLike[str] | None = None,
    *,
    max_kl: float | None = None,
    max_kl_recall: float | None = None,
    bits: float | None = None,
) -> dict[str, KVCodec]:
    """Return the forms `q8` and `q4` of a target's KV, and `predictive` where it was calibrated.

    Args:
        target: the served model.
        calibration: a file of `pltz target calibrate`. Without one the forms have no receipt, so a store hands
            them out to those only who allow any loss.
        max_kl: bits per token that `predictive` may lose: the upper limit of its receipt, not the mean.
        max_kl_recall: bits per token that it may lose where early passages are asked for; None: four times ``max_kl``.
        bits: bits per element that it may take, in place of ``max_kl``.

    Raises:
        ModelError: the target's keys cannot be turned; the message says why.
        UsageError: the file cannot be read, or no measured point is within the bound, or its receipts were measured
            on the target in another type of numbers.
        CorruptError, VersionError, TargetMismatch: the file is damaged, later, or of other weights.
    """
    rows = row_forms(target)
    model: Any = target.model
    embedding = model.get_input_embeddings().weight.detach()
    if calibration is None:
        return {**rows}
    fitted = Calibration.load(calibration, target.fingerprint)
    kind = str(model.dtype).removeprefix("torch.")
    if kind != fitted.type:
        raise UsageError(
            f"{calibration} says what forms lose in {fitted.type}, and this target runs in {kind}: calibrate with `"
            f"pltz target calibrate --dtype {kind}`, or load the target in {fitted.type}"
        )
    point = fitted.point(max_kl=max_kl, max_kl_recall=max_kl_recall, bits=bits)
    return {
        **{kind: RowForm(form.pages, fitted.receipt(kind)) for kind, form in rows.items()},
        "predictive": PredictiveCodec(fitted, Rotary.of(target), embedding, point),
    }


def row_forms(target: Target) -> dict[str, RowForm]:
    """Return the rows of pages `q8`, and `q4` where heads are of a power of two. Raises ModelError as `kv_forms`."""
    q8 = PageFormat.of(target, "q8")
    found = {"q8": RowForm(q8)}
    if not q8.dim & (q8.dim - 1):
        found["q4"] = RowForm(dataclasses.replace(q8, kind="q4"))
    return found
