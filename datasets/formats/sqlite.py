"""SQLite: a session per row of a query. The file is opened for reading alone, and a query can do nothing else.

A row of one column is a chat or other JSON where all of it is, else a text; bytes stay bytes. A row of the columns of
`session_columns` is a session with a name. Any other row is an object with the columns as keys.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import InputFormat, Part, ReadOptions, of_row
from pltz.plt_codec.errors import UsageError

MAGIC = b"SQLite format 3\0"
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the rows of a query. Raises UsageError, ContentError."""
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
            if len(set(names)) < len(names):
                raise UsageError(f"{source.name}: two columns of the query have one name: name them apart with AS")
            for number, row in enumerate(rows, 1):
                yield of_row(dict(zip(names, row, strict=True)), f"{source.name}: row {number}")
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


FORMAT = InputFormat(
    "sqlite",
    "json",
    "SQLite databases, a session per row of --query",
    of_head=lambda head: head.startswith(MAGIC),
    read=_read,
)
