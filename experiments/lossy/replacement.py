"""Ways to replace tokens that are rarer than 2^-bits, each of a row of ids (T,). Only the target's probabilities count.

    at-once    every rare token by the most probable one, rarity judged behind the true tokens
    in-turn    token by token, rarity judged behind those already replaced, as a decoder would see them
    if-shorter token by token, only where the whole row then takes fewer bits

Source: Towers of Segments, section 10.3, which says the first or the second. The third is the best case: it asks the
target about the rest of the row each time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.models.target.cache import cache_argument, cache_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.models.target.target import Target

    Ids = NDArray[np.int32]

CHOICES = 2  # probable tokens that are tried in place of a rare one


def code_lengths(target: Target, rows: NDArray[Any]) -> tuple[NDArray[np.float32], Ids]:
    """Return the bits of all ids but the first, (B, T - 1), of rows (B, T), and the likeliest ids in their places."""
    import torch

    with torch.inference_mode():
        ids = torch.from_numpy(np.asarray(rows, np.int64)).to(target.device)
        scores = _scores(target, ids)
        bits = -scores.gather(-1, ids[:, 1:, None])[:, :, 0] / math.log(2)
        return bits.cpu().numpy(), scores.argmax(-1).cpu().numpy().astype(np.int32)


def at_once(target: Target, ids: Ids, bits: float) -> Ids:
    """Return a row in which every token that costs more than ``bits`` is the likeliest behind the true ones."""
    cost, likeliest = code_lengths(target, ids[None])
    found = ids.copy()
    found[1:] = np.where(cost[0] > bits, likeliest[0], ids[1:])
    return found


def in_turn(target: Target, ids: Ids, bits: float) -> Ids:
    """Return a row in which every token that costs more than ``bits`` behind the new ones is the likeliest there."""
    import torch

    found = ids.copy()
    model: Any = target.model
    with torch.inference_mode():
        cache = cache_of([], model.config)
        for n in range(1, len(ids)):
            last = torch.tensor([[int(found[n - 1])]], device=target.device)
            out = model(input_ids=last, **cache_argument(model, cache), use_cache=True)
            scores = out.logits[0, -1].float().log_softmax(-1)
            if -float(scores[int(ids[n])]) / math.log(2) > bits:
                found[n] = int(scores.argmax())
    return found


def if_shorter(target: Target, ids: Ids, bits: float) -> Ids:
    """Return a row in which tokens that cost more than ``bits`` give way where all that follows gets shorter by it.

    Each of the `CHOICES` most probable tokens is tried, and the best is taken. So the row never gets longer.
    """
    import torch

    found = ids.copy()
    with torch.inference_mode():
        cost = code_lengths(target, found[None])[0][0]
        for n in range(1, len(ids)):
            if cost[n - 1] <= bits:
                continue
            given = torch.from_numpy(found[None, : n + 1].astype(np.int64)).to(target.device)
            best = _scores(target, given)[0, -1].topk(CHOICES).indices.cpu().numpy()
            tried = np.repeat(found[None], len(best), 0)
            tried[:, n] = best
            lengths = code_lengths(target, tried)[0]
            chosen = int(lengths[:, n - 1 :].sum(1).argmin())
            if lengths[chosen, n - 1 :].sum() < cost[n - 1 :].sum():
                found, cost = tried[chosen], lengths[chosen]
    return found


def _scores(target: Target, ids: torch.Tensor) -> torch.Tensor:
    """Return natural log probabilities (B, T - 1, vocabulary) behind each of ids (B, T) but the last."""
    model: Any = target.model
    scores: torch.Tensor = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    return scores


WAYS = {"at-once": at_once, "in-turn": in_turn, "if-shorter": if_shorter}
