"""History of aider: .aider.chat.history.md, a Markdown text with all chats of a folder.

    # aider chat started at 2024-08-05 19:33:02
    > Added app.py to the chat
    #### please add a test
"""

from __future__ import annotations

from collections.abc import Iterator

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import InputFormat, Part, ReadOptions
from pltz.models.session.session import Session

START = b"# aider chat started at "


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    yield Part(Session("text", source.rest()), source.name, "agent log")


FORMAT = InputFormat(
    "aider",
    "agent log",
    "aider's history in Markdown",
    of_head=lambda head: head.lstrip().startswith(START),
    read=_read,
    suffix=".md",
)
