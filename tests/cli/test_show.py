"""``pltz show`` tells who said what, folds what is long, and lets nothing of a log reach the terminal."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import pytest

from pltz.archive.archive import Archive
from pltz.archive.writing.put_request import PutRequest
from pltz.cli.ui.output import printable
from tests.cli.commands import Run, lines
from tests.datasets.test_conversation import CLAUDE, LOST, PI, chain
from tests.datasets.test_pages import HOSTILE

pytestmark = pytest.mark.usefixtures("place")
LONG = "\n".join(f"line {n}" for n in range(30))
EDIT = {"type": "tool_use", "id": "t", "name": "Edit", "input": {"path": "a.py", "old_string": "1", "new_string": "2"}}
CHAT = [
    {"role": "user", "content": "Zwölf 🥊", "timestamp": "2026-01-05T09:00:00Z"},
    {"role": "assistant", "content": [{"type": "text", "text": "I edit."}, EDIT]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": LONG}]},
    {"role": "assistant", "content": "Done."},
]


@pytest.fixture
def place(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sessions: dict[str, Any] = {"chat": CHAT, "claude": CLAUDE, "lost": LOST, "pi": PI, "ids": [33, 99]}
    sessions["text"] = "hello\x1b[2J\nthere"
    with Archive.open(tmp_path / "cold", create=True) as cold:
        for number, text in enumerate(HOSTILE):
            sessions[f"hostile/{number}"] = [{"role": "user", "content": text}, {"role": text, "content": "x"}]
        list(cold.put_many([PutRequest(name, session) for name, session in sessions.items()]))
        cold.put("chat", [{"role": "user", "content": "a sub-agent"}], part="agents/a")
    monkeypatch.setenv("PLTZ_ARCHIVE", str(tmp_path / "cold"))
    return tmp_path / "cold"


def test_who_and_when_with_tools_folded(run: Run) -> None:
    said = run("show", "chat").stdout
    assert said == (
        "\n1  user  2026-01-05 09:00\nZwölf 🥊\n"
        '\n2  assistant\nI edit.\n  > Edit(path="a.py")\n    -1\n    +2\n'
        "  3  tool  line 0  (and 29 more lines)\n"
        "\n4  assistant\nDone.\n"
    )
    assert f"\n3  tool\n{LONG}\n" in run("show", "chat", "--full").stdout
    assert run("show", "cha*", "--last", 1).stdout == "\n4  assistant\nDone.\n"
    assert run("show", "chat", "--part", "agents/a").stdout == "\n1  user\na sub-agent\n"


UUID = "0f3a6c1e-5b1d-4b0e-9c55-1f2e3d4c5b6a"


def test_a_uuid_alone_finds_the_log_that_ends_in_it(run: Run, place: Path) -> None:
    with Archive.open(place) as cold:
        names = f"2026/01/05/rollout-2026-01-05T09-00-00-{UUID}", f"./-home-me-shop/{UUID}", UUID
        for name in names[:2]:
            assert run("show", UUID).exit_code == (8 if name == names[0] else 0)
            cold.put(name, [{"role": "user", "content": name}])
        cold.put(f"./--home-me-shop--/2026-01-05T09-00_7{UUID}", [{"role": "user", "content": "of pi"}])
        assert run("show", f"7{UUID[:8]}*").stdout == "\n1  user\nof pi\n"
        done = run("show", UUID)
        assert done.exit_code == 8 and all(name in done.stderr for name in names[:2])
        assert run("show", UUID[1:]).exit_code == run("show", f"{UUID[1:8]}*").exit_code == 8  # no word of a name
        cold.put(UUID, [{"role": "user", "content": "its own name"}])
    done = run("show", UUID)
    assert "its own name" in done.stdout and done.stderr == ""


def test_of_a_long_log_the_end_is_shown_or_turns_by_number(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("conversation.NEAR", 1 << 12), ("conversation.FAR", 1 << 13)):
        monkeypatch.setattr(f"pltz.datasets.{name}", size)
    monkeypatch.setattr("pltz.archive.catalog.reader.PARTED", 1 << 12)
    with Archive.open(place) as cold:
        cold.put("long", b"".join(json.dumps(row).encode() + b"\n" for row in chain([None, *range(199)])))
    said = run("show", "long", "--last", 2).stdout
    assert "the last 4,096" in said and said.endswith("\n-2  user\nturn 198\n\n-1  assistant\nturn 199\n")
    [hit] = lines(run("search", '"turn 120"', "--json"))
    assert run("show", "long", "--turns", hit["turn"]).stdout.splitlines()[-1] == "turn 120"
    [found] = lines(run("show", "long", "--turns", "200..", "--json"))
    assert [turn["text"] for turn in found["turns"]] == ["turn 199"] and found["agent"] == "claude-code"
    assert run("show", "long", "--turns", "201").stderr.startswith("'long' has 200 turns")


NUMBERED = [("2..3", [2, 3]), ("3..", [3, 4]), ("..1", [1]), ("2", [2]), ("9..", [])]


@pytest.mark.parametrize(("asked", "numbers"), NUMBERED)
def test_turns_are_chosen_by_number(run: Run, asked: str, numbers: list[int]) -> None:
    done = run("show", "chat", "--turns", asked, "--json")
    [found] = lines(done)
    assert ("'chat' has 4 turns, none of them among" in done.stderr) == (not numbers)
    assert [turn["turn"] for turn in found["turns"]] == numbers and found["messages"] == 4


@pytest.mark.parametrize("asked", ["", "0", "a..b", "0..2", "-1..2", "1..2..3", "..²"])
def test_turns_that_are_no_range_are_refused(run: Run, asked: str) -> None:
    assert run("show", "chat", "--turns", asked).exit_code == 2


def test_what_is_no_conversation_is_shown_as_its_lines(run: Run) -> None:
    done = run("show", "text")
    assert done.stdout == "hello\\x1b[2J\nthere\n" and "no conversation" in done.stderr
    assert run("show", "ids").stdout == "33 99\n"
    assert "<pre>hello\\x1b[2J\nthere</pre>" in run("show", "text", "--html").stdout
    assert run("show", "nobody").exit_code == 8


@pytest.mark.parametrize("form", [[], ["--full"], ["--html"], ["--markdown"], ["--json"]])
def test_nothing_of_a_log_reaches_the_terminal(run: Run, form: list[str]) -> None:
    for number in range(len(HOSTILE)):
        said = run("show", f"hostile/{number}", *form).stdout
        assert said and printable(said.replace("\n", "")) == said.replace("\n", "")


def test_on_a_terminal_a_pager_has_it_with_the_colours_of_pltz_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    paged: list[str] = []

    def page(pieces: Iterable[str]) -> None:
        paged.append("".join(pieces))

    monkeypatch.setattr("click.echo_via_pager", page)
    monkeypatch.setattr("pltz.cli.show.is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run("show", "chat").stdout == "" and "\x1b[31m-1\x1b[0m" in paged[0] and "\x1b[32m+2\x1b[0m" in paged[0]
    run("show", "hostile/3")
    assert "\\x1b[2J\\x1b]0;owned" in paged[1] and "\x1b" not in click.unstyle(paged[1])
    monkeypatch.setenv("NO_COLOR", "1")
    run("show", "chat")
    assert "\x1b" not in paged[2]


def test_html_is_one_file_with_each_turn(run: Run) -> None:
    page = run("show", "chat", "--html").stdout
    assert page.startswith("<!DOCTYPE html>") and page.count("<section") == 4 and "<script" not in page
    assert "<summary>30 lines</summary>" in page and "<del>-1</del>\n<ins>+2</ins>" in page
    assert "## 1 user 2026-01-05 09:00\n\nZwölf 🥊\n" in run("show", "chat", "--markdown").stdout
