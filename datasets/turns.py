"""Turns: messages in the form that chat templates take, and how the parts of logs become them.

    {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function", "function": {"name": ..., ...}}]}
    {"role": "tool", "content": "a.py  b.py"}

They have no ids: those of a log are made by its agent, and no model was shown them as text. What a reader of a log
sees beside, the time and the pictures, stands under `BESIDE` until `conversation.messages_of` takes it away.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from pltz.datasets.session_columns import moment
from pltz.plt_codec.errors import ContentError

Message = dict[str, Any]

CALLS = ("tool_use", "server_tool_use", "toolCall", "tool-call", "tool_call")  # types of parts that call a tool
RESULTS = ("tool_result", "tool-result")
HIDDEN = ("thinking", "redacted_thinking", "reasoning")  # parts that a later request leaves out
BESIDE = ("time", "pictures")  # keys of a message that no model is shown: seconds since 1970, and data: URLs
TIMES = "timestamp", "time", "ts", "createdAt", "created_at", "create_time", "created"  # keys of the time of an event
MILLISECONDS = 1 << 40  # numbers from here on are no seconds
EARLIEST = 946_684_800  # 2000-01-01; what is before is no date, as seconds since a session began


def text_of(content: Any) -> str:
    """Return the text of a content: a string, or parts with a text each.

    >>> text_of([{"type": "text", "text": "one"}, {"type": "image"}, {"text": "two"}])
    'one\\n[image]\\ntwo'
    """
    if isinstance(content, dict):
        content = content.get("content", content.get("output", [content]))
    if isinstance(content, str):
        return content
    found: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict) and isinstance(text := part.get("text", part.get("content")), str):
            found.append(text)
        elif isinstance(part, dict) and isinstance(part.get("type"), str):
            found.append(f"[{part['type']}]")
    return "\n".join(found)


def time_of(event: dict[str, Any]) -> int:
    """Return when an event was, in seconds since 1970; 0 where it does not say so.

    >>> time_of({"timestamp": "2026-01-05T09:00Z"}), time_of({"time": {"created": 1767603600000}}), time_of({"ts": 7.5})
    (1767603600, 1767603600, 0)
    """
    for key in TIMES:
        time = event.get(key)
        if time is None:
            continue
        if isinstance(time, dict):
            return time_of(time)
        if isinstance(time, int | float) and time >= MILLISECONDS:
            time //= 1000
        with suppress(ContentError):
            if (found := moment(time, key)) >= EARLIEST:
                return found
    return 0


def at(event: dict[str, Any], messages: list[Message]) -> list[Message]:
    """Return the messages of an event, with its time."""
    if messages and (time := time_of(event)):
        for message in messages:
            message.setdefault("time", time)
    return messages


def pictures_of(content: Any) -> list[str]:
    """Return the pictures of a content that are in it as base64, as data: URLs of whatever is written there.

    >>> pictures_of([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}])
    ['data:image/png;base64,AAAA']
    """
    found: list[str] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        inner = next((part[key] for key in ("source", "inlineData", "image_url") if key in part), part)
        if isinstance(inner, dict) and isinstance(inner.get("data"), str):
            kind = inner.get("media_type", inner.get("mimeType", inner.get("mime_type")))
            found.append(f"data:{kind};base64,{inner['data']}")
        url = inner.get("url") if isinstance(inner, dict) else inner
        if isinstance(url, str) and url.startswith("data:"):
            found.append(url)
    return found


def _seen(message: Message, content: Any) -> Message:
    if isinstance(content, list) and (pictures := pictures_of(content)):
        message["pictures"] = pictures
    return message


def said(role: str, content: Any) -> list[Message]:
    """Return a message with the text of a content, or none where it has none."""
    text = text_of(content)
    return [_seen({"role": role, "content": text}, content)] if text.strip() else []


def called(name: Any, arguments: Any) -> Message:
    """Return a call of a tool. Arguments that are no object are kept as the one argument ``input``."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {"input": arguments}
    if not isinstance(arguments, dict):
        arguments = {} if arguments is None else {"input": arguments}
    call = {"type": "function", "function": {"name": str(name), "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def answered(content: Any) -> Message:
    """Return the result of a tool."""
    text = text_of(content)
    text = text if text or content in (None, "", []) else json.dumps(content)
    return _seen({"role": "tool", "content": text}, content)


def spoken(role: str, content: Any) -> list[Message]:
    """Return the messages of a content of parts: text, calls of tools and their results, without hidden reasoning."""
    if not isinstance(content, list):
        return said(role, content)
    found: list[Message] = []
    text: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in HIDDEN:
            continue
        if kind not in CALLS and kind not in RESULTS:
            text.append(part)
            continue
        found += said(role, text)
        text = []
        if kind in CALLS:
            found.append(called(part.get("name"), part.get("input", part.get("arguments"))))
        else:
            found.append(answered(part.get("content")))
    return found + said(role, text)


def joined(messages: Iterable[Message], *, told: bool = False) -> list[Message]:
    """Return messages with those of one role in a row made one, as a request has them.

    Results of tools stay apart. Instructions that come later than the first are words of the user: many templates take
    them only at the beginning. With ``told``, for readers, they stay instructions.
    """
    found: list[Message] = []
    for message in messages:
        role = {"developer": "system"}.get(message["role"], message["role"])
        if role == "system" and not told and any(one["role"] != "system" for one in found):
            role = "user"
        last = found[-1] if found else None
        if last is None or last["role"] != role or role == "tool":
            found.append({**message, "role": role})
            continue
        last["content"] = "\n\n".join(filter(None, (last["content"], message["content"])))
        if calls := message.get("tool_calls"):
            last["tool_calls"] = [*last.get("tool_calls", []), *calls]
        if pictures := message.get("pictures"):
            last["pictures"] = [*last.get("pictures", []), *pictures]
    return found


def without_tools(messages: Sequence[Message]) -> list[Message]:
    """Return messages for a template that has no place for tools: calls are text of the assistant, results the user's.

    >>> [message["content"] for message in without_tools([called("ls", {"path": "."}), answered("a.py")])]
    ['ls({"path": "."})', 'a.py']
    """
    found: list[Message] = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        lines = [f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls]
        text = "\n".join(filter(None, (message["content"], *lines)))
        found.append({"role": "user" if message["role"] == "tool" else message["role"], "content": text})
    return joined(found)


def most_are_typed(events: Sequence[dict[str, Any]]) -> bool:
    """Return whether most events say their type. One that others wrote between makes no other log of them."""
    return 2 * sum(isinstance(event.get("type"), str) for event in events) > len(events)


def branch(
    events: Sequence[dict[str, Any]], leaf: dict[str, Any], key: str = "id", parent: str = "parentId"
) -> list[dict[str, Any]]:
    """Return the events from the root of a tree to a leaf: the branch that the agent was on. Each is met once.

    >>> [event["id"] for event in branch([{"id": 1}, {"id": 2, "parentId": 1}], {"id": 3, "parentId": 1})]
    [1, 3]
    """
    known = {event[key]: event for event in events if isinstance(event.get(key), str | int)}
    found: list[dict[str, Any]] = []
    at: dict[str, Any] | None = leaf
    met: set[Any] = set()
    while at is not None and id(at) not in met:
        met.add(id(at))
        if key in at:
            found.append(at)
        above = at.get(parent)
        at = known.get(above) if isinstance(above, str | int) else None
    return found[::-1]


def in_a_row(events: Sequence[dict[str, Any]], key: str = "id", parent: str = "parentId") -> list[dict[str, Any]]:
    """Return the events of a tree as one branch, in the order in which they were written.

    >>> in_a_row([{"id": "a"}, {"id": "b", "parentId": "lost"}])
    [{'id': 0, 'parentId': -1}, {'id': 1, 'parentId': 0}]
    """
    return [{**event, key: number, parent: number - 1} for number, event in enumerate(events)]


def why_apart(events: Sequence[dict[str, Any]], leaf: dict[str, Any], key: str = "id", parent: str = "parentId") -> str:
    """Return why the branch to a leaf may have fewer events than a tree.

    >>> why_apart([{"id": 1}, {"id": 1}, {"id": 2, "parentId": 7}], {"id": 2, "parentId": 7})
    '1 event has the id of another one, and the parent of one is not in the log'
    """
    names = Counter(event[key] for event in events if isinstance(event.get(key), str | int))
    again = names.total() - len(names)
    way = branch(events, leaf, key, parent)
    top = way[0].get(parent) if way else None
    end = "others are on branches that were left, or before the log was compacted"
    if isinstance(top, str | int):
        end = "the parents of some go in a circle" if top in names else "the parent of one is not in the log"
    if not again:
        return end
    return f"{again:,} event{' has' if again == 1 else 's have'} the {key} of another one, and {end}"
