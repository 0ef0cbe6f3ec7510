"""Thaw: from the token ids of a frozen session to the KV cache of the target that serves it.

    frame bytes --read--> payload --decode--> token ids --check, prefill--> DynamicCache + logits

The caller reads and decodes, and times both. ``thaw`` checks that ids and target belong together and runs one
prefill. The result is the state that the target itself would hold after reading the same ids:

* It continues greedily exactly as ``model.generate`` does from the full ids: the same operations, in the same
  shapes, on the same tensors.
* Its KV differs by float noise from a KV built in other cuts (a chat's turns one by one, chunks, token by token). A
  matrix product sums in another order for another shape. The bound, on ``kv_difference``, is ``KV_NOISE``: 1e-4 for
  float32 (measured: below 1e-5), 6e-2 for bfloat16, 1e-2 for float16. Two thaws of the same ids in the same cut, on
  the same machine, give the same bits.

A KV must never be served to other weights. A frame may carry the fingerprint of the target it was frozen for.
A target with another fingerprint is refused unless ``any_target`` is given (``--any-target``). That is safe
only in the sense that the prefill is then honest work of the *new* weights on the old tokens.

A session of an archive is thawed by `pltz.kv.thaw.thawer.Thawer`, which looks for hot KV first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pltz.models import differing
from pltz.plt_codec import TargetMismatch, UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from pltz.models import Target

# Largest kv_difference between two KVs of the same ids on the same target, whatever cut the prefill was run in.
KV_NOISE = {"float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2}


@dataclass(frozen=True)
class Thawed:
    """A session that is hot again.

    One thread uses it at a time.

    Attributes:
        cache: the target's KV of all ids.
        token_ids: (T,) int64.
        logits: (vocab_size,), of the last id, from which ``Target.generate`` starts.
        timings: milliseconds by stage, in order: the caller's stages, then ``check`` (fingerprint and ids),
            ``prefill`` and ``total``, their sum.
        kl: bits per token that the KV loses, at most, by the receipt of the least exact form in it; 0 where exact.
        lossy: whether some of the KV is in a form that is not exact, also where its receipt says 0.
        kl_recall: bits per token that it loses, at most, where early passages are asked for.
        beyond: ids by which it is longer than the contexts that these receipts were measured on; 0 where it is not.
            With more than 0 the two figures are no promise: calibrate with a longer ``--context``.
        left_out: what the ids leave out of an agent's log, such as "shows 5 of 40 messages, because ..."; else empty.
    """

    cache: DynamicCache
    token_ids: NDArray[np.int64]
    logits: torch.Tensor
    timings: dict[str, float]
    kl: float = 0.0
    lossy: bool = False
    kl_recall: float = 0.0
    beyond: int = 0
    left_out: str = ""


def check_target(frozen_for: bytes | None, fingerprint: bytes, *, any_target: bool = False) -> None:
    """Refuse a target other than the one that a session was frozen for.

    ``frozen_for``: None if it was frozen for no target in particular. Raises TargetMismatch with both fingerprints,
    what differs, where that is known, and the remedy.
    """
    if frozen_for is None or any_target or bytes(frozen_for) == fingerprint:
        return
    what = " and ".join(differing(bytes(frozen_for), fingerprint))
    raise TargetMismatch(
        f"expected the target this session was frozen for, {bytes(frozen_for).hex()}, found {fingerprint.hex()}"
        f"{f', with another {what}' if what else ''}: load that target, or pass --any-target to prefill these tokens "
        "as they are"
    )


def thaw(
    token_ids: Sequence[int] | NDArray[Any],
    target: Target,
    *,
    frozen_for: bytes | None = None,
    any_target: bool = False,
    chunk: int | None = None,
    timings: Mapping[str, float] | None = None,
) -> Thawed:
    """Fill the target's KV cache with a session's tokens, in one prefill.

    Args:
        token_ids: (T,) ids of the target's vocabulary.
        frozen_for: the target fingerprint in the session's frame, None if it has none.
        chunk: most tokens per prefill step, which bounds memory.
        timings: the caller's own stages in milliseconds (read, decode), added to the result's timings and total.

    Raises:
        TargetMismatch: the session was frozen for other weights and ``any_target`` is not given.
        ContentError: there are no ids, an id is not in the target's vocabulary, or there are more than the target
            has positions for.
        ModelError: the prefill failed.
        UsageError: ``timings`` has a stage that thaw measures.
    """
    stages = dict(timings or {})
    if taken := stages.keys() & {"check", "prefill", "total"}:
        raise UsageError(f"expected the caller's own stages in timings, found {sorted(taken)}, which thaw measures")
    # the ids are checked before the target computes anything
    start = time.perf_counter()
    if frozen_for is not None and not any_target:  # the fingerprint reads every weight, so compute it only if needed
        check_target(frozen_for, target.fingerprint)
    ids = target.check_ids(token_ids)
    checked = time.perf_counter()
    # one prefill, awaited so that its time is known
    cache, logits = target.prefill(ids, chunk=chunk)
    _synchronize(logits)
    done = time.perf_counter()
    stages |= {"check": 1e3 * (checked - start), "prefill": 1e3 * (done - checked)}
    stages["total"] = sum(stages.values())
    return Thawed(cache, ids, logits, stages)


def kv_difference(a: DynamicCache, b: DynamicCache) -> float:
    """Return the largest max|a - b| / max|a| of two KVs of the same ids, over layers and over K and V.

    Infinite if their shapes differ or they contain a NaN. Compare with KV_NOISE.
    """
    if len(a.layers) != len(b.layers):
        return float("inf")
    pairs = [
        (getattr(one, name, None), getattr(other, name, None))
        for one, other in zip(a.layers, b.layers, strict=True)
        for name in ("keys", "values")
    ]
    return max((_difference(x, y) for x, y in pairs if x is not None or y is not None), default=0.0)


def _difference(x: torch.Tensor | None, y: torch.Tensor | None) -> float:
    """Return max|x - y| / max|x|; infinite if the shapes differ or a value is not finite."""
    if x is None or y is None or x.shape != y.shape:
        return float("inf")
    far, scale = float((x.float() - y.float()).abs().max()), float(x.float().abs().max())
    return far / max(scale, 1e-30) if math.isfinite(far) else float("inf")


def _synchronize(tensor: torch.Tensor) -> None:
    """Wait until the GPU has finished, since it works asynchronously."""
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize(tensor.device)
