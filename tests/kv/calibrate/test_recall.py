"""Recall on a toy that does nothing but look up what followed a token before: an induction head, set by hand.

    layer 0    each token reads the embedding of the one before it
    layer 1    each token looks for an earlier token behind its own kind, and says what that one is; where there is
               none it looks at the first token of the row

So on text without repeats all attention is at the first token, and what is lost of the others does not show. Made to
repeat an early passage, the target looks at exactly these.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pltz.kv.calibrate import fitting
from pltz.kv.calibrate.fitting import Fit, Plan, calibrate
from pltz.kv.port.bound import Bound
from pltz.kv.port.receipt import Receipt
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import PREDICTIVE, Calibration
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError

CONTEXT, NEW, FIRST = 144, 32, 3
WIDTH, DIM, THETA = 128, 128, 1e9  # of an embedding; of the head
LOOK, MATCH, REST = 11.0, 3.0, 5.8  # sizes of queries and keys: of the step back, of a match, of the first token
POINTS = (-40, -32, -24)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, save_model: Callable[..., Path]) -> Target:
    config: Any = transformers.LlamaConfig(
        vocab_size=384, hidden_size=3 * WIDTH, intermediate_size=8, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, head_dim=DIM, attention_bias=True, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=2,
    )  # fmt: skip
    found = Target.load(save_model(tmp_path_factory.mktemp("induction"), config))
    with torch.no_grad():
        _induction(found.model)
    return found


def _induction(model: Any) -> None:
    """Set the weights. The residual stream is [token, token before, what is said], WIDTH numbers each."""
    generator = torch.Generator().manual_seed(0)
    slow, half = slice(DIM // 4, DIM // 2 - 1), DIM // 2  # pairs of dimensions that hardly turn
    matched = 2 * (slow.stop - slow.start)
    # two parts of one size, so that every kind of token matches itself as well as any other
    drawn = torch.randn((384, WIDTH), generator=generator).split([matched, WIDTH - matched], 1)
    tokens = torch.cat([torch.nn.functional.normalize(part, dim=1) for part in drawn], 1) / 2**0.5
    for parameter in model.parameters():
        parameter.zero_()
    for layer in model.model.layers:  # no dimension of the KV is dead, as in no model
        for part in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(part.weight, std=0.01, generator=generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1)
    token, before, said = (slice(n * WIDTH, (n + 1) * WIDTH) for n in range(3))
    model.model.embed_tokens.weight[:, token] = tokens
    model.lm_head.weight[:, said] = 1.5 * tokens
    first, second = (layer.self_attn for layer in model.model.layers)
    step = THETA ** (-torch.arange(half) / half)
    first.k_proj.bias[:half] = LOOK
    first.q_proj.bias[:half], first.q_proj.bias[half:] = LOOK * step.cos(), -LOOK * step.sin()
    alone, both = ((3 * WIDTH / parts) ** 0.5 for parts in (1, 2))  # what the norm makes of a part of size 1
    first.v_proj.weight[:, token], first.o_proj.weight[before] = torch.eye(WIDTH) / alone, torch.eye(WIDTH)
    kind = torch.eye(WIDTH)[:matched] * (2 * matched) ** 0.5
    for matrix, part in ((second.q_proj.weight, token), (second.k_proj.weight, before)):
        matrix[slow, part], matrix[slow.start + half : slow.stop + half, part] = (MATCH * kind / both).chunk(2)
    last = half - 1
    second.q_proj.bias[last] = REST * DIM**0.5
    second.k_proj.weight[last, token] = REST * tokens[FIRST] / both
    second.v_proj.weight[:, token], second.o_proj.weight[said] = torch.eye(WIDTH) / both, torch.eye(WIDTH)


@pytest.fixture(scope="module")
def rows() -> Any:
    """Rows of ids without repeats."""
    rng = np.random.default_rng(0)
    return np.stack([np.r_[FIRST, 4 + rng.permutation(380)[: CONTEXT + NEW - 1]] for _ in range(16)]).astype(np.int32)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def calibration(target: Target, rows: Any, work: Path) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "SCORED_POINTS", POINTS)
        return calibrate(target, rows[:8], rows[8:], Plan(CONTEXT, NEW, 4, work))


def of(calibration: Calibration, point: float) -> Receipt:
    found = calibration.receipt(PREDICTIVE, point)
    assert found is not None
    return found


def test_a_bound_chooses_steps_that_are_fine_enough_for_both(calibration: Calibration) -> None:
    bound = 2 * of(calibration, POINTS[1]).most
    loose, both = calibration.point(max_kl=bound, max_kl_recall=float("inf")), calibration.point(max_kl=bound)
    assert of(calibration, loose).most <= bound and not Bound.of(bound).keeps(of(calibration, loose))
    assert both < loose and Bound.of(bound).keeps(of(calibration, both))
    with pytest.raises(UsageError, match="max_kl_recall"):
        calibration.point(max_kl=bound, max_kl_recall=1e-12)


def test_effects_see_what_repeating_reads(target: Target, rows: Any, work: Path, calibration: Calibration) -> None:
    plan = Plan(CONTEXT, NEW, 4, work)
    fit = Fit(target, Rotary.of(target), rows[:8], plan, fitting._claim(target, rows[:8], rows[8:], plan))
    fit.effects()
    new = torch.stack([fit._effect_on(n, rows[n, CONTEXT:]) for n in range(4)]).mean(0)
    both, alone = (float(one.diagonal(dim1=1, dim2=2)[1, :DIM].sum()) for one in (fit.effect, new))  # keys of layer 1
    assert both > 2 * alone, (both, alone)
