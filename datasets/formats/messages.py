"""Messages: the objects that chats of most makers are lists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_messages(value: Any, test: Callable[[Any], bool] | None = None) -> bool:
    """Return whether a value is a list of messages, all of which pass a test. An empty list is one.

    >>> is_messages([{"role": "user", "content": "Hi"}]), is_messages("oops"), is_messages([1])
    (True, False, False)
    """
    return isinstance(value, list) and all(map(test or is_message, value))


def is_message(value: Any) -> bool:
    """Return whether a value is an object with a role, or a speaker in the style of ShareGPT."""
    return isinstance(value, dict) and any(isinstance(value.get(key), str) for key in ("role", "from"))


def why_no_chat(value: Any) -> str:
    """Return why a JSON value is no chat, for a remark.

    >>> why_no_chat({"messages": "oops"})
    '"messages" is a string, not a list of messages'
    """
    if not isinstance(value, dict):
        return f"{_kind(value)} is no chat"
    for key in ("messages", "conversations", "conversation"):
        if key in value and not isinstance(value[key], list):
            return f'"{key}" is {_kind(value[key])}, not a list of messages'
        if key in value:
            return f'"{key}" holds items that are no messages with a role'
    return "no key of a known chat format"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
