"""How sessions are written for people and pipes: JSONL, text or ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pltz.cli.ui import options
from pltz.cli.ui.output import Output
from pltz.plt_codec.errors import ContentError

if TYPE_CHECKING:
    from pltz.models.session.session import Session

SESSION_FORMAT = options.form(
    ("auto", "jsonl", "text", "ids"),
    "How to write: one JSON line a session, the bytes of texts, or one JSON list of ids a line.",
)


def written(destination: Output, sessions: int) -> str:
    """What was written, as a line of JSON."""
    return json.dumps({"sessions": sessions, "bytes": destination.written, "output": destination.name})


def form_of(kinds: Sequence[str]) -> str:
    """What ``auto`` means for sessions of these kinds: the bytes of a single text, else one JSON line each."""
    return "text" if list(kinds) == ["text"] else "jsonl"


def render(sessions: Iterable[Session], form: str) -> Iterator[bytes]:
    """The sessions in an output format.

    Raises:
        ContentError: a session has no place in the format.
    """
    for number, session in enumerate(sessions):
        if form == "jsonl":
            yield json_line(session, number)
        elif session.kind != form:
            raise ContentError(f"session {number} of the selection is of kind {session.kind}, not {form}")
        else:
            yield session.value if form == "text" else session.to_json_line()


def json_line(session: Session, number: int) -> bytes:
    """One JSONL line. Raises ContentError, with the way out, for a text that never was one."""
    try:
        return session.to_json_line()
    except ContentError as error:
        raise ContentError(
            f"session {number} of the selection: {error} (pick one with --session I, or join texts "
            "with --format text)"
        ) from error
