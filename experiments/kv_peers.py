"""Forms of KV that others use, written plainly, to compare ours with. Each is simulated: KV in, changed KV out.

The size counts all side data: scales, zeros, norms, and the tokens that a form keeps in 16 bits. They work on keys as
they are in the cache, as their authors do.

    fp8            e4m3, scale 1                                   8 bits
    q8_0, q4_0     llama.cpp: groups of 32, float16 scale          8.5, 4.5
    q4_0 rotated   the same after a Hadamard rotation per head     4.5
    int4 groups    MLX, agent-memory: groups of 64, scale and zero 4.5
    KIVI           keys per channel over 32 tokens, values per token in groups of 32; last 128 tokens in 16 bits
    TurboQuant     norm, rotation, the Lloyd-Max book of a Gaussian, renormalised; also with sinks and tail in 16 bits
    quanto, HQQ    transformers' QuantizedCache with the packages optimum-quanto and hqq, as it gives KV back
    PCA            the best basis of each layer's own keys and values, not counted: a bound of every low rank

``python -m pltz.experiments kv`` measures these forms beside ours (`bench_kv.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from pltz.experiments import bench_kv as command
from pltz.experiments.compose.raw_codec import CompactForm
from pltz.kv.calibrate.measure import CHANGED, SIMULATED
from pltz.kv.pool.page_format import hadamard
from pltz.kv.port.codec import Span
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.arriving import Parts

Change = Callable[["torch.Tensor"], tuple["torch.Tensor", float]]  # float32 KV to what is left of it, and its bits


class PeerForm(CompactForm):
    """A simulated form. ``change``: returns the KV after it, and its size in bits."""

    exact = False
    receipt = None

    def __init__(self, name: str, change: Change) -> None:
        self.name, self.change = name, change

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the changed KV, of the same shape, and its size as the name of an empty part."""
        changed, bits = self.change(kv.float())
        return {CHANGED: changed.to(kv.dtype), f"{SIMULATED}{round(bits)}": kv.new_empty(0)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the changed KV, (layers, 2, heads, T, dim)."""
        return parts[CHANGED]

    def check(self, parts: Parts, tokens: int) -> None:
        """Accept everything: nothing of it is ever read from a file."""


def fp8(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Round a tensor of any shape to e4m3 with scale 1."""
    import torch

    return kv.clamp(-448, 448).to(torch.float8_e4m3fn).float(), 8.0 * kv.numel()


def symmetric(bits: int, *, rotated: bool = False) -> Change:
    """Return q8_0 or q4_0 of llama.cpp: groups of 32, one float16 scale, the largest at one end."""

    def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
        x = hadamard(kv) if rotated else kv
        groups = x.reshape(-1, 32)
        if bits == 8:
            scale = (groups.abs().amax(1, keepdim=True) / 127).half().float().clamp_min(1e-12)
            codes = (groups / scale).round().clamp(-127, 127)
        else:
            peak = groups.gather(1, groups.abs().argmax(1, keepdim=True))
            scale = (peak / -8).half().float()
            scale = scale.where(scale != 0, 1e-12)
            codes = (groups / scale + 8.5).floor().clamp(0, 15) - 8
        x = (codes * scale).reshape(kv.shape)
        return (hadamard(x) if rotated else x), (bits + 0.5) * kv.numel()

    return change


def affine(x: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Return x (...,) rounded to ``2**bits`` steps between its least and its largest along a dimension, in float16."""
    low = x.amin(dim, keepdim=True).half().float()
    scale = ((x.amax(dim, keepdim=True) - low) / ((1 << bits) - 1)).half().float().clamp_min(1e-12)
    return ((x - low) / scale).round().clamp(0, (1 << bits) - 1) * scale + low


def int4_groups(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Round KV (..., dim), in groups of 64 elements of a token, to four bits, with scale and zero in float16."""
    size = min(64, kv.shape[-1])
    return affine(kv.reshape(-1, size), 4, 1).reshape(kv.shape), (4 + 32 / size) * kv.numel()


def kivi(bits: int, residual: int = 128) -> Change:
    """Return KIVI: keys per channel over 32 tokens, values per token in groups of 32, the last tokens in 16 bits."""

    def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
        tokens = max(0, kv.shape[3] - residual) // 32 * 32
        x = kv.clone()
        layers, _, heads, _, dim = kv.shape
        keys = kv[:, 0, :, :tokens].reshape(layers, heads, -1, 32, dim)
        x[:, 0, :, :tokens] = affine(keys, bits, 3).reshape(layers, heads, tokens, dim)
        x[:, 1, :, :tokens] = affine(kv[:, 1, :, :tokens].reshape(-1, 32), bits, 1).reshape(layers, heads, tokens, dim)
        share = tokens / max(kv.shape[3], 1)
        return x, ((bits + 1) * share + 16 * (1 - share)) * kv.numel()

    return change


@lru_cache
def lloyd_max(bits: int) -> tuple[float, ...]:
    """Return the exact Lloyd-Max centroids of a Gaussian of variance 1.

    >>> [round(c, 4) for c in lloyd_max(2)]
    [-1.5104, -0.4528, 0.4528, 1.5104]
    """

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x: float) -> float:
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    count = 1 << bits
    book = [3 * (2 * i + 1 - count) / count for i in range(count)]
    for _ in range(1000):
        edges = [-40.0, *((a + b) / 2 for a, b in pairwise(book)), 40.0]
        book = [(density(a) - density(b)) / (below(b) - below(a)) for a, b in pairwise(edges)]
    return tuple(book)


def turboquant(bits: int, *, ends: bool = False) -> Change:
    """Return TurboQuant without QJL: norm in float16, rotation, Lloyd-Max, renormalised. ``ends``: 4 + 128 exact."""

    def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
        import torch

        dim = kv.shape[-1]
        signs = torch.ones(dim, device=kv.device)
        signs[torch.randperm(dim, generator=torch.Generator().manual_seed(0))[: dim // 2].to(kv.device)] = -1
        norm = kv.norm(dim=-1, keepdim=True).half().float()
        turned = hadamard(kv * signs) / norm.clamp_min(1e-12) * math.sqrt(dim)
        book = torch.tensor(lloyd_max(bits), device=kv.device)
        codes = torch.bucketize(turned, (book[1:] + book[:-1]) / 2)
        found = book[codes]
        found = found / found.norm(dim=-1, keepdim=True)
        x = hadamard(found) * signs * norm
        exact = 0
        if ends:
            tail = min(128, max(kv.shape[3] - 4, 0))
            x[:, :, :, :4] = kv[:, :, :, :4]
            x[:, :, :, kv.shape[3] - tail :] = kv[:, :, :, kv.shape[3] - tail :]
            exact = min(4, kv.shape[3]) + tail
        share = exact / max(kv.shape[3], 1)
        return x, ((bits + 16 / dim) * (1 - share) + 16 * share) * kv.numel()

    return change


def low_rank(ratio: int) -> Change:
    """Return the projection of each layer's keys, and of its values, on their best basis, over all heads."""

    def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
        import torch

        layers, two, heads, tokens, dim = kv.shape
        x = kv.permute(0, 1, 3, 2, 4).reshape(layers * two, tokens, heads * dim)
        mean = x.mean(1, keepdim=True)
        basis = torch.linalg.eigh((x - mean).mT.double() @ (x - mean).double())[1].flip(2)
        basis = basis[:, :, : heads * dim // ratio].float()
        x = (x - mean) @ basis @ basis.mT + mean
        return x.reshape(layers, two, tokens, heads, dim).permute(0, 1, 3, 2, 4), 16.0 / ratio * kv.numel()

    return change


def budgets(kv: torch.Tensor, ratio: int) -> list[int]:
    """Return how many dimensions of each layer's keys, then its values, are kept of a common budget.

    Of all layers' directions together those with the largest variance are kept, which gives the least squared error
    that a budget for each layer can reach: the optimum of what "Learnable Adaptive KV-cache Compression" trains for.
    """
    import torch

    layers, two, heads, tokens, dim = kv.shape
    x = kv.permute(0, 1, 3, 2, 4).reshape(layers * two, tokens, heads * dim).double()
    x = x - x.mean(1, keepdim=True)
    values = torch.linalg.eigvalsh(x.mT @ x)
    best = values.flatten().argsort(descending=True)[: values.numel() // ratio]
    return torch.bincount(best // values.shape[1], minlength=len(values)).tolist()


def low_rank_by_layer(ratio: int) -> Change:
    """Return the projection on each layer's best basis, with the dimensions that `budgets` gives it."""

    def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
        import torch

        layers, two, heads, tokens, dim = kv.shape
        x = kv.permute(0, 1, 3, 2, 4).reshape(layers * two, tokens, heads * dim)
        mean = x.mean(1, keepdim=True)
        basis = torch.linalg.eigh((x - mean).mT.double() @ (x - mean).double())[1].flip(2).float()
        kept = torch.tensor(budgets(kv, ratio))[:, None, None]
        basis = basis * (torch.arange(heads * dim) < kept).to(basis)
        x = (x - mean) @ basis @ basis.mT + mean
        return x.reshape(layers, two, tokens, heads, dim).permute(0, 1, 3, 2, 4), 16.0 / ratio * kv.numel()

    return change


def quantized_cache(backend: str, bits: int, axis: int) -> Change:
    """Return what a second pass gets from transformers' QuantizedCache: groups of 64, scale and zero in float16.

    A first pass is given the KV as it was, so one forward pass shows no loss.
    """

    def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
        import torch
        from transformers import LlamaConfig, QuantizedCache

        config = LlamaConfig(num_hidden_layers=len(kv))
        cache: Any = QuantizedCache(backend, config, nbits=bits, axis_key=axis, axis_value=axis)
        found = []
        try:
            for n, layer in enumerate(kv[:, :, None]):
                cache.update(layer[0], layer[1], n)
                again = cache.update(layer[0][:, :, -1:], layer[1][:, :, -1:], n)
                found.append(torch.stack(again)[:, 0, :, :-1])
        except (ValueError, RuntimeError) as exc:
            raise UsageError(f"{backend} cannot hold KV of this shape ({exc})") from exc
        return torch.stack(found), (bits + 32 / 64) * kv.numel()

    return change


def installed(module: str) -> bool:
    """Return whether a package of the extra bench-kv is there."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def peers() -> list[PeerForm]:
    """Return every peer that is installed, from many bits to few."""
    caches = [
        PeerForm(f"{backend}-{bits}", quantized_cache(backend, bits, axis))
        for backend, module, axis in (("quanto", "optimum.quanto", 0), ("hqq", "hqq", 1))
        for bits in (4, 2)
        if installed(module)
    ]
    return [
        *caches,
        PeerForm("q8_0", symmetric(8)),
        PeerForm("fp8", fp8),
        PeerForm("pca-2", low_rank(2)),
        PeerForm("kivi-4", kivi(4)),
        PeerForm("int4", int4_groups),
        PeerForm("q4_0", symmetric(4)),
        PeerForm("q4_0-rotated", symmetric(4, rotated=True)),
        PeerForm("turboquant-4", turboquant(4)),
        PeerForm("turboquant-4-ends", turboquant(4, ends=True)),
        PeerForm("turboquant-3-ends", turboquant(3, ends=True)),
        PeerForm("turboquant-3", turboquant(3)),
        PeerForm("kivi-2", kivi(2)),
        PeerForm("turboquant-2", turboquant(2)),
    ]


kv = click.Command(
    "kv",
    params=command.kv.params,
    callback=lambda **given: command.measured({peer.name: peer for peer in peers()}, **given),
    help="Measure what our forms of KV and those of others take and lose.",
)
