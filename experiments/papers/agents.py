"""Rows of agents' memory and of tiers: first tokens cold, warm and hot; batches; moves of blocks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.experiments.papers.row import MEMORY, TIERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work
    from pltz.models.target.target import Target


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of agents' memory and of tiers: first tokens cold, warm and hot; batches; moves of blocks.

    The target attends by pages afterwards, so this runs last.
    """
    import torch

    from pltz.kv.memory.agent_memory import AgentMemory
    from pltz.kv.pool.block_pool import BlockPool
    from pltz.kv.pool.packed_session import PackedSession

    target = work.target
    pool = BlockPool.of(target, "q4", 2048, host_tokens=2048)
    session = PackedSession.of(target.prefill(work.drawn[0][: work.context])[0], pool)
    before = session.kv()
    session.blocks = pool.warm(pool.spill(session.blocks))
    same = bool(torch.equal(before, session.kv()))
    session.release()
    lengths = (work.context, 4 * work.context)
    text = target.tokenizer.decode(np.concatenate([row for row in work.drawn]).tolist())
    words = text.split(" ")
    lines = []
    speed: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        for length in lengths:
            name = f"agent {length}"
            with AgentMemory.open(folder, target, "q4", 8 * max(lengths)) as agents:
                cold = _seconds(agents.phase, name, _cut(target, words, length), 1)
                hot = _seconds(agents.phase, name, " And then?", 1)
            with AgentMemory.open(folder, target, "q4", 8 * max(lengths)) as agents:
                warm = _seconds(agents.phase, name, " And now?", 1)
            lines.append((length, cold, warm, hot))
        with AgentMemory.open(folder, target, "q4", 8 * max(lengths)) as agents:
            prompt = _cut(target, words, work.context)
            agents.many({"a": prompt, "b": prompt + " x"}, 1)
            speed["one"] = sum(_seconds(agents.phase, who, " Go on.", 16) for who in "ab")
            speed["both"] = _seconds(agents.many, dict.fromkeys("ab", " Go on."), 16)
    last = lines[-1]
    grows = lines[-1][3] / lines[0][3]
    gain = speed["one"] / speed["both"]
    told = "; ".join(f"{n:,}: {1e3 * c:.0f}, {1e3 * w:.0f}, {1e3 * h:.0f}" for n, c, w, h in lines)
    return [
        PaperRow(
            MEMORY, "Table 1", "first token cold, warm from disk, hot, ms; warm and hot over cold",
            "7,024, 1,680, 758 at 4K: 4.2, 9.3 times",
            f"{told}: {last[1] / last[2]:.1f}, {last[1] / last[3]:.1f} times",
            verdict(last[1] / last[2] >= 4.2 and last[1] / last[3] >= 9.3, last[1] > last[2] > 0 and last[1] > last[3]),
            "the speed-up is prefill over reading, and this target's prefill is short",
        ),
        PaperRow(
            MEMORY, "Table 1, hot", f"time of a hot first token at {lengths[1]:,} over {lengths[0]:,} tokens", "1.1",
            f"{grows:.2f}", verdict(grows <= 1.3, grows <= 4),
            "attention reads all KV; its 81.6 times at 16K divides by 68.9 s of cold time, and its text says 31.8",
        ),
        PaperRow(
            MEMORY, "Table 2", "two agents as a batch over one after the other", "1.48 times", f"{gain:.2f} times",
            verdict(gain >= 1.4, gain > 1), "a step of a small target on a CPU is bound by calls, not by weights",
        ),
        PaperRow(
            TIERS, "1", "a block spilled and warmed", "bit-identical", "identical" if same else "different",
            verdict(same), "",
        ),
        PaperRow(
            TIERS, "6", "a shadow of 10,000 blocks", "340 MB",
            f"{10_000 * 16 * 34_000 / 1e9:.1f} GB at its own 34 KB per token and 16 tokens per block",
            verdict(abs(10_000 * 16 * 34_000 - 340e6) < 34e6), "340 MB are 10,000 tokens",
        ),
    ]  # fmt: skip


def _cut(target: Target, words: Sequence[str], tokens: int) -> str:
    """Return the first words of a text, of about so many tokens."""
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(target.tokenize(" ".join(words[:middle]))) <= tokens else (low, middle - 1)
    return " ".join(words[:low])


def _seconds(work: Callable[..., Any], *given: Any) -> float:
    began = time.perf_counter()
    work(*given)
    return time.perf_counter() - began
