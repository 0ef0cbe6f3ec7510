"""``pltz archive get``: what it costs, which sessions NAME means, one file of many sessions."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle.bundle import write_bundle
from tests.archive.test_requests import CountedStore, add_names
from tests.cli.commands import Put, Run, chat

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


@pytest.mark.parametrize("count", [10, 1000, 60_000])
def test_a_cold_get_is_three_requests(run: Run, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest, the index of all packs, and the pack of the session."""
    store = CountedStore()
    monkeypatch.setattr(opener, "open_store", lambda place: store)
    opener.create("s3://bucket/cold")
    made = Archive.open("s3://bucket/cold")
    made.put("a", "hello")
    add_names(store, made.parts.catalog, count)
    Archive.open("s3://bucket/cold").parts.indexes.write()
    store.requests.clear()
    store.cached.clear()
    assert run("archive", "get", "-r", "s3://bucket/cold", "a").stdout.strip() == "hello"
    assert store.requests == {"load": 1, "read": 2}
    store.requests.clear()
    assert run("archive", "get", "-r", "s3://bucket/cold", "nobody").exit_code == 8 and "list" not in store.requests


def test_one_file_of_many_sessions(run: Run, cold: Path, put: Put, chats: Path, tmp_path: Path) -> None:
    put(chat(2), "--name", "s", "--tag", "a=1", "--time", 7)
    run("archive", "put", "-r", cold, chats, "--tenant", "b")
    out, packed = tmp_path / "b.jsonl", tmp_path / "all.pltz"
    told = json.loads(run("archive", "get", "-r", cold, "--tenant", "b", "-o", out, "--json").stdout)
    assert told == {"sessions": 4, "output": str(out), "bytes": out.stat().st_size}
    assert [json.loads(x) for x in out.read_bytes().splitlines()] == [
        json.loads(x) for x in chats.read_bytes().splitlines()
    ]
    assert json.loads(run("archive", "get", "-r", cold, "--tag", "a=1", "-o", "-").stdout) == chat(2)
    assert run("archive", "get", "-r", cold, "-o", packed).stdout == f"{packed}: 5 sessions\n"
    assert len(run("decompress", packed).stdout.splitlines()) == 5
    assert run("archive", "get", "-r", cold, "-o", packed).exit_code == 2, "it exists"


@pytest.mark.parametrize(("words", "why"), [
    ([], "name sessions"), (["--version", 1, "-o", "-"], "name it"),
    (["-o", "out/", "--format", "text"], "leave --format text out"), (["-o", "out/", "--part", "1/2"], "one call"),
    (["-o", "out/", "--ray", "auto"], "one folder"),
])
def test_calls_that_are_refused(run: Run, cold: Path, words: list[object], why: str) -> None:
    done = run("archive", "get", "-r", cold, *words)
    assert done.exit_code == 2 and why in done.stderr, done.output


def test_sessions_of_a_bundle_that_was_added_need_no_option(
    run: Run, cold: Path, tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    """Its tokenizer is its own."""
    weights = random_weights(3, vocab=896, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    write_bundle(tmp_path / "own", "own", weights, tiny_tokenizer_json(896), b"words", {"licence": "none"})
    line = json.dumps(chat(2)).encode()
    words = ("-", "--format", "jsonl", "--name", "s", "--bundle", tmp_path / "own")
    assert run("archive", "put", "-r", cold, *words, input=line).exit_code == 0
    refused = run("archive", "get", "-r", cold, "s")
    assert refused.exit_code == 4 and "pltz bundle add" in refused.stderr, refused.output
    assert run("bundle", "add", tmp_path / "own").exit_code == 0
    assert json.loads(run("archive", "get", "-r", cold, "s").stdout) == chat(2)
    assert run("archive", "verify", "-r", cold, "--decode").exit_code == 0
