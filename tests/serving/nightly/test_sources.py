"""Sources: files cut for several processes, and rows of real databases. Inputs are never changed."""

from __future__ import annotations

import errno
import glob
import gzip
import json
import math
import os
import shutil
import sqlite3
import subprocess
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pltz.datasets.byte_input import CHUNK
from pltz.datasets.session_columns import moment
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.nightly.naming import Naming
from pltz.serving.nightly.sources import database, jsonl
from pltz.serving.nightly.sources.database import SqliteSource
from pltz.serving.nightly.sources.jsonl import JsonlSource
from pltz.serving.nightly.sources.source import SourceEntry, Unreadable
from tests.archive.towers import SessionArchive
from tests.serving.nightly.conftest import Nightly, chat, lines

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_large_file_is_cut_at_ends_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'["%d"]' % n + b" " * (n * 37 % 301) for n in range(4000)]
    lines[700] = b'["' + b"x" * 30_000 + b'"]'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "b.jsonl").write_bytes(b"[0]\n")
    source = JsonlSource("s", str(tmp_path))
    whole = [e for shard in source.shards(0) for e in source.entries(shard)]
    assert len(whole) == 4001
    monkeypatch.setattr(jsonl, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(jsonl, "BLOCK", 7_000)
    shards = list(source.shards(0))
    cut = [e for shard in shards for e in source.entries(shard)]
    assert len(shards) > 20 and cut == whole
    assert [e.where for e in cut if isinstance(e, SourceEntry)][:2] == ["a.jsonl:1", "a.jsonl:2"]


def test_what_cannot_be_read_is_named_and_stops_nothing(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meet a folder like lost+found, a large file, a circular link, and a file that is moved away while it is read."""
    for name in ("a", "locked/b", "large", "moved"):
        nightly.write(f"chats/{name}.jsonl", lines([{"id": name}]))
    (nightly.root / "chats/circle.jsonl").symlink_to("circle.jsonl")
    scandir, opened = os.scandir, Path.open

    def failing_scandir(path: str) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    def failing_open(path: Path, *how: Any, **more: Any) -> Any:
        if path.name in ("locked", "large.jsonl"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        if path.name == "moved.jsonl":
            path.unlink()
        return opened(path, *how, **more)

    monkeypatch.setattr(os, "scandir", failing_scandir)
    monkeypatch.setattr(Path, "open", failing_open)
    monkeypatch.setattr(jsonl, "SHARD_BYTES", 5)  # so that all are large
    report = nightly.run()
    assert [(r["where"], r["reason"]) for r in report["refused"]] == [
        ("large.jsonl", "cannot be read: Permission denied"),
        ("locked", "cannot be read: Permission denied"),
    ]
    assert report["failures"] == [] and report["exit_code"] == 5
    assert report["told"] == ["circle.jsonl: a link that leads nowhere, left out"]
    assert report["totals"]["left_out"] == {"link": 1} and list(nightly.content()) == [("default", "a")]


@pytest.mark.parametrize(
    "value",
    [
        "1969-12-31",
        "0001-01-01T00:00+23:59",
        -1,
        1e400,
        1 << 40,
        "1" * 5000,
        True,
        b"1",
        math.nan,
        Decimal("NaN"),  # which a database has, and which cannot be compared
        Decimal("sNaN"),
    ],
)
def test_a_time_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(ContentError, match="'at'"):
        moment(value, "at")


@pytest.mark.parametrize("value", [None, True, "", [], {"a": 1}])
def test_a_key_that_is_no_name_is_refused(value: Any) -> None:
    from pltz.models.session.session import Session

    naming = Naming(name_key="id", time_key="at")
    entry = SourceEntry("x:1", None, b"")
    with pytest.raises(ContentError, match="'id'"):
        naming.item(entry, Session("chat", {"id": value, "at": 7}))
    with pytest.raises(ContentError, match="'at'"):
        naming.item(entry, Session("chat", {"id": "a", "at": "yesterday"}))
    assert naming.item(entry, Session("chat", {"id": 5, "at": "1970-01-01T00:01:00+00:00"})).time == 60


def fill(path: Path, count: int) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS chats (id INTEGER PRIMARY KEY, body, tenant, updated)")
        rows = [
            (n, json.dumps({"messages": [{"role": "user", "content": f"Hello {n}"}]}), "acme", 1000 + n)
            for n in range(count)
        ]
        db.executemany("INSERT OR REPLACE INTO chats VALUES (?, ?, ?, ?)", rows)


def table(folder: Path, rows: Iterable[Any], columns: str = "name, session", encoding: str = "UTF-8") -> str:
    """Make a database of one table ``t``, and return its path."""
    path = str(folder / "app.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA encoding = '{encoding}'")
        db.execute(f"CREATE TABLE t ({columns})")
        db.executemany(f"INSERT INTO t VALUES ({', '.join('?' for _ in columns.split(', '))})", rows)
    return path


def whole(source: Any) -> tuple[list[SourceEntry | Unreadable], int]:
    """Return all entries of a source, and the most memory that Python took meanwhile."""
    tracemalloc.start()
    found = [entry for shard in source.shards(0) for entry in source.entries(shard)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, peak


QUERY = "SELECT id AS name, body AS session, tenant, updated AS time FROM chats;"


def test_sqlite(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SHARD_SESSIONS", 7)
    path = nightly.root / "app.db"
    fill(path, 30)
    nightly.sources = (f'[[source]]\nkind = "sqlite"\npath = "app.db"\nquery = "{QUERY}"\ntags = {{ from = "app" }}\n')
    before = path.read_bytes()
    assert nightly.counts() == (30, 0, 0, 0) and nightly.counts() == (0, 30, 0, 0) and path.read_bytes() == before
    assert nightly.content()["acme", "7"] == [json.dumps({"messages": [{"role": "user", "content": "Hello 7"}]})]
    with closing(sqlite3.connect(path)) as db, db:
        old = db.execute("SELECT body FROM chats WHERE id = 3").fetchone()[0]
        db.execute("UPDATE chats SET body = '[\"changed\"]', updated = 5000 WHERE id = 3")
        db.execute(
            "INSERT INTO chats VALUES (100, 'half {', 'acme', 1), (101, NULL, 'acme', 1), (102, '[]', 'acme', 'never')"
        )
        db.execute("INSERT INTO chats VALUES (103, CAST(x'5b22ff225d' AS TEXT), 'acme', 1)")
    report = nightly.run()
    assert {r["name"] for r in report["refused"]} == {"100", "101", "102", "103"}
    assert report["totals"]["frozen"] == 1 and report["exit_code"] == 5
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM chats WHERE id > 99")
        db.execute("UPDATE chats SET body = ? WHERE id = 3", [old])  # back to what it was
    assert nightly.counts() == (1, 29, 0, 0) and nightly.content()["acme", "3"] == [old, '["changed"]', old]


@pytest.mark.parametrize("query", [
    "SELECT id FROM chats", "SELECT id AS name, body AS session, 1 AS x FROM chats", "SELECT nothing",
    "DELETE FROM chats",
])
def test_a_query_that_does_not_fit_is_refused(tmp_path: Path, query: str) -> None:
    fill(tmp_path / "app.db", 3)
    with pytest.raises(UsageError, match="source 's'"):
        list(SqliteSource("s", query, path=str(tmp_path / "app.db")).shards(0))


def test_names_of_every_type_fall_into_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SHARD_SESSIONS", 3)
    names = [
        None, None, 1, 2, 2, 2, 2, 3, "a'b", 'a"b', "ä", "x%s", b"blob", "", 1 << 40, *(f"n{n}" for n in range(20)),
    ]
    source = SqliteSource("s", "SELECT * FROM t", path=table(tmp_path, [(name, "[]") for name in names]))
    shards = list(source.shards(0))
    found = [e for shard in shards for e in source.entries(shard)]
    assert len(shards) > 5 and len(found) == len(names)
    assert sum(isinstance(e, SourceEntry) for e in found) == len(names) - 4  # NULL, NULL, a blob and an empty name


def test_who_writes_to_the_database_does_not_wait_for_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold no read transaction while work is handed out or rows are frozen: SQLite refuses writers during one."""
    monkeypatch.setattr(database, "SHARD_SESSIONS", 1000)
    fill(tmp_path / "app.db", 3000)
    source = SqliteSource("s", QUERY, path=str(tmp_path / "app.db"))
    shards, seen = source.shards(0), []
    with closing(sqlite3.connect(tmp_path / "app.db", timeout=0)) as db:
        for shard in shards:
            for number, entry in enumerate(source.entries(shard)):
                seen.append(entry)
                if number == 0:
                    with db:
                        db.execute("UPDATE chats SET updated = 1 WHERE id = 0")
    assert [e.name for e in seen if isinstance(e, SourceEntry)] == [str(n) for n in range(3000)]


def test_row_whose_name_or_time_is_not_one_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SHARD_SESSIONS", 1)
    rows = [(name, "[]") for name in (-math.inf, 1.5, math.inf, b"x" * 100_000, "a")]
    source = SqliteSource("s", "SELECT * FROM t", path=table(tmp_path, rows))
    shards = list(source.shards(0))
    found = [e for shard in shards for e in source.entries(shard)]
    assert len(shards) > 4 and [e.where for e in found if isinstance(e, SourceEntry)] == ["row 'a'"]
    assert len(found) == 5 and max(len(e.where) for e in found) < 100
    assert max(len(shard.place) for shard in shards) < 120
    row = {"name": "a", "session": "[]", "time": Decimal("NaN")}
    assert isinstance(source._entry(row), Unreadable)


@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_a_file_whose_disk_fails_in_the_middle_is_named_by_that(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In a line as any, or in one that is too long: it was called a line that is too long, and the end of the file."""
    long = b'"' + b"x" * (2 * CHUNK) + b'"\n'
    nightly.write("chats/a.jsonl", lines([{"id": "a"}]) + long + lines([{"id": "lost"}]))
    nightly.write("chats/b.jsonl", lines([{"id": "b"}]))
    nightly.sources += f"max_bytes = {limit}\n"
    read = jsonl._Span.read

    def failing(span: Any, size: int, /) -> bytes:
        if span._stream.name.endswith("a.jsonl") and span._stream.tell() >= CHUNK:
            raise OSError(errno.EIO, "Input/output error")
        return read(span, size)

    monkeypatch.setattr(jsonl._Span, "read", failing)
    report = nightly.run()
    assert [(r["where"], r["reason"]) for r in report["refused"]] == [
        ("a.jsonl:2", "a.jsonl: cannot be read: Input/output error; what stands before it was taken")
    ]
    assert report["failures"] == [] and sorted(name for _, name in nightly.content()) == ["a", "b"]


def test_files_that_differ_in_their_suffix_alone_are_not_each_others_versions(nightly: Nightly) -> None:
    """As where a log is packed and begun anew: night for night each was taken for a change of the other."""
    nightly.sources = '[[source]]\nkind = "jsonl"\npath = "chats"\n'
    nightly.write("chats/log.jsonl", lines([chat(1)]))
    nightly.write("chats/log.jsonl.gz", gzip.compress(lines([chat(2)])))
    nightly.write("chats/log.ndjson", lines([chat(3)]))
    assert nightly.counts() == (3, 0, 0, 0)
    for _ in range(2):
        assert nightly.counts() == (0, 3, 0, 0)
    assert {name for _, name in nightly.content()} == {"log/1", "log.jsonl.gz/1", "log.ndjson/1"}


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
def test_a_session_that_is_too_long_stays_in_the_database(tmp_path: Path, encoding: str) -> None:
    long = 4 << 20
    rows: list[Any] = [(n, '"' + "x" * size + '"', None) for n, size in enumerate([10, *[long] * 8, 998, 999])]
    rows += [(11, b"x" * long, None), (12, "[]", b"acme")]
    path = table(tmp_path, rows, "name, session, tenant", encoding)
    found, peak = whole(SqliteSource("s", "SELECT * FROM t", path=path, max_bytes=1000))
    assert [e.where for e in found if isinstance(e, SourceEntry)] == ["row '0'", "row '9'"]
    bad = [e for e in found if isinstance(e, Unreadable)]
    assert [e.name for e in bad] == [str(n) for n in (*range(1, 9), 10, 11, 12)]
    assert (all("at most 1000 bytes" in e.reason for e in bad[:-1]) and "as tenant, found bytes" in bad[-1].reason)
    assert peak < long


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Return the DSN of a server of our own.

    Its folder is not below pytest's: another run of pytest takes the rights of the server's user away there.
    """
    programs = [*sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))[::-1], shutil.which("initdb")]
    psycopg = pytest.importorskip("psycopg")
    if not programs[0]:
        pytest.skip("needs PostgreSQL's programs: initdb, pg_ctl")
    folder, binaries = Path(tempfile.mkdtemp(prefix="pltz-pg-")), Path(str(programs[0])).parent
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if become:
        folder.chmod(0o755)
        shutil.chown(folder, "postgres")

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*become, str(binaries / program), "-D", str(folder / "data"), *arguments],
            check=False, capture_output=True, text=True, timeout=60, cwd=folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    call("initdb", "-U", "test", "-A", "trust", "--no-sync")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    call("pg_ctl", "-w", "-s", "-l", str(folder / "log"), "-o", options, "start")
    dsn = f"host={folder} user=test dbname=postgres"
    with psycopg.connect(dsn) as db:
        db.execute("CREATE TABLE chats (id text, body json, tenant text, updated timestamptz)")
    yield dsn
    call("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.mark.postgres
def test_postgres(nightly: Nightly, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setattr(database, "SHARD_SESSIONS", 7)
    bodies = {f"it's {n}": json.dumps({"messages": [], "pi": 3.14 + n}) for n in range(30)}
    with psycopg.connect(postgres) as db:
        rows = [(name, body, "acme") for name, body in bodies.items()]
        db.cursor().executemany("INSERT INTO chats VALUES (%s, %s::json, %s, now())", rows)
        db.execute("INSERT INTO chats VALUES (NULL, '[]', 'acme', now()), ('n', '{\"a\": 1e999}', 'acme', NULL)")
    query = "SELECT id AS name, body AS session, tenant, updated AS time FROM chats "
    query += "WHERE coalesce(id, '') NOT LIKE 'x%'"
    nightly.sources = f'[[source]]\nkind = "postgres"\ndsn = "{postgres}"\nquery = """{query}"""\n'
    assert nightly.counts() == (31, 0, 1, 5) and nightly.counts() == (0, 31, 1, 5)
    content = nightly.content()
    assert {name: json.loads(content["acme", name][0]) for name in bodies} == {
        n: json.loads(b) for n, b in bodies.items()
    }
    assert content["acme", "n"] == ['{"a": 1e999}']  # what JSON parsers change is kept as it stands
    with psycopg.connect(postgres) as db:
        db.execute("UPDATE chats SET updated = now() + '1 day'")  # the same session at another time is no change
        db.execute("UPDATE chats SET body = '[1]' WHERE id = 'it''s 4'")
    assert nightly.counts() == (1, 30, 1, 5)
    with psycopg.connect(postgres) as db:
        odd = [("x1", "infinity"), ("x2", "-infinity"), ("x3", "0044-03-15 BC"), ("x4", "12000-01-01")]
        db.cursor().executemany("INSERT INTO chats VALUES (%s, '[2]', 'acme', %s)", [*odd, ("x5", "2026-01-31")])
        db.execute("ALTER ROLE test SET datestyle TO 'German'")
    nightly.sources = nightly.sources.replace("NOT LIKE 'x%'", "LIKE 'x%'")
    report = nightly.run()
    assert report["totals"]["frozen"] == 1 and {r["name"] for r in report["refused"]} >= {"x1", "x2", "x3", "x4"}
    nightly.sources = nightly.sources.replace("updated AS time", "updated::date AS time")
    assert nightly.counts() == (0, 1, 4, 5)
    nightly.sources = nightly.sources.replace("FROM chats", "FROM nowhere")
    report = nightly.run()
    assert report["exit_code"] == 7 and "nowhere" in report["failures"][0]


def slot(ids: np.ndarray[Any, Any]) -> bytes:
    return np.array([0x67677371, 3, len(ids)], "<u4").tobytes() + ids.astype("<i4").tobytes()


def test_slot_files_are_read_when_their_reader_is_there(nightly: Nightly) -> None:
    reader = pytest.importorskip("pltz.serving.engines.llama_slots")
    ids = np.arange(40, 400, 3)
    nightly.write("slots/one.bin", slot(ids))
    nightly.write("slots/two.bin", slot(ids)[:-2])
    assert reader.read_slot_ids(nightly.root / "slots/one.bin").tolist() == ids.tolist()
    nightly.sources = '[[source]]\nkind = "slots"\npath = "slots"\ntokenizer = "bundle"\n'
    (nightly.root / "slots/round.bin").symlink_to("round.bin")
    (nightly.root / "slots/nowhere.bin").symlink_to("gone")
    (nightly.root / "slots/folder.bin").mkdir()
    assert nightly.counts() == (1, 0, 1, 5) and nightly.content() == {("default", "one"): [json.dumps(ids.tolist())]}
    assert nightly.counts() == (0, 1, 1, 5)


def test_slot_files_of_another_tokenizer(nightly: Nightly, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    pytest.importorskip("pltz.serving.engines.llama_slots")
    other = tiny_tokenizer_json(1500)
    nightly.write("tokenizer.json", other)
    ids = np.arange(40, 1400, 3)
    for n in range(3):
        nightly.write(f"slots/{n}.bin", slot(ids[n:]))
    nightly.sources = '[[source]]\nkind = "slots"\npath = "slots"\ntokenizer = "tokenizer.json"\n'
    assert nightly.counts() == (3, 0, 0, 0) and nightly.counts() == (0, 3, 0, 0)
    cold = SessionArchive.open(nightly.root / "cold", [nightly.bundles[0]], tokenizers=[other])
    assert cold.get_ids("1").ids.tolist() == ids[1:].tolist()
    nightly.write("slots/bad.bin", slot(np.array([5, 1_000_000])))  # no id of this tokenizer
    assert nightly.counts() == (0, 3, 1, 5)


def test_the_journal_of_the_hook(nightly: Nightly) -> None:
    hooks = pytest.importorskip("pltz.serving.eviction.hook")
    journal = nightly.root / "journal"
    rows = {f"evicted-{n}": np.arange(40, 40 + 100 * (n + 1)) % 1000 + 32 for n in range(5)}
    with hooks.EvictionHook.open(journal, bundle=nightly.bundles[0].path) as hook:
        tickets = [hook.on_evict(EvictionRequest(name, ids % 1024, tenant="acme")) for name, ids in rows.items()]
        assert all(tickets) and hook.flush(60)
    nightly.sources = '[[source]]\nkind = "journal"\npath = "journal"\n'
    assert nightly.counts(dry_run=True) == (0, 0, 0, 0) and nightly.counts() == (5, 0, 0, 0)
    assert nightly.counts() == (0, 0, 0, 0)
    cold = SessionArchive.open(nightly.root / "cold", [nightly.bundles[0]])
    for name, ids in rows.items():
        assert cold.get_ids(name, tenant="acme").ids.tolist() == (ids % 1024).tolist()
    nightly.sources = '[[source]]\nkind = "journal"\npath = "nowhere"\n'
    report = nightly.run()
    assert report["exit_code"] == 7 and "journal" in report["failures"][0]


def test_what_a_journal_has_of_erased_sessions_is_told() -> None:
    from pltz.serving.eviction.worker import Drained
    from pltz.serving.nightly.sources.journal import JournalSource

    tally = JournalSource("evicted", ".")._tally(Drained(stored=1, erased=2).as_fields())
    assert (tally.seen, tally.frozen, tally.left_out["erased before"]) == (3, 1, 2)
