"""Signatures of a log that are dropped where a user asks for it: what only a model's provider can read.

    {"type": "thinking", "thinking": "Let me see", "signature": "EqQB..."}
    {"type": "thinking", "thinking": "Let me see", "signature": "dropped by pltz"}

A provider signs or encrypts what its model thinks, so that an agent can send it back. No coder shrinks that: it is half
of what some logs take. Nothing else is changed. An agent cannot go on with such a log from within its thinking.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pltz.datasets.log_lines import values_of
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

DROPS: Final = ("signatures",)  # what may be dropped, by name
MARK: Final = "dropped by pltz"  # in place of each value
LEAST: Final = 64  # characters: shorter values name something
THINKING: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))  # types of blocks
OF_BLOCKS: Final = frozenset(("signature", "encrypted_content", "data"))  # their keys
ANYWHERE: Final = frozenset(("thinkingSignature", "thoughtSignature", "reasoningOpaque"))  # keys that say it themselves


def without(session: Session, names: Sequence[str]) -> tuple[Session, int]:
    """Return a session without what has these names (`DROPS`), and the bytes of that.

    Of a log that is kept as bytes, lines without signatures stay as they are, and so do those that are no JSON.

    >>> log = b'{"type": "thinking", "thinking": "Let me see", "signature": "' + b"E" * 200 + b'"}\\n'
    >>> found, size = without(Session("text", log), ["signatures"])
    >>> size, found.value
    (200, b'{"type": "thinking", "thinking": "Let me see", "signature": "dropped by pltz"}\\n')
    """
    if not names or session.kind == "ids":
        return session, 0
    if isinstance(session.value, LongText):
        raise ContentError(f"{session.value.name}: nothing can be dropped from so large a log: leave --drop out for it")
    if session.kind == "chat":
        value, left_out = _without(session.value)
        size = sum(map(_size, left_out))
        return (replace(session, value=value) if size else session), size
    lines = [_line_without(line) for line in session.value.split(b"\n")]
    size = sum(size for _, size in lines)
    return (replace(session, value=b"\n".join(line for line, _ in lines)) if size else session), size


def _line_without(line: bytes) -> tuple[bytes, int]:
    """Return a line of a log without signatures, and their bytes."""
    found, odd = values_of(line)
    value, left_out = _without(found[0]) if found and not odd else (None, [])
    if not left_out:
        return line, 0
    shorter = line
    for one in left_out:
        shorter = shorter.replace(json.dumps(one).encode(), json.dumps(MARK).encode())
    if values_of(shorter)[0] != [value]:  # written in another way
        shorter = json.dumps(value, separators=(",", ":")).encode()
    return shorter, sum(map(_size, left_out))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def tags_of(names: Sequence[str], size: int) -> dict[str, str]:
    """Return the tags that say what was dropped from a session, and how many bytes; none where nothing was.

    >>> tags_of(["signatures"], 200)
    {'dropped': 'signatures', 'dropped-bytes': '200'}
    """
    return {"dropped": " ".join(names), "dropped-bytes": str(size)} if size else {}


def dropped_of(tags: Mapping[str, str]) -> tuple[str, int]:
    """Return the names of what was dropped from a session with these tags, and its bytes; "" and 0 of any other.

    >>> dropped_of(tags_of(["signatures"], 200)), dropped_of({"dropped": "ashore"})
    (('signatures', 200), ('', 0))
    """
    names, size = tags.get("dropped", ""), tags.get("dropped-bytes", "")
    known = size.isascii() and size.isdigit() and len(size) < 20 and set(names.split()) <= set(DROPS)
    return (names, int(size)) if known else ("", 0)


def _without(value: Any) -> tuple[Any, list[str]]:
    """Return a JSON value without signatures, and these. What has none is returned itself."""
    if isinstance(value, list):
        rows = [_without(one) for one in value]
        found = [text for _, texts in rows for text in texts]
        return ([one for one, _ in rows], found) if found else (value, found)
    if not isinstance(value, dict):
        return value, []
    kind = value.get("type")
    keys = ANYWHERE | OF_BLOCKS if isinstance(kind, str) and kind in THINKING else ANYWHERE
    made, found = dict[str, Any](), list[str]()
    for key, one in value.items():
        if key in keys and isinstance(one, str) and len(one) >= LEAST:
            made[key] = MARK
            found.append(one)
        else:
            made[key], texts = _without(one)
            found += texts
    return (made, found) if found else (value, found)
