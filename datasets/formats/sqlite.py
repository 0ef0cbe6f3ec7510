"""SQLite: the sessions of an agent that keeps them so, or a session per row of a query.

A database that an agent may be writing is read from a copy of it and its log (WAL), which is made anew until it
is of one moment. Neither it nor what lies beside it is changed. A query can do nothing but read.

A row of one column is a chat or other JSON where all of it is, else a text; bytes stay bytes. A row of the columns of
`session_columns` is a session with a name. Any other row is an object with the columns as keys.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.formats import cursor, llm_logs, opencode, zed
from pltz.datasets.formats.database import Database, tables_of
from pltz.datasets.input_format import InputFormat, Part, ReadOptions, of_row
from pltz.datasets.session_columns import RowName
from pltz.models.session.session import Session
from pltz.plt_codec.errors import CorruptError, UsageError

MAGIC = b"SQLite format 3\0"
WAL_HEAD = 32  # bytes, two salts among them
TRIES, PAUSE = 5, 0.1  # of a copy while somebody writes, and seconds between them
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
STORES: tuple[Database, ...] = (opencode.STORE, cursor.STORE, zed.STORE, llm_logs.STORE)


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of a database, or the rows of a query. Raises UsageError, ContentError, CorruptError."""
    with _open(source, options) as base:
        try:
            yield from _sessions(base, source, options) if options.query is None else _rows(base, source.name, options)
        except (sqlite3.Error, sqlite3.Warning) as exc:
            if options.query is None:
                raise CorruptError(f"{source.name}: expected a database: {exc}") from exc
            raise UsageError(f"{source.name}: the query fails: {exc}") from exc


def _sessions(base: sqlite3.Connection, source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    tables = tables_of(base)
    store = next((one for one in STORES if all(tables.get(name, set()) >= one.needs[name] for name in one.needs)), None)
    if store is None:
        found = ", ".join(sorted(tables)) or "none"
        raise UsageError(f"{source.name}: a database: choose its rows with --query 'SELECT ...' (tables: {found})")
    base.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    for name, lines in store.sessions(base):
        place = f"{source.name}: session {name}"
        blocks = SimpleNamespace(read=lambda _, lines=lines: next(lines, b""))
        text = ByteInput(blocks, place, options.max_bytes).text(long=options.long)
        yield Part(Session("text", text), place, "agent log", RowName(name), store.format)


def _rows(base: sqlite3.Connection, name: str, options: ReadOptions) -> Iterator[Part]:
    base.set_authorizer(_only_reads)
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, options.max_bytes)
    rows = base.execute(options.query or "")
    names = [column[0] for column in rows.description or ()]
    if len(set(names)) < len(names):
        raise UsageError(f"{name}: two columns of the query have one name: name them apart with AS")
    for number, row in enumerate(rows, 1):
        yield from of_row(dict(zip(names, row, strict=True)), f"{name}: row {number}", options)


@contextmanager
def _open(source: ByteInput, options: ReadOptions) -> Iterator[sqlite3.Connection]:
    """Open a database: in place for a query where that changes no file, else a copy, which goes afterwards."""
    head = source.peek(100)
    if source.path is None:
        with closing(sqlite3.connect(":memory:")) as base:
            data = source.rest()
            base.deserialize(data[:18] + b"\1\1" + data[20:])  # no WAL in memory
            yield base
    elif options.query is not None and head[18:20] == b"\1\1":
        with closing(sqlite3.connect(f"file:{quote(str(source.path))}?mode=ro", uri=True)) as base:
            yield base
    else:
        with tempfile.TemporaryDirectory() as folder:
            _copy(source.path, Path(folder, "base"))
            with closing(sqlite3.connect(Path(folder, "base"))) as base:
                with suppress(sqlite3.Error):  # what is no database is told by whoever reads it
                    base.execute("SELECT 1 FROM sqlite_schema").fetchone()  # opens the log as well
                for path in Path(folder).iterdir():  # a kill leaves no copy of what was said
                    path.unlink()
                yield base


def _copy(path: Path, to: Path) -> None:
    """Copy a database with its log, as it was at one moment. Raises UsageError where it is written all the time.

    The log is copied last, and may grow meanwhile: SQLite takes of it what was committed whole. That is right as long
    as nothing of it went into the database, and it did not begin anew.
    """
    for _ in range(TRIES):
        before = _state(path)
        age = time.time_ns() - os.stat(path).st_mtime_ns
        settled = not -6e10 < age < PAUSE * 5e8  # what is written later has another time
        for end in ("", "-journal", "-wal") if settled else ():
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{end}", f"{to}{end}")
        if settled and _state(path) == before:
            return
        for end in ("-journal", "-wal"):
            Path(f"{to}{end}").unlink(missing_ok=True)
        time.sleep(PAUSE)
    raise UsageError(f"{path}: is written to all the time: try again later")


def _state(path: Path) -> list[object]:
    """Return size and time of a database and of its journal, and the head of its log, which has a number of its own."""
    found: list[object] = []
    for end in ("", "-journal"):
        with suppress(FileNotFoundError):
            at = os.stat(f"{path}{end}")
            found += [end, at.st_size, at.st_mtime_ns]
    with suppress(FileNotFoundError), open(f"{path}-wal", "rb") as log:
        found.append(log.read(WAL_HEAD))
    return found


def _only_reads(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


FORMAT = InputFormat(
    "sqlite",
    "json",
    "SQLite databases: sessions of an agent, or one per row of --query",
    of_head=lambda head: head.startswith(MAGIC),
    read=_read,
)
