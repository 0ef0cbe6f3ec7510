"""compress and decompress: sessions come back unchanged, and bad inputs are refused by name."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import Result

from pltz.cli.ui.output import Output
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import UsageError
from tests.cli.commands import Run, ok
from tests.watch import noted


def test_summary(run: Run, tiny: Path, chats: Path, tmp_path: Path) -> None:
    done = run("compress", chats, "-o", tmp_path / "a.pltz", "--json")
    found = json.loads(done.stdout)
    assert found["sessions"] == 4 and found["recognised"] == {"chat": 4} and found["verified"] is True
    assert found["frozen_bytes"] == (tmp_path / "a.pltz").stat().st_size
    again = run("compress", chats, "-o", tmp_path / "b.pltz", "--no-verify")
    assert "4 sessions" in again.stdout and "not verified" in again.stdout
    assert (tmp_path / "a.pltz").read_bytes() == (tmp_path / "b.pltz").read_bytes()


def test_stdin_and_stdout(run: Run, tiny: Path, chats: Path) -> None:
    packed = run("compress", "-", "-o", "-", input=chats.read_bytes())
    assert packed.exit_code == 0 and packed.stdout_bytes[:4] == b"PLTZ" and "4 sessions" in packed.stderr
    back = run("decompress", "-", "--session", 2, input=packed.stdout_bytes)
    assert json.loads(back.stdout) == json.loads(chats.read_text("utf8").splitlines()[2])


def test_a_file_written_is_reported_as_json(run: Run, frozen: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    done = run("decompress", frozen, "-o", path, "--json")
    facts = {"sessions": 4, "bytes": path.stat().st_size, "output": str(path)}
    assert json.loads(done.stdout) == facts and path.stat().st_size > 100
    done = run("decompress", frozen, "--json")
    assert done.stdout == path.read_text("utf8") and json.loads(done.stderr) == facts | {"output": "-"}


def test_several_texts_need_a_choice(run: Run, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"two")
    run("compress", tmp_path / "a.txt", tmp_path / "b.txt", "-o", tmp_path / "a.pltz")
    refused = run("decompress", tmp_path / "a.pltz", "-o", tmp_path / "out")
    assert refused.exit_code == 5 and "--session" in refused.stderr and not (tmp_path / "out").exists()
    assert run("decompress", tmp_path / "a.pltz", "--session", 1).stdout_bytes == b"two"
    assert run("decompress", tmp_path / "a.pltz", "--format", "text").stdout_bytes == b"onetwo"
    assert run("decompress", tmp_path / "a.pltz", "--format", "ids").exit_code == 5


def test_a_target_keeps_its_own_ids(run: Run, tiny: Path, chats: Path, tmp_path: Path) -> None:
    assert run("compress", chats, "--target", "mini-llama", "-o", tmp_path / "a.pltz").exit_code == 5, "no messages"
    spoken = tmp_path / "spoken.jsonl"
    spoken.write_bytes(b"".join(chats.read_bytes().splitlines(keepends=True)[:3]))
    done = ok(run("compress", spoken, "--target", "mini-llama", "-o", tmp_path / "a.pltz", "--json"))
    assert json.loads(done.stdout)["sessions"] == 3
    assert Reader((tmp_path / "a.pltz").read_bytes()).header.target_fingerprint is not None
    back = run("decompress", tmp_path / "a.pltz", "--target", "mini-llama")
    assert all(isinstance(i, int) for i in json.loads(back.stdout.splitlines()[0]))


def test_progress_is_on_stderr(run: Run, tiny: Path, chats: Path, tmp_path: Path) -> None:
    done = run("compress", chats, "-o", tmp_path / "a.pltz", "--progress", "--json")
    assert "tokens/s" in done.stderr and json.loads(done.stdout)
    phases = [line.split("  ")[0] for line in done.stderr.splitlines()]  # a slow phase has more than one line
    assert list(dict.fromkeys(phases)) == ["read", "encode", "verify", "write"] and "read  4 sessions" in done.stderr
    assert "verify  100 %" in done.stderr and run("compress", chats, "-o", tmp_path / "b.pltz", "-q").stderr == ""


def refused(done: Result, code: int, *words: str) -> None:
    """Check the exit code, that stderr has one line with the words, and that stdout is empty."""
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_refusals_of_compress(run: Run, tiny: Path, chats: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.pltz"
    refused(run("compress", tmp_path / "missing.jsonl", "-o", out), 2, "missing.jsonl")
    refused(run("compress", chats, "-o", chats), 2, "input")
    refused(run("compress", "-", "-", "-o", out, input=b""), 2, "stdin")
    refused(run("compress", chats, "-o", out, "--bundle", "nope"), 2, "nope")
    refused(run("compress", chats, "-o", out, "--target", tmp_path / "nope"), 6, "nope")
    refused(run("compress", chats, "-o", out, "--target", "mini-llama", "--tokenizer", chats), 2, "tokenizer")
    refused(run("compress", chats, "-o", out, "--tokenizer", tmp_path / "nope.json"), 2, "nope.json")
    (tmp_path / "bad.jsonl").write_text('{"messages": [}\n')
    refused(run("compress", tmp_path / "bad.jsonl", "-o", out, "--format", "jsonl"), 2, "line 1")
    assert not out.exists() and run("compress", chats, "-o", out).exit_code == 0
    refused(run("compress", chats, "-o", out), 2, "exists", "--force")
    assert run("compress", chats, "-o", out, "--force").exit_code == 0


def test_a_folder_of_no_sessions_is_no_file_of_none(run: Run, chats: Path, tmp_path: Path) -> None:
    folder, out, blank = tmp_path / "empty", tmp_path / "out.pltz", tmp_path / "blank.jsonl"
    folder.mkdir()
    done = run("compress", folder, "-o", out)
    assert done.exit_code == 2 and f"error: expected sessions in {folder}, found none" in done.stderr
    (folder / "blank.jsonl").write_bytes(b"\n")
    done = run("compress", folder, "-o", out)
    assert done.exit_code == 2 and "blank.jsonl: holds no session" in done.stderr and "found none" in done.stderr
    assert not out.exists() and run("compress", folder, chats, "-o", out).exit_code == 0
    blank.write_bytes(b"")
    assert "0 sessions" in run("compress", blank, "-o", tmp_path / "none.pltz").output, "an export may be of nothing"


@pytest.mark.parametrize("damage", ["empty", "other", "cut", "flipped", "session"])
def test_damaged_files(run: Run, frozen: Path, tmp_path: Path, damage: str) -> None:
    data = bytearray(frozen.read_bytes())
    if damage == "flipped":
        data[30] ^= 64
    if damage == "session":
        refused(run("decompress", frozen, "--session", 4), 2, "session")
        return
    changed = bytes({"empty": b"", "other": b"GIF89a" + data, "cut": data[:-1], "flipped": data}[damage])
    path = tmp_path / "damaged.pltz"
    path.write_bytes(changed)
    out = tmp_path / "out.jsonl"
    refused(run("decompress", path, "-o", out), 3)
    refused(run("decompress", "-", "-o", out, input=changed), 3)
    refused(run("inspect", path), 3)
    assert not out.exists()


def test_a_terminal_gets_no_binary_data(run: Run, tiny: Path, chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="terminal"):
        Output("-")
    Output("-", binary=False)


EVENTS = b'{"type":"user","sessionId":"s","message":{"role":"user","content":"Hi there"}}\n{"type":"summary"}\n'


def test_recognise_only_codes_nothing(run: Run, tiny: Path, chats: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(EVENTS)
    (tmp_path / "odd.jsonl").write_bytes(b'{"messages":"oops"}\n')
    paths = (chats, tmp_path / "log.jsonl", tmp_path / "odd.jsonl")
    done = run("compress", *paths, "--recognise-only")
    assert done.exit_code == 0 and "log.jsonl: 1 session: 1 agent log (claude-code)" in done.stdout
    assert "no known chat format" in done.stderr
    found = json.loads(run("compress", *paths, "--recognise-only", "--json").stdout)
    assert found["recognised"] == {"chat": 4, "agent log": 1, "json": 1} and len(found["remarks"]) == 1
    assert "odd.jsonl: 1 session: 1 json\n" in done.stdout  # and not "1 json (json)"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl.gz").write_bytes(EVENTS)
    (tmp_path / "in/b.jsonl").write_bytes(EVENTS)
    done = run("compress", tmp_path / "in", "--recognise-only")
    assert done.exit_code == 5 and "a.jsonl.gz: expected gzip" in done.stderr
    assert done.stdout.endswith("1 session in 1 file; 1 file refused; nothing was coded\n")


def test_sessions_of_several_kinds_are_refused_before_they_are_decoded(
    run: Run, tiny: Path, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pltz.coding.codec import Codec

    (tmp_path / "a.txt").write_text("a text")
    assert run("compress", chats, tmp_path / "a.txt", "-o", tmp_path / "a.pltz").exit_code == 0
    asked = noted(monkeypatch, Codec, "decompress_each", lambda _, __, numbers: numbers, flat=True)
    for words in ((), ("--format", "ids"), ("--format", "text")):
        done = run("decompress", tmp_path / "a.pltz", *words)
        assert done.exit_code == 5 and len(asked) == 1, (words, asked)
        asked.clear()
    done = run("decompress", tmp_path / "a.pltz")
    assert "session 4 of the selection: a text session has no place in a JSONL file" in done.stderr
    assert run("decompress", tmp_path / "a.pltz", "--session", "4").stdout == "a text"


def test_exact_bytes_come_back(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = b'{"messages": [{"role": "user", "content": "Hi"}]}\n{"messages":[]}\n'
    (tmp_path / "a.jsonl").write_bytes(data)
    for words, same in (((), False), (("--exact",), True)):
        ok(run("compress", tmp_path / "a.jsonl", "-o", tmp_path / "a.pltz", "--force", *words))
        assert (run("decompress", tmp_path / "a.pltz").stdout_bytes == data) is same


def test_one_file_of_a_folder_that_cannot_be_read_stops_no_other(run: Run, tiny: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "a.pltz"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(b"no gzip data")
    (folder / "app.db-wal").touch()
    (folder / "notes.txt").write_bytes(b"kept")
    done = run("compress", folder, "-o", out, "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 5 and told["sessions"] == 1 and told["left_out"] == {"*-wal": 1}
    [why] = told["refused"]
    assert "a.jsonl.gz: expected gzip" in why and run("decompress", out).stdout == "kept"
    (folder / "notes.txt").unlink()
    nothing = run("compress", folder, "-o", tmp_path / "b.pltz")
    assert nothing.exit_code == 2 and "found none" in nothing.stderr and not (tmp_path / "b.pltz").exists()
