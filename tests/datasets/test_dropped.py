"""Signatures are dropped from agents' logs where a user asks for it, and nothing else is."""

import json
from typing import Any

import pytest

from pltz.datasets.dropped import MARK, tags_of, without
from pltz.datasets.input_format import ReadOptions
from pltz.datasets.loaders import recognise
from pltz.models.session.session import Session
from pltz.plt_codec.errors import UsageError

LONG = "Eq" * 100


def claude(*blocks: Any) -> bytes:
    lines = [
        {"type": "user", "sessionId": "a", "uuid": "1", "message": {"role": "user", "content": "Hi"}},
        {"type": "assistant", "sessionId": "a", "uuid": "2", "message": {"role": "assistant", "content": blocks}},
    ]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


@pytest.mark.parametrize(("block", "key"), [
    ({"type": "thinking", "thinking": "Let me see", "signature": LONG}, "signature"),
    ({"type": "redacted_thinking", "data": LONG}, "data"),
    ({"type": "reasoning", "summary": [], "encrypted_content": LONG}, "encrypted_content"),
    ({"type": "toolCall", "id": "1", "thoughtSignature": LONG}, "thoughtSignature"),
])
def test_a_dropped_value_is_named_and_counted(block: dict[str, Any], key: str) -> None:
    log: list[dict[str, Any]] = [{"payload": block, "n": 1.0}, {"n": 2}]
    found, size = without(Session("chat", log), ["signatures"])
    assert size == len(LONG) and found.value == [{"payload": {**block, key: MARK}, "n": 1.0}, {"n": 2}]
    assert list(found.value[0]["payload"]) == list(block)
    assert log[0]["payload"] is block and block[key] == LONG  # the input is as it was
    assert without(found, ["signatures"]) == (found, 0)


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "text", "signature": LONG}],  # of a document, not of thinking
        [{"type": "image", "source": {"type": "base64", "data": LONG}}],
        [{"type": "reasoning", "encrypted_content": None}, {"type": "thinking", "signature": "short"}],
        [{"type": ["thinking"], "signature": LONG}],
    ],
)
def test_anything_else_stays(value: Any) -> None:
    session = Session("chat", value)
    assert without(session, ["signatures"]) == (session, 0)


def test_it_is_dropped_of_logs_alone_and_only_where_asked_for() -> None:
    log = claude({"type": "thinking", "thinking": "x", "signature": LONG})
    [kept] = recognise(log)
    [found] = recognise(log, ReadOptions(drop=("signatures",)))
    assert (kept.dropped, found.dropped) == (0, len(LONG))
    assert kept.session.value == log and found.session.value == log.replace(LONG.encode(), MARK.encode())
    chat = json.dumps({"messages": [{"role": "user", "content": [{"type": "thinking", "signature": LONG}]}]}).encode()
    [other] = recognise(chat, ReadOptions(drop=("signatures",)))
    assert other.dropped == 0 and LONG in json.dumps(other.session.value)


def test_exact_and_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="exact keeps every byte"):
        ReadOptions(exact=True, drop=("signatures",))
    with pytest.raises(UsageError, match="expected to drop signatures, found 'ids'"):
        ReadOptions(drop=("ids",))


def test_tags_say_what_and_how_much() -> None:
    assert tags_of(["signatures"], 9) == {"dropped": "signatures", "dropped-bytes": "9"} and tags_of([], 0) == {}
