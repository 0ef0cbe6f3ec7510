"""Compare eviction by attention mass with LRU and Lindy at equal budgets, on a trace of real chats.

    python -m pltz.experiments.three_tiers.measure_eviction                                    # the sample chats
    python -m pltz.experiments.three_tiers.measure_eviction --data chat_validation.jsonl.zst --chats 150

Messages and their lengths are real, and so is the attention: a target reads each chat, and the queries of each reply
say what share of their attention each block of 16 tokens before received. Times are made up: chats begin at random, and
people think for a Pareto-distributed while between turns. The device holds a part of all blocks. A request needs the
blocks of its chat. Those that are missing come back, and others go, by one order at a time:

    lru          the least recently used
    lindy        orders.py: bands of idle time, then age
    mass         the least attention received in the last replies of its chat, whatever its age
    band-mass    bands of idle time, then attention
    ends         as band-mass, but ends of chats first, as a `Trie` gives up blocks: what follows must be gone before

Of blocks that are equal, those at the end of a chat go first. `missing blocks`: share of the needed blocks that were
away, all of which move if attention is to be exact. `missing attention`: share of a reply's attention that was on
blocks away, which is lost, or waited for, where blocks move only if they are looked at. The last figure is without the
first block of each chat: it holds the sinks, which a session keeps beside its pages.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pltz.datasets import sample_sessions
from pltz.datasets.loaders import load
from pltz.experiments.three_tiers.orders import BAND, FADES
from pltz.models.target.target import Target

BLOCK = 16  # tokens
BUDGETS = (0.1, 0.25, 0.5)  # of all blocks


@dataclass(frozen=True)
class ReplayedTurn:
    """A request. ``needed``: blocks of its prompt. ``shares``: (needed,), of the attention of its reply."""

    needed: int
    shares: NDArray[np.float64]


@dataclass
class BlockTable:
    """Arrays over all blocks of all chats, (blocks,). Times are in seconds. ``here``: on the device."""

    chat: NDArray[np.int64]
    place: NDArray[np.int64]
    born: NDArray[np.float64]
    used: NDArray[np.float64]
    mass: NDArray[np.float64]
    here: NDArray[np.bool_]

    @classmethod
    def of(cls, chats: Sequence[Sequence[ReplayedTurn]]) -> BlockTable:
        """Return the blocks of chats, none of them used yet."""
        sizes = [turns[-1].needed for turns in chats]
        chat = np.repeat(np.arange(len(sizes)), sizes)
        place = np.concatenate([np.arange(size) for size in sizes])
        zeros = np.zeros(len(chat))
        return cls(chat, place, zeros.copy(), zeros.copy(), zeros.copy(), zeros > 0)

    def band(self, now: float) -> NDArray[np.float64]:
        """Return the bands of `orders.band`."""
        found: NDArray[np.float64] = -np.floor(np.log2(1 + np.maximum(now - self.used, 0) / BAND))
        return found

    def mass_to_end(self) -> NDArray[np.float64]:
        """Return the largest mass of each block and those that follow it in its chat."""
        apart = self.mass + 2.0 * (self.chat[-1] - self.chat)  # so that the maximum starts anew at each chat
        found: NDArray[np.float64] = np.maximum.accumulate(apart[::-1])[::-1] - 2.0 * (self.chat[-1] - self.chat)
        return found


Order = Callable[[float, BlockTable], tuple[NDArray[Any], ...]]
ORDERS: dict[str, Order] = {  # keys, the first one first
    "lru": lambda now, blocks: (blocks.used,),
    "lindy": lambda now, blocks: (blocks.band(now), blocks.used - blocks.born, blocks.used),
    "mass": lambda now, blocks: (blocks.mass,),
    "band-mass": lambda now, blocks: (blocks.band(now), blocks.mass),
    "ends": lambda now, blocks: (blocks.band(now), blocks.mass_to_end()),
}


def turns_of(target: Target, messages: Sequence[dict[str, Any]], most: int) -> list[ReplayedTurn]:
    """Return the requests of a chat: one per reply of the assistant that lies within ``most`` tokens."""
    ids: list[int] = []
    replies = []
    for message in messages:
        new = target.render([message])
        if len(ids) + len(new) > most:
            break
        if message.get("role") == "assistant" and len(ids) >= BLOCK:
            replies.append((len(ids), len(ids) + len(new)))
        ids += new
    if len(replies) < 2:
        return []
    with torch.inference_mode():
        found = target.model(torch.tensor([ids]), output_attentions=True)
        seen = torch.stack([layer[0].float().mean(0) for layer in found.attentions]).mean(0).numpy()  # (T, T)
    turns = []
    for begin, end in replies:
        needed = begin // BLOCK
        rows = seen[begin:end, : needed * BLOCK].astype(np.float64).mean(0)
        turns.append(ReplayedTurn(needed, rows.reshape(needed, BLOCK).sum(1)))
    return turns


def trace(chats: Sequence[Sequence[ReplayedTurn]], seed: int) -> list[tuple[float, int, int]]:
    """Return time, chat and turn of each request, ascending."""
    draw = random.Random(seed)
    requests = []
    for number, turns in enumerate(chats):
        now = draw.uniform(0, 40.0 * len(chats))
        for turn in range(len(turns)):
            requests.append((now, number, turn))
            now += 20.0 * draw.paretovariate(1.2)
    return sorted(requests)


def replay(
    chats: Sequence[Sequence[ReplayedTurn]], requests: Sequence[tuple[float, int, int]], budget: int, order: Order
) -> dict[str, float]:
    """Return what was missing, in percent, over all turns but the first of each chat."""
    blocks = BlockTable.of(chats)
    begins = np.searchsorted(blocks.chat, np.arange(len(chats)))
    done = [0] * len(chats)  # blocks of each chat that were computed
    needed = away = 0
    lost, lost_later, total, total_later = 0.0, 0.0, 0.0, 0.0
    for now, number, n in requests:
        turn, first = chats[number][n], begins[number]
        if n:  # blocks of the turns before: are they still here?
            gone = ~blocks.here[first : first + done[number]]
            shares = turn.shares[: done[number]]
            needed, away = needed + len(gone), away + int(gone.sum())
            lost, total = lost + shares[gone].sum(), total + shares.sum()
            lost_later, total_later = lost_later + shares[1:][gone[1:]].sum(), total_later + shares[1:].sum()
        mine = slice(first, first + turn.needed)
        blocks.born[first + done[number] : mine.stop] = now
        blocks.used[mine], blocks.here[mine], done[number] = now, True, turn.needed
        blocks.mass[mine] = FADES * blocks.mass[mine] + (1 - FADES) * turn.shares
        over = int(blocks.here.sum()) - budget
        if over > 0:
            keys = order(now, blocks)
            at = np.lexsort((-blocks.place, *reversed(keys)))
            others = at[blocks.here[at] & (blocks.chat[at] != number)]
            blocks.here[others[:over]] = False
    return {
        "missing_blocks": _percent(away, needed),
        "missing_attention": _percent(lost, total),
        "missing_attention_without_first": _percent(lost_later, total_later),
    }


def _percent(part: float, whole: float) -> float:
    return round(100 * float(part) / float(whole), 2) if whole else 0.0


def measure(target: Target, sessions: Sequence[Any], most: int, seeds: int) -> dict[str, Any]:
    """Return what each order misses at each budget, the mean over ``seeds`` traces."""
    target.model.set_attn_implementation("eager")
    chats = [turns for one in sessions if (turns := turns_of(target, one.value["messages"], most))]
    blocks = sum(turns[-1].needed for turns in chats)
    result: dict[str, Any] = {"chats": len(chats), "requests": sum(map(len, chats)), "blocks": blocks}
    for part in BUDGETS:
        budget = max(int(part * blocks), max(turns[-1].needed for turns in chats))
        for name, order in ORDERS.items():
            runs = [replay(chats, trace(chats, seed), budget, order) for seed in range(seeds)]
            means = {key: round(float(np.mean([run[key] for run in runs])), 2) for key in runs[0]}
            result[f"{name} {part:.0%}"] = means
    return result


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="mini-llama", help="a folder, or a name that ships with pltz")
    parser.add_argument("--data", type=Path, help="chats; the sample sessions without")
    parser.add_argument("--chats", type=int, default=150, help="chats at most, of at least two replies")
    parser.add_argument("--most", type=int, default=1024, help="tokens of a chat")
    parser.add_argument("--seeds", type=int, default=5, help="traces")
    chosen = parser.parse_args()
    sessions = list(sample_sessions() if chosen.data is None else load(chosen.data))
    several = [one for one in sessions if one.kind == "chat" and len(one.value.get("messages", ())) >= 4]
    target = Target.load(chosen.target, dtype="float32")
    found = measure(target, several[: chosen.chats], chosen.most, chosen.seeds)
    for name, one in found.items():
        print(f"{name:16} {one}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
