"""Holders: which sessions have something in them, such as secrets or a pattern, found by decoding them.

    for holder in holders(cold.sessions, every_part(cold.directory.ls("acme")), kinds_of_secrets):
        print(holder.name, holder.part, holder.kinds)      # chats/7  ""  {"aws-key": 2}

All of a session is looked at, as it is stored, also what is no talk. Token ids are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import SessionReader
from pltz.archive.errors import ArchiveError
from pltz.archive.humanize import counted
from pltz.archive.search import read
from pltz.datasets.secrets import pieces_of, secrets_in
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.errors import UsageError

Look = Callable[[str], Counter[str]]
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}  # of JSON
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


@dataclass(frozen=True)
class Holder:
    """A part of a version of a session that has something. ``kinds``: what, and how often."""

    tenant: str
    name: str
    version: int
    part: str
    kinds: dict[str, int]


def holders(
    reader: SessionReader, versions: Iterable[Version], look: Look, looked: Callable[[], None] = lambda: None
) -> Iterator[Holder]:
    """Yield those that have something, in their order. ``looked``: called after each version.

    Raises ArchiveError at the end, where some cannot be read.
    """
    broken: list[tuple[Version, Exception]] = []
    for version, session in read(reader, versions, broken, looked):
        if kinds := sum(map(look, _texts(session)), Counter[str]()):
            yield Holder(version.tenant, version.name, version.version, version.part, dict(sorted(kinds.items())))
    if broken:
        version, why = broken[0]
        what = f"{counted(len(broken), 'part')} cannot, as of {version.name!r}: {why}"
        raise ArchiveError(f"looked at what can be read: {what}")


def _texts(session: Session) -> Iterator[str]:
    """Yield a session as text, of a long one some megabytes at a time."""
    if session.kind != "ids":
        text = session.value if session.kind == "text" else session.to_json_line()
        for piece in pieces_of(text) if isinstance(text, LongText) else [text]:
            yield piece.decode("utf-8", "replace")


def every_part(versions: Iterable[Version]) -> list[Version]:
    """Return the parts of whole versions, each once."""
    return list({part.id: part for version in versions for part in version.each}.values())


def kinds_of_secrets(text: str) -> Counter[str]:
    """Return how many secrets of each kind a text has. Raises UsageError without their rules."""
    return Counter(found.mark for found in secrets_in(text))


def matching(pattern: str) -> Look:
    """Return what counts the matches of a regular expression, also of what JSON writes otherwise. Raises UsageError."""
    try:
        compiled = re.compile(pattern)
    except re.error as exc:
        raise UsageError(f"expected a regular expression, found {pattern!r}: {exc}") from exc
    if compiled.search(""):
        raise UsageError(f"{pattern!r} matches nothing at all, so every session")

    def look(text: str) -> Counter[str]:
        found = len(compiled.findall(text)) or len(compiled.findall(ESCAPE.sub(_plain, text)))
        return Counter({pattern: found} if found else {})

    return look


def _plain(match: re.Match[str]) -> str:
    code, character = match.groups()
    return chr(int(code, 16)) if code else ESCAPES.get(character, character)
