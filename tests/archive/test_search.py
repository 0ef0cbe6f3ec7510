"""What was said is found, wherever it was said; by who, when, and with which tool; damage hides nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import ArchiveError, LostError
from pltz.archive.writing.put_request import PutRequest
from pltz.plt_codec.errors import UsageError
from tests.datasets.test_conversation import CLAUDE, CODEX, GEMINI_LOG, OPENCODE

ASKED = "Where is the bug?"
SESSIONS: dict[str, Any] = {
    "shop/claude": [{**event, "timestamp": "2026-01-05T09:00:00Z"} for event in CLAUDE], "shop/codex": CODEX,
    "garden/gemini": GEMINI_LOG, "garden/opencode": OPENCODE,
    "chat": {"messages": [{"role": "user", "content": "Zwo\u0308lf Boxka\u0308mpfer \u0130stanbul"}]},
    "note": "first\nthe \x1b[2Jbell costs 7\nlast", "signs": "\u6240\u4ee5\u4e2d\u6587 \x1b[31mred", "ids": [33, 99],
}


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    with Archive.open(tmp_path_factory.mktemp("search") / "cold", create=True) as cold:
        requests = [PutRequest(name, SESSIONS[name], time=1000 + n) for n, name in enumerate(SESSIONS)]
        list(cold.put_many(requests))
        cold.put("shop/claude", [{"role": "user", "content": "a sub-agent asks"}], part="agents/a", time=1000)
        yield cold


def found(cold: Archive, words: str, **how: Any) -> list[tuple[str, str]]:
    return [(hit.name, hit.role) for hit in cold.search(words, **how)]


def test_each_agent_is_searched_the_newest_first(cold: Archive) -> None:
    hits = list(cold.search("the BUG", scan=True))
    assert [hit.name for hit in hits] == ["garden/opencode", "garden/gemini", "shop/codex", "shop/claude"]
    assert {hit.agent for hit in hits} == {"claude-code", "codex", "gemini-cli", "opencode"}
    assert {(hit.role, hit.line) for hit in hits} == {("user", ASKED)}
    assert [hit.time for hit in hits] == [1003, 1002, 1767603600, 1767603600]
    assert {hit.name for hit in cold.search("the BUG", limit=3)} < {hit.name for hit in hits}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(
    ("words", "how", "wanted"),
    [
        ("line 1.", {"project": "SHOP/CL"}, [("shop/claude", "assistant")]),
        ('"1. line"', {}, []),
        ("print", {"role": "tool", "agent": "open"}, [("garden/opencode", "tool")]),
        ("a.py", {"tool": "read", "project": "gemini"}, [("garden/gemini", "assistant")]),
        ("a.py", {"tool": "write"}, []),
        (r"wh\w+ is", {"regex": True, "agent": "codex"}, [("shop/codex", "user")]),
        ("bug", {"since": 1767603600, "agent": "claude-code"}, [("shop/claude", "user")]),
        ("bug", {"since": 1767603601}, []),
        ("Zw\u00f6lf", {}, [("chat", "user")]),  # composed, where the text is not
        ("elsewhere", {}, [("shop/claude", "assistant")]),  # on a branch that was left
        ("taken back", {}, [("garden/opencode", "user")]),
        ("what was before", {}, [("shop/codex", "user")]),  # before a compaction
        ("bell costs", {}, [("note", "text")]),
        ("sub-agent asks", {}, [("shop/claude", "user")]),
        ("bug", {"tenant": "nobody"}, []),
        ("bel*", {}, [("note", "text")]),
        ("bel", {}, []),  # words, not parts of them
        ('"costs bell"', {}, []),
        ('"2 bug"', {}, []),
        ("BOXK\u00c4MPFER istanbul", {}, []),  # a dotted I is another letter
        ("\u6587\u4e2d", {}, []),
        ("\u4e2d\u6587", {}, [("signs", "text")]),
        ("red", {}, [("signs", "text")]),  # in colour
    ],
)
def test_what_is_found(cold: Archive, words: str, how: dict[str, Any], wanted: list[Any], *, scan: bool) -> None:
    assert found(cold, words, scan=scan, **how) == wanted


def test_a_hit_says_where_it_is(cold: Archive) -> None:
    [hit] = cold.search("asks")
    assert (hit.tenant, hit.part, hit.turn, hit.agent) == ("default", "agents/a", 1, "chat")
    [hit] = cold.search("costs")
    assert (hit.turn, hit.agent, hit.line) == (0, "", "the \x1b[2Jbell costs 7")


def test_the_line_of_a_hit_has_most_of_the_words(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "cold", create=True) as cold:
        cold.put("a", "a bell\nthe price of it\nthe price of the BELL\na price, a bell")
        [hit] = cold.search("bell price")
    assert hit.line == "the price of the BELL"


@pytest.mark.parametrize("scan", [False, True])
def test_who_talks_is_above_system_and_tools(tmp_path: Path, *, scan: bool) -> None:
    rules, asked = {"role": "system", "content": "bell " * 9}, {"role": "user", "content": "Where, please, is my bell?"}
    with Archive.open(tmp_path / "cold", create=True) as cold:
        cold.put("asked", [asked, {"role": "assistant", "content": "On its way."}], time=1)
        cold.put("ruled", [rules, {"role": "user", "content": "Hello"}], time=2)
        cold.put("both", [rules, asked], time=3)
        hits = list(cold.search("bell", scan=scan))
    best = {name: max((hit.score, hit.role) for hit in hits if hit.name == name) for name in ("asked", "ruled", "both")}
    assert best["asked"] == best["both"] > best["ruled"] and best["both"][1] == "user"
    if not scan:
        assert [hit.name for hit in hits][-1] == "ruled" and hits[0].role == "user"


def test_all_that_is_looked_at_is_counted(cold: Archive) -> None:
    told: list[tuple[int, int]] = []
    list(cold.search("nothing", scan=True, progress=lambda *counts: told.append(counts)))
    assert told == [(n, 9) for n in range(1, 10)]


@pytest.mark.parametrize(("words", "how"), [("", {}), ("  ", {}), ("(", {"regex": True}), ("bell ->", {})])
def test_a_query_that_asks_nothing_is_refused(cold: Archive, words: str, how: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        list(cold.search(words, **how))


def test_a_broken_session_hides_no_other(cold: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(cold.sessions).read

    def broken(self: Any, version: Any) -> Any:
        if version.name == "shop/codex":
            raise LostError("gone")
        return read(self, version)

    def none(*_: Any, parted: bool) -> Iterator[Any]:
        raise LostError("one of them")
        yield

    monkeypatch.setattr(type(cold.sessions), "read", broken)
    monkeypatch.setattr(type(cold.sessions), "read_many", none)
    with pytest.raises(ArchiveError, match="1 session cannot, such as 'shop/codex': gone"):
        list(cold.search("bug", scan=True))
    hits = cold.search("bug", scan=True)
    assert [next(hits).name for _ in range(3)] == ["garden/opencode", "garden/gemini", "shop/claude"]


def test_nothing_is_found_of_what_was_forgotten(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "cold", create=True) as cold:
        cold.put("a", "the bell")
        cold.put("a", "the horn")
        assert found(cold, "bell") == [] and found(cold, "horn") == [("a", "text")]
        cold.forget("a")
        assert found(cold, "horn") == []
