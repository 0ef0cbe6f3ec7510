"""Errors of attention and of positions, beside what the theorems of Towers of Segments say (9, 19 and corollary 21).

A prefill is watched: the queries, keys and values of each layer are kept. Keys of one segment are quantised, and the
change of the attention's output is computed exactly, beside the bound of theorem 19.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.experiments.compose.composition import Composer
from pltz.experiments.compose.segment import Segment
from pltz.models.target.cache import cache_argument, cache_of, pairs_of
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.models.target.target import Target

BITS = (2, 3, 4, 6, 8)
RUN = 64  # tokens of a segment whose keys are quantised
QUERIES = 32  # last queries, whose output is looked at
FAR = 1000  # positions that a whole tower is moved by


def attended(target: Target, ids: NDArray[Any]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return queries, keys and values of each layer, (heads, T, D) float64, in a prefill of ids (T,).

    Raises UsageError where the target attends by kernels that torch does not dispatch.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    layers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    class Calls(TorchFunctionMode):
        """Keep what each call of `scaled_dot_product_attention` gets."""

        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            given = kwargs or {}
            if func is torch.nn.functional.scaled_dot_product_attention:
                names = ("query", "key", "value")
                query, key, value = (*args[:3], *(given[name] for name in names[len(args) :]))
                group = query.shape[1] // key.shape[1]
                k, v = (x[0].repeat_interleave(group, 0).double() for x in (key, value))
                layers.append((query[0].double(), k, v))
            return func(*args, **given)

    with torch.inference_mode(), Calls():
        target.prefill(ids)
    if not layers:
        raise UsageError("this target attends by kernels of its own: its attention cannot be looked at")
    return layers


def drift(target: Target, ids: NDArray[Any]) -> dict[str, Any]:
    """Return how the keys of ids' segments quantised to `BITS` change the output of attention.

    Of each number of bits: the largest share of theorem 19's bound that an error takes, the share of errors above it,
    and the root mean square error. ``per_bit``: octaves by which the error falls per bit, from 4 bits up.
    ``power``: of the attention mass, in a regression of the error's logarithm at 4 bits. Raises UsageError where the
    target shows no attention.
    """
    import torch

    found: dict[int, list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]] = {bits: [] for bits in BITS}
    for query, k, v in attended(target, ids):
        # Exact attention of the last queries.
        q = query[:, -QUERIES:]
        scores = q @ k.mT / k.shape[-1] ** 0.5
        ahead = torch.ones(scores.shape[1:], dtype=torch.bool).triu(scores.shape[2] - QUERIES + 1)
        scores = scores.masked_fill(ahead, float("-inf"))
        weights = scores.softmax(-1)
        out = weights @ v
        # One run of keys is quantised at a time: its error, the bound for it, and the mass that it has.
        for begin in range(0, k.shape[1] - QUERIES - RUN + 1, RUN):
            part = slice(begin, begin + RUN)
            mass = weights[..., part].sum(-1)
            spread = (v[:, None, part] - out[:, :, None]).square().sum(-1)
            moment = (weights[..., part] * spread).sum(-1)
            for bits in BITS:
                change = quantised(k[:, part], bits) - k[:, part]
                moved = scores.clone()
                moved[..., part] += q @ change.mT / k.shape[-1] ** 0.5
                error = (moved.softmax(-1) @ v - out).norm(dim=-1)
                worst = change.norm(dim=-1).amax(-1)[:, None]
                bound = worst * q.norm(dim=-1) / k.shape[-1] ** 0.5 * (mass * moment).sqrt()
                found[bits].append((error.numpy(), bound.numpy(), mass.numpy()))
    # Summaries per number of bits, then two regressions: over mass, and over bits.
    rows, rms = {}, {}
    for bits, parts in found.items():
        error, bound = (np.concatenate([part[i].ravel() for part in parts]) for i in (0, 1))
        share = error / np.maximum(bound, 1e-300)
        rms[bits] = float(np.sqrt(np.mean(error**2)))
        rows[str(bits)] = {"most": float(share.max()), "above": float(np.mean(share > 1)), "rms": rms[bits]}
    error, mass = (np.concatenate([part[i].ravel() for part in found[4]]) for i in (0, 2))
    there = (error > 1e-12) & (mass > 1e-9)
    power = float(np.polyfit(np.log(mass[there]), np.log(error[there]), 1)[0])
    per_bit = float(-np.polyfit([4, 6, 8], np.log2([rms[4], rms[6], rms[8]]), 1)[0])
    return {"bits": rows, "per_bit": per_bit, "power": power, "cases": len(error)}


def fusion_bound(target: Target, ids: NDArray[Any], cosine: float) -> float:
    """Return the median over queries of the epsilon of proposition 5.3 of Joint Encoding, for keys fused at a cosine.

    It bounds the change of attention by 2 epsilon, which says nothing from 1 up: two distributions never differ by
    more than 2.
    """
    import torch

    found = [
        q[:, -QUERIES:].norm(dim=-1) * k.norm(dim=-1).amax(-1)[:, None] / k.shape[-1] ** 0.5 * (2 - 2 * cosine) ** 0.5
        for q, k, _ in attended(target, ids)
    ]
    return float(torch.cat(found).median())


def quantised(keys: torch.Tensor, bits: int) -> torch.Tensor:
    """Return keys (..., D) rounded to ``2**bits`` steps between the least and the largest number of each."""
    low, high = keys.amin(-1, keepdim=True), keys.amax(-1, keepdim=True)
    step = ((high - low) / ((1 << bits) - 1)).clamp_min(1e-300)
    return ((keys - low) / step).round() * step + low


def materialised(target: Target, runs: Sequence[NDArray[Any]]) -> dict[str, float]:
    """Return the errors of a tower that moves as a whole by `FAR` positions, as shares of the largest norm of a key.

    ``turn``: of the keys against the same turn in float64; ``prefill``: against the target's own prefill there;
    ``bound``: depth times the type's rounding step, theorem 9. ``value``: of the values against the prefill.
    """
    import torch

    composer = Composer(target)
    tower = Segment.tower(target, runs)
    moved = composer.compose(tower, start=FAR, repair=0).kv
    before = composer.compose(tower, repair=0).kv[:, 0].double()
    ids = torch.from_numpy(np.concatenate(runs).astype(np.int64))[None].to(target.device)
    where = FAR + torch.arange(ids.shape[1], device=ids.device)[None]
    model: Any = target.model
    with torch.inference_mode():
        cache = cache_of([], model.config)
        model(input_ids=ids, position_ids=where, **cache_argument(model, cache), use_cache=True)
    pairs = [(k[0], v[0]) for k, v in pairs_of(cache)]
    keys, values = (torch.stack([pair[n] for pair in pairs]).double() for n in (0, 1))
    largest = float(before.norm(dim=-1).max())
    return {
        "turn": float((moved[:, 0].double() - _turned(composer, before)).abs().max()) / largest,
        "prefill": float((moved[:, 0].double() - keys).abs().max()) / largest,
        "value": float((moved[:, 1].double() - values).abs().max() / values.norm(dim=-1).max()),
        "bound": len(runs) * torch.finfo(moved.dtype).eps,
    }


def _turned(composer: Composer, keys: torch.Tensor) -> torch.Tensor:
    """Return keys (..., D) in float64, turned by `FAR` positions."""
    import torch

    angle = FAR * composer.rotary.inv_freq
    cos, sin, half = angle.cos(), angle.sin(), len(angle)
    a, b, rest = keys[..., :half], keys[..., half : 2 * half], keys[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
