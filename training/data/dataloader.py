"""Rows for training: sessions laid out in lanes, packed side by side, with the positions that each position sees.

A session of T tokens is cut into blocks; a block is a grid of L lanes and C steps (plt_codec/lanes.py).
Position (lane k, step s) predicts its own token. Its input is the token before it in its lane. At step 0 that
is the marker <|lane|>, or the real predecessor for lane 0 of a later block. It sees all lanes' inputs up to
its own step, and the last `memory` positions of the block before. Rows hold several sessions in step-major
order, which makes the mask nearly block-triangular.

Batches are drawn and laid out by worker processes for a GPU, else by the training process itself.

A few per cent of chats are rewritten in one of five forms, so that the bundle knows what its codec writes and
not only plain chats. The first is a foreign target's chat template, with its special tokens as escapes
(models/bundle/bridge.py). The others are ShareGPT style, a bare list, session keys at the end, and message
keys such as names and tool calls (models/session/transcript.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pltz.models import BundleTokenizer, Session, to_tokens
from pltz.plt_codec import LANE_MARK, TokenBlock
from pltz.training.run.distributed import Ranks

Batch = dict[str, Tensor]
Tokens = npt.NDArray[np.int64]
WORKERS = 12  # at most; they make 1.7 M tokens per second
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
KEYS = ("input", "target", "position", "doc", "time", "block_start")
# time = block number * 65536 + step: a key is visible when it is of the same block and not later, or in memory


def few_lanes(tokens: int, block: int) -> int:
    """Return the lanes of a block: 16 where it is full, else the fewest, a power of two, of at most 512 steps."""
    lanes = 1
    while tokens > lanes * 512:
        lanes *= 2
    return 16 if tokens >= block else lanes


class Sampler:
    """A sampler that draws packed rows from a prepared folder.

    rows(n) -> dict of arrays (n, row): input, target (-1 = none), position, doc, time, block_start.
    """

    def __init__(
        self,
        folder: Path,
        *,
        row: int,
        block: int,
        power: float,
        text_share: float,
        seed: int | list[int],
        augment: float = 0.0,
        most: float = 2.0,
        prefix: float = 0.0,
        layouts: float = 0.35,
        weights: dict[str, float] | None = None,
        memory: int = 1024,
        name: str = "train",
    ):
        self.stream = np.memmap(folder / f"{name}.bin", np.uint16, "r")
        self.offsets = np.load(folder / f"{name}.offsets.npy")
        source = np.load(folder / f"{name}.source.npy")
        names = json.loads((folder / "sources.json").read_text())
        is_text = np.zeros(len(names), bool)
        for key, number in names.items():
            is_text[number] = key.startswith("text:")
        self.row, self.block, self.rng = row, block, np.random.default_rng(seed)
        self.augment, self.change = augment, None
        self.prefix, self.layouts, self.memory = prefix, layouts, memory
        if augment:
            self.change = Augment(folder / "tokenizer.json", self.rng)
        length = np.diff(self.offsets)
        mass = np.bincount(source, weights=length, minlength=len(names))
        weight = np.where(mass > 0, mass**power, 0.0)
        factor = np.ones(len(names))
        for key, value in (weights or {}).items():
            factor[names[key]] = value
        for flag, share in ((False, 1 - text_share), (True, text_share)):
            part = is_text == flag
            if weight[part].sum() > 0:
                inside = capped(weight[part] / weight[part].sum(), mass[part] / mass[part].sum(), most)
                weight[part] = share * inside * factor[part] / (inside * factor[part]).sum()
        self.members = [np.flatnonzero(source == i) for i in range(len(names))]
        window = np.minimum(length, min(row, 2 * block))  # the part of a session that `draw` takes
        mean = np.array([window[m].mean() if len(m) else 1.0 for m in self.members])
        chance = weight / mean  # `weight` is a share of tokens; draw sessions
        self.chance = chance / chance.sum()
        self.waiting: np.ndarray | None = None  # a session that did not fit into the row before

    def begin(self, seed: list[int]) -> None:
        """Begin to draw anew, so that what follows depends on the seed alone."""
        self.rng, self.waiting = np.random.default_rng(seed), None
        if self.change:
            self.change.rng = self.rng

    def session(self) -> np.ndarray:
        """Return the tokens (T,) of one random session."""
        src = self.rng.choice(len(self.members), p=self.chance)
        i = self.rng.choice(self.members[src])
        tokens = np.asarray(self.stream[self.offsets[i] : self.offsets[i + 1]], np.int64)
        if self.change and 0 < tokens[0] < 5 and len(tokens) < 3000 and self.rng.random() < self.augment:
            tokens = self.change(tokens)
        return tokens

    def draw(self, left: int) -> np.ndarray:
        """Return the tokens (T,) of a session for a row that has `left` to fill.

        A session that does not fit waits for the next row, one at a time. If it were cut instead, long
        sessions would lose half of their share, and their ends more than that.
        """
        if left == self.row and self.waiting is not None:
            tokens, self.waiting = self.waiting, None
            return tokens
        tokens = self.session()
        if len(tokens) > 2 * self.block:  # a window of two blocks of a long session
            cut = int(self.rng.integers(0, -(-len(tokens) // self.block) - 1)) * self.block
            if self.rng.random() < 0.3:
                cut = 0
            tokens = tokens[cut : cut + 2 * self.block]
        if left < len(tokens) and left < self.row and self.waiting is None:
            self.waiting = tokens
            return self.draw(left)
        return tokens

    def lanes(self, tokens: int) -> int:
        """Return a number of lanes: mostly `few_lanes`, else any power of two that leaves at least 16 steps."""
        if self.rng.random() >= self.layouts:
            return few_lanes(tokens, self.block)
        top = max(0, min(4, int(np.log2(max(tokens // 16, 1)))))
        return int(2 ** self.rng.integers(0, top + 1))

    def head(self, tokens: int) -> int:
        """Return the length of a context: mostly 0, else tokens that stand as a block of one lane before the rest."""
        if tokens < 32 or self.rng.random() >= self.prefix:
            return 0
        return int(self.rng.integers(8, min(self.memory, tokens - 16) + 1))

    def rows(self, n: int) -> dict[str, np.ndarray]:
        """Return n packed rows, (n, row) int32 by key."""
        return {k: np.stack(v) for k, v in zip(KEYS, zip(*[self.one() for _ in range(n)], strict=True), strict=True)}

    def one(self) -> tuple[np.ndarray, ...]:
        """Return one packed row, (row,) int32 for each of KEYS."""
        parts: list[np.ndarray] = []
        left, doc = self.row, 0
        while left > 0:
            tokens = self.draw(left)
            head = self.head(len(tokens))
            part = lay(tokens, self.block, self.lanes, doc, head)
            take = min(left, part.shape[1])
            if take < part.shape[1]:  # cut the session, not the grid
                tokens = tokens[: max(1, left - 31)] if left > 31 else tokens[:1]
                part = lay(tokens, self.block, self.lanes, doc, min(head, len(tokens) - 1))
                take = min(left, part.shape[1])
                part = part[:, :take]
                if take < left:
                    pad = np.zeros((6, left - take), np.int64)
                    pad[1], pad[3] = -1, doc + 1
                    part = np.concatenate([part, pad], 1)
                    take = left
            parts.append(part[:, :take])
            left -= take
            doc += 1
        row = np.concatenate(parts, 1)
        return tuple(row[i].astype(np.int32) for i in range(6))


def capped(weight: np.ndarray, share: np.ndarray, most: float) -> np.ndarray:
    """Return `weight` (n,), which sums to 1, with none above `most` times its `share` (n,).

    The excess is spread over the rest.
    """
    for _ in range(50):
        weight = np.minimum(weight, most * share)
        free = weight < most * share
        weight = np.where(free, weight * (1 + (1 - weight.sum()) / max(weight[free].sum(), 1e-12)), weight)
    return np.asarray(weight / weight.sum())


def lay(tokens: Tokens, block: int, lanes: Callable[[int], int], doc: int, head: int = 0) -> Tokens:
    """Return rows of KEYS, (6, n), for one session of tokens (T,), block after block.

    ``lanes`` returns the lanes of a block of so many tokens. The first ``head`` tokens stand as a block of one
    lane.
    """
    out = []
    starts = [0] * (head > 0) + list(range(head, len(tokens), block))
    for number, start in enumerate(starts):
        context = head > 0 and number == 0
        part = tokens[start : head if context else start + block]
        grid = TokenBlock(start, len(part), 1 if context else lanes(len(part)))
        at = grid.targets()
        fields = (
            grid.inputs(part, int(tokens[start - 1]) if number else LANE_MARK),
            np.where(grid.predicting(), part[np.minimum(at, len(part) - 1)], -1),
            start + at,
            np.full(at.shape, doc),
            number * 65536 + np.repeat(np.arange(grid.steps)[:, None], grid.lanes, 1),
            np.full(at.shape, start),
        )
        out.append(np.stack([field.reshape(-1) for field in fields]))
    return np.concatenate(out, 1)


class Augment:
    """A function from the ids of a chat to the ids of the same chat in another form."""

    def __init__(self, tokenizer: Path, rng: np.random.Generator):
        self.tokenizer = BundleTokenizer(tokenizer.read_bytes())
        self.rng = rng

    def __call__(self, ids: Tokens) -> Tokens:
        """Rewrite ids (T,), which must start with a role special, and return ids (n,)."""
        starts = np.flatnonzero(np.isin(ids, list(ROLES)))
        ends = [*starts[1:], len(ids)]
        messages = [
            {"role": ROLES[int(ids[a])], "content": self.tokenizer.decode(ids[a + 1 : b]).decode("utf8", "replace")}
            for a, b in zip(starts, ends, strict=True)
        ]
        kind = self.rng.choice(["template", "sharegpt", "list", "meta", "keys"], p=[0.45, 0.12, 0.05, 0.2, 0.18])
        if kind == "template":
            return self._template(messages)
        value: Any = {"messages": messages}
        if kind == "sharegpt":
            names = {"user": "human", "assistant": "gpt"}
            value = {
                "conversations": [{"from": names.get(m["role"], m["role"]), "value": m["content"]} for m in messages]
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

    def _template(self, messages: list[dict[str, Any]]) -> Tokens:
        head, before, after, end = TEMPLATES[self.rng.integers(len(TEMPLATES))]
        slots = self.rng.permutation(15) if self.rng.random() < 0.3 else np.arange(15)
        parts: list[int] = []

        def put(items: list[Any]) -> None:
            text = ""
            for item in items:
                if isinstance(item, str):
                    text += item
                    continue
                parts.extend(self.tokenizer.encode(text.encode("utf8", "surrogatepass")).tolist() if text else [])
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


class _Rows(IterableDataset[Tensor]):
    """An endless stream of batches, (KEYS, rows, row) int32, from the one of number `first` on.

    A batch depends on the seed and its number alone, and workers take turns. So a run that goes on, whatever the
    machine's cores, sees the batches of an unbroken one.
    """

    def __init__(self, folder: Path, options: dict[str, Any], rows: int, seed: list[int], first: int) -> None:
        self.folder, self.options, self.rows, self.seed, self.first = folder, options, rows, seed, first

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        sampler = Sampler(self.folder, seed=self.seed, **self.options)
        for number in count(self.first + mine, workers):
            sampler.begin([*self.seed, number])
            batch = sampler.rows(self.rows)
            yield torch.from_numpy(np.stack([batch[k] for k in KEYS]))


def load_batches(
    folder: Path, options: dict[str, Any], rows: int, seed: int, rank: Ranks, first: int = 0
) -> Iterator[Batch]:
    """Yield batches of `rows` rows on the rank's device, each by key (rows, row) int32.

    `options`: those of `Sampler`. `first`: number of the first batch.
    """
    gpu = rank.device.startswith("cuda")
    workers = max(1, min(WORKERS, (os.cpu_count() or 2) // rank.count - 2)) if gpu else 0
    loader = DataLoader(
        _Rows(folder, options, rows, [seed, rank.number], first),
        batch_size=None,
        num_workers=workers,
        pin_memory=gpu,
        multiprocessing_context="spawn" if workers else None,
    )
    ahead: list[Tensor] = []
    for made in loader:
        ahead.append(made.to(rank.device, non_blocking=True))
        if len(ahead) > (1 if gpu else 0):
            stacked = ahead.pop(0)
            yield {k: stacked[i] for i, k in enumerate(KEYS)}
