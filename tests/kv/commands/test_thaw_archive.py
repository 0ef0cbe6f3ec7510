"""pltz thaw and compress with --archive, and sessions of a target or of another tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_compress_into_an_archive(run: Run, cold: Path, chats: Path, tmp_path: Path) -> None:
    assert len(lines(run("compress", chats, "--archive", cold, "--json"))) == 4
    assert [v["name"] for v in lines(run("archive", "ls", cold, "--json"))] == [f"chats/{n}" for n in range(4)]
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
    assert "hot" in run(*words[:-1]).stdout and not run(*words).stderr
    words[5:6] = [tmp_path / "small", "--hot-budget", "1e-6"]
    assert "of KV did not go into --hot DIR. Later thaws compute it again" in run(*words).stderr
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


def log(turns: int, words: str) -> bytes:
    """Return a log of Claude Code, spelt as pltz would not, so that zstd keeps its bytes."""
    rows: list[dict[str, Any]] = []
    for n in range(turns):
        role = ("user", "assistant")[n % 2]
        message = {"role": role, "content": f"{n} {words}"}
        rows.append({"type": role, "sessionId": "s", "uuid": f"u{n}", "parentUuid": f"u{n - 1}" if n else None})
        rows[-1]["message"] = message
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_log_is_thawed_as_the_conversation_that_it_tells(run: Run, cold: Path, tmp_path: Path) -> None:
    from pltz.models.target.target import Target

    model = Target.load("mini-llama")
    said = [{"role": ("user", "assistant")[n % 2], "content": f"{n} where is my bicycle?"} for n in range(4)]
    for name, words in (("values", ()), ("bytes", ("--exact",))):
        path = tmp_path / f"logs/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(log(4, "where is my bicycle?"))
        assert run("archive", "put", cold, path, *words).exit_code == 0
        thawed = json.loads(run("thaw", "--archive", cold, f"logs/{name}", "--json").stdout)
        assert thawed["tokens"] == len(model.render(said))
        assert run("compress", path, *words, "-o", tmp_path / f"{name}.pltz").exit_code == 0
        again = json.loads(run("thaw", tmp_path / f"{name}.pltz", "--session", 0, "--json").stdout)
        assert again["tokens"] == thawed["tokens"]
    rows = lines(run("archive", "put", cold, path, "--target", "mini-llama", "--tenant", "ids", "--json"))
    assert (rows[0]["kind"], rows[0]["tokens"]) == ("ids", len(model.render(said)))


def test_a_log_longer_than_the_target_is_refused_before_anything_is_loaded(
    run: Run, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pltz.models.target.target import Target
    from tests.cli.conftest import POSITIONS

    path = tmp_path / "long.jsonl"
    path.write_bytes(log(40, "where is my bicycle? " * POSITIONS))
    assert run("archive", "put", cold, path, "--name", "long", "--zstd-above", "1").exit_code == 0
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("loaded"))
    done = run("thaw", "--archive", cold, "long")
    assert done.exit_code == 5 and f"{POSITIONS:,} positions" in done.stderr and "--target" in done.stderr
    before, _ = done.stderr.splitlines()
    assert before.startswith("session 'long' is a log of ") and "will hardly fit" in before


@pytest.fixture
def stranger(tiny_tokenizer_json: Callable[..., bytes], tmp_path: Path) -> Path:
    """Make a target whose tokenizer is not the bundle's."""
    from tests.cli.conftest import make_target

    make_target(tmp_path / "stranger", tiny_tokenizer_json(900))
    return tmp_path / "stranger"


def test_a_target_with_another_tokenizer(run: Run, cold: Path, chats: Path, stranger: Path, tmp_path: Path) -> None:
    from pltz.models.target.target import Target

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


def test_ids_of_another_tokenizer_from_files(run: Run, cold: Path, chats: Path, stranger: Path, tmp_path: Path) -> None:
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
