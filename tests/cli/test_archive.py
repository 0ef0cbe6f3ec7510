"""pltz archive: every command, end to end, with a tiny untrained bundle; with the one that ships where sizes decide."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pltz.archive.archive import Archive
from pltz.archive.index import SEGMENTS
from pltz.archive.pack import ALONE, FAST
from pltz.plt_codec.container import Reader

Run = Callable[..., Result]
SYSTEM = {
    "role": "system",
    "content": "You are the helpful assistant of a shop that sells bicycles and bells. " * 6,
}
TURNS = [
    {
        "role": "user" if n % 2 == 0 else "assistant",
        "content": f"Turn {n}: where is my bicycle, and {n} bells?",
    }
    for n in range(8)
]


def chat(turns: int, **more: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, *TURNS[:turns]], **more}


def lines(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def trained() -> None:
    """Ask for this to work with the bundle that ships: an untrained one loses to zstd, and all sessions are plain bytes."""


@pytest.fixture(autouse=True)
def bundle_at_hand(request: pytest.FixtureRequest) -> None:
    if "trained" not in request.fixturenames:
        request.getfixturevalue("tiny")


@pytest.fixture
def cold(run: Run, tmp_path: Path) -> Path:
    """An empty archive."""
    place = tmp_path / "cold"
    assert run("archive", "init", place).exit_code == 0
    return place


@pytest.fixture
def put(run: Run, cold: Path) -> Callable[..., list[dict[str, Any]]]:
    """``put(value, "--name", "x")``: one session from stdin as JSON."""

    def invoke(value: Any, *words: object) -> list[dict[str, Any]]:
        line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
        return lines(run("archive", "put", cold, "-", "--format", "jsonl", *words, "--json", input=line))

    return invoke


Put = Callable[..., list[dict[str, Any]]]


def test_init_refuses_what_is_an_archive(run: Run, cold: Path) -> None:
    done = run("archive", "init", cold)
    assert done.exit_code == 2 and "already" in done.stderr


@pytest.mark.parametrize("name", ["ls", "stat", "verify", "collect", "find"])
def test_no_archive_here(run: Run, tmp_path: Path, name: str) -> None:
    done = run("archive", name, tmp_path)
    assert done.exit_code == 2 and f"no archive at {tmp_path}" in done.stderr
    assert "pltz archive init" in done.stderr


@pytest.mark.parametrize("name", ["init", "ls", "stat"])
def test_what_can_be_no_archive(run: Run, chats: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chats.parent)
    for place in ("", "http://example.org/cold", chats):
        done = run("archive", name, place)
        assert done.exit_code == 2 and "expected" in done.stderr and str(place) in done.stderr
    assert os.listdir() == [chats.name]


def test_sessions_come_back(run: Run, cold: Path, chats: Path) -> None:
    found = lines(run("archive", "put", cold, chats, "--json"))
    assert [row["name"] for row in found] == [f"chats/{n}" for n in range(4)]
    done = run("archive", "get", cold, *(row["name"] for row in found))
    assert done.stdout_bytes == chats.read_bytes().replace(b", ", b",").replace(b": ", b":")
    assert [json.loads(a) for a in done.stdout.splitlines()] == [
        json.loads(a) for a in chats.read_text("utf8").splitlines()
    ]


def test_texts_and_ids(run: Run, cold: Path, tmp_path: Path) -> None:
    text, log, ids = tmp_path / "a.txt", tmp_path / "b.log", tmp_path / "c.npy"
    text.write_bytes(b"caf\xc3\xa9 \xff\x00 and so on\r\n")
    log.write_bytes(b"2026-11-21 the same line again and again\n" * 4000)
    import numpy as np

    np.save(ids, np.array([5, 900, 1023, 0, 31], np.int64))
    rows = lines(run("archive", "put", cold, text, log, ids, "--json"))
    assert [(r["name"], r["kind"]) for r in rows] == [("a/0", "text"), ("b/0", "text"), ("c/0", "ids")]
    assert rows[1]["method"] == "zstd" and rows[1]["bytes"] < 200
    assert run("archive", "get", cold, "a/0").stdout_bytes == text.read_bytes()
    assert run("archive", "get", cold, "b/0").stdout_bytes == log.read_bytes()
    assert json.loads(run("archive", "get", cold, "c/0").stdout) == [5, 900, 1023, 0, 31]


def test_the_fast_layout(trained: None, run: Run, cold: Path, tmp_path: Path) -> None:
    """Only what is long, only where asked for; read by every later call, and kept by verify."""
    (tmp_path / "long.txt").write_text(" ".join(f"line {n} of the long log" for n in range(600)), "utf8")
    found = [
        json.loads(line)
        for words in (("--name", "plain"), ("--name", "fast", "--tenant", "other", "--layout", "fast"))
        for line in run("archive", "put", cold, tmp_path / "long.txt", *words, "--json").stdout.splitlines()
    ]
    assert [f["method"] for f in found] == ["model", "model"] and found[0]["tokens"] > 2048
    assert found[0]["bytes"] < found[1]["bytes"]  # the price of more lanes
    archive = Archive.open(cold, [])
    modes = {v.name: archive.view.find(SEGMENTS, v.leaf)[0].context.mode for v in archive.ls()}
    assert modes == {"plain": ALONE, "fast": FAST}
    for words in (("plain",), ("fast", "--tenant", "other")):
        done = run("archive", "get", cold, *words)
        assert done.exit_code == 0 and done.stdout_bytes == (tmp_path / "long.txt").read_bytes()
    assert run("archive", "verify", cold, "--decode").exit_code == 0


def test_no_larger_than_a_file(trained: None, run: Run, cold: Path, chats: Path, tmp_path: Path) -> None:
    """The bitstring of a chat that is stored whole is no larger than its frame."""
    log = tmp_path / "b.log"
    log.write_bytes(b"2026-11-21 the same line again and again\n" * 4000)
    assert run("compress", chats, log, "-o", tmp_path / "c.pltz").exit_code == 0
    frames = Reader((tmp_path / "c.pltz").read_bytes())
    rows = lines(run("archive", "put", cold, chats, log, "--json"))
    for row, frame in zip(rows, frames, strict=True):
        if row["segments"] == 1:
            assert row["bytes"] <= len(frame.data)
    assert {row["method"] for row in rows} == {"model", "zstd"}


def test_turns_add_what_is_new(trained: None, run: Run, cold: Path, put: Put) -> None:
    short = put(chat(2), "--name", "s", "--time", "100")[0]
    long = put(chat(4), "--name", "s", "--time", "200")[0]
    same = put(chat(4), "--name", "s", "--time", "200")[0]
    assert (short["segments"], short["known"], short["new"]) == (2, 0, 2)
    assert (long["segments"], long["known"], long["new"], long["version"]) == (3, 2, 1, 2)
    assert same["unchanged"] and same["version"] == 2
    other = put(chat(2), "--name", "t")[0]
    assert other["new"] == 0, "the same two segments, under another name"
    history = lines(run("archive", "ls", cold, "--history", "--json"))
    assert [(h["name"], h["version"]) for h in history] == [("s", 1), ("s", 2), ("t", 1)]
    assert json.loads(run("archive", "get", cold, "s", "--version", 1).stdout) == chat(2)
    assert json.loads(run("archive", "get", cold, "s").stdout) == chat(4)


def test_other_keys_are_not_in_the_way_of_new_turns(
    trained: None, run: Run, cold: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.archive.sessions.META_AFTER", 0)
    put(chat(2, state="open", n=1.0), "--name", "s")
    assert put(chat(4, state="closed"), "--name", "s")[0]["known"] == 2
    assert json.loads(run("archive", "get", cold, "s").stdout) == chat(4, state="closed")
    found = json.loads(run("archive", "get", cold, "s", "--version", 1).stdout)
    assert found == chat(2, state="open", n=1.0) and isinstance(found["n"], float)


def test_bases_are_shared_as_told(trained: None, run: Run, cold: Path, put: Put) -> None:
    assert put(chat(2), "--name", "s", "--tenant", "a")[0]["new"] == 2
    assert put(chat(1), "--name", "t", "--tenant", "a")[0]["new"] == 1, "the base is the tenant's"
    assert put(chat(2), "--name", "s", "--tenant", "b")[0]["new"] == 2, "another tenant shares nothing"
    assert put(chat(2), "--name", "u", "--tenant", "a", "--share-base", "shop")[0]["new"] == 2
    assert put(chat(2), "--name", "u", "--tenant", "b", "--share-base", "shop")[0]["new"] == 1
    grown = put(chat(4), "--name", "u", "--tenant", "b")[0]
    assert (grown["known"], grown["new"]) == (2, 1), "as its last version did"
    assert json.loads(run("archive", "get", cold, "u", "--tenant", "b").stdout) == chat(4)


def test_opaque_parts(run: Run, cold: Path) -> None:
    value = {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]
    }
    line = json.dumps(value).encode()
    refused = run("archive", "put", cold, "-", "--format", "jsonl", input=line)
    assert refused.exit_code == 5 and "--keep-opaque" in refused.stderr
    kept = lines(run("archive", "put", cold, "-", "--format", "jsonl", "--keep-opaque", "--json", input=line))
    assert kept[0]["method"] == "zstd"
    assert json.loads(run("archive", "get", cold, "stdin/0").stdout) == value


def test_put_from_a_pltz_file(run: Run, cold: Path, frozen: Path, chats: Path) -> None:
    rows = lines(run("archive", "put", cold, frozen, "--json"))
    assert [row["name"] for row in rows] == [f"chats/{n}" for n in range(4)]
    done = run("archive", "export", cold, "-o", "-")
    assert [json.loads(a) for a in done.stdout.splitlines()] == [
        json.loads(a) for a in chats.read_text("utf8").splitlines()
    ]


def test_dry_run_of_put_changes_nothing(run: Run, cold: Path, chats: Path) -> None:
    before = sorted(cold.rglob("*"))
    rows = lines(run("archive", "put", cold, chats, "--dry-run", "--json"))
    assert len(rows) == 4 and "version" not in rows[0] and rows[0]["bytes"] > 0
    assert sorted(cold.rglob("*")) == before


def test_names(run: Run, cold: Path, put: Put, chats: Path) -> None:
    assert put(chat(1, id="abc"), "--name-key", "id")[0]["name"] == "abc"
    line = json.dumps(chat(1)).encode()
    missing = run("archive", "put", cold, "-", "--format", "jsonl", "--name-key", "id", input=line)
    assert missing.exit_code == 5
    many = run("archive", "put", cold, chats, "--name", "x")
    assert many.exit_code == 2 and "--name-key" in many.stderr
    both = run("archive", "put", cold, chats, "--name", "x", "--name-key", "id")
    assert both.exit_code == 2
    bad = run("archive", "put", cold, chats, "--tag", "novalue")
    assert bad.exit_code == 2 and "KEY=VALUE" in bad.stderr


def test_no_name_or_text_in_file_names(cold: Path, put: Put) -> None:
    put(chat(2), "--name", "secretname", "--tenant", "secrettenant", "--tag", "secretkey=v")
    assert not [p for p in cold.rglob("*") if "secret" in p.name or "bicycle" in p.name]


def test_find_and_stat(run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "support/1", "--tag", "channel=web", "--time", "1970-01-02")
    put(chat(2), "--name", "support/2", "--tag", "channel=mail", "--time", "1970-01-03T00:00")
    put(chat(3), "--name", "sales/1", "--tag", "channel=web", "--tenant", "b", "--time", "1")

    def names(*words: object) -> list[str]:
        return [row["name"] for row in lines(run("archive", "find", cold, *words, "--json"))]

    assert names() == ["sales/1", "support/1", "support/2"]
    assert names("support") == ["support/1", "support/2"]
    assert names("--tag", "channel=web") == ["sales/1", "support/1"]
    assert names("--since", "1970-01-03") == ["support/2"]
    assert names("--until", "86401") == ["sales/1", "support/1"]
    assert names("--tenant", "b") == ["sales/1"]
    found = lines(run("archive", "stat", cold, "--json"))[0]
    assert found["sessions"] == 3 and found["packs"] == 3 and found["problems"] == 0
    assert "pack bytes" in run("archive", "stat", cold).stdout


@pytest.mark.parametrize("words", [["--name", "e\udcff"], ["--tenant", "\udcff"]])
def test_a_name_that_is_no_unicode_is_refused(run: Run, cold: Path, words: list[str]) -> None:
    """As the shell hands on what was typed in another encoding."""
    done = run("archive", "put", cold, "-", *words, input=b'{"messages":[]}\n')
    assert done.exit_code == 5 and r"\udcff' is not valid Unicode" in done.output
    done = run("archive", "get", cold, *(words if words[0] == "--tenant" else []), "e\udcff")
    assert done.exit_code == 5 and r"\udcff' is not valid Unicode" in done.output


def test_a_name_does_not_steer_the_terminal(run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "a\x1b[2Jb")
    out = run("archive", "ls", cold).stdout
    assert "\x1b" not in out and "a\\x1b[2Jb" in out


def test_forget_and_undelete(run: Run, cold: Path, put: Put) -> None:
    for turns in (1, 2, 3):
        put(chat(turns), "--name", "s", "--time", turns)
    put(chat(4), "--name", "t", "--time", 4)
    dry = lines(run("archive", "forget", cold, "--keep-last", 1, "--dry-run", "--json"))
    assert [(v["name"], v["version"]) for v in dry] == [("s", 1), ("s", 2)]
    assert len(lines(run("archive", "ls", cold, "--history", "--json"))) == 4
    gone = lines(run("archive", "forget", cold, "--keep-last", 1, "--json"))
    assert [v["id"] for v in gone] == [v["id"] for v in dry]
    assert {v["forgotten"] for v in dry} == {False} and {v["forgotten"] for v in gone} == {True}
    assert [v["version"] for v in lines(run("archive", "ls", cold, "--history", "--json"))] == [3, 1]
    back = lines(run("archive", "undelete", cold, "s", "--version", 2, "--json"))
    assert [(v["version"], v["forgotten"]) for v in back] == [(2, False)]
    assert run("archive", "forget", cold, "s").exit_code == 0
    missing = run("archive", "get", cold, "s")
    assert missing.exit_code == 8 and "forgotten" in missing.stderr
    assert len(lines(run("archive", "undelete", cold, "s", "--json"))) == 3
    assert json.loads(run("archive", "get", cold, "s").stdout) == chat(3)


def test_a_policy_keeps_the_last_unless_told(run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "s", "--time", 1, "--tag", "trial=yes")
    put(chat(1), "--name", "t", "--time", 1)
    assert lines(run("archive", "forget", cold, "--keep-within", "1d", "--json")) == []
    words = ("--keep-within", "1d", "--drop-last", "--tag", "trial=yes")
    assert [v["name"] for v in lines(run("archive", "forget", cold, *words, "--json"))] == ["s"]
    assert [v["name"] for v in lines(run("archive", "ls", cold, "--json"))] == ["t"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--drop-last", "s"], 2),
        (["--keep-within", "soon"], 2),
        (["s", "--version", 1, "--keep-last", 1], 2),
        (["nobody"], 8),
        (["s", "--version", 9], 8),
        (["s", "--tenant", "other"], 8),
    ],
)
def test_forget_refuses(run: Run, cold: Path, put: Put, words: list[object], code: int) -> None:
    put(chat(1), "--name", "s")
    done = run("archive", "forget", cold, *words)
    assert done.exit_code == code, done.output
    assert len(lines(run("archive", "ls", cold, "--json"))) == 1


def test_collect_waits_for_the_grace_period(run: Run, cold: Path, put: Put) -> None:
    put(chat(8), "--name", "gone")
    put({"messages": [{"role": "user", "content": "stay"}]}, "--name", "stays")
    assert run("archive", "forget", cold, "gone").exit_code == 0
    dry = lines(run("archive", "collect", cold, "--grace", "0s", "--dry-run", "--json"))[0]
    assert dry["condemned"] > 0
    assert lines(run("archive", "stat", cold, "--json"))[0]["condemned"] == 0
    first = lines(run("archive", "collect", cold, "--json"))[0]
    assert first["condemned"] > 0 and first["deleted"] == 0
    assert lines(run("archive", "collect", cold, "--json"))[0]["deleted"] == 0, "condemned a moment ago"
    second = lines(run("archive", "collect", cold, "--grace", "0s", "--json"))[0]
    assert second["deleted"] == first["condemned"] and second["freed"] > 0
    assert run("archive", "undelete", cold, "gone").exit_code == 8
    assert json.loads(run("archive", "get", cold, "stays").stdout)["messages"][0]["content"] == "stay"
    assert run("archive", "verify", cold, "--decode").exit_code == 0


def test_undelete_within_the_grace_period(run: Run, cold: Path, put: Put) -> None:
    put(chat(8), "--name", "s")
    run("archive", "forget", cold, "s")
    assert lines(run("archive", "collect", cold, "--json"))[0]["condemned"] > 0
    assert run("archive", "undelete", cold, "s").exit_code == 0
    assert lines(run("archive", "collect", cold, "--grace", "0s", "--json"))[0]["deleted"] > 0
    assert json.loads(run("archive", "get", cold, "s").stdout) == chat(8)


def flip(pack: Path) -> None:
    """Damage a byte of a pack's first record."""
    from pltz.archive.pack import Pack

    data = bytearray(pack.read_bytes())
    data[Pack.of(bytes(data)).head.size + 30] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)


