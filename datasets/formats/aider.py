"""History of aider: .aider.chat.history.md, a Markdown text with all chats of a folder.

    # aider chat started at 2024-08-05 19:33:02
    > Added app.py to the chat
    #### please add a test
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pltz.datasets.input_format import InputFormat, whole
from pltz.datasets.turns import Message, said

START = b"# aider chat started at "


def conversation(text: bytes) -> list[Message]:
    """Return the messages of the last chat. Lines of aider itself begin with >, and no model is shown them."""
    last = text[text.rfind(b"\n" + START) + 1 :] if b"\n" + START in text else text
    found: list[Message] = []
    for asked, words in itertools.groupby(_words(last), key=lambda line: line.startswith("####")):
        lines = [line.removeprefix("####").strip() if asked else line for line in words]
        found += said("user" if asked else "assistant", "\n".join(lines).strip())
    return found


def _words(text: bytes) -> Iterator[str]:
    """Yield the lines of a chat that are no words of aider."""
    lines = text.decode("utf-8", "replace").splitlines()[1:]
    return (line for line in lines if not line.startswith(">"))


FORMAT = InputFormat(
    "aider",
    "agent log",
    "aider's history in Markdown",
    of_head=lambda head: head.lstrip().startswith(START),
    read=whole("agent log"),
    suffix=".md",
    conversation=conversation,
)
