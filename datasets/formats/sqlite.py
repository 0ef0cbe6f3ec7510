"""SQLite: a session per row of a query. The file is opened for reading alone, and a query can do nothing else.

A row of one column is a chat or other JSON where all of it is, else a text; bytes stay bytes. A row of the columns of
`session_columns` is a session with a name. Any other row is an object with the columns as keys.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import InputFormat, Part, ReadOptions, named_row
from pltz.datasets.session_columns import name_sessions
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, UsageError

MAGIC = b"SQLite format 3\0"
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the rows of a query. Raises UsageError, ContentError."""
    if options.exact:
        raise UsageError(f"{source.name}: --exact keeps the bytes of JSON and text, and rows have none: leave it out")
    with closing(_open(source)) as base:
        if options.query is None:
            tables = [name for (name,) in base.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            found = ", ".join(sorted(tables)) or "none"
            raise UsageError(f"{source.name}: a database: choose its rows with --query 'SELECT ...' (tables: {found})")
        base.set_authorizer(_only_reads)
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, options.max_bytes)
        try:
            rows = base.execute(options.query)
            names = [column[0] for column in rows.description or ()]
            for number, row in enumerate(rows, 1):
                yield _of_row(names, row, f"{source.name}: row {number}")
        except (sqlite3.Error, sqlite3.Warning) as exc:
            raise UsageError(f"{source.name}: the query fails: {exc}") from exc


def _open(source: ByteInput) -> sqlite3.Connection:
    if source.path is not None:
        return sqlite3.connect(f"file:{quote(str(source.path))}?mode=ro", uri=True)
    base = sqlite3.connect(":memory:")
    base.deserialize(source.rest())
    return base


def _only_reads(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def _of_row(names: list[str], row: tuple[Any, ...], place: str) -> Part:
    if len(row) == 1 and isinstance(row[0], str | bytes):
        value = row[0]
        return Part(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value, place)
    if len(set(names)) < len(names):
        raise UsageError(f"{place}: two columns of the query have one name: name them apart with AS")
    if name_sessions(names):
        return named_row(dict(zip(names, row, strict=True)), place)
    if any(isinstance(value, bytes) for value in row):
        raise ContentError(f"{place}: a column holds bytes, which JSON cannot: choose that column alone")
    return Part(Session("chat", dict(zip(names, row, strict=True))), place)


FORMAT = InputFormat(
    "sqlite",
    "json",
    "SQLite databases, a session per row of --query",
    of_head=lambda head: head.startswith(MAGIC),
    read=_read,
)
