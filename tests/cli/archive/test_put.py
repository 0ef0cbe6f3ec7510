"""``pltz archive put``: what is stored when one session is refused or the command is interrupted."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pltz.archive.errors import FullError
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing import commits
from pltz.archive.writing.writer import ArchiveWriter
from pltz.models.bundle.bundle import Bundle
from tests.cli.commands import Run, chat, lines
from tests.failing import raising
from tests.files import key_file

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each session be a commit of its own."""
    monkeypatch.setattr(commits, "FIRST", 1)
    monkeypatch.setattr(commits, "TELLING", 1 << 40)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder of three logs, two of which have one file name."""
    for name in ("shop/events", "garden/events", "garden/other"):
        path = tmp_path / f"logs/{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(event(name, n) for n in range(2)))
    return tmp_path / "logs"


def event(session: str, number: int) -> bytes:
    role = ("user", "assistant")[number % 2]
    message = {"role": role, "content": f"{session} says the words of turn {number}"}
    row = {"type": role, "sessionId": session, "uuid": f"{session}-{number}", "message": message}
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def test_a_dry_run_tells_what_is_new_by_names_and_ids_and_codes_nothing(
    run: Run, cold: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "notes.md").write_text("notes")
    (logs / "memory.md").write_text("memory")
    for name in ("shop/events", "garden/events"):  # so long that they are coded as logs
        (logs / f"{name}.jsonl").write_bytes(b"".join(event(name, n) for n in range(60)))
    assert run("archive", "put", "-r", cold, logs).exit_code == 0
    with (logs / "shop/events.jsonl").open("ab") as file:
        file.write(event("shop/events", 60))
    (logs / "garden/events.jsonl").write_bytes(event("new", 0) + event("new", 1))
    (logs / "garden/third.jsonl").write_bytes(event("third", 0))
    (logs / "memory.md").write_text("another")
    (logs / "app.db-wal").touch()
    before = sorted((path, path.stat().st_mtime_ns) for path in cold.rglob("*"))
    monkeypatch.setattr(Bundle, "load", lambda *_: pytest.fail("a dry run codes nothing"))
    *rows, last = lines(run("archive", "put", "-r", cold, logs, "--dry-run", "--json"))
    assert {row["name"]: (row["state"], row.get("version")) for row in rows} == {
        "garden/events": ("changed", 1), "garden/other": ("unchanged", 1), "garden/third": ("new", None),
        "memory/0": ("stored", 1), "notes/0": ("unchanged", 1), "shop/events": ("grown", 1),
    }
    assert last["not_stored"]["left_out"] == {"*-wal": 1}
    told = run("archive", "put", "-r", cold, logs, "--dry-run").stderr
    assert "6 sessions, " in told and "2 unchanged, 1 new" in told
    assert told.endswith("nothing was written; 1 file left out (1 *-wal)\n")
    assert sorted((path, path.stat().st_mtime_ns) for path in cold.rglob("*")) == before


def test_signatures_are_dropped_where_asked_for_and_tags_say_so(run: Run, cold: Path, logs: Path) -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": "Eq" * 100}
    row = {"type": "assistant", "sessionId": "a", "message": {"role": "assistant", "content": [block]}}
    with (logs / "shop/events.jsonl").open("a") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")
    done = run("archive", "put", "-r", cold, logs, "--drop", "signatures", "--tag", "by=hand")
    assert done.exit_code == 0 and "200 B of signatures dropped" in done.stderr
    assert next(line for line in done.stdout.splitlines() if "dropped" in line).endswith("200 B of signatures dropped")
    found = {row["name"]: row["tags"] for row in lines(run("archive", "ls", "-r", cold, "--json"))}
    assert found["shop/events"] == {"by": "hand", "dropped": "signatures", "dropped-bytes": "200"}
    assert found["garden/events"] == {"by": "hand"}
    assert b'"signature":"dropped by pltz"' in run("archive", "get", "-r", cold, "shop/events").stdout_bytes
    assert b"EqEq" in (logs / "shop/events.jsonl").read_bytes()
    again = lines(run("archive", "put", "-r", cold, logs, "--drop", "signatures", "--tag", "by=hand", "--json"))
    assert all(row["unchanged"] for row in again)
    assert [(row["dropped"], row["dropped_bytes"]) for row in again if "dropped" in row] == [(["signatures"], 200)]
    refused = run("archive", "put", "-r", cold, logs, "--drop", "signatures", "--exact")
    assert refused.exit_code == 2 and "exact keeps every byte" in refused.stderr


def test_a_file_of_a_folder_that_cannot_be_read_stops_no_other(run: Run, cold: Path, logs: Path) -> None:
    (logs / "garden/z.jsonl.gz").write_bytes(b'{"a":1}\n{"b":\n')
    (logs / "garden/empty.jsonl.gz").write_bytes(b"")
    Path(os.fsdecode(b"%s/garden/\xff.jsonl" % os.fsencode(logs))).write_bytes(event("no Unicode", 0))
    os.utime(logs / "shop/events.jsonl", (15e9, 15e9))  # in 2445
    names = ["garden/events", "garden/other", "shop/events"]
    for unchanged in (False, True):
        done = run("archive", "put", "-r", cold, logs, "--json")
        assert done.exit_code == 5 and "refused: " in done.stderr
        assert "z.jsonl.gz: expected gzip" in done.stderr and "empty.jsonl.gz: the gzip" in done.stderr
        *rows, last = [json.loads(line) for line in done.stdout.splitlines()]
        assert last == {"not_stored": {"sessions_refused": 1, "files_refused": 2, "left_out": {}, "packings": []}}
        assert "'garden/\\udcff' is not valid Unicode" in done.stderr
        assert [row["name"] for row in rows] == names and all(row["unchanged"] is unchanged for row in rows)
    assert "3 unchanged; 1 session refused; 2 files refused\n" in run("archive", "put", "-r", cold, logs).stderr
    (cold.parent / "alone").mkdir()
    (cold.parent / "alone/cut.jsonl.gz").write_bytes(b"")
    alone = run("archive", "put", "-r", cold, cold.parent / "alone")
    assert alone.exit_code == 5 and alone.stderr.endswith("nothing is stored; 1 file refused\n")
    files = [logs / "garden/z.jsonl.gz", logs / "shop/events.jsonl"]
    given = run("archive", "put", "-r", cold, *files, "--json")
    row, _ = map(json.loads, given.stdout.splitlines())
    assert given.exit_code == 5 and row["name"] == "shop/events"
    missing = run("archive", "put", "-r", cold, files[1], logs / "nobody.jsonl")
    assert missing.exit_code == 2 and "found nothing" in missing.stderr and not missing.stdout
    alone = run("archive", "put", "-r", cold, logs / "garden/z.jsonl.gz", "--json")
    assert alone.exit_code == 3 and "z.jsonl.gz: expected gzip" in alone.stderr


def test_what_is_passed_over_is_told_and_counted(run: Run, cold: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    nothing = run("archive", "put", "-r", cold, folder)
    assert nothing.exit_code == 0 and "nothing is stored: no sessions found" in nothing.stderr
    (folder / "a.txt").write_text("a text " * 20)
    (folder / "cut.data").write_bytes(b"\x28\xb5\x2f\xfd" + event("cut", 0))
    for n in range(5):
        (folder / f"{n}.meta.json").write_text('{"agentType": "x"}')
    done = run("archive", "put", "-r", cold, folder, "--progress")
    assert done.exit_code == 5 and "100 %" in done.stderr.splitlines()[-3], done.stderr
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 3 and "3 more files: no known chat format" in warned[-1]


def test_two_folders_with_a_file_of_one_name_refuse_that_file_alone(run: Run, cold: Path, tmp_path: Path) -> None:
    for folder in ("mon", "tue"):
        for name in ("sub/a.txt", f"sub/{folder}.txt"):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{folder} {name}")
    done = run("archive", "put", "-r", cold, tmp_path / "mon", tmp_path / "tue", "--json")
    assert done.exit_code == 5 and "tue/sub/a.txt: its sessions would be named sub/a" in done.stderr
    *rows, last = map(json.loads, done.stdout.splitlines())
    assert [row["name"] for row in rows] == ["sub/a/0", "sub/mon/0", "sub/tue/0"]
    assert last["not_stored"]["files_refused"] == 1


def test_an_interrupted_put_keeps_its_commits_and_goes_on(
    run: Run, cold: Path, logs: Path, small_commits: None, monkeypatch: pytest.MonkeyPatch
) -> None:

    put, calls = ArchiveWriter.put, []

    def interrupted(self: ArchiveWriter, *args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return put(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ArchiveWriter, "put", interrupted)
    done = run("archive", "put", "-r", cold, logs)
    assert done.exit_code == 1 and "2 sessions stored" in done.stderr and "same command again" in done.stderr
    monkeypatch.setattr(ArchiveWriter, "put", put)
    assert [row["unchanged"] for row in lines(run("archive", "put", "-r", cold, logs, "--json"))] == [True, True, False]


def test_rows_that_name_their_sessions(run: Run, cold: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as base, base:
        base.execute("CREATE TABLE chats (id INTEGER, body TEXT, tenant TEXT, updated TEXT)")
        rows = [(n, json.dumps(chat(n)), "acme" if n else None, "1970-01-02") for n in range(3)]
        base.executemany("INSERT INTO chats VALUES (?, ?, ?, ?)", rows)
    query = "SELECT id AS name, body AS session, tenant, updated AS time FROM chats"
    put = ("archive", "put", "-r", cold, tmp_path / "app.db", "--query")
    found = lines(run(*put, query, "--json"))
    assert [(row["tenant"], row["name"]) for row in found] == [("default", "0"), ("acme", "1"), ("acme", "2")]
    assert json.loads(run("archive", "get", "-r", cold, "2", "--tenant", "acme").stdout) == chat(2)
    [version] = lines(run("archive", "ls", "-r", cold, "--tenant", "default", "--json"))
    assert version["time"] == 86400
    assert run("compress", tmp_path / "app.db", "--query", query, "-o", tmp_path / "a.pltz").exit_code == 0
    assert json.loads(run("decompress", tmp_path / "a.pltz", "--session", "2", "-o", "-").stdout) == chat(2)
    other = lines(run(*put, "SELECT id AS name, updated FROM chats", "--json"))
    assert [row["name"] for row in other] == ["app/0", "app/1", "app/2"]
    with closing(sqlite3.connect(tmp_path / "app.db")) as base, base:
        base.execute("UPDATE chats SET body = ? WHERE id = 2", (json.dumps(chat(1)),))
    assert [row["version"] for row in lines(run(*put, query, "--json"))] == [1, 1, 2]
    some = run(*put, "SELECT CASE id WHEN 1 THEN 7.5 ELSE id + 7 END AS name, body AS session FROM chats", "--json")
    assert some.exit_code == 5 and "refused: " in some.stderr and "row 2: expected a string or number as" in some.stderr
    assert [row.get("name") for row in map(json.loads, some.stdout.splitlines())] == ["7", "9", None]


def test_lines_that_are_no_json_are_counted(run: Run, cold: Path, tmp_path: Path) -> None:
    path = tmp_path / "shop" / "torn.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"cut\n' + event("torn", 0) + bytes(9) + b"\n" + event("torn", 1)[:-1] + event("torn", 2))
    told = run("archive", "put", "-r", cold, path.parent)
    assert "3 lines kept as bytes" in told.stdout + told.stderr
    [row] = lines(run("archive", "put", "-r", cold, path.parent, "--json"))
    assert (row["odd_lines"], row["unchanged"]) == (3, True)
    [listed] = lines(run("archive", "ls", "-r", cold, "--json"))
    assert listed["tags"]["odd-lines"] == "3"
    assert run("archive", "get", "-r", cold, "shop/torn").stdout_bytes == path.read_bytes()


def test_what_was_erased_stays_erased_until_told(run: Run, tmp_path: Path) -> None:
    key = key_file(tmp_path / "key")
    cold, chats = ("-r", tmp_path / "sealed", "--key-file", key), tmp_path / "chats"
    chats.mkdir()
    for name in "ab":
        (chats / f"{name}.json").write_text(json.dumps(chat(1, about=name)))
    assert run("archive", "init", *cold).exit_code == 0 and run("archive", "put", *cold, chats).exit_code == 0
    assert run("archive", "erase", *cold, "--tenant", "default", "--name", "a/0", "--yes").exit_code == 0
    (chats / "a.json").write_text(json.dumps(chat(3, about="a")))
    assert "a/0  erased" in run("archive", "put", *cold, chats, "--dry-run").output
    found = run("archive", "put", *cold, chats)
    assert found.exit_code == 0 and "1 file left out (1 erased before)" in found.output, found.output
    alone = run("archive", "put", *cold, chats / "a.json", "--name", "a/0")
    assert alone.exit_code == 5 and "was erased, so it is not put again" in alone.output
    assert [row["name"] for row in lines(run("archive", "ls", *cold, "--json"))] == ["b/0"]
    for _ in range(2):
        assert run("archive", "put", *cold, chats / "a.json", "--name", "a/0", "--erased-too").exit_code == 0
    (chats / "a.json").write_text(json.dumps(chat(4, about="a")))
    assert run("archive", "put", *cold, chats / "a.json", "--name", "a/0").exit_code == 0, "from now on"
    assert json.loads(run("archive", "get", *cold, "a/0").stdout) == chat(4, about="a")


def test_a_put_without_room_for_parity_says_so(run: Run, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryStore, "put_spare", raising(FullError("cannot write parity/0: the disk is full")))
    done = run("archive", "put", "-r", cold, "-", "--format", "text", input=b"some text")
    assert done.exit_code == 0 and "warning: 1 pack without parity: cannot write parity/0" in done.output, done.output
