"""Facts of a session that a list shows: the first words of the user, the turns, and when it was said.

    facts_of(Session("chat", [{"role": "user", "content": "Where is the bug?"}, ...]), size=4711)
    ContentFacts(title="Where is the bug?", turns=2, size=4711, ...)

They are told by the messages that `datasets.conversation` finds. What is not understood is not known: no session is
refused for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from pltz.archive.format.record import MAX_TITLE, ContentFacts
from pltz.datasets.conversation import conversation_of, messages_of
from pltz.datasets.turns import text_of, time_of
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session

TITLE_SHARE = 32  # bytes of content for each character of a title: short chats have short ones
LOOKED_AT = 64  # events from either end in which a time is looked for
BEGINNING = 1 << 20  # bytes of a long log in which its title is looked for
ENDS = 1 << 16  # bytes of either end of a log that is kept as a text, in which a time is looked for
INJECTED = re.compile(r"\A(?:(?:# AGENTS\.md [^\n]*\s)?\s*<([\w-]+)>.*?</\1>\s*)+", re.DOTALL)  # by an agent
CONTINUED = "This session is being continued from a previous conversation"  # of Claude Code, which compacted it
LISTS = "messages", "conversations", "conversation"  # keys of the messages of a chat


def facts_of(session: Session, size: int, mtime: int = 0, *, is_chat: bool = False) -> ContentFacts:
    """Return what is known of a session. ``size``: its bytes; ``mtime``: of its file, in nanoseconds since 1970.

    ``is_chat``: it was recognised as a chat, and not as the log of an agent.
    Of a long one only the ends are looked at, and its turns are not counted.
    """
    found = ContentFacts(size=size, mtime=max(0, mtime))
    long = isinstance(session.value, LongText)
    begins = Session("text", session.value[:BEGINNING]) if long else session
    one = isinstance(session.value, dict)
    with suppress(Exception):  # a log of an agent may hold anything
        rows = _chat(begins) if is_chat and one else messages_of(begins) or _chat(begins)
        if text_of(next((m["content"] for m in rows if m["role"] == "user"), "")).startswith(CONTINUED):
            rows = [{"role": turn.role, "content": turn.text} for turn in conversation_of(begins, every=True).turns]
        messages = [m for m in rows if m["role"] in ("user", "assistant")]
        most = min(MAX_TITLE, size // TITLE_SHARE)
        title = ""
        for asked in islice((m for m in messages if m["role"] == "user"), LOOKED_AT):
            text = text_of(asked["content"]).lstrip()
            title = title or text
            text = INJECTED.sub("", text, 1)
            if text and not text.startswith("<"):
                title = text
                break
        words = " ".join(title[: 4 * MAX_TITLE].split())
        found = found._replace(title=words[:most].strip(), turns=0 if long else len(messages))
        times = sorted(filter(None, (_first(_events(session, last=last)) for last in (False, True)[one:])))
        if messages and not times and session.kind == "text":  # a document
            times = sorted(filter(None, (turn.time for turn in conversation_of(begins).turns)))
        found = found._replace(first=min(times, default=0), last=max(times, default=0))
    return found


def _chat(session: Session) -> list[dict[str, Any]]:
    """Return the messages of a chat, by the two names that their keys have."""
    value = session.value if session.kind == "chat" else []
    rows = value if isinstance(value, list) else next((value[key] for key in LISTS if key in value), [])
    roles = {"human": "user", "gpt": "assistant"}
    named = ((row.get("role", row.get("from")), row.get("content", row.get("value"))) for row in rows)
    return [{"role": roles.get(role, role), "content": content} for role, content in named]


def _events(session: Session, *, last: bool) -> Iterator[Any]:
    """Yield events from either end of a log."""
    if session.kind == "chat":
        rows = session.value if isinstance(session.value, list) else [session.value]
        yield from reversed(rows) if last else rows
    elif session.kind == "text":
        lines = (session.value[-ENDS:] if last else session.value[:ENDS]).splitlines()
        for line in reversed(lines) if last else lines:
            with suppress(ValueError, RecursionError):
                yield json.loads(line)


def _first(events: Iterable[Any]) -> int:
    """Return the time of the first event that has one, in seconds since 1970; 0 where none has."""
    times = (time_of(event) for event in islice(events, LOOKED_AT) if isinstance(event, dict))
    return next(filter(None, times), 0)
