"""Databases in which agents keep their sessions: each session as JSON lines, one per row, with its table and columns.

    {"table":"part","id":"prt_1","message_id":"msg_1","session_id":"ses_1","data":{"type":"text","text":"Hi"}}

The bytes depend on the rows alone. What an agent writes again as it goes on is the last line, so a session that grew
begins with its old lines. JSON that a row holds stays as it is, to the byte.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pltz.datasets.input_format import InputFormat

Sessions = Iterator[tuple[str, Iterator[bytes]]]  # name and lines of each


class Database(NamedTuple):
    """A kind of database. ``needs``: columns by table that tell it. ``sessions``: of an open one."""

    format: InputFormat
    needs: Mapping[str, set[str]]
    sessions: Callable[[sqlite3.Connection], Sessions]


def tables_of(base: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the columns of each table."""
    found: dict[str, set[str]] = {}
    query = "SELECT m.name, p.name FROM sqlite_schema m, pragma_table_info(m.name) p WHERE m.type = 'table'"
    for table, column in base.execute(query):
        found.setdefault(table, set()).add(column)
    return found


def rows(base: sqlite3.Connection, query: str, *values: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query as columns."""
    found = base.execute(query, values)
    names = [column[0] for column in found.description]
    return (dict(zip(names, row, strict=True)) for row in found)


def line(table: str, row: Mapping[str, Any]) -> bytes:
    """Return a row as a line. Bytes that are no UTF-8 are in base64.

    >>> line("part", {"id": "p1", "data": '{"n":1.0}', "raw": b"\\xff"})
    b'{"table":"part","id":"p1","data":{"n":1.0},"raw":{"base64":"/w=="}}\\n'
    """
    fields = ",".join(f"{json.dumps(name)}:{_json(name, value)}" for name, value in {"table": table, **row}.items())
    return f"{{{fields}}}\n".encode("utf-8", "surrogateescape")


def _json(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = {"base64": base64.b64encode(value).decode()}
    is_document = name in ("data", "value") or name.endswith("_json")
    if is_document and isinstance(value, str) and value[:1] in ("{", "[") and "\n" not in value:
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            pass
        else:
            return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parsed(value: Any) -> Any:
    """Return the value of JSON in a row, None where it is none."""
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None


def are_rows(*tables: str) -> Callable[[Any], bool]:
    """Return a test of whether events are rows of these tables."""
    return lambda events: bool(events) and all(event.get("table") in tables for event in events)