def test_verify_says_what_is_lost(trained: None, run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "t")
    [pack] = (cold / "packs").iterdir()
    put(chat(8), "--name", "s")
    sound = lines(run("archive", "verify", cold, "--decode", "--json"))
    assert len(sound) == 1 and sound[0]["sound"] and sound[0]["complete"] and sound[0]["decoded"] == 3
    flip(pack)
    done = run("archive", "verify", cold, "--json")
    assert done.exit_code == 3
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("problem" in row for row in rows) and not rows[-1]["sound"]
    lost = [row["lost_session"]["name"] for row in rows if "lost_session" in row]
    assert "s" in lost, (
        "its base is gone; the record of t points at the damaged one and may not be read at all"
    )
    assert "DAMAGED" in run("archive", "verify", cold).stdout


def test_verify_a_part(run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "s")
    found = lines(run("archive", "verify", cold, "--fraction", 0, "--json"))[0]
    assert found["packs"] == 0 and not found["complete"]


def test_verify_goes_on_where_it_was(
    run: Run, cold: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed after two of five packs: the next checks three, and still tells what the first found."""
    from pltz.archive.verify import Verifier

    for n in range(1, 6):
        put(chat(n), "--name", f"s{n}")
    flip(min((cold / "packs").iterdir()))
    state = tmp_path / "state.json"
    whole = Verifier._check_pack
    seen: list[bytes] = []

    def two(self: Verifier, pack: bytes, decode: bool) -> None:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(pack)
        whole(self, pack, decode)

    monkeypatch.setattr(Verifier, "_check_pack", two)
    assert run("archive", "verify", cold, "--decode", "--state", state).exit_code == 1
    assert state.exists() and len(seen) == 2

    def note(self: Verifier, pack: bytes, decode: bool) -> None:
        seen.append(pack)
        whole(self, pack, decode)

    monkeypatch.setattr(Verifier, "_check_pack", note)
    done = run("archive", "verify", cold, "--decode", "--state", state, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 3 and any("problem" in row for row in rows)
    assert len(seen) == len(set(seen)) == 5 and rows[-1]["packs"] == 5 and rows[-1]["complete"]
    assert not state.exists()


@pytest.mark.parametrize(
    ("content", "code"), [(b"", 3), (b"{}", 3), (b"[1]", 3), (b"\xff", 3), (b'{"archive": 1' * 9, 3)]
)
def test_a_state_file_that_is_none(run: Run, cold: Path, tmp_path: Path, content: bytes, code: int) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(content)
    assert run("archive", "verify", cold, "--state", state).exit_code == code
    assert state.read_bytes() == content


def test_copy(run: Run, cold: Path, put: Put, tmp_path: Path) -> None:
    put(chat(2), "--name", "s", "--tag", "a=1", "--time", 10)
    put(chat(4), "--name", "s", "--tag", "a=2", "--time", 20)
    put(chat(2), "--name", "u", "--tenant", "b", "--share-base", "shop", "--time", 5)
    put({"messages": []}, "--name", "empty")
    other = tmp_path / "other"
    run("archive", "init", other)
    assert len(lines(run("archive", "copy", cold, other, "--dry-run", "--json"))) == 4
    assert lines(run("archive", "ls", other, "--json")) == []
    assert len(lines(run("archive", "copy", cold, other, "--json"))) == 4
    listing = ("--history", "--json")
    assert lines(run("archive", "ls", other, *listing)) == lines(run("archive", "ls", cold, *listing))
    again = lines(run("archive", "copy", cold, other, "--json"))
    assert all(row["there"] for row in again)
    assert json.loads(run("archive", "get", other, "s", "--version", 1).stdout) == chat(2)
    assert put(chat(1), "--name", "new")
    assert [r["name"] for r in lines(run("archive", "copy", cold, other, "new", "--json"))] == ["new"]
    assert run("archive", "copy", cold, cold).exit_code == 2


def test_a_copy_that_was_stopped_goes_on(
    run: Run, cold: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pltz.archive import transfer

    for n in range(1, 5):
        put(chat(n), "--name", f"s{n}")
    other = tmp_path / "other"
    run("archive", "init", other)
    monkeypatch.setattr(transfer, "COMMIT_SESSIONS", 1)
    whole, calls = transfer._commit, 0

    def stop(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(transfer, "_commit", stop)
    assert run("archive", "copy", cold, other).exit_code == 1
    assert len(lines(run("archive", "ls", other, "--json"))) == 2
    monkeypatch.setattr(transfer, "_commit", whole)
    rows = lines(run("archive", "copy", cold, other, "--json"))
    assert [row["there"] for row in rows].count(True) == 2
    assert len(lines(run("archive", "ls", other, "--history", "--json"))) == 4


def test_export(run: Run, cold: Path, put: Put, chats: Path, tmp_path: Path) -> None:
    put(chat(2), "--name", "s", "--tag", "a=1", "--time", 7)
    run("archive", "put", cold, chats, "--tenant", "b")
    out = tmp_path / "b.jsonl"
    assert (
        json.loads(run("archive", "export", cold, "--tenant", "b", "-o", out, "--json").stdout)["sessions"]
        == 4
    )
    assert [json.loads(x) for x in out.read_bytes().splitlines()] == [
        json.loads(x) for x in chats.read_bytes().splitlines()
    ]
    named = json.loads(run("archive", "export", cold, "s", "--with-names", "-o", "-").stdout)
    assert named == {
        "tenant": "default", "name": "s", "version": 1, "time": 7, "tags": {"a": "1"}, "session": chat(2)
    }  # fmt: skip
    packed = tmp_path / "all.pltz"
    assert run("archive", "export", cold, "-o", packed).exit_code == 0
    assert len(run("decompress", packed).stdout.splitlines()) == 5
    assert run("archive", "export", cold, "-o", packed).exit_code == 2, "it exists"


def test_compress_into_an_archive(run: Run, cold: Path, chats: Path, tmp_path: Path) -> None:
    assert len(lines(run("compress", chats, "--archive", cold, "--json"))) == 4
    assert [v["name"] for v in lines(run("archive", "ls", cold, "--json"))] == [
        f"chats/{n}" for n in range(4)
    ]
    assert run("compress", chats, "--archive", cold, "-o", tmp_path / "x").exit_code == 2
    assert run("compress", chats).exit_code == 2


def test_thaw_from_an_archive_is_that_of_a_file(run: Run, cold: Path, frozen: Path) -> None:
    run("archive", "put", cold, frozen, "--tenant", "acme")
    words = ("--tenant", "acme", "--continue", 5, "--json")
    found = json.loads(run("thaw", "--archive", cold, "chats/1", *words).stdout)
    expected = json.loads(run("thaw", frozen, "--session", 1, "--continue", 5, "--json").stdout)
    assert [found[k] for k in ("tokens", "continuation")] == [expected[k] for k in ("tokens", "continuation")]
    assert run("thaw", "--archive", cold, "nobody").exit_code == 8
    assert run("thaw", "--archive", cold, "chats/1", "--session", 1).exit_code == 2


def test_a_hot_folder_serves_the_second_thaw(run: Run, cold: Path, frozen: Path, tmp_path: Path) -> None:
    run("archive", "put", cold, frozen)
    words = ["thaw", "--archive", cold, "chats/1", "--hot", tmp_path / "hot", "--continue", 5, "--json"]
    first, second = (json.loads(run(*words).stdout) for _ in range(2))
    assert (first["hot_tokens"], second["hot_tokens"]) == (0, first["tokens"])
    assert first["continuation"] == second["continuation"]
    assert {"read_ms", "lookup_ms", "decode_ms", "prefill_ms", "insert_ms", "total_ms"} <= second.keys()
    assert "hot" in run(*words[:-1]).stdout
    assert run("thaw", frozen, "--session", 1, "--hot", tmp_path).exit_code == 2
    (tmp_path / "file").write_text("")
    assert run("thaw", "--archive", cold, "chats/1", "--hot", tmp_path / "file").exit_code == 2


def test_frozen_for_a_target(run: Run, cold: Path, chats: Path, tmp_path: Path) -> None:
    chats.write_text(json.dumps(chat(2)) + "\n")
    rows = lines(run("archive", "put", cold, chats, "--target", "mini-llama", "--json"))
    assert rows[0]["kind"] == "ids"
    assert run("thaw", "--archive", cold, "chats/0").exit_code == 0
    packed = tmp_path / "t.pltz"
    assert run("compress", chats, "-o", packed, "--target", "mini-llama").exit_code == 0
    again = lines(run("archive", "put", cold, packed, "--name", "chats/0", "--json"))
    assert again[0]["unchanged"], "the same ids for the same target, straight or by way of a file"


@pytest.fixture
def stranger(tiny_tokenizer_json: Callable[..., bytes], tmp_path: Path) -> Path:
    """A target whose tokenizer is not the bundle's."""
    from tests.cli.conftest import make_target

    make_target(tmp_path / "stranger", tiny_tokenizer_json(900))
    return tmp_path / "stranger"


def test_a_target_with_another_tokenizer(
    run: Run, cold: Path, chats: Path, stranger: Path, tmp_path: Path
) -> None:
    from pltz.models.target import Target

    chats.write_text(json.dumps(chat(2)) + "\n" + json.dumps(chat(3)) + "\n")
    rows = lines(run("archive", "put", cold, chats, "--target", stranger, "--json"))
    assert [(row["kind"], row["method"]) for row in rows] == [("ids", "model")] * 2
    model = Target.load(stranger)
    wanted = [list(model.render(chat(n))) for n in (2, 3)]
    got = run("archive", "get", cold, "chats/0", "chats/1", "--tokenizer", stranger)
    assert [json.loads(line) for line in got.stdout.splitlines()] == wanted
    assert lines(run("archive", "put", cold, chats, "--target", stranger, "--json"))[0]["unchanged"]
    done = run("thaw", "--archive", cold, "chats/1", "--target", stranger, "--json")
    assert json.loads(done.stdout)["tokens"] == len(wanted[1])
    checked = lines(run("archive", "verify", cold, "--decode", "--tokenizer", stranger, "--json"))[-1]
    assert checked["decoded"] and not checked["undecoded"]
    for refused in (
        run("archive", "get", cold, "chats/0"),
        run("thaw", "--archive", cold, "chats/1", "--any-target"),
        run("archive", "export", cold, "-o", tmp_path / "x.pltz", "--tokenizer", stranger),
    ):
        assert refused.exit_code not in (0, 1) and "tokenizer" in refused.stderr, refused.output
    other = tmp_path / "other"
    assert run("archive", "init", other).exit_code == 0
    assert run("archive", "copy", cold, other, "--tokenizer", stranger).exit_code == 0
    again = run("archive", "get", other, "chats/1", "--tokenizer", stranger / "tokenizer.json")
    assert json.loads(again.stdout) == wanted[1]


def test_ids_of_another_tokenizer_from_files(
    run: Run, cold: Path, chats: Path, stranger: Path, tmp_path: Path
) -> None:
    ids, packed, plain = tmp_path / "ids.jsonl", tmp_path / "theirs.pltz", tmp_path / "ours.pltz"
    ids.write_text("[1, 5, 899, 7, 7, 300]\n")
    named = "--tokenizer", stranger / "tokenizer.json"
    assert lines(run("archive", "put", cold, ids, "--format", "ids", *named, "--json"))[0]["tokens"] == 6
    assert json.loads(run("archive", "get", cold, "ids/0", *named).stdout) == [1, 5, 899, 7, 7, 300]
    assert run("compress", ids, "-o", packed, "--format", "ids", *named).exit_code == 0
    assert lines(run("archive", "put", cold, packed, "--name", "ids/0", *named, "--json"))[0]["unchanged"]
    assert run("archive", "put", cold, packed).exit_code not in (0, 1), "whose ids they are is not lost"
    assert run("compress", ids, "-o", plain, "--format", "ids").exit_code == 0
    assert run("archive", "put", cold, plain, *named).exit_code not in (0, 1)
    assert run("archive", "put", cold, ids, *named, "--target", stranger).exit_code == 2


KILLED = """
import sys
from pltz.archive.sessions import Item, SessionArchive
from pltz.models.bundle import Bundle
from pltz.models.session import Session
cold = SessionArchive.open(sys.argv[1], [Bundle.load(sys.argv[2])])
turns = []
for n in range(10000):
    turns.append({"role": "user", "content": f"turn {n}"})
    for stored in cold.put([Item("s", Session("chat", {"messages": turns}))]):
        print(stored.receipt.number, flush=True)
"""


def test_what_was_printed_survives_a_kill(run: Run, cold: Path, tiny: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(cold), str(tiny / "bundles/mini")]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        acknowledged = 0
        while acknowledged < 8:
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    start = time.monotonic()
    found = json.loads(run("archive", "get", cold, "s", "--version", acknowledged).stdout)
    assert [m["content"] for m in found["messages"]] == [f"turn {n}" for n in range(acknowledged)]
    assert run("archive", "verify", cold, "--decode").exit_code == 0
    assert time.monotonic() - start < 60


def test_a_sealed_archive_from_end_to_end(run: Run, tmp_path: Path, put: Put) -> None:
    """init, put, get, ls, verify, repair, copy to an open archive, erase; nothing without the key, nothing after erase."""
    key, place, plain = tmp_path / "key", tmp_path / "sealed", tmp_path / "plain"
    key.write_bytes(bytes(range(32)))
    made = lines(run("archive", "init", place, "--key-file", key, "--json"))[0]
    assert made["sealed"] and made["parity"] == [50, 1000]
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps({"id": f"chat{n}", **chat(n)}) + "\n" for n in (2, 3)))
    keyed = ("--key-file", key)
    rows = lines(run("archive", "put", place, source, "--name-key", "id", "--json", *keyed))
    assert [row["name"] for row in rows[:2]] == ["chat2", "chat3"]
    assert run("archive", "get", place, "chat2").exit_code != 0
    assert json.loads(run("archive", "get", place, "chat2", *keyed).stdout) == {"id": "chat2", **chat(2)}
    wrong = tmp_path / "wrong"
    wrong.write_bytes(bytes(32))
    assert run("archive", "get", place, "chat2", "--key-file", wrong).exit_code == 4
    assert run("archive", "get", place, "chat2", *keyed, "--passphrase").exit_code == 2
    raw = b"".join(p.read_bytes() for p in place.rglob("*") if p.is_file())
    assert (
        b"bicycle" not in raw
        and b"default" not in raw
        and b"chat2" not in b"".join(p.name.encode() for p in place.rglob("*"))
    )
    assert lines(run("archive", "verify", place, "--decode", "--json", *keyed))[-1]["sound"]
    assert json.loads(run("archive", "repair", place, "--json").stdout)["whole"]
    assert run("archive", "init", plain).exit_code == 0
    assert run("archive", "copy", place, plain, "--json", *keyed).exit_code == 0
    assert json.loads(run("archive", "get", plain, "chat3").stdout) == {"id": "chat3", **chat(3)}
    assert run("archive", "get", plain, "chat3", *keyed).exit_code == 2, "an open archive takes no key"
    done = run("archive", "erase", place, "--tenant", "default", "--name", "chat2", "--yes", "--json", *keyed)
    assert done.exit_code == 0, done.output
    assert run("archive", "get", place, "chat2", *keyed).exit_code != 0
    assert json.loads(run("archive", "get", place, "chat3", *keyed).stdout) == {"id": "chat3", **chat(3)}
    assert run("archive", "erase", plain, "--tenant", "default", "--name", "chat3", "--yes").exit_code != 0
