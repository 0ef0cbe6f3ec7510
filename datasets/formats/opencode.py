"""OpenCode: its database opencode.db, or one JSON document per session, as ``opencode export`` writes it.

    {"info": {"id": "ses_...", "directory": "/home/ada/shop"}, "messages": [{"info": {...}, "parts": [...]}]}

Of the database a session is the rows of its messages, each with its parts, and at the end its own row. Tables of
events repeat them and are left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from pltz.datasets.formats.database import Database, Sessions, are_rows, line, parsed, rows, tables_of
from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, called, said


def _has_parts(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return isinstance(message.get("parts"), list) and isinstance(message.get("info"), dict)


def _is_document(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("info"), dict):
        return False
    return is_messages(value.get("messages"), _has_parts) and str(value["info"].get("id", "")).startswith("ses_")


def _sessions(base: sqlite3.Connection) -> Sessions:
    more = [table for table in ("session_message", "todo") if "session_id" in tables_of(base).get(table, ())]

    def lines(session: dict[str, Any]) -> Iterator[bytes]:
        of = session["id"]
        for message in rows(base, "SELECT * FROM message WHERE session_id = ? ORDER BY time_created, id", of):
            yield line("message", message)
            for part in rows(base, "SELECT * FROM part WHERE message_id = ? ORDER BY id", message["id"]):
                yield line("part", part)
        for table in more:
            for row in rows(base, f"SELECT * FROM {table} WHERE session_id = ? ORDER BY rowid", of):
                yield line(table, row)
        yield line("session", session)

    for session in rows(base, "SELECT * FROM session ORDER BY id"):
        yield f"opencode/{session['id']}", lines(session)


def _document(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of a session of a database."""
    found: dict[str, Any] = {"info": {}, "messages": []}
    for event in events:
        if event["table"] == "message":
            found["messages"].append({"info": {**event["data"], "id": event.get("id")}, "parts": []})
        elif event["table"] == "part":
            found["messages"][-1]["parts"].append(event["data"])
        elif event["table"] == "session":
            found["info"] = {**event, "revert": parsed(event.get("revert"))}
    return found


def exported(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a session of a database as the document that ``opencode import`` takes."""
    found: dict[str, Any] = {"info": {}, "messages": []}
    for event in events:
        row = {key: value for key, value in event.items() if value is not None}
        own = {"id": row.get("id"), "sessionID": row.get("session_id")}
        if event["table"] == "message":
            found["messages"].append({"info": {**row["data"], **own}, "parts": []})
        elif event["table"] == "part":
            found["messages"][-1]["parts"].append({**row["data"], **own, "messageID": row.get("message_id")})
        elif event["table"] == "session":
            found["info"] = _info(row)
    return found


def _info(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a session as OpenCode shows it. What is in other columns has no place there."""
    names = {"project_id": "projectID", "parent_id": "parentID", "workspace_id": "workspaceID"}
    kept = ("id", "slug", "directory", "title", "version")
    info = {names.get(name, name): row[name] for name in (*kept, *names) if name in row}
    info.setdefault("slug", row.get("id"))
    documents = {name: parsed(row.get(name)) for name in ("revert", "permission")}
    info |= {name: value for name, value in documents.items() if value is not None}
    for head in ("time", "summary", "share"):
        own = {name.removeprefix(f"{head}_"): row[name] for name in row if name.startswith(f"{head}_")}
        info |= {head: own} if own else {}
    return info


def conversation(value: Any) -> list[Message]:
    """Return the messages of a session up to where it was reverted, from the last compaction on."""
    value = _document(value) if isinstance(value, list) else value
    revert = value["info"].get("revert")
    undone = revert.get("messageID") if isinstance(revert, dict) else None
    found: list[Message] = []
    for message in value["messages"]:
        if undone is not None and message["info"].get("id") == undone:
            break
        if message["info"].get("summary") is True:
            found = []
        found += at(message["info"], _messages(message))
    return found


def unfolded(value: Any) -> tuple[dict[str, Any], str]:
    """Return a session with what was reverted and what a summary replaced, and that as the reason."""
    value = _document(value) if isinstance(value, list) else value
    every = [{**m, "info": {**m["info"], "summary": None}} for m in value["messages"]]
    whole = {**value, "info": {**value["info"], "revert": None}, "messages": every}
    return whole, "others were reverted, or a summary took their place"


def _messages(message: dict[str, Any]) -> list[Message]:
    role = message["info"].get("role", "user")
    found = said("system", message["info"].get("system"))
    for part in message["parts"]:
        if part.get("type") == "text" and not part.get("ignored"):
            found += said(role, part.get("text"))
        elif part.get("type") == "tool":
            state = part.get("state") or {}
            found.append(called(part.get("tool"), state.get("input")))
            found.append(answered(state.get("output", state.get("error", ""))))
    return found


FORMAT = InputFormat(
    "opencode",
    "agent log",
    "sessions of OpenCode: its database, or exported",
    of_value=_is_document,
    of_events=are_rows("message", "part", "session_message", "todo", "session"),
    conversation=conversation,
    unfolded=unfolded,
)
NEEDS = {"session": {"id", "project_id"}, "message": {"session_id", "time_created", "data"}, "part": {"message_id"}}
STORE = Database(FORMAT, NEEDS, _sessions)
