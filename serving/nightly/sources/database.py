"""Sessions in a database, read by a query.

The database is SQLite (standard library) or PostgreSQL (psycopg, extra ``postgres``). It is only read. The
query returns one row per session, with the columns

    name       its name; one row per name
    session    JSON, as text, bytes or the database's own JSON type
    tenant     optional
    time       optional: seconds since 1970, ISO 8601 or the database's own type

    SELECT id AS name, body AS session, updated AS time FROM chats WHERE updated < now() - interval '1 day'

    SELECT chat AS name,
           json_object('messages', json_group_array(json_object('role', role, 'content', content))) AS session
    FROM (SELECT * FROM messages ORDER BY chat, number) GROUP BY chat

It runs twice: for the names, to cut them into ranges, and for the rows of each range. Nothing is loaded as a whole. A
range's rows go into a temporary file, and the database is released before the first of them is frozen. A session over
``max_bytes`` does not leave the database. While rows are fetched, SQLite blocks writers and PostgreSQL cannot vacuum.
"""

from __future__ import annotations

import itertools
import pickle
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pltz.archive import Archive, PutRequest
from pltz.datasets import bytes_of, name_of, name_sessions
from pltz.models import Bundle, Session
from pltz.plt_codec import MAX_BYTES, ContentError, UsageError
from pltz.serving.eviction.checked import Limits, Word
from pltz.serving.nightly.naming import BY_ENTRY, Naming
from pltz.serving.nightly.sources.source import SHARD_SESSIONS, Sink, SourceEntry, SourceShard, Unreadable, path_setting

SHOWN = 80  # characters of a name
TIMES = ("date", "timestamp", "timestamptz")  # of PostgreSQL
AT_ONCE = 256  # rows per fetch from a server, fewer where they are large
FETCH = 4 << 20  # bytes
GROUP = 1 << 16  # bytes of rows kept together
IN_MEMORY = 8 << 20  # bytes of a range; larger ones go to disk

Row = Sequence[Any]
Quote = Callable[[Any], str]
Ask = Callable[[str], tuple[list[str], Iterator[Row]]]  # SQL -> (columns, rows)


@dataclass(frozen=True)
class DatabaseSource(ABC):
    """The common part of both databases. ``max_bytes``: of a session."""

    name: Word
    query: str
    naming: Naming = field(default_factory=Naming)
    max_bytes: Annotated[int, Limits(1, MAX_BYTES)] = MAX_BYTES
    repeats = False
    kind = "database"
    naming_keys = BY_ENTRY

    def settings(self) -> list[Any]:
        """Return the settings that decide how rows are stored. See `EntrySource.settings`."""
        return ["rows", *self.naming.settings()]

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield ranges of names. Raises UsageError where the database cannot be read or the columns are
        wrong."""
        for low, high in itertools.pairwise([None, *self._cuts(), None]):
            place = "all" if low is None else f"names from {str(low)[:SHOWN]!r}"
            yield SourceShard(number, place, (low, high))

    def _cuts(self) -> list[Any]:
        """Return the names at which ranges begin."""
        cuts: list[Any] = []
        with self._opened() as (ask, _):
            self._check(ask(f"SELECT * FROM ({self._sql}) AS sessions LIMIT 0")[0])
            names = f"SELECT name FROM ({self._sql}) AS sessions WHERE name IS NOT NULL ORDER BY name"
            for count, (name, *_) in enumerate(ask(names)[1], 1):
                if count % SHARD_SESSIONS == 0 and (not cuts or name != cuts[-1]):
                    cuts.append(name)
        return cuts

    def entries(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable]:
        """Yield the rows of a range. Raises UsageError where the database cannot be read."""
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as kept:
            count = 0
            for group in _groups(self._asked(shard)):
                pickle.dump(group, kept)
                count += 1
            kept.seek(0)
            for _ in range(count):
                yield from pickle.load(kept)

    def _asked(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable]:
        low, high = shard.parts
        with self._opened() as (ask, quote):
            limits = [f"name >= {quote(low)}"] if low is not None else []
            limits += [f"name < {quote(high)}"] if high is not None else []
            where = " AND ".join(limits) or "1 = 1"
            if low is None:
                where = f"({where}) OR name IS NULL"
            fits = f"{self._size()} <= {2 * self.max_bytes + 2}"
            own = {"session": f"CASE WHEN {fits} THEN session END AS session"}
            asked = [own.get(c, c) for c in ask(f"SELECT * FROM ({self._sql}) AS sessions LIMIT 0")[0]]
            asked.append(f"NOT ({fits}) AS too_long")
            columns, rows = ask(f"SELECT {', '.join(asked)} FROM ({self._sql}) AS sessions WHERE {where} ORDER BY name")
            for row in rows:
                yield self._entry(dict(zip(columns, row, strict=True)))

    def _entry(self, row: dict[str, Any]) -> SourceEntry | Unreadable:
        name = None if row["name"] is None else str(row["name"])
        where = f"row {name!r:.{SHOWN}}"
        if row.get("too_long"):
            why = f"expected a session of at most {self.max_bytes} bytes, found a longer one"
            return Unreadable(where, why, name)
        size: int | None = None
        try:
            raw = bytes_of(row)
            size = len(raw)
            given = name_of(row)
        except ContentError as exc:
            return Unreadable(where, str(exc), name, size)
        if size > self.max_bytes:
            why = f"expected a session of at most {self.max_bytes} bytes, found {size}"
            return Unreadable(where, why, name, size)
        return SourceEntry(where, given.name, raw, given.tenant, given.time, given.time)

    def item(self, entry: SourceEntry) -> PutRequest:
        """Return a row as a session to put. Raises UsageError, ContentError and FormatError."""
        return self.naming.item(entry, Session.from_json_line(entry.raw))

    def sink(self, cold: Archive, bundle: Bundle) -> Sink:
        """Return the archive itself. See `EntrySource.sink`."""
        return cold

    @property
    def _sql(self) -> str:
        return self.query.strip().rstrip(";")

    def _check(self, columns: list[str]) -> None:
        """Check the columns of the query. Raises UsageError."""
        if not name_sessions(columns) or len(set(columns)) < len(columns):
            raise UsageError(
                f"source {self.name!r}: expected a query with the columns name, session and perhaps tenant, time; "
                f"found {', '.join(columns)}"
            )

    @abstractmethod
    def _size(self) -> str:
        """Return the SQL for the bytes of a session: at least its size, and at most twice that plus 2."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[tuple[Ask, Quote]]:
        """Open the database. Raises UsageError."""

    def _failed(self, exc: Exception) -> UsageError:
        return UsageError(f"source {self.name!r}: the database says: {' '.join(str(exc).split())}")


