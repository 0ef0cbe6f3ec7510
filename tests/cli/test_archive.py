"""``pltz archive``: every command on a small archive, end to end, as a user meets it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pltz.archive.archive import Archive
from pltz.archive.codec import BytesCodec

Run = Callable[..., Result]
PROMPT = {"role": "system", "content": "You are a careful assistant of the harbour office. " * 30}
FIRST = {
    "id": "chat-1",
    "messages": [
        PROMPT,
        {"role": "user", "content": "When does the ferry leave?"},
        {"role": "assistant", "content": "At nine, from pier two."},
    ],
}
OTHER = {"id": "chat-2", "messages": [PROMPT, {"role": "user", "content": "Is there a later one?"}]}
ODD = {"id": "chat-3", "messages": [{"role": "user", "content": None, "x": 1.0}], "n": [1, True]}
GROWN = {**FIRST, "messages": [*FIRST["messages"], {"role": "user", "content": "Thank you!"}]}


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def write(path: Path, *values: object) -> str:
    path.write_text("".join(json.dumps(v, separators=(",", ":")) + "\n" for v in values))
    return str(path)


@pytest.fixture
def place(run: Run, tmp_path: Path) -> str:
    """An archive with three chats and a text."""
    path = str(tmp_path / "cold")
    assert run("archive", "init", path).exit_code == 0
    chats = write(tmp_path / "chats.jsonl", FIRST, OTHER, ODD)
    done = lines(run("archive", "put", path, chats, "--label", "from=test", "--json"))
    assert [d["name"] for d in done[:-1]] == ["chat-1", "chat-2", "chat-3"] and done[-1]["sessions"] == 3
    (tmp_path / "note.txt").write_bytes(b"a note \xff\x00\n")
    assert run("archive", "put", path, str(tmp_path / "note.txt"), "--name", "notes/1").exit_code == 0
    return path


def test_what_was_put_comes_back(run: Run, place: str, tmp_path: Path) -> None:
    got = run("archive", "get", place, "chat-1", "chat-2", "chat-3")
    assert [json.loads(x) for x in got.stdout.splitlines()] == [FIRST, OTHER, ODD]
    out = tmp_path / "out.txt"
    assert run("archive", "get", place, "notes/1", "-o", str(out)).exit_code == 0
    assert out.read_bytes() == b"a note \xff\x00\n"
    assert run("archive", "get", place, "notes/1", "-o", str(out)).exit_code == 2  # exists
    assert run("archive", "get", place, "nobody").exit_code == 8
    assert run("archive", "get", place, "chat-1", "--tenant", "other").exit_code == 8
    assert run("archive", "get", str(tmp_path), "chat-1").exit_code == 2
    assert run("archive", "init", place).exit_code == 2


def test_the_shared_prompt_is_one_segment(place: str) -> None:
    archive = Archive.open(place, [BytesCodec()])
    chains = []
    for name in ("chat-1", "chat-2"):
        item = archive.view.at(archive.version(name).location)
        chains.append(item.record.parent)
    assert chains[0] == chains[1] != bytes(16)


def test_a_session_that_grew_adds_its_new_turns_and_keeps_its_history(
    run: Run, place: str, tmp_path: Path
) -> None:
    chats = write(tmp_path / "grown.jsonl", GROWN, OTHER)
    grown, same, total = lines(run("archive", "put", place, chats, "--label", "from=test", "--json"))
    assert (grown["version"], grown["unchanged"]) == (2, False) and same["unchanged"]
    assert total["unchanged"] == 1
    assert json.loads(run("archive", "get", place, "chat-1").stdout) == GROWN
    assert json.loads(run("archive", "get", place, "chat-1", "--version", "1").stdout) == FIRST
    found = lines(run("archive", "ls", place, "--history", "--json"))
    assert [(f["name"], f["version"]) for f in found] == [
        ("chat-1", 1),
        ("chat-1", 2),
        ("chat-2", 1),
        ("chat-3", 1),
        ("notes/1", 1),
    ]


def test_find_and_stat(run: Run, place: str) -> None:
    assert [f["name"] for f in lines(run("archive", "find", place, "--name", "chat", "--json"))] == [
        "chat-1",
        "chat-2",
        "chat-3",
    ]
    assert len(lines(run("archive", "find", place, "--label", "from=test", "--json"))) == 3
    assert lines(run("archive", "find", place, "--until", "2001-01-01", "--json")) == []
    assert len(lines(run("archive", "find", place, "--since", "1h", "--json"))) == 4
    assert run("archive", "find", place, "--since", "yesterday").exit_code == 2
    stat = lines(run("archive", "stat", place, "--json"))[0]
    assert stat["sessions"] == 4 and stat["problems"] == 0 and stat["packs"] == 2


def test_forget_undelete_collect(run: Run, place: str) -> None:
    assert lines(run("archive", "forget", place, "chat-1", "--dry-run", "--json"))[0]["name"] == "chat-1"
    assert run("archive", "get", place, "chat-1").exit_code == 0
    assert run("archive", "forget", place, "chat-1").exit_code == 0
    assert run("archive", "get", place, "chat-1").exit_code == 8
    assert run("archive", "forget", place, "chat-1").exit_code == 8
    assert run("archive", "undelete", place, "chat-1").exit_code == 0
    assert json.loads(run("archive", "get", place, "chat-1").stdout) == FIRST
    assert run("archive", "forget", place, "chat-1", "notes/1").exit_code == 0
    first = lines(run("archive", "collect", place, "--json"))[0]
    assert first["condemned"] and not first["deleted"]
    second = lines(run("archive", "collect", place, "--json"))[0]
    assert second["deleted"] and second["live_versions"] == 2
    assert run("archive", "undelete", place, "notes/1").exit_code == 8
    assert json.loads(run("archive", "get", place, "chat-2").stdout) == OTHER
    assert lines(run("archive", "verify", place, "--json"))[0]["sound"]


def test_forget_by_policy(run: Run, place: str, tmp_path: Path) -> None:
    run("archive", "put", place, write(tmp_path / "grown.jsonl", GROWN))
    gone = lines(run("archive", "forget", place, "--keep-last", "1", "--json"))
    assert [(f["name"], f["version"]) for f in gone] == [("chat-1", 1)]
    assert lines(run("archive", "forget", place, "--keep-within", "1d", "--json")) == []
    gone = lines(
        run("archive", "forget", place, "--keep-last", "0", "--whole", "--label", "from=test", "--json")
    )
    assert {f["name"] for f in gone} == {"chat-2", "chat-3"}
    assert run("archive", "forget", place).exit_code == 2
    assert run("archive", "forget", place, "x", "--keep-last", "1").exit_code == 2
    assert run("archive", "forget", place, "--keep-within", "soon").exit_code == 2


def test_verify_decodes_goes_on_and_reports_damage(run: Run, place: str, tmp_path: Path) -> None:
    done = lines(run("archive", "verify", place, "--decode", "--json"))[0]
    assert done["sound"] and done["complete"] and done["decoded"] and not done["undecoded"]
    state = tmp_path / "state.json"
    one = lines(run("archive", "verify", place, "--state", str(state), "--fraction", "0.000001", "--json"))[0]
    assert not one["round_complete"]
    left = json.loads(state.read_text())
    pack = min(p.name for p in (Path(place) / "packs").iterdir())
    state.write_text(json.dumps(left | {"packs": [pack]}))
    two = lines(run("archive", "verify", place, "--state", str(state), "--json"))[0]
    assert two["packs"] == 1 and two["round_complete"] and json.loads(state.read_text())["packs"] == []
    state.write_text("{}")
    assert run("archive", "verify", place, "--state", str(state)).exit_code == 2
    damaged = Path(place) / "packs" / pack
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 4
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    bad = run("archive", "verify", place, "--json")
    assert bad.exit_code == 3 and not json.loads(bad.stdout.splitlines()[0])["sound"]


def test_copy_and_export(run: Run, place: str, tmp_path: Path) -> None:
    other = str(tmp_path / "copy")
    run("archive", "init", other)
    dry = lines(run("archive", "copy", place, other, "--dry-run", "--json"))[0]
    assert dry["sessions"] == 4 and lines(run("archive", "ls", other, "--json")) == []
    done = lines(run("archive", "copy", place, other, "--decode", "--json"))[0]
    assert (done["sessions"], done["there"], done["lost"]) == (4, 0, 0)
    again = lines(run("archive", "copy", place, other, "--json"))[0]
    assert (again["sessions"], again["there"], again["segments"]) == (0, 4, 0)
    assert json.loads(run("archive", "get", other, "chat-1").stdout) == FIRST
    assert lines(run("archive", "ls", other, "--json")) == lines(run("archive", "ls", place, "--json"))
    assert lines(run("archive", "verify", other, "--decode", "--json"))[0]["sound"]
    out = tmp_path / "all.jsonl"
    done = lines(run("archive", "export", place, "-o", str(out), "--label", "from=test", "--json"))[0]
    assert done["sessions"] == 3
    assert [json.loads(x) for x in out.read_text().splitlines()] == [FIRST, OTHER, ODD]
    packed = tmp_path / "all.pltz"
    assert run("archive", "export", place, "-o", str(packed)).exit_code == 0
    third = str(tmp_path / "third")
    run("archive", "init", third)
    assert lines(run("archive", "put", third, str(packed), "--json"))[-1]["sessions"] == 4
    assert json.loads(run("archive", "get", third, "chat-1").stdout) == FIRST


def test_refusals(run: Run, place: str, tmp_path: Path) -> None:
    twice = write(tmp_path / "twice.jsonl", FIRST, FIRST)
    assert run("archive", "put", place, twice).exit_code == 2
    assert run("archive", "put", place, twice, "--name", "x").exit_code == 2
    assert run("archive", "put", place, twice, "--label", "x").exit_code == 2
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    path = write(tmp_path / "image.jsonl", image)
    assert run("archive", "put", place, path).exit_code == 5
    assert run("archive", "put", place, path, "--keep-opaque", "--name", "picture").exit_code == 0
    assert json.loads(run("archive", "get", place, "picture").stdout) == image
    before = lines(run("archive", "stat", place, "--json"))
    assert lines(run("archive", "put", place, write(tmp_path / "new.jsonl", GROWN), "--dry-run", "--json"))
    assert lines(run("archive", "stat", place, "--json")) == before


def test_long_repetitive_logs_go_by_zstd(run: Run, place: str, tmp_path: Path) -> None:
    line = "2026-11-20 12:00:00 worker-3 heartbeat ok, queue 0, lag 0 ms, nothing to do\n"
    path = tmp_path / "log.txt"
    path.write_text(line * 4000)
    done = lines(run("archive", "put", place, str(path), "--json"))
    assert done[0]["bytes"] < 300
    out = tmp_path / "log.out"
    assert run("archive", "get", place, "log/0", "-o", str(out)).exit_code == 0
    assert out.read_bytes() == path.read_bytes()
