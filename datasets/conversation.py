"""The conversation that an agent had, from its log: instructions, user, assistant, calls of tools and their results.

    [{"type": "user", "uuid": ..., "message": {...}}, {"type": "progress", ...}, ...]
    [{"role": "user", "content": "Where is the bug?"}, {"role": "assistant", "content": "", "tool_calls": [...]}, ...]

It is what a model is shown, by its own chat template: without ids, times and counters, and of a log with branches the
last one alone. Each format says how (`InputFormat.conversation`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pltz.datasets import registry
from pltz.datasets.input_format import EVENTS, HEAD, InputFormat
from pltz.datasets.log_lines import narrow, values
from pltz.datasets.turns import Message, joined, without_tools
from pltz.models.session.session import Session

if TYPE_CHECKING:
    from pltz.models.target.target import Target

PLAIN = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", "from", "value", "reasoning_content"))


def messages_of(session: Session) -> list[Message] | None:
    """Return the messages of an agent's log in the form that chat templates take; None of any other session.

    >>> said = {"role": "user", "content": "Hi"}
    >>> messages_of(Session("chat", [{"type": "user", "sessionId": "s", "uuid": "0f3a", "message": said}]))
    [{'role': 'user', 'content': 'Hi'}]
    """
    if session.kind == "ids":
        return None
    try:
        known, value = _parsed(session.value) if session.kind == "text" else (_known(session.value), session.value)
        if known is None or known.conversation is None:
            return None
        messages = joined(known.conversation(value))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # an agent's log may hold anything
        return None
    return messages if messages and all(isinstance(message["role"], str) for message in messages) else None


def seen_by(model: Target, session: Session) -> Session:
    """Return a session as the ids that a target would prefill: of a log, those of the conversation that the agent had.

    Raises the errors of `models.target.target.as_seen_by`.
    """
    from pltz.models.target.target import as_seen_by

    messages = messages_of(session)
    return as_seen_by(model, session) if messages is None else rendered(model, messages)


def rendered(model: Target, messages: list[Message]) -> Session:
    """Return messages of a conversation as the ids that a target would prefill. Raises the errors of `seen_by`."""
    return Session("ids", model.render(messages if model.takes_tools else without_tools(messages)))


def _parsed(text: bytes) -> tuple[InputFormat | None, Any]:
    """Return the format and the value of a text: JSON, JSON lines, or the text itself."""
    if head := registry.of_head(text[:HEAD]):
        return head, text
    try:
        value: Any = json.loads(narrow(text))
        if isinstance(value, dict) and registry.of_value(value) is None:
            value = [value]  # a log of one line
    except (ValueError, RecursionError):
        value = [one for one in values(text) if isinstance(one, dict)]
    return _known(value), value


def _known(value: Any) -> InputFormat | None:
    """Return the format of an agent's log, None for other values. A list of nothing but messages is a chat."""
    known = registry.of_value(value)
    if known is not None and known.noun == "agent log":
        return known
    events = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    if not events or (known is not None and all(item.keys() <= PLAIN for item in value)):
        return None
    return registry.of_events(value[:EVENTS])
