"""Sessions are written as JSONL: a line each, and the lines of JSON that a text is."""

import pytest

from pltz.cli.ui.session_output import render
from pltz.datasets import load
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

CHAT = b'{"messages":[{"role":"user","content":"Hi"}]}\n'


def test_json_lines_of_no_known_format_are_written_among_chats_as_they_were() -> None:
    data = CHAT + b'{"a": 1.50}\n5\n' + CHAT + b'{"b":[]}\n'
    sessions = list(load(data))
    assert len(sessions) == 4 and b"".join(render(sessions, "jsonl")) == data


@pytest.mark.parametrize("text", [b"", b"\n", b"5\n", b'{"a":\n1}', b'{"a":1}\nwords\n'])
def test_other_texts_have_no_line(text: bytes) -> None:
    with pytest.raises(ContentError, match="join texts"):
        list(render([Session("text", text)], "jsonl"))
