"""Cursor and VS Code: the database state.vscdb, whose tables hold a key and a value each.

    cursorDiskKV   composerData:ID, bubbleId:ID:BUBBLE      a chat of Cursor, and its messages
    ItemTable      workbench.panel.aichat.view.aichat.chatdata      {"tabs": [...]}, older chats of Cursor
    ItemTable      interactive.sessions                             [...], older chats of VS Code, see vscode_chat.py

A chat of Cursor is the rows of its messages in their order, and then its own. Nothing else there is a session.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from pltz.datasets.formats.database import Database, Sessions, are_rows, line, parsed, rows, tables_of
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, said

TABS, OLDER = "workbench.panel.aichat.view.aichat.chatdata", "interactive.sessions"
ROWS = "SELECT key, value FROM cursorDiskKV WHERE key >= ? AND key < ? ORDER BY "
ROLES = {1: "user", 2: "assistant", "user": "user", "ai": "assistant"}  # types of messages


def _sessions(base: sqlite3.Connection) -> Sessions:
    for row in rows(base, ROWS + "key", "composerData:", "composerData;") if "cursorDiskKV" in tables_of(base) else ():
        yield f"cursor/{row['key'].partition(':')[2]}", _lines(base, row)
    for key, value in base.execute("SELECT key, value FROM ItemTable WHERE key IN (?, ?) ORDER BY key", (TABS, OLDER)):
        chats = parsed(value)
        for chat in (chats.get("tabs", ()) if isinstance(chats, dict) else chats) or ():
            if key == OLDER and isinstance(chat, dict):
                yield f"vscode/{chat.get('sessionId')}", iter([json.dumps(chat, ensure_ascii=False).encode() + b"\n"])
            elif isinstance(chat, dict):
                yield f"cursor/{chat.get('tabId')}", iter([line("ItemTable", {"key": key, "value": chat})])


def _lines(base: sqlite3.Connection, composer: dict[str, Any]) -> Iterator[bytes]:
    """Yield the messages of a chat in their order, those that it does not name in that of the table."""
    start = f"bubbleId:{composer['key'].partition(':')[2]}:"
    data = parsed(composer["value"])
    headers = data.get("fullConversationHeadersOnly") if isinstance(data, dict) else None
    order = {f"{start}{one.get('bubbleId')}": n for n, one in enumerate(headers or ()) if isinstance(one, dict)}
    keys = [row["key"] for row in rows(base, ROWS.replace(", value", "") + "rowid", start, start[:-1] + ";")]
    for key in sorted(keys, key=lambda key: order.get(key, len(order))):
        yield from (line("cursorDiskKV", row) for row in rows(base, ROWS + "key", key, key + "\0"))
    yield line("cursorDiskKV", composer)


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a chat."""
    values = [event["value"] for event in events if isinstance(event.get("value"), dict)]
    lists = [value.get("bubbles") or value.get("conversation") for value in values]
    bubbles = [one for value, inner in zip(values, lists, strict=True) for one in inner or [value]]
    return [message for bubble in bubbles for message in _said(bubble)]


def _said(bubble: dict[str, Any]) -> list[Message]:
    role = ROLES.get(kind) if isinstance(kind := bubble.get("type"), int | str) else None
    found = said(role, bubble.get("text")) if role else []
    if isinstance(tool := bubble.get("toolFormerData"), dict):
        found.append(called(tool.get("name"), tool.get("params", tool.get("rawArgs"))))
        found.append(answered(tool.get("result") or ""))
    return found


FORMAT = InputFormat(
    "cursor-chat",
    "agent log",
    "chats in the databases of Cursor and VS Code",
    of_events=are_rows("cursorDiskKV", "ItemTable"),
    conversation=conversation,
)
STORE = Database(FORMAT, {"ItemTable": {"key", "value"}}, _sessions)
