"""kv_peers: forms of others lose what their bits say, and stand beside ours."""

import numpy as np
import torch

from pltz.experiments.kv_peers import installed, peers
from pltz.kv.port.codec import Span


def kv(seed: int, tokens: int = 32) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def test_peers_lose_what_their_bits_say() -> None:
    torch.manual_seed(0)
    kv, span = torch.randn(2, 2, 2, 256, 64), Span(np.zeros(256, np.int32), 0)
    most = {"q8_0": 1e-4, "fp8": 1e-3, "kivi-4": 0.01, "int4": 0.012, "q4_0": 0.01, "q4_0-rotated": 0.01,
            "quanto-4": 0.012, "hqq-4": 0.012, "turboquant-4": 0.012, "turboquant-3": 0.04,
            "turboquant-2": 0.13}  # fmt: skip
    for peer in peers():
        again = peer.decode(peer.encode(kv, span), span)
        error = float((again - kv).pow(2).mean() / kv.pow(2).mean())
        assert again.shape == kv.shape and error < most.get(peer.name, 1.0), (peer.name, error)
    if installed("hqq"):
        assert {"hqq-4", "hqq-2"} <= {peer.name for peer in peers()}
    exact = {peer.name: peer for peer in peers()}["turboquant-3-ends"]
    again = exact.decode(exact.encode(kv, span), span)
    assert torch.equal(again[:, :, :, :4], kv[:, :, :, :4]) and torch.equal(again[:, :, :, -128:], kv[:, :, :, -128:])
