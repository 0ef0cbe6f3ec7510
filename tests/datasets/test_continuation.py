"""A session continues an earlier one by its bytes, its events or its messages, or it does not."""

import json
from typing import Any

import pytest

from pltz.datasets.continuation import continues
from pltz.models.session.session import Session

TURNS = [{"role": role, "content": f"{role} {n}"} for n in range(3) for role in ("user", "assistant")]
EVENTS = [{"type": "user", "uuid": str(n), "timestamp": str(n), "message": turn} for n, turn in enumerate(TURNS)]


def chat(value: Any) -> Session:
    return Session("chat", value)


def lines(events: Any) -> Session:
    return Session("text", b"".join(json.dumps(event).encode() + b"\n" for event in events))


def export(turns: Any) -> Session:
    """Return a pretty document as an agent writes it, kept as bytes."""
    rows = [{"info": {"id": str(n)}, "parts": [turn]} for n, turn in enumerate(turns)]
    return Session("text", json.dumps({"info": {"id": "ses_1"}, "messages": rows}, indent=1).encode())


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat({"messages": TURNS[:2]}), chat({"messages": TURNS, "updated": 7})),
        (chat({"conversations": TURNS[:2]}), chat({"conversations": TURNS})),
        (chat(EVENTS[:3]), chat(EVENTS)),
        (lines(EVENTS[:3]), lines(EVENTS)),
        (chat(EVENTS[:3]), lines(EVENTS)),
        (lines(EVENTS[:3]), chat(EVENTS)),
        (export(TURNS[:2]), export(TURNS)),
        (Session("text", b"# aider chat\n"), Session("text", b"# aider chat\nand more")),
        (Session("ids", [1, 2]), Session("ids", [1, 2, 3])),
        (chat({"messages": []}), chat({"messages": TURNS})),
        (chat({"a": 1}), chat({"a": 1})),
        (chat({"a": 1}), lines([{"a": 1}, 5])),
    ],
)
def test_what_continues(earlier: Session, later: Session) -> None:
    assert continues(earlier, later) and continues(earlier, earlier)


@pytest.mark.parametrize(("earlier", "later"), [
    (chat({"messages": TURNS}), chat({"messages": TURNS[:2]})),
    (chat({"messages": TURNS[:2]}), chat({"messages": [TURNS[0], *TURNS[2:]]})),
    (chat({"messages": TURNS[:1]}), chat({"messages": TURNS[2:]})), (chat(EVENTS[:3]), chat(EVENTS[1:])),
    (lines(EVENTS[:3]), lines(EVENTS[1:])), (export(TURNS[:2]), export(TURNS[2:])),
    (Session("text", b"one"), Session("text", b"two")), (chat({"a": 1}), lines([{"a": 2}, {"a": 1}])),
    (Session("ids", [1, 2]), Session("ids", [1, 3, 4])), (Session("ids", [1, 2]), Session("text", b"\x01")),
    (Session("text", b"one"), chat({"messages": TURNS})), (chat({"a": 1}), chat({"a": 2})),
    (chat({"id": "monday", "messages": TURNS}), chat({"id": "tuesday", "messages": TURNS})),
])
def test_what_does_not(earlier: Session, later: Session) -> None:
    assert not continues(earlier, later)


def test_the_last_message_may_have_grown_where_its_id_is_the_same() -> None:
    grown = json.loads(export(TURNS[:3]).value)
    grown["messages"][1]["parts"].append({"type": "tool", "output": "more"})
    assert continues(export(TURNS[:2]), chat(grown))
    grown["messages"][1]["info"]["id"] = "another"
    assert not continues(export(TURNS[:2]), chat(grown))
