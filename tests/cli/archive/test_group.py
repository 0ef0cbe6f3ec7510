"""pltz archive: put, get and find, end to end.

The bundle is tiny and untrained, or the one that ships where sizes matter.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pltz.archive.humanize import size
from tests.cli.commands import Put, Run, chat, lines, ok
from tests.files import key_file

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_init_refuses_what_is_an_archive(run: Run, cold: Path) -> None:
    done = run("archive", "init", "-r", cold)
    assert done.exit_code == 2 and "already" in done.stderr


@pytest.mark.parametrize("name", ["notes.txt", ".claude"])
def test_init_refuses_a_folder_of_other_files(run: Run, tmp_path: Path, name: str) -> None:
    place = tmp_path / "home"
    (place / name).mkdir(parents=True)
    done = run("archive", "init", "-r", place)
    assert done.exit_code == 2 and name in done.stderr and "empty or a new folder" in done.stderr
    assert os.listdir(place) == [name]
    (place / name).rmdir()
    (place / ".DS_Store").touch()
    assert run("archive", "init", "-r", place).exit_code == 0


@pytest.mark.parametrize("name", ["ls", "stat", "verify", "collect"])
def test_no_archive_here(run: Run, tmp_path: Path, name: str) -> None:
    done = run("archive", name, "-r", tmp_path)
    assert done.exit_code == 2 and f"no archive at {tmp_path}" in done.stderr and "pltz archive init" in done.stderr


@pytest.mark.parametrize("name", ["init", "ls", "stat"])
def test_what_can_be_no_archive(run: Run, chats: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chats.parent)
    for place in ("http://example.org/cold", chats):
        done = run("archive", name, "-r", place)
        assert done.exit_code == 2 and "expected" in done.stderr and str(place) in done.stderr
    done = run("archive", name)
    assert done.exit_code == 2 and "-r ARCHIVE" in done.stderr and "PLTZ_ARCHIVE" in done.stderr
    for empty in (("-r", ""), ("-r", "a", "--key-file", "")):
        assert "found nothing" in run("archive", name, *empty).stderr
    assert os.listdir() == [chats.name]


def test_put_from_a_pltz_file(run: Run, cold: Path, frozen: Path, chats: Path) -> None:
    rows = lines(run("archive", "put", "-r", cold, frozen, "--json"))
    assert [row["name"] for row in rows] == [f"chats/{n}" for n in range(4)]
    done = run("archive", "get", "-r", cold, "-o", "-")
    assert [json.loads(a) for a in done.stdout.splitlines()] == [
        json.loads(a) for a in chats.read_text("utf8").splitlines()
    ]


def test_names(run: Run, cold: Path, put: Put, chats: Path) -> None:
    many = run("archive", "put", "-r", cold, chats, "--name", "x")
    assert many.exit_code == 2 and "for one session" in many.stderr
    bad = run("archive", "put", "-r", cold, chats, "--tag", "novalue")
    assert bad.exit_code == 2 and "KEY=VALUE" in bad.stderr


@pytest.mark.parametrize("words", [
    ["put", "-", "--name", ""], ["put", "-", "--share-base", ""], ["put", "-", "--tenant", ""],
    ["put", "-", "--tag", ""], ["put", "-", "--tag", "channel="], ["put", "-", "--tag", "=web"],
    ["get", "a", "--tenant", ""], ["ls", "--tenant", ""], ["ls", "--tag", "channel="],
    ["erase", "--tenant", "", "--all", "--dry-run"], ["erase", "--tenant", "a", "--name", "", "--dry-run"],
])
def test_a_name_that_is_empty_is_refused(run: Run, cold: Path, words: list[str]) -> None:
    """Refuse an empty name, as the shell passes for an unset variable."""
    done = run("archive", words[0], "-r", cold, *words[1:], input=json.dumps(chat(1)).encode())
    assert done.exit_code == 2 and ("found nothing" in done.stderr or "KEY=VALUE" in done.stderr)
    assert run("archive", "ls", "-r", cold).stdout == ""


def test_ls_by_text_and_stat(run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "support/1", "--tag", "channel=web", "--time", "1970-01-02")
    put(chat(2), "--name", "support/2", "--tag", "channel=mail", "--time", "1970-01-03T00:00")
    put(chat(3), "--name", "sales/1", "--tag", "channel=web", "--tenant", "b", "--time", "1")

    def names(*words: object) -> list[str]:
        return [row["name"] for row in lines(run("archive", "ls", "-r", cold, *words, "--json"))]

    assert names() == ["sales/1", "support/1", "support/2"] and names("support") == ["support/1", "support/2"]
    assert names("--tag", "channel=web") == ["sales/1", "support/1"] and names("--since", "1970-01-03") == ["support/2"]
    assert names("--until", "86401") == ["sales/1", "support/1"] and names("--tenant", "b") == ["sales/1"]
    nothing = run("archive", "ls", "-r", cold, "bicycle")
    assert nothing.exit_code == 0 and "what was said is not searched" in nothing.stderr
    found = lines(run("archive", "stat", "-r", cold, "--json"))[0]
    assert found["sessions"] == 3 and found["packs"] == 3 and found["problems"] == 0
    assert "pack bytes" in run("archive", "stat", "-r", cold, "-v").stdout
    rows = lines(run("archive", "ls", "-r", cold, "--json"))
    assert found["content_bytes"] == sum(row["content_bytes"] for row in rows)
    assert "times the bytes on disk" in run("archive", "stat", "-r", cold).stdout
    log = json.dumps({"type": "user", "uuid": "1", "timestamp": "2024-05-01T10:00:00Z", "message": {"role": "user"}})
    assert run("archive", "put", "-r", cold, "-", "--name", "log", input=log.encode() + b"\n").exit_code == 0
    assert names("--since", "2024-05-01") == ["log"], "by what was said, and not by the put of today"
    assert "log" not in names("--since", "2024-05-02")


def test_what_agents_used(run: Run, cold: Path, tmp_path: Path) -> None:
    """By their logs, with those of sub-agents, as far as a search has seen them."""
    counts = {"input_tokens": 2, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 10, "output_tokens": 5}
    logs = ("a", "shop", 5, "xy"), ("a/subagents/agent-b", "shop", 5, "z"), ("c", "farm", 6, "x")
    for name, project, day, models in logs:
        path = tmp_path / f"projects/-{project}/{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {"sessionId": name, "cwd": f"/home/{project}", "timestamp": f"2026-0{day}-05T09:00:00Z"}
        said = [about | {"type": "user", "uuid": "u", "message": {"role": "user", "content": "Mend the bell"}}]
        for model in models:
            answer = {"role": "assistant", "id": model, "model": model, "usage": counts, "content": "Done"}
            said.append(about | {"type": "assistant", "uuid": model, "message": answer, "costUSD": 0.25})
        path.write_text("".join(json.dumps(event) + "\n" for event in said))
    run("archive", "put", "-r", cold, tmp_path / "projects")
    before = run("archive", "ls", "-r", cold, "--long").stdout
    assert "project" not in before and "Mend the bell" in before
    assert lines(run("archive", "stat", "-r", cold, "--by", "project,month", "--json")) == [
        {"project": "/home/shop", "month": "2026-05", "sessions": 1, "turns": 4, "input": 3036, "output": 15}
        | {"read": 3000, "written": 30, "cost": 0.75},
        {"project": "/home/farm", "month": "2026-06", "sessions": 1, "turns": 2, "input": 1012, "output": 5}
        | {"read": 1000, "written": 10, "cost": 0.25},
    ]
    table = run("archive", "stat", "-r", cold, "--by", "agent,model,tenant").stdout
    assert [line.split()[:4] for line in table.splitlines()[2:]] == [
        ["claude-code", "x+y+z", "default", "1"], ["claude-code", "x", "default", "1"],
    ]  # fmt: skip
    row = run("archive", "ls", "-r", cold, "--long", "shop").stdout.splitlines()[-1]
    assert "  2026-05-05  claude-code  shop     x y z   3,036   15  0.75  Mend the bell" in row
    [found] = lines(run("archive", "ls", "-r", cold, "--long", "--json", "farm"))
    assert (found["project"], found["models"], found["input"], found["cost"]) == ("/home/farm", ["x"], 1012, 0.25)
    assert run("archive", "stat", "-r", cold, "--by", "colour").exit_code == 2


def test_a_name_does_not_steer_the_terminal(run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "a\x1b[2Jb")
    out = run("archive", "ls", "-r", cold).stdout
    assert "\x1b" not in out and "a\\x1b[2Jb" in out


def test_a_sealed_archive_from_end_to_end(run: Run, tmp_path: Path) -> None:
    """Run init, put, get, ls, verify, repair, copy to an open archive, and erase.

    Without the key, and after erase, nothing opens.
    """
    key, place, plain = tmp_path / "key", tmp_path / "sealed", tmp_path / "plain"
    key_file(key)
    assert lines(run("archive", "init", "-r", place, "--key-file", key, "--json"))[0]["sealed"]
    keyed = ("--key-file", key)
    for n in (2, 3):
        line = json.dumps({"id": f"chat{n}", **chat(n)}).encode()
        words = ("archive", "put", "-r", place, "-", "--format", "jsonl", "--name", f"chat{n}", "--json", *keyed)
        assert [row["name"] for row in lines(run(*words, input=line))] == [f"chat{n}"]
    assert run("archive", "get", "-r", place, "chat2").exit_code != 0
    listed = run("archive", "ls", "-r", place)
    assert listed.exit_code == 0 and "--key-file" in listed.stderr and "chat2" not in listed.stdout
    assert not run("archive", "ls", "-r", place, *keyed).stderr
    assert json.loads(run("archive", "get", "-r", place, "chat2", *keyed).stdout) == {"id": "chat2", **chat(2)}
    wrong = key_file(tmp_path / "wrong", bytes(32))
    assert run("archive", "get", "-r", place, "chat2", "--key-file", wrong).exit_code == 4
    assert run("archive", "get", "-r", place, "chat2", *keyed, "--passphrase").exit_code == 2
    assert lines(run("archive", "verify", "-r", place, "--decode", "--json", *keyed))[-1]["sound"]
    assert json.loads(run("archive", "repair", "-r", place, "--json").stdout)["whole"]
    assert run("archive", "init", "-r", plain).exit_code == 0
    done = run("archive", "copy", "-r", place, plain, "--json", *keyed)
    assert done.exit_code == 0 and f"{plain} is not sealed" in done.stderr
    assert json.loads(run("archive", "get", "-r", plain, "chat3").stdout) == {"id": "chat3", **chat(3)}
    assert run("archive", "get", "-r", plain, "chat3", *keyed).exit_code == 2, "an open archive takes no key"
    ok(run("archive", "erase", "-r", place, "--tenant", "default", "--name", "chat2", "--yes", "--json", *keyed))
    assert run("archive", "get", "-r", place, "chat2", *keyed).exit_code != 0
    assert json.loads(run("archive", "get", "-r", place, "chat3", *keyed).stdout) == {"id": "chat3", **chat(3)}
    assert run("archive", "erase", "-r", plain, "--tenant", "default", "--name", "chat3", "--yes").exit_code != 0


def test_the_environment_names_archive_and_key(
    run: Run, cold: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, sealed = tmp_path / "key", tmp_path / "sealed"
    key_file(key)
    monkeypatch.setenv("PLTZ_ARCHIVE", str(sealed))
    monkeypatch.setenv("PLTZ_KEY_FILE", "")
    assert run("archive", "init").exit_code == 2 and not sealed.exists()
    monkeypatch.setenv("PLTZ_KEY_FILE", str(key))
    assert "sealed" in run("archive", "init").stdout
    assert put(chat(1), "--name", "open")[0]["version"] == 1, "an open archive needs none"
    line = json.dumps(chat(2)).encode()
    assert run("archive", "put", "-", "--name", "s", "--format", "jsonl", input=line).exit_code == 0
    assert json.loads(run("archive", "get", "s").stdout) == chat(2)
    assert json.loads(run("-r", cold, "archive", "get", "open").stdout) == chat(1)
    assert json.loads(run("archive", "-r", sealed, "get", "open", "-r", cold).stdout) == chat(1)
    assert run("archive", "copy", "-r", cold, sealed).exit_code == 0 == run("archive", "get", "open").exit_code
    for name in ("verify", "repair", "stat"):
        assert run("archive", name).exit_code == 0 == run("archive", name, "-r", cold).exit_code
    assert run("thaw", "s", "--json").exit_code == 0
    wrong = run("archive", "get", "s", "--passphrase-env", "NOT_SET")
    assert wrong.exit_code == 2, "an option stands above the environment"


@pytest.mark.parametrize(
    ("word", "command"), [("backup", "put"), ("check", "verify"), ("snapshots", "ls"), ("prune", "collect")]
)
def test_words_of_restic_are_taken(run: Run, cold: Path, put: Put, word: str, command: str) -> None:
    for turns in (1, 2):
        put(chat(turns), "--name", "s")
    more = ("-", "--name", "s", "--format", "jsonl") if word == "backup" else ()
    done = run("archive", word, "-r", cold, *more, "--json", input=json.dumps(chat(2)).encode())
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == (2 if word == "snapshots" else 1), done.output
    assert run("archive", word, "--help").stdout == run("archive", command, "--help").stdout
    assert f"{word} ({command}" in run("archive", "--help").stdout


def test_ls_in_natural_order_and_long(run: Run, cold: Path, put: Put) -> None:
    for number in (10, 9, 100):
        put(chat(2), "--name", f"chat-{number}", "--tag", "channel=web")
    names = [version["name"] for version in lines(run("archive", "ls", "-r", cold, "--json"))]
    assert names == ["chat-9", "chat-10", "chat-100"]
    rows = lines(run("archive", "ls", "-r", cold, "--long", "--json"))
    assert all(row["tokens"] > 90 and row["size"] > 0 and row["segments"] >= 1 and row["age"] >= 0 for row in rows)
    table = run("archive", "ls", "-r", cold, "-l").stdout
    assert "tokens" in table and f"{rows[0]['tokens']:,}" in table and "channel=web" in table


def test_put_shows_its_phases(run: Run, cold: Path, chats: Path) -> None:
    done = run("archive", "put", "-r", cold, chats, "--progress")
    drawn = [line for line in done.stderr.splitlines() if "B/s" in line]
    phases = [line.split("  ")[0] for line in drawn]  # a slow phase has more than one line
    assert list(dict.fromkeys(phases)) == ["read", "store"] and "100 %" in drawn[-1]
    assert f"{size(chats.stat().st_size)} / {size(chats.stat().st_size)}" in drawn[-1]
    assert "coding 4 sessions" in drawn[-1] and "B/s" not in run("archive", "put", "-r", cold, chats, "-q").stderr
