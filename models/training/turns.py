"""Turns written by a target: training chats up to a random assistant's turn, then that turn in the target's words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pltz.models.session.session import Session
from pltz.models.target.target import Target
from pltz.models.training import records
from pltz.models.training.context import Context
from pltz.plt_codec.errors import ContentError, UsageError


def written(c: Context, split: Path, done: int) -> Iterator[bytes]:
    """Yield the sessions still to be written, one line of JSON each.

    Chats that the target's template refuses are skipped. `done`: sessions that were written before.

    Raises:
        ContentError: the template refuses every chat.
        UsageError: no chat has an assistant's turn.
    """
    teacher, target = c.teacher, c.target
    prompts = _prompts(split, c.s.seed)
    made = refused = 0
    while made < teacher.write:
        messages = prompts[(made + refused) % len(prompts)]
        try:
            ids = target.render({"messages": messages}, add_generation_prompt=True)
        except ContentError:
            refused += 1
            if refused >= len(prompts) and not made:
                raise
            continue
        torch.manual_seed(c.s.seed * 1_000_003 + made)
        made += 1
        if made > done:
            text = _reply(target, ids, teacher.write_tokens)
            value = {"messages": [*messages, {"role": "assistant", "content": text}]}
            yield Session("chat", value).to_json_line()


def _prompts(split: Path, seed: int) -> list[list[Any]]:
    """Return the messages before a random assistant's turn of each training chat that has one, in random order."""
    rng = random.Random(seed)
    found: list[list[Any]] = []
    for record in records.read(split / "train.zst"):
        value = records.plain(record.session).value
        messages = value.get("messages", []) if isinstance(value, dict) else []
        roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
        if turns := [i for i, role in enumerate(roles) if role == "assistant" and i]:
            found.append(messages[: rng.choice(turns)])
    if not found:
        raise UsageError("[teacher] write: no training chat has an assistant's turn to write anew")
    rng.shuffle(found)
    return found


def _reply(target: Target, ids: list[int], most: int) -> str:
    """Return the target's text after some ids, drawn from its probabilities."""
    if target.max_positions is not None:
        ids = ids[-max(1, target.max_positions - most) :]
    given = torch.tensor([ids], device=target.device)
    made = target.model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=True,
        top_k=0,
        max_new_tokens=most,
        pad_token_id=min(target.eos_ids, default=0),
    )[0, len(ids) :].tolist()
    end = next((i for i, token in enumerate(made) if token in target.eos_ids), len(made))
    return str(
        target.tokenizer.decode(made[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )
