"""Teachers: a target's probabilities on the student's batches, and the loss (training/run/distil.py)."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from pltz.training.data import dataloader, vocabulary
from pltz.training.nets import net as nets
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.nets.net import Net
from pltz.training.run import distil

TINY = NetConfig(vocab=1024, d=32, layers=1, heads=2, kv_heads=1, head_dim=16, hidden=64, memory=64)
SAMPLING: dict[str, Any] = {"block": 4096, "memory": 64, "power": 0.85, "most": 2.0, "text_share": 0.0}


def test_a_target_reads_a_session_as_its_template_spells_it(foreign: Path) -> None:
    target = Target.load(foreign)
    bundle = BundleTokenizer(vocabulary.from_target(target.tokenizer_json))
    spelling = distil.TokenSpeller(target, bundle)
    from pltz.models.session.transcript import to_tokens

    chat = {
        "messages": [
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": "A cache, 12 of them."},
            {"role": "user", "content": "Thanks"},
        ]
    }
    tokens = to_tokens(Session("chat", chat), bundle).astype(np.int64)
    ids, places = spelling.spell(tokens)
    whole = target.render(chat)
    assert ids.tolist() == whole[: len(ids)]  # all but the end of the last message
    content = tokens >= 32
    assert (places[~content] == -1).all() and (ids[places[content]] == spelling.single[tokens[content]]).all()


def test_the_teachers_probabilities_are_the_targets(foreign: Path, tmp_path: Path) -> None:
    """By hand, for one session in lanes: the target's softmax over the student's pieces, summed into classes."""
    target = Target.load(foreign)
    bundle = BundleTokenizer(vocabulary.from_target(target.tokenizer_json))
    teacher = distil.TargetTeacher(target, bundle)
    session = Session(
        "chat", {"messages": [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three four"}]}
    )
    from pltz.models.session.transcript import to_tokens

    tokens = to_tokens(session, bundle).astype(np.int64)
    part = dataloader.lay(tokens, 64, lambda t: 2, 0)
    batch = {k: torch.from_numpy(part[i][None].astype(np.int32)) for i, k in enumerate(dataloader.KEYS)}
    first, classes, second, known = teacher._said(batch, bundle.size)
    ids, places = teacher.spelling.spell(tokens)
    with torch.no_grad():
        logits = target.model(input_ids=torch.from_numpy(ids)[None]).logits[0].float()
    for slot in range(part.shape[1]):
        token, at = int(part[1, slot]), int(part[2, slot])
        assert bool(known[slot]) == (token >= 32 and places[at] > 0 if token >= 0 else False)
        if known[slot]:
            row = logits[places[at] - 1]
            mine = torch.full((bundle.size,), -torch.inf)
            has = torch.from_numpy(np.flatnonzero(teacher.spelling.single >= 0))
            mine[has] = row[torch.from_numpy(teacher.spelling.single)[has]]
            p = mine.softmax(0).view(-1, 128)
            assert torch.allclose(first[slot], p.sum(1), atol=1e-5)
            inside = p[classes[slot]] / p[classes[slot]].sum()
            assert torch.allclose(second[slot], inside, atol=1e-5)
    assert known.sum() >= 4


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_against_itself_the_loss_is_the_entropy_and_least(streams: Path, tiny_tokenizer: BundleTokenizer) -> None:
    """Cross-entropy against a net's own probabilities is its entropy; any other net's is higher."""
    torch.manual_seed(0)
    net, other = Net(TINY), Net(TINY)
    with torch.no_grad():
        for one in (net, other):
            one.classes.normal_(0, 0.5)
            one.member_bias.normal_(0, 0.5)
    sampler = dataloader.Sampler(streams, row=128, seed=0, **SAMPLING)
    batch = {k: torch.from_numpy(v) for k, v in sampler.rows(1).items()}
    with torch.no_grad():
        mask = nets.mask_of(batch, TINY.memory)
        x, table = net.body(batch["input"], batch["position"], mask)
        x = x.flatten(0, 1)
        first = net.class_logits(x).softmax(-1)
        classes = torch.multinomial(first, 1)[:, 0]
        second = distil.member_logits(net, x, table, classes).softmax(-1)
        own = distil.against(net, x, table, first, classes, second)
        entropy = -(first * first.log()).sum(-1) - (second * second.log()).sum(-1)
        assert torch.allclose(own, entropy, atol=1e-4)
        y, there = other.body(batch["input"], batch["position"], mask)
        assert (distil.against(other, y.flatten(0, 1), there, first, classes, second) > own).all()


def test_each_batch_comes_again_as_often_as_asked_in_its_group() -> None:
    asked: list[int] = []

    def prepared(batch: Any) -> distil.Lesson:
        asked.append(batch)
        return distil.Lesson(batch, None, ())

    numbers: Any = iter(range(1000))
    found = distil.lessons(numbers, prepared, 3, random.Random(1))
    size = distil.GROUP
    seen: list[Any] = [next(found).batch for _ in range(3 * size + 1)]
    assert seen[:size] == list(range(size)) and seen[-1] == size  # the first time as they come, then the next group
    for again in (seen[size : 2 * size], seen[2 * size : -1]):
        assert sorted(again) == list(range(size)) and again != sorted(again)
    assert asked == list(range(size + 1))  # the teacher is asked once per batch
    two: Any = iter([5, 6])
    assert list(distil.lessons(two, prepared, 1, random.Random(1))) == [prepared(5), prepared(6)]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_net_that_teaches_itself_says_its_entropy(streams: Path) -> None:
    """Learn later what a net says on a batch: that gives its own entropy, and a net that has changed since has more."""
    torch.manual_seed(0)
    net = Net(TINY)
    with torch.no_grad():
        net.classes.normal_(0, 0.5)
        net.member_bias.normal_(0, 0.5)
    sampler = dataloader.Sampler(streams, row=128, seed=0, **SAMPLING)
    batch = {k: torch.from_numpy(v) for k, v in sampler.rows(1).items()}
    mask = nets.mask_of(batch, TINY.memory)
    teacher = distil.NetTeacher(net, "cpu")
    said = teacher.says(batch, mask)
    upper, lower = (x.log_softmax(-1) for x in said[2:])
    entropy = -(upper.exp() * upper).sum(-1) - (lower.exp() * lower).sum(-1)

    def against() -> torch.Tensor:
        with torch.no_grad():
            x, table = net.body(batch["input"], batch["position"], mask)
            return teacher.losses(net, x.flatten(0, 1), table, batch, said)[1]

    known = (batch["target"].flatten() >= 0)[said[0]]
    assert torch.allclose(against(), entropy * known, atol=1e-4)
    with torch.no_grad():
        net.classes.normal_(0, 0.5)
    assert against().sum() > (entropy * known).sum() + 1
