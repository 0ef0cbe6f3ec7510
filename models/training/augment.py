"""Variations of training sessions, so that the bundle knows the forms its codec writes and not only plain chats.

A few per cent of chats are rewritten in one of five forms. The first is a foreign target's chat template,
with its special tokens as escapes (models/bundle/bridge.py). The others are ShareGPT style, a bare list,
session keys at the end, and message keys such as names and tool calls (models/session/transcript.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens

ROLES = {1: "system", 2: "user", 3: "assistant", 4: "tool", 10: "developer", 11: "function"}
ESCAPE = 16  # id of <|x0|>
# (before all, before the role's name, after it, after the content), numbers are escapes, text is text
TEMPLATES: list[tuple[list[Any], list[Any], list[Any], list[Any]]] = [
    ([], [1], ["\n"], [3, "\n"]),
    ([0], [1], [2, "\n\n"], [3]),
    ([0], [1], ["\n"], [3, "\n"]),
    ([], [1], ["\n"], [3]),
    ([0], [1], [2], [3]),
]
Ids = npt.NDArray[np.int64]


class Augment:
    """A function from the ids of a chat to the ids of the same chat in another form."""

    def __init__(self, tokenizer: Path, rng: np.random.Generator):
        self.tokenizer = BundleTokenizer(tokenizer.read_bytes())
        self.rng = rng

    def __call__(self, ids: Ids) -> Ids:
        """Rewrite ids (T,), which must start with a role special, and return ids (n,)."""
        starts = np.flatnonzero(np.isin(ids, list(ROLES)))
        ends = [*starts[1:], len(ids)]
        messages = [
            {
                "role": ROLES[int(ids[a])],
                "content": self.tokenizer.decode(ids[a + 1 : b]).decode("utf8", "replace"),
            }
            for a, b in zip(starts, ends, strict=True)
        ]
        kind = self.rng.choice(
            ["template", "sharegpt", "list", "meta", "keys"], p=[0.45, 0.12, 0.05, 0.2, 0.18]
        )
        if kind == "template":
            return self._template(messages)
        value: Any = {"messages": messages}
        if kind == "sharegpt":
            names = {"user": "human", "assistant": "gpt"}
            value = {
                "conversations": [
                    {"from": names.get(m["role"], m["role"]), "value": m["content"]} for m in messages
                ]
            }
        elif kind == "list":
            value = messages
        elif kind == "keys":
            value = {"messages": [self._keys(m) for m in messages]}
        if kind == "meta" or (kind == "sharegpt" and self.rng.random() < 0.5):
            value = {**self._meta(), **value} if self.rng.random() < 0.7 else {**value, **self._meta()}
        return np.asarray(to_tokens(Session("chat", value), self.tokenizer), np.int64)

    def _hex(self, n: int) -> str:
        return self.rng.bytes(n).hex()[:n]

    def _meta(self) -> dict[str, Any]:
        pick: list[dict[str, Any]] = [
            {"id": f"{self.rng.choice(['chat', 'conv', 'session', 'identity'])}-{self._hex(16)}"},
            {"id": int(self.rng.integers(0, 1 << 31))},
            {"id": self._hex(32), "model": str(self.rng.choice(["gpt-4o", "llama-3.1-8b", "mistral-7b"]))},
            {"session_id": self._hex(8), "created": 1_600_000_000 + int(self.rng.integers(0, 200_000_000))},
            {"id": f"s{self.rng.integers(10000)}", "source": "web", "license": "Apache-2.0"},
            {"user": f"user_{self.rng.integers(100000)}", "tags": ["prod"]},
        ]
        return dict(pick[self.rng.integers(len(pick))])

    def _keys(self, m: dict[str, Any]) -> dict[str, Any]:
        role, roll = m["role"], self.rng.random()
        if role == "tool" and roll < 0.9:
            return {**m, "tool_call_id": f"call_{self._hex(24)}"}
        if role == "assistant" and m["content"].startswith("{") and roll < 0.9:
            call = {"name": str(self.rng.choice(["search", "get_weather", "run"])), "arguments": m["content"]}
            calls = [{"id": f"call_{self._hex(24)}", "type": "function", "function": call}]
            return {"role": role, "content": None, "tool_calls": calls}
        if roll < 0.3:
            return {**m, "name": str(self.rng.choice(["alice", "bob", "agent"]))}
        if roll < 0.45:
            return {"role": role, "content": [{"type": "text", "text": m["content"]}]}
        if roll < 0.55:
            return {**m, "timestamp": 1_600_000_000 + int(self.rng.integers(0, 200_000_000))}
        return m

    def _template(self, messages: list[dict[str, Any]]) -> Ids:
        head, before, after, end = TEMPLATES[self.rng.integers(len(TEMPLATES))]
        slots = self.rng.permutation(15) if self.rng.random() < 0.3 else np.arange(15)
        parts: list[int] = []

        def put(items: list[Any]) -> None:
            text = ""
            for item in items:
                if isinstance(item, str):
                    text += item
                    continue
                parts.extend(
                    self.tokenizer.encode(text.encode("utf8", "surrogatepass")).tolist() if text else []
                )
                text = ""
                parts.append(ESCAPE + int(slots[item]))
            parts.extend(self.tokenizer.encode(text.encode("utf8", "surrogatepass")).tolist() if text else [])

        row = list(head)
        for m in messages:
            row += [*before, m["role"], *after, m["content"], *end]
        if self.rng.random() < 0.5:
            row += [4]
        put(row)
        return np.asarray(parts, np.int64)


def describe(ids: Ids, tokenizer: BundleTokenizer) -> str:
    """Return ids (T,) in readable form, for a look at the augmentation's output."""
    names = {v: k for k, v in tokenizer.specials.items()}
    return json.dumps(
        "".join(
            f"<{names[int(i)]}>" if int(i) < 32 else tokenizer.pieces[int(i)].decode("utf8", "replace")
            for i in ids
        )
    )
