"""``llm`` by Simon Willison: its database logs.db, a session per conversation.

    {"table":"responses","id":"01j...","model":"gpt-5","prompt":"Hi","system":null,"response":"Hello",...}

A session is the rows of its responses, each with the rows of its tools and attachments, and at the end its own row. A
response without a conversation is a session by itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from pltz.datasets.formats.database import Database, Sessions, are_rows, line, rows, tables_of
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, said

BESIDE = ("tool_results", "tool_calls", "prompt_attachments")  # tables with rows of a response
ATTACHED = "SELECT a.* FROM attachments a JOIN prompt_attachments p ON p.attachment_id = a.id WHERE p.response_id = ?"


def _sessions(base: sqlite3.Connection) -> Sessions:
    tables = tables_of(base)
    more = [table for table in BESIDE if "response_id" in tables.get(table, ())]

    def lines(where: str, of: str) -> Iterator[bytes]:
        for response in rows(base, f"SELECT * FROM responses WHERE {where} = ? ORDER BY id", of):
            yield line("responses", response)
            for table in more:
                for row in rows(base, f"SELECT * FROM {table} WHERE response_id = ? ORDER BY rowid", response["id"]):
                    yield line(table, row)
            for row in rows(base, ATTACHED, response["id"]) if {"attachments", BESIDE[2]} <= tables.keys() else ():
                yield line("attachments", row)
        if where != "id":
            found = rows(base, "SELECT * FROM conversations WHERE id = ?", of)
            yield from (line("conversations", row) for row in found)

    for (of,) in base.execute("SELECT DISTINCT conversation_id FROM responses WHERE conversation_id > '' ORDER BY 1"):
        yield f"llm/{of}", lines("conversation_id", of)
    for (of,) in base.execute("SELECT id FROM responses WHERE coalesce(conversation_id, '') = '' ORDER BY id"):
        yield f"llm/{of}", lines("id", of)


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a conversation. Its instructions are with each response, and are said once."""
    found: list[Message] = []
    system = None
    for number, event in enumerate(events):
        table = event["table"]
        if table == "responses":
            if event.get("system") != system:
                system = event.get("system")
                found += said("system", system)
            results = [row for row in events[number + 1 : _end(events, number)] if row["table"] == "tool_results"]
            found += [answered(row.get("output")) for row in results]
            found += [*said("user", event.get("prompt")), *said("assistant", event.get("response"))]
        elif table == "tool_calls":
            found.append(called(event.get("name"), event.get("arguments")))
    return found


def _end(events: list[dict[str, Any]], number: int) -> int:
    """Return where the rows of a response end."""
    later = range(number + 1, len(events))
    return next((n for n in later if events[n]["table"] == "responses"), len(events))


FORMAT = InputFormat(
    "llm",
    "agent log",
    "conversations of llm's database",
    of_events=are_rows("responses", *BESIDE, "attachments", "conversations"),
    conversation=conversation,
)
NEEDS = {"responses": {"id", "prompt", "response", "conversation_id"}, "conversations": {"id"}}
STORE = Database(FORMAT, NEEDS, _sessions)
