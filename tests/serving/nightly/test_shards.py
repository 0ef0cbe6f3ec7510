"""Test that a worker remembers sessions from shard to shard: those that it put grow without being decoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pltz.archive.format.ids import Tokens
from pltz.coding.codecs.codec import BundleCodec, Coded
from pltz.serving.nightly import config
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.sources import jsonl

if TYPE_CHECKING:
    from tests.serving.nightly.conftest import Nightly


def test_sessions_of_one_shard_grow_in_the_next_without_being_decoded(
    trained_nightly: Nightly,
    make_chat: Callable[..., dict[str, Any]],
    make_lines: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for turns in (40, 41):
        trained_nightly.write(f"chats/{turns}.jsonl", make_lines(make_chat(n, turns) for n in range(4)))
    monkeypatch.setattr(jsonl, "SHARD_SESSIONS", 1)
    settings = config.load(trained_nightly.file)
    [source] = settings.sources
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
    trained_nightly.write("chats/42.jsonl", make_lines(make_chat(n, 42) for n in range(4)))
    *_, third = source.shards(0)
    decoded.clear()
    assert another.freeze(third).frozen == 4
    assert 0 < max(decoded) < 40  # the new turns alone, decoded back; the first ones have 800 tokens
    assert [(v.name, v.version) for v in another.open().directory.ls()] == [(f"chat-{n}", 3) for n in range(4)]
