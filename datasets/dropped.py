"""Signatures of a log that are dropped where a user asks for it: what only a model's provider can read.

    {"type": "thinking", "thinking": "Let me see", "signature": "EqQB..."}
    {"type": "thinking", "thinking": "Let me see", "signature": "dropped by pltz"}

A provider signs or encrypts what its model thinks, so that an agent can send it back. No coder shrinks that: it is half
of what some logs take. Nothing else is changed. An agent cannot go on with such a log from within its thinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pltz.models.session.session import Session

DROPS: Final = ("signatures",)  # what may be dropped, by name
MARK: Final = "dropped by pltz"  # in place of each value
LEAST: Final = 64  # characters: shorter values name something
THINKING: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))  # types of blocks
OF_BLOCKS: Final = frozenset(("signature", "encrypted_content", "data"))  # their keys
ANYWHERE: Final = frozenset(("thinkingSignature", "thoughtSignature", "reasoningOpaque"))  # keys that say it themselves


def dropped(session: Session, names: Sequence[str]) -> tuple[Session, int]:
    """Return a session without what has these names (`DROPS`), and the bytes of that.

    A session that is kept as bytes stays as it is.

    >>> log = [{"type": "thinking", "thinking": "Let me see", "signature": "E" * 200}]
    >>> found, size = dropped(Session("chat", log), ["signatures"])
    >>> size, found.value[0]["signature"]
    (200, 'dropped by pltz')
    """
    if not names or session.kind != "chat":
        return session, 0
    value, size = _without(session.value)
    return (replace(session, value=value) if size else session), size


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


def _without(value: Any) -> tuple[Any, int]:
    """Return a JSON value without signatures, and their bytes. What has none is returned itself."""
    if isinstance(value, list):
        rows = [_without(one) for one in value]
        size = sum(size for _, size in rows)
        return ([one for one, _ in rows], size) if size else (value, 0)
    if not isinstance(value, dict):
        return value, 0
    kind = value.get("type")
    keys = ANYWHERE | OF_BLOCKS if isinstance(kind, str) and kind in THINKING else ANYWHERE
    found, total = dict[str, Any](), 0
    for key, one in value.items():
        if key in keys and isinstance(one, str) and len(one) >= LEAST:
            found[key], size = MARK, len(one.encode("utf-8", "surrogatepass"))
        else:
            found[key], size = _without(one)
        total += size
    return (found, total) if total else (value, 0)
