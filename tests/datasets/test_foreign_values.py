"""Foreign JSON holds anything: a value of any type under any key ends no recogniser, and is given back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pltz.cli.archive.files import content_of
from pltz.datasets import registry
from pltz.datasets.continuation import continues
from pltz.datasets.conversation import messages_of
from pltz.datasets.dropped import without
from pltz.datasets.file_forms import suffix_of
from pltz.datasets.input_format import EVENTS, ReadOptions
from pltz.datasets.loaders import load, recognise
from pltz.datasets.turns import without_tools
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError
from tests.datasets import test_conversation as logs, test_formats as files
from tests.failing import raising

VALUES: list[Any] = [None, True, 0, 2**70, 1.5, "", "type", [], ["x"], [[]], [{"type": ["x"]}], {}, {"type": {}}]
SAMPLES: list[Any] = [
    *(value for _, value in (*files.CHATS.values(), *files.DOCUMENTS.values())),
    *(files.STREAM, files.SNAPSHOTS[:2], files.OLD_CODEX, files.OH_MY_PI, files.GEMINI_LINES, files.SPOKEN),
    *(files.WRAPPED, logs.CLAUDE, logs.CODEX, logs.COPILOT, logs.HARNESS, logs.LINES),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value in a JSON value."""
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """Return a JSON value with another value at one place."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(copy[at[0]], at[1:], new)
    return copy


def is_turn(message: dict[str, Any]) -> bool:
    return isinstance(message["role"], str) and isinstance(message["content"], str)


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{n}" for n in range(len(SAMPLES))])
def test_a_value_of_any_type_under_any_key_is_taken_and_given_back(sample: Any) -> None:
    for number, (at, new) in enumerate((at, new) for at in places(sample) for new in VALUES):
        value = replaced(sample, at, new)
        for known in registry.FORMATS:
            if known.of_value:
                known.of_value(value)
            if known.of_events and isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
                known.of_events(value[:EVENTS])
        if number % 4 or not isinstance(value, dict | list):  # what follows looks at less, and takes longer
            continue
        session = Session("chat", value)
        turns = messages_of(session) or []
        assert all(map(is_turn, [*turns, *without_tools(turns)])) and suffix_of(session).startswith(".")
        assert b"".join(content_of([session], numbered=True))
        assert continues(session, session) and without(session, ["signatures"])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a recogniser fail over the values that say so."""
    fails = raising(TypeError("unhashable"))
    marked = replace(registry.FORMATS[-1], of_value=lambda value: "fail" in value and fails())
    monkeypatch.setattr(registry, "FORMATS", (marked, *registry.FORMATS))


@pytest.mark.usefixtures("broken")
def test_whatever_a_recogniser_raises_refuses_that_file_alone(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.json").write_text('{"fail": 1}' if name == "b" else '{"messages": []}')
    refused: list[str] = []
    found = list(recognise(tmp_path, ReadOptions(refused=lambda why, file: refused.append(why))))
    assert [Path(one.file).name for one in found] == ["a.json", "c.json"]
    [why] = refused
    assert "b.json: cannot be read (TypeError: unhashable)" in why and "--format text" in why
    with pytest.raises(ContentError, match=r"b\.json"):
        list(load(tmp_path))
    assert suffix_of(Session("chat", {"fail": 1})) == ".json" and messages_of(Session("chat", {"fail": 1})) is None
