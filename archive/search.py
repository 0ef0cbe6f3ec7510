"""Search: what was said in the sessions of an archive, found by decoding them, the newest first.

    for hit in cold.search("bell price", role="user"):
        print(hit.name, hit.role, hit.line)

There is no index: nothing but the sessions is read and nothing is kept, so what was erased cannot be found. Each last
version is decoded with all its parts, in every branch. A session without a conversation is one text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import SessionReader
from pltz.archive.errors import ArchiveError, LostError
from pltz.archive.humanize import counted
from pltz.datasets.conversation import ConversationTurn, conversations_of
from pltz.models.session.long_text import LongText
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from pltz.models.session.session import Session

TOGETHER = 64  # versions that are decoded side by side, at most
PIECE = 1 << 20  # bytes of a text without a conversation that are looked at together
BEFORE, AROUND = 40, 120  # characters of a line before what was found, and in all
WORD = re.compile(r'"([^"]+)"|(\S+)')


@dataclass(frozen=True)
class SearchHit:
    """A turn that has all the words.

    Immutable: any thread may use it.

    Attributes:
        tenant, name, version, part: the session that it is in, and the part of it.
        agent: name of the format of the log; "chat" of a chat; "" where there is no conversation.
        turn: its number, as `pltz show --all` has it; 0 where there is none, or a log is a `LongText`.
        role: who said it; the kind of the session where there is no conversation.
        time: in seconds since 1970; of the session, where the turn has none.
        line: what is around the first word, on one line.
        score: how often the words are there, in proportion to the turn: more is better.
    """

    tenant: str
    name: str
    version: int
    part: str
    agent: str
    turn: int
    role: str
    time: int
    line: str
    score: float


@dataclass(frozen=True)
class SearchQuery:
    """Words and where they are searched for.

    Attributes:
        words: words that all have to be in one turn, in any case; "in quotes" a phrase. A pattern with ``regex``.
        agent: beginning of the name of a format, such as codex.
        project: part of the name of a session.
        since: seconds since 1970, of what was said, or of the session where that is not known.
        role: user, assistant, system or tool.
        tool: name of a tool that the turn calls.

    Raises UsageError where there are no words, or the pattern is none.
    """

    words: str
    agent: str = ""
    project: str = ""
    since: int = 0
    role: str | None = None
    tool: str | None = None
    regex: bool = False
    patterns: tuple[re.Pattern[str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words = unicodedata.normalize("NFC", self.words)
        found = [words] if self.regex else [re.escape(phrase or word) for phrase, word in WORD.findall(words)]
        if not words.strip():
            raise UsageError("name the words to search for")
        try:
            object.__setattr__(self, "patterns", tuple(re.compile(one, re.IGNORECASE) for one in found))
        except re.error as exc:
            raise UsageError(f"expected a regular expression, found {self.words!r}: {exc}") from exc

    def may_be_in(self, version: Version) -> bool:
        """Return whether a version has to be decoded."""
        old = 0 < version.content.last < self.since
        return self.project.casefold() in version.name.casefold() and not old

    def hits(self, version: Version, session: Session) -> Iterator[SearchHit]:
        """Yield the turns of a session, of one part, that match."""
        place = version.tenant, version.name, version.version, version.part
        long = isinstance(session.value, LongText)
        for talk in conversations_of(session) if session.kind != "ids" else ():
            turns: Iterable[ConversationTurn] = talk.turns or _as_turns(session)
            for turn in turns if talk.agent.startswith(self.agent) else ():
                time = turn.time or _last(version)
                if time >= self.since and (found := self._found(turn)):
                    number = 0 if long or not talk.agent else turn.number
                    yield SearchHit(*place, talk.agent, number, turn.role, time, *found)
            if not talk.turns:
                return

    def _found(self, turn: ConversationTurn) -> tuple[str, float] | None:
        """Return the line and the score of a turn, None where it does not match."""
        if self.role not in (None, turn.role):
            return None
        if self.tool is not None and self.tool not in [name for name, _ in turn.calls]:
            return None
        text = "\n".join([turn.text, *(f"{name} {' '.join(map(str, given.values()))}" for name, given in turn.calls)])
        text = text if text.isascii() else unicodedata.normalize("NFC", text)
        first = [pattern.search(text) for pattern in self.patterns]
        if not all(first):
            return None
        times = sum(1 for pattern in self.patterns for _ in pattern.finditer(text))
        place = min(one.start() for one in first if one)
        begin = max(text.rfind("\n", 0, place) + 1, place - BEFORE)
        line = " ".join(text[begin : begin + AROUND].split("\n", 1)[0].split())
        return line, times / (times + 1 + len(text) / 2000)


def _as_turns(session: Session) -> Iterator[ConversationTurn]:
    """Yield a session that has no conversation as its text, in pieces."""
    text = session.value if session.kind == "text" else session.to_bytes()
    for begin in range(0, len(text), PIECE):
        yield ConversationTurn(0, session.kind, text[begin : begin + PIECE].decode("utf-8", "replace"))


def _last(version: Version) -> int:
    """Return when something was said last in a version, or its own time."""
    return version.content.last or version.time


def newest_first(versions: Iterable[Version], query: SearchQuery) -> list[Version]:
    """Return the parts of versions that a query has to look at, those of the session last talked in first."""
    sessions = sorted(versions, key=lambda version: (-max(map(_last, version.each)), version.name))
    return [part for version in sessions for part in version.each if query.may_be_in(part)]


def search(
    reader: SessionReader, versions: Sequence[Version], query: SearchQuery, looked: Callable[[], None]
) -> Iterator[SearchHit]:
    """Yield the hits in versions, in their order. ``looked``: called after each that was searched.

    Raises ArchiveError at the end, where some could not be read, and other errors of reading at once.
    """
    broken: list[tuple[str, Exception]] = []
    for begin in range(0, len(versions), TOGETHER):
        for version, session in _read(reader, versions[begin : begin + TOGETHER], broken):
            yield from query.hits(version, session)
            looked()
    if broken:
        name, why = broken[0]
        raise ArchiveError(
            f"searched what can be read: {counted(len(broken), 'session')} cannot, such as {name!r}: {why}"
        )


def _read(
    reader: SessionReader, versions: Iterable[Version], broken: list[tuple[str, Exception]]
) -> Iterator[tuple[Version, Session]]:
    """Yield versions that can be read, with their sessions, side by side while none is broken."""
    left = deque(versions)
    side_by_side: Iterator[Session] | None = reader.read_many(tuple(left))
    while left:
        try:
            yield left[0], next(side_by_side) if side_by_side else reader.read(left[0])
        except (LostError, CorruptError) as exc:
            if side_by_side:  # it may be another one of the group
                side_by_side = None
                continue
            broken.append((left[0].name, exc))
        left.popleft()
