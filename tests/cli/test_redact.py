"""``--redact``, ``search --secrets`` and ``erase --matching``: secrets stay out of what is shared, or go for good."""

import json
from pathlib import Path

import pytest

pytest.importorskip("detect_secrets", reason="needs the extra secrets")

from tests.cli.archive.test_put import event
from tests.cli.commands import Run, into, lines
from tests.files import key_file, write_files

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

KEY, PASSWORD = "AKIA" + "ABCDEFGHIJKLMNOP", "hunter2secret"
SAID = {"type": "user", "sessionId": "s", "uuid": "9", "message": {"role": "user", "content": f"use\n{KEY} here"}}
LOG = event("m", 0) + event("m", 1) + json.dumps(SAID).encode() + b"\n"
PART = f"postgres://ada:{PASSWORD}@db\n".encode()
FILES = {
    "-home-me-shop/0f3a.jsonl": LOG,
    "-home-me-shop/0f3a/tool-results/1.txt": PART,
    "-home-me-shop/5b7d.jsonl": event("n", 0) + event("n", 1),
}


@pytest.fixture
def logs(run: Run, cold: Path, tmp_path: Path) -> Path:
    write_files(tmp_path / "in", FILES)
    assert run("archive", "put", "-r", cold, tmp_path / "in").exit_code == 0
    return tmp_path / "in"


def test_what_is_written_has_marks_and_the_archive_stays_exact(
    run: Run, cold: Path, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = LOG.replace(KEY.encode(), b"[redacted: aws-key]")
    name = "./-home-me-shop/0f3a"
    done = run("archive", "get", "-r", cold, name, "--redact")
    assert done.stdout_bytes == marked and done.stderr == "redacted: 1 aws-key\n"
    assert run("archive", "get", "-r", cold, name).stdout_bytes == LOG
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), "--redact", "--json")
    assert json.loads(done.stdout)["redacted"] == {"aws-key": 1, "basic-auth": 1}
    assert (tmp_path / "out" / "-home-me-shop/0f3a.jsonl").read_bytes() == marked
    part = tmp_path / "out" / "-home-me-shop/0f3a/tool-results/1.txt"
    assert part.read_bytes() == b"postgres://ada:[redacted: basic-auth]@db\n"
    assert run("archive", "get", "-r", cold, "-o", tmp_path / "a.pltz", "--redact").exit_code == 0
    unpacked = run("decompress", tmp_path / "a.pltz").stdout
    assert KEY not in unpacked and "[redacted: aws-key]" in unpacked
    assert run("archive", "get", "-r", cold, "-o", into(logs), "--redact").exit_code == 2  # what is there has none
    for form in ((), ("--markdown",), ("--html",), ("--json",)):
        done = run("show", "-r", cold, name, "--redact", *form)
        assert KEY not in done.stdout and "[redacted: aws-key]" in done.stdout, done.output
    assert json.loads(done.stdout)["redacted"] == {"aws-key": 1}
    monkeypatch.setenv("HOME", str(tmp_path))
    done = run("resume", "-r", cold, name, "--redact", "--json")
    assert json.loads(done.stdout)["redacted"] == {"aws-key": 1, "basic-auth": 1}
    assert (tmp_path / ".claude/projects/-home-me-shop/0f3a.jsonl").read_bytes() == marked


def test_a_copy_has_marks_and_is_made_once(run: Run, cold: Path, logs: Path, tmp_path: Path) -> None:
    to, titled = tmp_path / "to", "-home-me-shop/7c.jsonl"
    (logs / titled).write_bytes(LOG.splitlines(keepends=True)[2] + event("t", 1) * 20)
    assert run("archive", "put", "-r", cold, logs).exit_code == 0 and KEY in run("archive", "ls", "-r", cold).stdout
    assert run("archive", "init", "-r", to).exit_code == 0
    done = run("archive", "copy", "-r", cold, to, "--redact")
    assert done.exit_code == 0 and "redacted: 2 aws-key, 1 basic-auth" in done.stderr
    assert "use [redacted: aws-key] here" in run("archive", "ls", "-r", to).stdout
    back = tmp_path / "back"
    assert run("archive", "get", "-r", to, "-o", into(back)).exit_code == 0
    files = FILES | {titled: (logs / titled).read_bytes()}
    marked = {name: data.replace(KEY.encode(), b"[redacted: aws-key]") for name, data in files.items()}
    marked["-home-me-shop/0f3a/tool-results/1.txt"] = b"postgres://ada:[redacted: basic-auth]@db\n"
    assert {str(p.relative_to(back)): p.read_bytes() for p in back.rglob("*.*") if p.is_file()} == marked
    assert KEY not in run("search", "-r", to, "use", "--json").stdout
    assert "0 versions copied" in run("archive", "copy", "-r", cold, to, "--redact").stderr


