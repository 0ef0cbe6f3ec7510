"""Measure decoders and codes: loss by the static-prefix protocol, error by layer, compute, time, and bits saved."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pltz.experiments.kv_peers import int4_groups
from pltz.experiments.learned_kv.course import mixed
from pltz.experiments.learned_kv.frozen_target import SINKS, FrozenTarget
from pltz.experiments.learned_kv.network import Decoder, Size, TargetShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

RIDGE = 1e-3  # of the mean diagonal
ROUNDS = 7  # of a timing


def series(shape: TargetShape) -> list[Size]:
    """Return the sizes that are compared for a target: narrow networks, copies, truncated targets, and mixtures."""
    quarter, half = max(shape.layers // 4, 1), max(shape.layers // 2, 1)
    units = shape.width // shape.dim

    def narrow(name: str, blocks: int, share: float, experts: int = 1) -> Size:
        heads = max(1, int(units * share))
        width = heads * shape.dim
        return Size(name, 0, blocks, width, heads, max(8 * width // 3 // 64 * 64, 64), experts)

    def copies(name: str, exact: int, blocks: int, hidden: int) -> Size:
        return Size(name, exact, blocks, shape.width, shape.heads, hidden)

    middle = max(shape.layers // 6, 2)
    return [
        copies("tokens alone", 0, 0, 0),
        narrow("narrow", max(shape.layers // 15, 1), 0.34),
        narrow("wider", middle, 0.67),
        narrow("wider, 4 experts", middle, 0.67, 4),
        copies("a quarter truncated", quarter, 0, 0),
        copies("a quarter copied", 0, quarter, shape.hidden),
        copies("all, thin", 0, shape.layers - 1, shape.hidden // 6),
        copies("half truncated", half, 0, 0),
        copies("half copied", 0, half, shape.hidden),
        copies("a quarter exact, a quarter copied", quarter, half - quarter, shape.hidden),
    ]


def errors(frozen: FrozenTarget, decoder: Decoder, rows: NDArray[np.int32]) -> dict[str, list[float]]:
    """Return relative errors of keys and of values by layer, beside those of four bits, which are the tolerance.

    An error is the root of the mean square of the difference over that of the KV, of all tokens but the sinks. Four
    bits are the coarsest of corollary 21: groups of 64 elements with scale and zero.
    """
    total = torch.zeros(3, frozen.layers, 2, dtype=torch.float64)
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None].to(frozen.device)
        with torch.no_grad():
            exact = frozen.exact(ids)[:, SINKS:].unflatten(3, (2, -1))
            got = decoder(ids)[:, SINKS:].unflatten(3, (2, -1))
            split = exact.unflatten(4, (frozen.heads, frozen.dim))
            coarse = int4_groups(split)[0].flatten(4)
        for n, one in enumerate((exact, got - exact, coarse - exact)):
            total[n] += one.double().square().sum((0, 1, 4)).cpu()
    found: dict[str, list[float]] = {}
    for part, name in enumerate(("keys", "values")):
        for n, kind in ((1, "error"), (2, "tolerance")):
            found[f"{name}_{kind}"] = (total[n, :, part] / total[0, :, part].clamp_min(1e-30)).sqrt().tolist()
    return found


def bits_saved(
    frozen: FrozenTarget, decoder: Decoder, fit: NDArray[np.int32], rows: NDArray[np.int32], bits: float = 1.0
) -> float:
    """Return the bits per element that a linear prediction needs with the decoder's rows, where it needs ``bits`` now.

    Without them it predicts a layer from the embedding and the exact rows of the two layers below, as `predictive`
    does from decoded ones. Both are solved on ``fit`` and judged on ``rows``. The rate is that of a Gaussian at equal
    squared error, keys and values of each layer scaled by their variance: an estimate, in which nothing is coded.
    """
    moments = [_moments(frozen, decoder, some) for some in (fit, rows)]
    pairs = [_residuals(*(one[n] for one in moments)) for n in range(frozen.layers - 1)]
    without, with_it = zip(*pairs, strict=True)
    before, after = torch.cat(without), torch.cat(with_it)
    low, high = 1e-12, float(before.max())
    for _ in range(100):  # the distortion at which the rate without the decoder is ``bits``
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _rate(before, middle) > bits else (low, middle)
    return _rate(after, high)


def _rate(variances: torch.Tensor, distortion: float) -> float:
    return float((0.5 * (variances / distortion).clamp_min(1).log2()).mean())


Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # of inputs, of inputs and rows, of rows


def _moments(frozen: FrozenTarget, decoder: Decoder, some: NDArray[np.int32]) -> list[Moments]:
    """Return the second moments of each layer but the first. Inputs: 1, embedding, rows below, the decoder's row."""
    found: list[Moments] = []
    table: Any = decoder.table
    for row in some:
        ids = torch.from_numpy(row.astype(np.int64))[None].to(frozen.device)
        with torch.no_grad():
            exact, got = (one[0, SINKS:].double() for one in (frozen.exact(ids), decoder(ids)))
        embedded = table[ids[0, SINKS:]].double()
        for layer in range(1, frozen.layers):
            below = [exact[:, n] for n in range(max(layer - 2, 0), layer)]
            x = torch.cat([torch.ones_like(embedded[:, :1]), embedded, *below, got[:, layer]], 1)
            y = exact[:, layer]
            parts = [one / x.shape[0] / len(some) for one in (x.T @ x, x.T @ y, y.T @ y)]
            if len(found) < layer:
                found.append((parts[0], parts[1], parts[2]))
            else:
                for kept, part in zip(found[layer - 1], parts, strict=True):
                    kept += part
    return found


def _residuals(fit: Moments, judged: Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the eigenvalues of a layer's residual without and with the decoder's row among the inputs, (row,) each."""
    (xx, xy, yy), (xx2, xy2, yy2) = fit, judged
    half = yy.shape[0] // 2
    variance = yy.diagonal() - xy[0].square()
    size = torch.cat([variance[:half].mean().expand(half), variance[half:].mean().expand(half)]).clamp_min(1e-12).sqrt()
    found = []
    for inputs in (len(xx) - len(yy), len(xx)):
        part = xx[:inputs, :inputs]
        ridge = RIDGE * part.diagonal()[1:].mean() * torch.eye(inputs, dtype=part.dtype, device=part.device)
        solved = torch.linalg.solve(part + ridge, xy[:inputs])
        left = yy2 - solved.T @ xy2[:inputs] - xy2[:inputs].T @ solved + solved.T @ xx2[:inputs, :inputs] @ solved
        found.append(torch.linalg.eigvalsh(left / size[:, None] / size).clamp_min(1e-12).cpu())
    return found[0], found[1]


def times(frozen: FrozenTarget, decoders: Sequence[Decoder], tokens: int, batch: int) -> list[float]:
    """Return the seconds of a prefill, then of each decoder, for ``batch`` rows: medians, all in turns."""
    ids = torch.randint(0, frozen.target.vocab_size, (batch, tokens), device=frozen.device)
    ways: list[Callable[[], Any]] = [lambda: frozen.model(ids, logits_to_keep=1), *(_way(one, ids) for one in decoders)]
    taken: list[list[float]] = [[] for _ in ways]
    for n in range(ROUNDS + 1):
        for seconds, way in zip(taken, ways, strict=True):
            began = _now(frozen.device)
            with torch.no_grad():
                way()
            if n:
                seconds.append(_now(frozen.device) - began)
    return [statistics.median(one) for one in taken]


def _way(decoder: Decoder, ids: torch.Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with mixed(ids.device):
            return decoder(ids)

    return run


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
