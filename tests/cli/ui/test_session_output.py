"""Sessions are written as JSONL: a line each, and the lines of JSON that a text is."""


from pltz.cli.ui.session_output import render
from pltz.datasets import load

CHAT = b'{"messages":[{"role":"user","content":"Hi"}]}\n'


def test_json_lines_of_no_known_format_are_written_among_chats_as_they_were() -> None:
    data = CHAT + b'{"a": 1.50}\n5\n' + CHAT + b'{"b":[]}\n'
    sessions = list(load(data))
    assert len(sessions) == 4 and b"".join(render(sessions, "jsonl")) == data
