"""kv_peers: forms of others lose what their bits say, and stand beside ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from pltz.experiments.kv_peers import installed, peers
from pltz.kv.port.codec import Span
from tests.cli.commands import Run


def kv(seed: int, tokens: int = 32) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def test_peers_lose_what_their_bits_say() -> None:
    torch.manual_seed(0)
    kv = torch.randn(2, 2, 2, 256, 64)
    span = Span(np.zeros(256, np.int32), 0)
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


def test_peers_stand_beside_our_forms(run: Run, tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text(f"words and {n} more words, " * 200)
    sizes = ("--sessions", 2, "--context", 64, "--new", 8)
    done = run("kv", "--data", tmp_path, "--forms", "q8,turboquant-4", *sizes, "--json")
    assert done.exit_code == 0, done.output
    rows = {row["form"]: row["bits"] for row in json.loads(done.stdout)["rows"]}
    assert rows.keys() == {"control", "q8", "turboquant-4"} and rows["turboquant-4"] < rows["q8"]
    unknown = run("kv", "--forms", "kivi-5", *sizes)
    assert unknown.exit_code == 2 and "kivi-4" in unknown.output
