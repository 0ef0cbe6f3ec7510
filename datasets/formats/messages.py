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
    return isinstance(value, dict) and (isinstance(value.get("role"), str) or isinstance(value.get("from"), str))
