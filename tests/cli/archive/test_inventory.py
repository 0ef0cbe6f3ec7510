"""``pltz archive get --inventory``: all of a person or a period in a folder, and what was not given, and why."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.commands import Run, chat

pytestmark = pytest.mark.usefixtures("bundle_at_hand")
PUT = ("a", 7, 100), ("a", 7, 200), ("late", 7, 900), ("other", 8, 200), ("forgotten", 7, 200), ("gone", 7, 200)


def test_a_person_gets_all_of_a_period_and_is_told_what_is_lacking(run: Run, tmp_path: Path) -> None:
    (key := tmp_path / "key").write_bytes(b"k" * 32)
    key.chmod(0o600)
    sealed = "-r", tmp_path / "cold", "--key-file", key
    assert run("archive", "init", *sealed).exit_code == 0
    for number, (name, person, when) in enumerate(PUT):
        words = "-", "--format", "jsonl", "--name", name, "--tag", f"person={person}", "--time", when, "--new-version"
        assert run("archive", "put", *sealed, *words, input=json.dumps(chat(number + 1)).encode()).exit_code == 0
    assert run("archive", "forget", *sealed, "forgotten").exit_code == 0
    assert run("archive", "erase", *sealed, "--tenant", "default", "--name", "gone", "--yes").exit_code == 0
    assert run("hold", "add", *sealed, "a").exit_code == 0
    out, paper = tmp_path / "given", tmp_path / "given.json"
    get = "archive", "get", *sealed, "--tag", "person=7", "--since", 150, "--until", 800
    assert run(*get, "-o", tmp_path / "one.jsonl", "--inventory", paper).exit_code == 2 and not paper.exists()
    assert run(*get, "-o", f"{out}/", "--inventory", paper, "--actor", "ann", "--reason", "request 5").exit_code == 0
    told = json.loads(paper.read_text())
    [given] = told["given"]
    data = (out / given["file"]).read_bytes()
    assert (given["name"], given["bytes"], given["sha256"]) == ("a", len(data), hashlib.sha256(data).hexdigest())
    assert given["held"] and given["said"][0] == "1970-01-01T00:03:20Z" and json.loads(data) == chat(2)
    assert [(row["name"], row["why"]) for row in told["not_given"]] == [("forgotten", "forgotten")]
    assert told["erased"] == 1 and "gone" not in paper.read_text() and not told["damaged"]
    assert (told["actor"], told["reason"], told["asked"]["tags"]) == ("ann", "request 5", {"person": "7"})
    again = run(*get, "-o", f"{out}/", "--inventory", paper)
    assert again.exit_code == 2 and "exists" in again.stderr
    assert run(*get, "-o", f"{out}/", "--inventory", paper, "--force").exit_code == 0  # what is there counts as given
    assert json.loads(paper.read_text())["given"] == told["given"]
    (out / given["file"]).write_text("another")
    paper.unlink()
    whole = "archive", "get", *sealed, "--tag", "person=7", "--until", 800, "-o", f"{out}/", "--inventory", paper
    assert run(*whole).exit_code == 2
    rows = {row["why"].partition(":")[0]: row for row in json.loads(paper.read_text())["not_given"]}
    assert rows.keys() == {"refused", "an older version", "forgotten"} and "sha256" not in rows["refused"]
