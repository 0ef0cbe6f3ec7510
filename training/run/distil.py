"""Teachers: a larger model's probabilities on the student's batches, and the student's loss against them.

There are two kinds. `NetTeacher` is a bundle's net with more parameters, on the same tokens in the same
lanes. `TargetTeacher` is a Hugging Face causal LM whose vocabulary has the student's pieces. Each session of
a batch is put together again in its own order, spelt for the target (roles as its chat template spells them),
and run through it. The probabilities of each token go to the position where the student predicts that token.

The loss is the cross-entropy against the teacher's probabilities. It differs from the Kullback-Leibler
divergence by a constant. The head has two levels, so

    KL = KL(classes) + sum over classes of p(class) KL(members | class),

and the sum is estimated, without bias, by one class drawn from the teacher's classes. So 128 probabilities
per token are passed on instead of the whole vocabulary's.

Where a target has no probabilities, the data alone teaches: roles and other specials of the bundle, and first
tokens with nothing before them.

A teacher may cost several times the student's step. So what it says on a batch can be learnt several times
(`lessons`): each group of batches comes again and again, in other orders.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pltz.models import ROLES, SLOTS, SPECIALS, BundleTokenizer, Target, TargetTokenizer, slot_order
from pltz.plt_codec import CLASS, ContentError, ModelError
from pltz.training.data.dataloader import Batch
from pltz.training.data.vocabulary import counterparts, covered
from pltz.training.nets.net import Net, compile_net, divergence, nats

Ints = npt.NDArray[np.int64]
PADDED = 16384  # tokens in one pass of a target, padding included
ROWS = 4096  # positions whose probabilities over the whole vocabulary are held at once
FIRST_ESCAPE = SPECIALS.index("x0")
GROUP = 32  # batches that come again together; 1 KB per token is held for each

Said = tuple[Tensor, ...]


class Teaching(Protocol):
    """The interface of a teacher."""

    def says(self, batch: Batch, mask: Any) -> Said:
        """Return what the teacher says on a batch, for `losses`.

        Args:
            batch: tensors (rows, row) by key.
            mask: the attention mask of the batch.
        """

    def losses(self, net: Net, x: Tensor, table: Tensor, batch: Batch, said: Said) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for the student's positions in one order, three tensors (T,).

        They are the nats of the data, the nats against the teacher, and whether the teacher knows the
        position.

        Args:
            x, table: the student's residual (T, d) and its table (V, d).
            batch: tensors (rows, row) by key.
            said: by `says`, on this batch.
        """


class Lesson(NamedTuple):
    """A batch, its attention mask, and what the teacher says on it."""

    batch: Batch
    mask: Any
    said: Said


def lessons(
    batches: Iterator[Batch], prepared: Callable[[Batch], Lesson], repeat: int, draw: random.Random
) -> Iterator[Lesson]:
    """Yield each batch as `prepared`, `repeat` times: a group as its batches come, then again in random orders."""
    while True:
        group: list[Lesson] = []
        for batch in islice(batches, GROUP if repeat > 1 else 1):
            group.append(prepared(batch))
            yield group[-1]
        if not group:
            return
        for _ in range(repeat - 1):
            draw.shuffle(group)
            yield from group