@dataclass(frozen=True, kw_only=True)
class SqliteSource(DatabaseSource):
    """A SQLite file at ``path``."""

    path: str = path_setting()
    kind = "sqlite"

    def _size(self) -> str:
        """Count in the encoding of the file, which may be UTF-16.

        Only newer versions do so without reading the value.
        """
        newer = sqlite3.sqlite_version_info >= (3, 43)
        return "octet_length(session)" if newer else "length(CAST(session AS BLOB))"

    @contextmanager
    def _opened(self) -> Iterator[tuple[Ask, Quote]]:
        if not Path(self.path).is_file():
            raise UsageError(f"source {self.name!r}: expected a SQLite file, found nothing at {self.path}")
        try:
            with closing(sqlite3.connect(f"{Path(self.path).resolve().as_uri()}?mode=ro", uri=True)) as db:
                db.text_factory = _text
                yield lambda sql: _streamed(db.execute(sql)), _sqlite_literal
        except sqlite3.Error as exc:
            raise self._failed(exc) from exc


def _text(data: bytes) -> str:
    """Decode text of SQLite, which may hold any bytes.

    A bad value then fails its session, not the whole query.
    """
    return data.decode("utf-8", "surrogateescape")


def _groups(entries: Iterable[SourceEntry | Unreadable]) -> Iterator[list[SourceEntry | Unreadable]]:
    """Yield entries in small groups, since pickling each alone takes twice as long."""
    group: list[SourceEntry | Unreadable] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.raw) if isinstance(entry, SourceEntry) else 0
        if len(group) >= AT_ONCE or size >= GROUP:
            yield group
            group, size = [], 0
    yield group


def _streamed(cursor: sqlite3.Cursor) -> tuple[list[str], Iterator[Row]]:
    """Return columns and rows, row by row, so that only one is in memory."""
    return [column[0] for column in cursor.description], cursor


def _sqlite_literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "CAST(x'" + value.encode("utf-8", "surrogateescape").hex() + "' AS TEXT)"
    return repr(value).replace("inf", "9e999")


@dataclass(frozen=True, kw_only=True)
class PostgresSource(DatabaseSource):
    """A PostgreSQL server.

    ``dsn``: as for libpq ("service=chats", "host=... dbname=..."). Passwords belong in ~/.pgpass or the
    environment, where libpq looks for them.
    """

    dsn: str
    kind = "postgres"

    def _size(self) -> str:
        """Count as text: bytea takes twice as many bytes plus 2."""
        return "octet_length(session::text)"

    @contextmanager
    def _opened(self) -> Iterator[tuple[Ask, Quote]]:
        try:
            import psycopg
            from psycopg import sql
            from psycopg.types.json import set_json_loads
            from psycopg.types.string import TextLoader
        except ImportError as exc:
            raise UsageError("PostgreSQL needs psycopg: pip install 'pltz[postgres]'") from exc
        try:
            with psycopg.connect(self.dsn) as db:
                db.read_only = True
                db.execute("SET datestyle TO 'ISO'")
                for kind in TIMES:  # some values have no Python type: infinity, BC, year 10000
                    db.adapters.register_loader(kind, TextLoader)
                set_json_loads(_as_it_is, db)
                numbers = itertools.count()

                def ask(text: str) -> tuple[list[str], Iterator[Row]]:
                    # on the server: rows arrive as they are fetched
                    cursor = db.cursor(name=f"pltz{next(numbers)}")
                    cursor.execute(text)
                    columns = [column.name for column in cursor.description or ()]
                    return columns, _fetched(cursor)

                yield ask, lambda value: sql.Literal(value).as_string(db)
        except psycopg.Error as exc:
            raise self._failed(exc) from exc


def _as_it_is(data: bytes | str) -> bytes:
    """Return JSON as the server wrote it. Parsing here would change numbers and drop repeated keys."""
    return data if isinstance(data, bytes) else data.encode()


def _fetched(cursor: Any) -> Iterator[Row]:
    """Yield the rows of a cursor, about FETCH bytes at a time by the size of the last ones, and close it."""
    with cursor:
        count = 1
        while rows := cursor.fetchmany(count):
            size = sum(len(cell) for row in rows for cell in row if isinstance(cell, str | bytes))
            count = max(1, min(AT_ONCE, 2 * count, FETCH * len(rows) // max(size, 1)))
            yield from rows
