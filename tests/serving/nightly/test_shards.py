"""Test that a worker remembers sessions from shard to shard: those that it put grow without being decoded again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pltz.archive.format.ids import Tokens
from pltz.coding.codecs.codec import BundleCodec, Coded
from pltz.datasets import sample_sessions
from pltz.serving.nightly import config
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.sources import jsonl
from tests.serving.nightly.conftest import Nightly, lines


def test_sessions_of_one_shard_grow_in_the_next_without_being_decoded(
    trained_nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [session.value for session in sample_sessions() if session.kind == "chat"]
    long = [one["messages"] for one in values if isinstance(one, dict) and len(one.get("messages", ())) > 8][:4]

    def chats(turns: int) -> bytes:
        return lines({"id": f"chat-{n}", "messages": one[:turns]} for n, one in enumerate(long))

    for turns in (6, 7):
        trained_nightly.write(f"chats/{turns}.jsonl", chats(turns))
    monkeypatch.setattr(jsonl, "SHARD_SESSIONS", 1)
    settings = config.load(trained_nightly.file)
    [source] = settings.source
    first, second = source.shards(0)
    decoded: list[int] = []
    monkeypatch.setattr("pltz.coding.log.log_look.LEAST", 1 << 40)  # a chat of short turns looks like a log
    decode = BundleCodec.decode

    def counting(self: BundleCodec, batch: Sequence[Coded]) -> list[Tokens]:
        decoded.extend(coded.count for coded in batch)
        return decode(self, batch)

    monkeypatch.setattr(BundleCodec, "decode", counting)
    freezer, another = Freezer(settings), Freezer(settings)
    freezer.state.make()
    assert freezer.freeze(first).frozen == 4
    assert another.freeze(second).frozen == 4
    trained_nightly.write("chats/8.jsonl", chats(8))
    *_, third = source.shards(0)
    decoded.clear()
    assert another.freeze(third).frozen == 4
    assert 0 < sum(decoded) < 1000  # what is new, decoded back; without a memory it is 3,078 tokens
    assert [(v.name, v.version) for v in another.open().directory.ls()] == [(f"chat-{n}", 3) for n in range(4)]
