"""The input formats that pltz recognises, in the order in which they are tried. A new one is a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.formats import (
    aider,
    anthropic,
    antigravity,
    claude_code,
    cline,
    codex,
    continue_dev,
    copilot_cli,
    cursor,
    events,
    exports,
    gemini_cli,
    langchain,
    llm_logs,
    markdown_log,
    npy,
    openai,
    opencode,
    openhands,
    packed,
    pi,
    sharegpt,
    sqlite,
    swe_agent,
    table,
    vscode_chat,
    zed,
)
from pltz.datasets.input_format import EVENTS, InputFormat

FORMATS: tuple[InputFormat, ...] = (
    packed.FORMAT,
    *table.FORMATS,
    sqlite.FORMAT,
    npy.FORMAT,
    aider.FORMAT,
    *markdown_log.FORMATS,
    copilot_cli.FORMAT,
    pi.FORMAT,
    *gemini_cli.FORMATS,
    claude_code.FORMAT,
    codex.FORMAT,
    codex.DOCUMENT,
    opencode.FORMAT,
    cursor.FORMAT,
    zed.FORMAT,
    llm_logs.FORMAT,
    vscode_chat.FORMAT,
    continue_dev.FORMAT,
    *exports.FORMATS,
    cline.FORMAT,
    cline.HISTORY,
    openhands.FORMAT,
    swe_agent.FORMAT,
    antigravity.FORMAT,
    events.FORMAT,
    *anthropic.FORMATS,
    *openai.FORMATS,
    *sharegpt.FORMATS,
    langchain.FORMAT,
    openai.MESSAGES,
)


def of_head(head: bytes) -> InputFormat | None:
    """Return the format of a file that begins with these bytes, or None."""
    return next((known for known in FORMATS if known.of_head and known.of_head(head)), None)


def of_events(events: Sequence[dict[str, Any]]) -> InputFormat | None:
    """Return the format of a file that begins with these objects and is one session, or None."""
    return next((known for known in FORMATS if known.of_events and known.of_events(events)), None)


def of_value(value: Any) -> InputFormat | None:
    """Return the format of a JSON value that is one session, or None.

    >>> of_value({"messages": [{"role": "user", "content": "Hi"}]}).name
    'openai'
    >>> of_value({"messages": "oops"})
    """
    for known in FORMATS if value else ():  # {} and [] may be a million of a file
        if known.of_value and known.of_value(value):
            return known
    return None


def of_row(value: Any) -> InputFormat | None:
    """Return the format of the log of an agent that is in one row, as a list of its events; None of any other."""
    events = value[:EVENTS] if isinstance(value, list) else []
    return of_events(events) if events and all(isinstance(event, dict) for event in events) else None
