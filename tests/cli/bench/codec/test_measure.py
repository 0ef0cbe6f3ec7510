"""The cost of sessions in one file: what the model coded, what zstd did, and logs, which are neither."""

from __future__ import annotations

import random

from pltz.cli.bench.codec import measure
from pltz.cli.bench.codec.command import row
from pltz.cli.bench.codec.corpus import SampleSession
from pltz.coding.codec import Codec
from pltz.models.session.session import Session


def test_a_log_counts_as_a_log() -> None:
    dice, events = random.Random(1), []
    for number in range(60):
        said = f"Please read file {number * number % 31} and tell me why rule {number} of the parser fails on Mondays."
        events.append({"uuid": f"{dice.getrandbits(128):032x}", "text": said})
    chat = Session("chat", {"messages": [{"role": "user", "content": "Where is my bicycle? It was here."}]})
    noise = Session("text", dice.randbytes(600))
    sessions = [chat, Session("chat", events), noise]
    found = measure.run(Codec.load(), sessions)
    assert [cost.log for cost in found.costs] == [False, True, False]
    assert [cost.by_model for cost in found.costs] == [True, False, False]
    assert found.tokens == found.costs[0].tokens + found.costs[1].tokens
    assert found.costs[1].tokens > 0
    records = [SampleSession("logs", session, 100) for session in sessions]
    told = row("logs", range(3), records, found.costs, [])
    assert (told["sessions"], told["log_sessions"], told["fallback_sessions"]) == (3, 1, 1)
