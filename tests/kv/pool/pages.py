"""Random KV with a key bias and sinks, and pages for it."""

import torch

from pltz.kv.pool.page_format import PageFormat, centre_of
from pltz.kv.port.rotary import Rotary

LAYERS, HEADS = 2, 2


def rotary(half: int) -> Rotary:
    return Rotary(10000.0 ** -(torch.arange(half, dtype=torch.float64) / half))


def random_kv(tokens: int, dim: int = 32, half: int = 16, seed: int = 0, bias: float = 3.0) -> torch.Tensor:
    """Return KV (LAYERS, 2, HEADS, T, D) from position 0, keys turned, channels about a bias."""
    draw = torch.Generator().manual_seed(seed)
    still = torch.randn(LAYERS, 2, HEADS, tokens, dim, generator=draw)
    still += bias * torch.randn(LAYERS, 2, HEADS, 1, dim, generator=torch.Generator().manual_seed(99))
    return torch.stack([rotary(half).turn(still[:, 0], 0), still[:, 1]], 1)


def form(kind: str, dim: int = 32, half: int = 16, dtype: torch.dtype = torch.float32) -> PageFormat:
    turn = rotary(half)
    centre = None if kind == "raw" else centre_of(random_kv(300, dim, half, seed=5), turn)
    return PageFormat(kind, LAYERS, HEADS, dim, dtype, turn, centre)
