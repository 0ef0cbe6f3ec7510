"""The attention that a prefill is seen to give: what eager attention says, and nothing else changed by looking."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from pltz.kv.calibrate.measure import prefilled, watched
from pltz.kv.calibrate.watch import EVERY, QUERIES, STRIDE, Watch
from pltz.models.target.cache import pairs_of
from pltz.models.target.target import Target

SaveModel = Callable[[Path, transformers.PretrainedConfig], Path]
SHAPE: dict[str, Any] = {
    "vocab_size": 384, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 2,
}  # fmt: skip
IDS = (3 + np.random.default_rng(0).integers(0, 380, 150)).astype(np.int32)
llama: Any = transformers.LlamaConfig


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, save_model: SaveModel) -> Target:
    return Target.load(save_model(tmp_path_factory.mktemp("target"), llama(**SHAPE)))


def expected(target: Target, ids: Any) -> Any:
    """Return what eager attention gives each token from the queries and in the layers that are looked at."""
    model: Any = target.model
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        seen = model(torch.from_numpy(ids.astype(np.int64))[None], output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    rows = range(len(ids) - 1, max(len(ids) - 1 - QUERIES * STRIDE, -1), -STRIDE)
    return torch.stack([a[0, :, list(rows)].mean((0, 1)) for a in seen[EVERY - 1 :: EVERY]]).mean(0).numpy()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3", {"head_dim": 16}), ("qwen2", {}), ("gemma", {"num_key_value_heads": 1, "head_dim": 32}),
        ("phi", {"partial_rotary_factor": 0.5}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_family_and_kind_of_attention_is_seen(
    kind: str, more: Any, attention: str, tmp_path: Path, save_model: SaveModel
) -> None:
    config = transformers.AutoConfig.for_model(kind, **SHAPE | more)
    target = Target.load(save_model(tmp_path, config))
    target.model.set_attn_implementation(attention)
    mass = watched(target, IDS)[1]
    assert mass is not None and np.allclose(mass, expected(target, IDS), atol=1e-6)


def by_hand(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scaling: float, **given: Any
) -> tuple[torch.Tensor, None]:
    """Attend as kernels do that return no weights, and by no function that a watch knows."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = query @ key.mT * scaling
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
    shares = scores.masked_fill(~seen, float("-inf")).sub(scores.max()).exp()
    return (shares / shares.sum(-1, keepdim=True) @ value).transpose(1, 2), None


@pytest.fixture
def other_kernel(target: Target) -> Iterator[Any]:
    """Give the model while it attends by a kernel of ours."""
    model: Any = target.model
    transformers.AttentionInterface.register("by_hand", by_hand)
    AttentionMaskInterface.register("by_hand", flash_attention_mask)
    model.set_attn_implementation("by_hand")
    yield model
    model.set_attn_implementation("sdpa")


def test_kernels_that_show_no_weights_are_seen_by_their_queries(target: Target, other_kernel: Any) -> None:
    before = prefilled(target, IDS)
    kv, mass = watched(target, IDS)
    assert torch.equal(kv, before), "looking changes nothing"
    cache, _ = target.prefill(IDS[:60])
    with Watch([90]) as watch:
        target.prefill(IDS, cache=cache)
    behind = watch.mass(0, 150)
    other_kernel.set_attn_implementation("sdpa")
    by_sdpa = watched(target, IDS)[1]
    assert mass is not None and by_sdpa is not None and np.allclose(mass, by_sdpa, atol=1e-6)
    assert behind is not None and np.allclose(behind, by_sdpa, atol=1e-6)


def test_kernels_that_weigh_otherwise_show_nothing(target: Target, other_kernel: Any) -> None:
    """A cap on scores, or padding that the kernel knows of alone: the shares would be others."""
    query = torch.randn(1, 4, 150, 8)
    key, module = query[:, :2], other_kernel.model.layers[0].self_attn
    for rows, mask, given in (
        (1, None, {"softcap": 30.0}), (1, None, {"sliding_window": 64}), (1, None, {"is_causal": False}),
        (2, None, {}), (1, torch.arange(150)[None] > 3, {}),
    ):  # fmt: skip
        with Watch([150] * rows) as watch:
            for _ in range(EVERY):
                watch.kernel(module, query.expand(rows, -1, -1, -1), key.expand(rows, -1, -1, -1), mask, given)
        assert watch.mass(0, 150) is None
    with Watch([150]) as watch:
        for _ in range(EVERY):
            watch.kernel(module, query, key, torch.ones(1, 150, dtype=torch.bool), {})
    assert watch.mass(0, 150) is not None


def test_chunks_and_pasts_end_like_one_pass(target: Target) -> None:
    whole = watched(target, IDS)[1]
    with Watch([150]) as watch:
        target.prefill(IDS, chunk=70)
    last = watch.mass(0, 150)  # ten queries in the last chunk
    assert last is not None and abs(float(last.sum()) - 1) < 1e-5 and (last[:140] > 0).all()
    cache, _ = target.prefill(IDS[:60])
    with Watch([90]) as watch:
        target.prefill(IDS, cache=cache)
    mass = watch.mass(0, 150)
    assert mass is not None and whole is not None and np.allclose(mass, whole, atol=1e-6)
    assert watch.mass(0, 149) is None, "of another length"


def test_other_threads_notice_nothing(target: Target) -> None:
    """One thread watches while another prefills: bit for bit the same KV, the same attention, and no mass of it."""
    before = prefilled(target, IDS[:90])
    settings = target.model.config._attn_implementation
    found: list[Any] = []
    done = threading.Event()

    def other() -> None:
        while not done.is_set():
            found.append((pairs_of(target.prefill(IDS[:90])[0]), target.model.config._attn_implementation))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        while not found:
            pass
        masses: list[Any] = [watched(target, IDS)[1] for _ in range(10)]
    finally:
        done.set()
        thread.join()
    assert all(kind == settings for _, kind in found)
    for pairs, _ in found:
        assert torch.equal(torch.stack([torch.stack([k[0], v[0]]) for k, v in pairs]), before)
    assert all((mass == masses[0]).all() for mass in masses)