def drawn(steps: int, repeat: int) -> int:
    """Return the batches that so many steps have drawn; a group that was begun counts whole."""
    return steps if repeat == 1 else -(-steps // (GROUP * repeat)) * GROUP


def member_logits(net: Net, x: Tensor, table: Tensor, classes: Tensor) -> Tensor:
    """Return the logits (T, 128), in nats, of the members of a class (T,) for each row of x (T, d).

    ``table``: (V, d).
    """
    order = torch.argsort(classes)
    ends = torch.bincount(classes, minlength=net.cfg.vocab // CLASS).cumsum(0).to(torch.int32)
    rows = table.view(-1, CLASS, net.cfg.d).bfloat16()
    raw = F.grouped_mm(net.member_hidden(x[order], classes[order]), rows.transpose(1, 2), offs=ends)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    scale = net.member_gain.exp() / math.sqrt(net.cfg.d)
    return raw.float()[back] * scale + F.embedding(classes, net.member_bias.view(-1, CLASS))


def against(net: Net, x: Tensor, table: Tensor, first: Tensor, classes: Tensor, second: Tensor) -> Tensor:
    """Return the cross-entropy in nats (T,) against p(class) `first` (T, C) and p(member | classes) `second` (T, 128).

    ``x``: (T, d), ``table``: (V, d), ``classes``: (T,).
    """
    upper = -(first * F.log_softmax(net.class_logits(x), -1)).sum(-1)
    lower = -(second * F.log_softmax(member_logits(net, x, table, classes), -1)).sum(-1)
    return upper + lower


class NetTeacher:
    """A trained net of the same vocabulary, block and memory.

    Members are learnt in the token's own class, not in a class drawn from the teacher's. So the student's
    second level is computed only once.
    """

    def __init__(self, net: Net, device: str) -> None:
        self.net = net.to(device).eval().requires_grad_(False)
        self.nats: Any = nats
        self.divergence: Any = divergence
        if device.startswith("cuda"):
            compile_net(self.net)
            self.nats, self.divergence = (torch.compile(f, dynamic=False) for f in (nats, divergence))

    def says(self, batch: Batch, mask: Any) -> Said:
        """Return the order of the classes, (T,), those classes, (T,), and logits (T, C) and (T, 128) in that order."""
        cls, order = torch.sort(batch["target"].flatten().clamp(min=0).long() // CLASS)
        with torch.no_grad():
            y, own = self.net.body(batch["input"], batch["position"], mask)
            return (order, cls, *self.net.levels(y.flatten(0, 1), own, order, cls))

    def losses(self, net: Net, x: Tensor, table: Tensor, batch: Batch, said: Said) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses as `Teaching` says, (T,) each, in the order of the classes."""
        order, cls, upper, lower = said
        target = batch["target"].flatten()[order]
        member, known = target.clamp(min=0).long() % CLASS, target >= 0
        classes, members = net.levels(x, table, order, cls)
        against_teacher = self.divergence(classes, upper) + self.divergence(members, lower)
        return (self.nats(classes, cls) + self.nats(members, member)) * known, against_teacher * known, known


class TargetTeacher:
    """A Hugging Face causal LM as a teacher.

    Raises:
        ModelError: its vocabulary lacks pieces of the student's.
    """

    def __init__(self, target: Target, tokenizer: BundleTokenizer, temperature: float = 1.0) -> None:
        if not covered(tokenizer, target.tokenizer_json):
            raise ModelError(
                "the target's vocabulary lacks pieces of the bundle's tokenizer: use the target's tokenizer "
                '([tokenizer] kind = "target"), or let the target write text (share = 0, write = N)'
            )
        self.target, self.temperature, self.vocab = target, temperature, tokenizer.size
        self.spelling = TokenSpeller(target, tokenizer)
        known = torch.from_numpy(self.spelling.single).to(target.device)
        self.columns, self.unknown = known.clamp(min=0), known < 0

    def says(self, batch: Batch, mask: Any) -> Said:
        """Return p(class), a class drawn from it, p(member | class), and where there are any, as `_said` does."""
        with torch.no_grad():
            return self._said(batch, self.vocab)

    def losses(self, net: Net, x: Tensor, table: Tensor, batch: Batch, said: Said) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses as `Teaching` says, (T,) each."""
        first, classes, second, known = said
        upper, lower = net.losses(x, table, batch["target"].flatten())
        return upper + lower, against(net, x, table, first, classes, second), known

    def _said(self, batch: Batch, vocab: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return p(class), a class drawn from it, p(member | class), and where there are any.

        They stand for each flat position of a batch.
        """
        device = batch["target"].device
        count = batch["target"].numel()
        first = torch.zeros(count, vocab // CLASS, device=device)
        classes = torch.zeros(count, dtype=torch.long, device=device)
        second = torch.zeros(count, CLASS, device=device)
        known = torch.zeros(count, dtype=torch.bool, device=device)
        for ids, slots, places in self._passes(batch):
            logits = self.target.model(input_ids=torch.from_numpy(ids).to(device), use_cache=False).logits.flatten(0, 1)
            for begin in range(0, len(slots), ROWS):
                at = torch.from_numpy(slots[begin : begin + ROWS]).to(device)
                rows = logits[torch.from_numpy(places[begin : begin + ROWS]).to(device)].float() / self.temperature
                p = rows[:, self.columns].masked_fill_(self.unknown, -math.inf).softmax(-1).view(len(at), -1, CLASS)
                by_class = p.sum(-1)
                drawn = torch.multinomial(by_class, 1)[:, 0]
                members = p[torch.arange(len(at), device=device), drawn]
                first[at], classes[at], known[at] = by_class, drawn, True
                second[at] = members / members.sum(-1, keepdim=True)
        return first, classes, second, known

    def _passes(self, batch: Batch) -> list[tuple[Ints, Ints, Ints]]:
        """Return passes of the target: ids (B, L), flat positions of the student, flat rows of the target's logits."""
        found = sorted(self._sessions(batch), key=lambda one: len(one[0]))
        passes, group = [], list[tuple[Ints, Ints, Ints]]()
        for one in found:
            if group and (len(group) + 1) * len(one[0]) > PADDED:
                passes.append(_padded(group))
                group = []
            group.append(one)
        return [*passes, _padded(group)] if group else passes

    def _sessions(self, batch: Batch) -> list[tuple[Ints, Ints, Ints]]:
        """Return, for each session of a batch, the target's ids, flat positions, and a row of logits for each.

        That row of logits predicts the position's token.
        """
        target, position, doc = (batch[k].cpu().numpy().astype(np.int64) for k in ("target", "position", "doc"))
        width, found = target.shape[1], []
        for row in range(len(target)):
            used = np.flatnonzero(target[row] >= 0)
            for number in np.unique(doc[row, used]):
                slots = used[doc[row, used] == number]
                order = slots[np.argsort(position[row, slots], kind="stable")]
                whole = np.flatnonzero(np.diff(position[row, order]) != 1)  # a grid cut at the end of a row has holes
                order = order[: whole[0] + 1] if len(whole) else order
                ids, places = self.spelling.spell(target[row, order])
                limit = self.target.max_positions or len(ids)
                good = (places > 0) & (places < limit)
                if good.any():
                    found.append((ids[:limit], row * width + order[good], places[good] - 1))
        return found


def _padded(group: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    length = max(len(ids) for ids, _, _ in group)
    ids = np.zeros((len(group), length), np.int64)
    for i, (one, _, _) in enumerate(group):
        ids[i, : len(one)] = one
    slots = np.concatenate([slots for _, slots, _ in group])
    places = np.concatenate([i * length + places for i, (_, _, places) in enumerate(group)])
    return ids, slots, places


class TokenSpeller:
    """A speller of bundle tokens for a target: pieces one by one, escapes as its marks, roles as in its chat template.

    `single` (bundle ids,): the target's id of a bundle token that stands for one, else -1.
    """

    def __init__(self, target: Target, tokenizer: BundleTokenizer) -> None:
        self.single = counterparts(tokenizer, target.tokenizer_json)
        marks = slot_order(TargetTokenizer(target.tokenizer_json))[:SLOTS]
        self.single[FIRST_ESCAPE : FIRST_ESCAPE + len(marks)] = marks
        self.single[self.single >= target.vocab_size] = -1
        begin = getattr(target.tokenizer, "bos_token_id", None)
        self.begin = [int(begin)] if begin is not None else []
        self.opening = {i: head(target, role, None) for i, role in ROLES.items()}
        self.turning = {i: head(target, role, "user" if role != "user" else "assistant") for i, role in ROLES.items()}

    def spell(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Return the target's ids (m,) of bundle tokens (n,), and the place in them of each token, (n,).

        The place is -1 for a token without a single id.
        """
        roles = np.flatnonzero(np.isin(tokens, list(self.turning)))
        heads = [self.opening[int(tokens[i])] if i == 0 else self.turning[int(tokens[i])] for i in roles]
        length = (self.single[tokens] >= 0).astype(np.int64)
        length[roles] = [len(ids) for ids in heads]
        start = [] if len(roles) and roles[0] == 0 else self.begin
        places = len(start) + np.cumsum(length) - length
        ids = np.zeros(len(start) + int(length.sum()), np.int64)
        ids[: len(start)] = start
        plain = (self.single[tokens] >= 0) & ~np.isin(tokens, list(self.turning))
        ids[places[plain]] = self.single[tokens[plain]]
        for i, inside in zip(roles, heads, strict=True):
            ids[places[i] : places[i] + len(inside)] = inside
        return ids, np.where(plain, places, -1)


def head(target: Target, role: str, after: str | None) -> list[int]:
    """Return the target's ids of the text that its chat template writes before a message of a role.

    ``after`` None means the first message, else one after a message of role ``after``. If the template
    refuses such a chat, or the target has none, the text is a line that names the role.
    """
    text, other = "\u0394content\u0394", "\u0394before\u0394"
    messages = [*([{"role": after, "content": other}] if after else []), {"role": role, "content": text}]
    try:
        shown = target.decode(target.render({"messages": messages}))
        found = shown[: shown.index(text)]
        found = found[found.index(other) + len(other) :] if after else found
    except (ContentError, ModelError, ValueError):
        found = ("\n\n" if after else "") + f"{role}:\n"
    return target.tokenize(found)
