"""Zed: the threads of its agent in threads.db, a row each, whose data is JSON, mostly packed as zstd.

    {"title": ..., "messages": [{"User": {"id": ..., "content": [{"Text": "Hi"}]}}, {"Agent": {...}}], ...}

A session has a line per message, and then one of the row and of the rest of the thread. Threads of older versions
have messages with a role and segments.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.formats.database import Database, Sessions, are_rows, line, parsed, rows
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, said
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.limits import MAX_BYTES


def _sessions(base: sqlite3.Connection) -> Sessions:
    def lines(row: dict[str, Any]) -> Iterator[bytes]:
        data = row["data"].encode("utf-8", "surrogateescape") if isinstance(row["data"], str) else row["data"]
        packed = ByteInput(io.BytesIO(data), f"thread {row['id']}", MAX_BYTES)
        if row["data_type"] == "zstd":
            packed.unpack()
        with suppress(PltzError):  # what cannot be unpacked stays packed
            data = packed.rest()
        thread = parsed(data)
        if not isinstance(thread, dict):
            thread, row["data"] = {}, data
        messages = thread.pop("messages", None) or []
        for message in messages:
            yield line("messages", {"message": message})
        yield line("threads", {**row, "data": thread} if thread else row)

    for row in rows(base, "SELECT * FROM threads ORDER BY id"):
        yield f"zed/{row['id']}", lines(row)


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a thread."""
    found: list[Message] = []
    for event in events:
        message = event.get("message")
        if not isinstance(message, dict):
            continue
        for role, name in ("user", "User"), ("assistant", "Agent"):
            of = message.get(name, {})
            for part in of.get("content", ()):
                found += _part(role, part, of.get("tool_results") or {})
        if "segments" in message:
            found += said(message["role"], [part for part in message.get("segments", ()) if part.get("type") == "text"])
    return found


def _part(role: str, part: dict[str, Any], results: dict[str, Any]) -> list[Message]:
    """Return what one part says. ``results``: of the tools, by the id of the call."""
    if "Mention" in part:
        return said(role, part["Mention"].get("content"))
    if "ToolUse" not in part:
        return said(role, part.get("Text"))
    use = part["ToolUse"]
    result = results.get(use.get("id"), {}).get("content", "")
    texts = [one.get("Text", "") if isinstance(one, dict) else str(one) for one in _list(result)]
    return [called(use.get("name"), use.get("input")), answered("\n".join(texts))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


FORMAT = InputFormat(
    "zed",
    "agent log",
    "threads of Zed's database",
    of_events=are_rows("messages", "threads"),
    conversation=conversation,
)
STORE = Database(FORMAT, {"threads": {"id", "data_type", "data"}}, _sessions)
