"""``pltz search`` prints a line per hit that no log can forge, and says what it looked at."""

from pathlib import Path
from typing import Any

import pytest

from pltz.archive.archive import Archive
from pltz.cli.ui.output import printable
from tests.cli.commands import Run, lines

pytestmark = pytest.mark.usefixtures("place")
CALL = {"type": "tool_use", "name": "read", "input": {"path": "bells.py"}}


@pytest.fixture
def place(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Archive.open(tmp_path / "cold", create=True) as cold:
        text = "x\n" * 9 + "the \x1b[2Jbells \u202e cost 7"
        said = {"role": "user", "content": text, "timestamp": "2026-01-05T09:00Z", "cwd": "C:\\code\\shop\\"}
        events: list[dict[str, Any]] = [said, {"role": "assistant", "content": [CALL]}]
        cold.put("old", events, time=1000)
        cold.put("new", [{"role": "user", "content": "bells bells bells"}], time=2000)
    monkeypatch.setenv("PLTZ_ARCHIVE", str(tmp_path / "cold"))


def test_a_line_says_where_when_who_and_what(run: Run) -> None:
    assert run("search", "bells", "--role", "user").stdout == (
        "default  new  1  1970-01-01 00:33  chat  -  user  bells bells bells\n"
        "default  old  1  2026-01-05 09:00  events  shop  user  the \\x1b[2Jbells \\u202e cost 7\n"
    )
    assert run("search", "the", "cost", "--json").stdout.count("\n") == 1


def test_filters_and_json(run: Run) -> None:
    [hit] = lines(run("search", "bells", "--tool", "read", "--json"))
    assert (hit["name"], hit["turn"], hit["role"], hit["agent"]) == ("old", 2, "assistant", "events")
    assert [hit["name"] for hit in lines(run("search", "bells", "--since", "2026-01-05", "--json"))] == ["old"]
    assert [hit["name"] for hit in lines(run("search", "BELLS?", "--regex", "--project", "new", "--json"))] == ["new"]
    assert [hit["name"] for hit in lines(run("search", "bells", "--json"))] == ["old", "old", "new"]
    assert [hit["turn"] for hit in lines(run("search", "bells", "--json", "--project", "SHOP"))] == [2, 1]
    assert "(and 1 turn more)" in run("search", "bells", "--limit", "1").stdout
    assert [hit["name"] for hit in lines(run("search", "bells", "--scan", "--json"))] == ["new", "old", "old"]


def test_the_number_of_a_turn_is_that_of_show(run: Run) -> None:
    [hit] = lines(run("search", "cost", "--json"))
    shown = run("show", hit["name"], "--all", "--turns", f"{hit['turn']}..{hit['turn']}").stdout
    assert "cost 7" in shown and "read" not in shown


def test_what_is_not_there_is_said(run: Run) -> None:
    done = run("search", "nowhere")
    assert (done.exit_code, done.stdout) == (0, "") and "nothing found" in done.stderr
    assert run("search", "(", "--regex").exit_code == 2


def test_no_control_gets_out(run: Run) -> None:
    said = run("search", "bells").stdout
    assert printable(said.replace("\n", "")) == said.replace("\n", "")


def test_without_words_the_index_is_brought_up_to_date(run: Run) -> None:
    done = run("search")
    assert done.stdout.startswith("the index of words has 2 parts of sessions, ")
    assert run("search", "--rebuild").stdout == done.stdout
    assert lines(run("search", "--json"))[0].keys() == {"parts", "bytes"}
