"""Serve sessions with transformers: few KV caches stay hot, the others go to the archive and come back.

See docs/transformers.md.

    python examples/transformers_serving.py                        # the target that ships with pltz, on the CPU
    python examples/transformers_serving.py --target ./my-model --hot 4 --sessions 16 --turns 3

Each session is served twice: by a loop that keeps only the last few caches, and by one that keeps all.
Prints one JSON line: what was
evicted and thawed, what it took, and whether both said the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pltz

SYSTEM = "You help people with their orders. Be short and friendly. " * 6
QUESTIONS = (
    "Where is my order number {0}?",
    "Can I still change the address of order {0}?",
    "Thanks! How long will it take?",
)
PATIENCE = 60.0  # seconds for the worker to archive a session that is wanted again at once


@dataclass
class Hot:
    """Hold a session with its KV. ``cache`` covers ``ids``, except the id sampled last."""

    ids: list[int]
    cache: Any  # DynamicCache


@dataclass
class Server:
    """Serve sessions and keep the ``room`` caches used last. ``times``: seconds of each eviction and thaw."""

    target: pltz.Target
    hook: pltz.EvictionHook
    thawer: pltz.Thawer
    system: list[int]
    room: int
    hot: OrderedDict[str, Hot] = field(default_factory=OrderedDict)
    evicted: set[str] = field(default_factory=set)
    times: dict[str, list[float]] = field(default_factory=lambda: {"evict": [], "thaw": []})

    def say(self, name: str, text: str, length: int) -> list[int]:
        """Give a user's message to a session, and return the ids of the reply, at most ``length``."""
        session = self._session(name)
        ids = session.ids + self.target.render(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        cache, logits = self.target.prefill(ids, cache=session.cache)
        reply = self.target.generate(cache, ids, length, logits=logits)
        ended = bool(reply) and reply[-1] in self.target.eos_ids
        self.hot[name] = Hot(ids + (reply[:-1] if ended else reply), cache)
        self.hot.move_to_end(name)
        while len(self.hot) > self.room:
            self._evict()
        return reply

    def _session(self, name: str) -> Hot:
        """Return a session that is hot: it was, or it is thawed, or it begins."""
        if name in self.hot:
            return self.hot[name]
        return self._thaw(name) if name in self.evicted else Hot(self.system, None)

    def _evict(self) -> None:
        """Drop the cache used longest ago, and hand its tokens to the hook."""
        name, session = self.hot.popitem(last=False)
        start = time.perf_counter()
        prefixes = (len(self.system),)
        ticket = self.hook.on_evict(
            pltz.EvictionRequest(name, session.ids, prefixes=prefixes, tags={"model": "demo"})
        )
        self.times["evict"].append(time.perf_counter() - start)
        if not ticket:  # refused: a server that cannot do without it keeps the ids
            raise RuntimeError(f"session {name} was not taken: {self.hook.status()['refused']}")
        self.evicted.add(name)

    def _thaw(self, name: str) -> Hot:
        """Bring a session back from the archive, by one prefill."""
        start = time.perf_counter()
        if not self.hook.settle(PATIENCE):  # it may be on its way there
            raise RuntimeError(f"session {name} is not archived yet: {self.hook.status()}")
        back = self.thawer.thaw(name)
        self.times["thaw"].append(time.perf_counter() - start)
        return Hot(back.token_ids.tolist(), back.cache)


def serve(server: Server, sessions: int, turns: int, length: int) -> list[list[int]]:
    """Serve all turns of all sessions, one turn of each in order, and return the replies."""
    return [
        server.say(f"customer/{number}", QUESTIONS[turn % len(QUESTIONS)].format(1000 + number), length)
        for turn in range(turns)
        for number in range(sessions)
    ]


def run(
    target: pltz.Target, folder: Path, hot: int, sessions: int, turns: int, length: int
) -> dict[str, Any]:
    """Serve with few caches and with all, and return the comparison."""
    tokenizer = target.tokenizer_json
    cold = pltz.Archive.open(folder / "cold", create=True)
    system = target.render([{"role": "system", "content": SYSTEM}])
    replies = []
    with pltz.EvictionHook.open(
        folder / "journal", folder / "cold", tokenizer=tokenizer, target=target.fingerprint
    ) as hook:
        few, all_ = (Server(target, hook, pltz.Thawer(cold, target), system, room) for room in (hot, sessions))
        replies = [serve(server, sessions, turns, length) for server in (few, all_)]
        hook.settle(PATIENCE)
        status = hook.status()
    tokens = sum(len(session.ids) for session in all_.hot.values())
    return {
        "same": replies[0] == replies[1],
        "replies": len(replies[0]),
        "evictions": len(few.times["evict"]),
        "thaws": len(few.times["thaw"]),
        "evict_us": [round(1e6 * t) for t in _range(few.times["evict"])],
        "thaw_ms": [round(1e3 * t) for t in _range(few.times["thaw"])],
        "tokens": tokens,
        "kv_bytes": tokens * target.token_bytes,
        "archive_bytes": cold_bytes(folder / "cold"),
        "refused": status["refused"],
    }


def cold_bytes(folder: Path) -> int:
    """Return the bytes of the archive's files, without the room it reserves for a full disk."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("reserve"))
    return sum(file.stat().st_size for file in files)


def _range(times: list[float]) -> tuple[float, float]:
    return (min(times), max(times)) if times else (0.0, 0.0)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Serve sessions with few hot KV caches.")
    parser.add_argument("--target", default="mini-llama", help="a folder, or a name that ships with pltz")
    parser.add_argument("--hot", type=int, default=2, help="KV caches that stay")
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--length", type=int, default=24, help="ids of a reply, at most")
    parser.add_argument(
        "--dtype", default="float32", help="of the target; in bfloat16 a near tie may go the other way"
    )
    chosen = parser.parse_args()
    target = pltz.Target.load(chosen.target, dtype=chosen.dtype)
    with tempfile.TemporaryDirectory(prefix="pltz-serving-") as folder:
        found = run(target, Path(folder), chosen.hot, chosen.sessions, chosen.turns, chosen.length)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
