"""Write sessions as JSONL, text or token ids."""

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
    "Output format: one line of JSON per session, the bytes of texts, or one JSON list of ids per line.",
)


def written(destination: Output, sessions: int) -> str:
    """Return what was written, as a line of JSON."""
    return json.dumps({"sessions": sessions, "bytes": destination.written, "output": destination.name})


def form_of(kinds: Sequence[str]) -> str:
    """Return the format that ``auto`` means for sessions of these kinds: text for a single text, else jsonl."""
    return "text" if list(kinds) == ["text"] else "jsonl"


def render(sessions: Iterable[Session], form: str) -> Iterator[bytes]:
    """Yield the sessions in an output format.

    Raises:
        ContentError: a session cannot be written in the format.
    """
    for number, session in enumerate(sessions):
        if form == "jsonl":
            yield json_line(session, number)
        elif session.kind != form:
            raise ContentError(f"session {number} of the selection is of kind {session.kind}, not {form}")
        else:
            yield session.value if form == "text" else session.to_json_line()


def json_line(session: Session, number: int) -> bytes:
    """Return one JSONL line. Raises ContentError, with a way out, for a text that is no JSON line."""
    try:
        return session.to_json_line()
    except ContentError as error:
        raise ContentError(
            f"session {number} of the selection: {error} (pick one with --session I, or join texts "
            "with --format text)"
        ) from error