def test_a_copy_with_marks_brings_back_nothing_erased(run: Run, cold: Path, logs: Path, tmp_path: Path) -> None:
    to, key = tmp_path / "to", tmp_path / "key"
    key_file(key)
    at = "-r", to, "--key-file", key
    assert run("archive", "init", *at).exit_code == 0
    copy = "archive", "copy", "-r", cold, to, "--redact", "--key-file", key
    assert run(*copy).exit_code == 0
    erase = "archive", "erase", *at, "--tenant", "default", "--name", "./-home-me-shop/0f3a", "--yes"
    assert run(*erase).exit_code == 0
    done = run(*copy)
    assert "0 versions copied" in done.stderr and "there already: 1; erased: 2" in done.stderr, done.output


def test_ids_cannot_be_redacted(run: Run, cold: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text("[33, 99]")
    assert run("archive", "put", "-r", cold, tmp_path / "ids.json", "--format", "ids").exit_code == 0
    done = run("archive", "get", "-r", cold, "ids/0", "--redact")
    assert done.exit_code == 5 and "leave --redact out" in done.stderr and not done.stdout
    assert run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), "--redact").exit_code == 5
    assert not any((tmp_path / "out").iterdir())


def test_sessions_with_secrets_are_listed_by_kind(run: Run, cold: Path, logs: Path) -> None:
    done = run("search", "-r", cold, "--secrets")
    assert sorted(done.stdout.splitlines()) == [
        "default  ./-home-me-shop/0f3a  1 aws-key",
        "default  ./-home-me-shop/0f3a --part tool-results/1.txt  1 basic-auth",
    ]
    rows = {row["part"]: row["kinds"] for row in lines(run("search", "-r", cold, "--secrets", "--json"))}
    assert rows == {"": {"aws-key": 1}, "tool-results/1.txt": {"basic-auth": 1}}
    none = run("search", "-r", cold, "--secrets", "--project", "5b7d")
    assert none.exit_code == 0 and not none.stdout and "no secret of a known shape in 1 part" in none.stderr
    assert run("search", "-r", cold, "--secrets", "word").exit_code == 2


@pytest.mark.parametrize("pattern", [KEY, "use\n" + KEY, PASSWORD])
def test_what_matches_is_erased_with_versions_and_parts(run: Run, tmp_path: Path, logs: Path, pattern: str) -> None:
    sealed, key = tmp_path / "sealed", tmp_path / "key"
    key_file(key)
    at = ("-r", sealed, "--key-file", key)
    assert run("archive", "init", *at).exit_code == 0 and run("archive", "put", *at, logs).exit_code == 0
    (logs / "-home-me-shop/0f3a.jsonl").write_bytes(LOG.splitlines(keepends=True)[0])  # the last version is without it
    (logs / "-home-me-shop/0f3a/tool-results/1.txt").write_bytes(b"nothing\n")
    assert run("archive", "put", *at, logs).exit_code == 0
    call = ("archive", "erase", *at, "--tenant", "default", "--matching", pattern, "--json")
    [row] = lines(run(*call, "--dry-run"))
    assert (row["name"], row["versions"]) == ("./-home-me-shop/0f3a", 2) and run(*call, input=b"n\n").exit_code == 1
    assert len(lines(run("archive", "ls", *at, "--json"))) == 2
    [row] = lines(run(*call, "--yes"))
    assert [one["name"] for one in lines(run("archive", "ls", *at, "--json"))] == ["./-home-me-shop/5b7d"]
    assert run(*call, "--yes").exit_code == 8 and run(*call[:-3], "--matching", "(", "--yes").exit_code == 2
    assert run(*call[:-3], "--matching", "x*", "--yes").exit_code == 2 and run(*call, "--name", "a").exit_code == 2


def test_an_open_archive_erases_nothing(run: Run, cold: Path, logs: Path) -> None:
    done = run("archive", "erase", "-r", cold, "--tenant", "default", "--matching", KEY, "--yes")
    assert done.exit_code == 2 and "sealed" in done.stderr
    assert len(lines(run("archive", "ls", "-r", cold, "--json"))) == 2
