"""Facts that a list shows of a session are told by its messages and events, and never a reason to refuse it."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pltz.archive.format.record import ContentFacts, pack_about, unpack_about
from pltz.archive.writing.content_facts import facts_of
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Where\n is it?"}]
EVENTS: list[dict[str, Any]] = [
    {"type": "summary", "summary": "s", "leafUuid": "u"},
    {"type": "user", "uuid": "1", "parentUuid": None, "sessionId": "s", "timestamp": "2026-08-01T10:00:00Z",
     "message": {"role": "user", "content": "<command-name>/clear</command-name>"}},
    {"type": "assistant", "uuid": "2", "parentUuid": "1", "sessionId": "s", "timestamp": "2026-08-01T10:00:07Z",
     "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}},
    {"type": "user", "uuid": "3", "parentUuid": "2", "sessionId": "s", "timestamp": "2026-08-01T10:01:00Z",
     "message": {"role": "user", "content": "Find the bug."}},
]  # fmt: skip
AFTER = {**EVENTS[3], "uuid": "4", "parentUuid": None, "message": {"role": "user", "content": "This session is being"
         " continued from a previous conversation that ran out of context."}}  # fmt: skip
GEMINI = {"sessionId": "s", "projectHash": "p", "messages": [
    {"id": "1", "type": "user", "content": "Hi", "timestamp": "2026-08-01T10:00:00Z"},
    {"id": "2", "type": "gemini", "content": "Hello", "timestamp": "2026-08-01T10:00:07Z"}]}  # fmt: skip
BEGAN = 1_785_578_400
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "from", "content", "messages",
        "conversations", "value", "timestamp", "time", "type", "message"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip

TOLD = "<environment_context>\n  <cwd>/x</cwd>\n</environment_context>\n"


@pytest.mark.parametrize(
    ("session", "title", "turns", "said"),
    [
        (Session("chat", {"messages": [*ASKED, {"role": "assistant", "content": "No."}]}), "Where is it?", 2, (0, 0)),
        (Session("chat", ASKED), "Where is it?", 1, (0, 0)),
        (Session("chat", {"conversations": [{"from": "human", "value": "Hi"}], "time": BEGAN}), "Hi", 1, (BEGAN,) * 2),
        (Session("chat", [{**ASKED[1], "ts": 7.5}, {"role": "assistant", "content": "No.", "ts": 10**400}]),
         "Where is it?", 2, (0, 0)),
        (Session("chat", [{**ASKED[1], "ts": 1_785_578_400_250}]), "Where is it?", 1, (BEGAN, BEGAN)),
        (Session("chat", EVENTS), "Find the bug.", 3, (BEGAN, BEGAN + 60)),
        (Session("text", "\n".join(map(json.dumps, EVENTS)).encode()), "Find the bug.", 3, (BEGAN, BEGAN + 60)),
        (Session("chat", [{"role": "user", "content": f"# AGENTS.md for x\n\n{TOLD}{TOLD}Hi"}]), "Hi", 1, (0, 0)),
        (Session("chat", [{"role": "user", "content": TOLD}, *ASKED]), "Where is it?", 2, (0, 0)),
        (Session("chat", [*EVENTS, {**EVENTS[2], "uuid": "5"}, AFTER]), "Find the bug.", 5, (BEGAN, BEGAN + 60)),
        (Session("text", json.dumps(GEMINI, indent=2).encode()), "Hi", 2, (BEGAN, BEGAN + 7)),
        (Session("text", b"words of a note"), "", 0, (0, 0)),
        (Session("ids", [1, 2]), "", 0, (0, 0)),
    ],
)
def test_first_words_turns_and_times(session: Session, title: str, turns: int, said: tuple[int, int]) -> None:
    assert facts_of(session, 4000, 5) == ContentFacts(title, turns, 4000, 5, *said)


def test_a_title_is_short_where_the_content_is() -> None:
    long = Session("chat", [{"role": "user", "content": "word " * 99}])
    assert [len(facts_of(long, size).title) for size in (0, 320, 9999)] == [0, 9, 79]


@given(json_values)
def test_whatever_a_session_holds_its_facts_can_be_stored(value: Any) -> None:
    try:
        session = Session("chat", value if isinstance(value, dict | list) else [value])
        found = facts_of(session, 4000)
    except ContentError:
        return
    part, back, _ = unpack_about(pack_about("a", found))
    assert (part, back._replace(title="")) == ("a", found._replace(title=""))
