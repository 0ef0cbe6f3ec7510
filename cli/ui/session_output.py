"""Write sessions as JSONL, text or token ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pltz.cli.ui import options
from pltz.cli.ui.output import Output
from pltz.models.session.long_text import LongText
from pltz.plt_codec.errors import ContentError

if TYPE_CHECKING:
    from pltz.models.session.session import Session

SESSION_FORMAT = options.form(
    ("auto", "jsonl", "text", "ids", "agent-log"),
    "Output format: one line of JSON per session, the bytes of texts, one JSON list of ids per line, or one line of "
    "JSON per event of an agent log.",
)


def written(destination: Output, sessions: int) -> str:
    """Return what was written, as a line of JSON."""
    return json.dumps({"sessions": sessions, "bytes": destination.written, "output": destination.name})


def form_of(kinds: Sequence[str]) -> str:
    """Return the format that ``auto`` means for sessions of these kinds: text for a single text, else jsonl."""
    return "text" if list(kinds) == ["text"] else "jsonl"


def render(sessions: Iterable[Session], form: str, first: int = 0, names: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the sessions in an output format; ``exact``: as the bytes of the input they were read from.

    ``first``: number of the first of them, for messages; ``names``: theirs, where they have some.

    Raises:
        ContentError: a session cannot be written in the format.
    """
    for number, session in enumerate(sessions, first):
        name = f"session {names[number]}" if names else f"session {number} of the selection"
        if form == "exact" or isinstance(session.value, LongText):
            yield from session.pieces()
        elif form == "jsonl":
            yield json_line(session, name, "write it alone" if names else "pick one with --session I")
        elif form == "agent-log":
            yield event_lines(session, name)
        elif session.kind != form:
            raise ContentError(f"{name} is of kind {session.kind}, not {form}: leave --format {form} out")
        else:
            yield session.value if form == "text" else session.to_json_line()


def event_lines(session: Session, name: str) -> bytes:
    """Return a session as an agent's log has it, a line of JSON per event. Raises ContentError where it is none."""
    if session.kind == "text":
        return cast(bytes, session.value)
    from pltz.models.session.session import Session

    if session.kind != "chat" or not isinstance(session.value, list):
        raise ContentError(f"{name} is no list of events: leave --format agent-log out")
    return b"".join(Session("chat", item).to_json_line() for item in session.value)


def json_line(session: Session, name: str, alone: str) -> bytes:
    """Return one JSONL line, or the lines that a session is. Raises ContentError, with a way out, for other texts."""
    kept = session.to_input_bytes() if session.writing or session.kind == "text" else b""
    if kept and _are_lines(lines := kept.removesuffix(b"\n")):
        return lines + b"\n"  # kept as they are, by --exact, as the log of an agent or as JSON of no known format
    try:
        return session.to_json_line()
    except ContentError as error:
        raise ContentError(f"{name}: {error} ({alone}, or join texts with --format text)") from error


def _are_lines(text: bytes) -> bool:
    """Return whether a text is lines of a JSONL file: JSON in all but those that a broken file has."""
    from pltz.datasets.json_files import is_json

    lines = [line for line in text.split(b"\n") if line.strip()]
    begins = text.lstrip(b" \t\r\n\0")[:1] in (b"{", b"[")
    return begins or (len(lines) > 1 and all(map(is_json, lines)))
