"""Search: what was said in the sessions of an archive.

    for hit in cold.search("bell price", role="user"):
        print(hit.name, hit.role, hit.line)

Of an index (`word_index`) come the sessions that have the words, the best first, or all come, the one talked in last
first. Each is decoded, and what it says decides. Its last version is looked at with all its parts, in every branch. A
session without a conversation is one text.

    said("It's a_b, \u4e2d\u6587") -> words: it s a b \u4e2d \u6587
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import SessionReader
from pltz.archive.errors import LostError
from pltz.datasets.conversation import Conversation, ConversationTurn, Place, conversations_of
from pltz.plt_codec.errors import BundleMismatch, CorruptError, UsageError

if TYPE_CHECKING:
    from pltz.models.session.session import Session

TOGETHER = 64  # versions that are decoded side by side, at most
PIECE = 1 << 20  # bytes of a text without a conversation that are looked at together
BEFORE, AROUND = 40, 120  # characters of a line before what was found, and in all
PLACES = 64  # where words are in a turn, looked at for its line
ASIDE, BESIDE = ("system", "tool"), 0.25  # roles that say what many sessions have, and how much that counts
LONGEST = 32  # characters of a word in an index
PHRASE = re.compile(r'"([^"]+)"|(\S+)')
SIGNS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # no spaces: each is a word
WORD = re.compile(rf"[{SIGNS}]|[^\W_{SIGNS}]+")
COLOUR = re.compile(r"\x1b\[[0-9;?]*[@-~]")  # of a terminal


@dataclass(frozen=True)
class SearchHit:
    """A turn that has all the words.

    Immutable: any thread may use it.

    Attributes:
        tenant, name, version, part: the session that it is in, and the part of it.
        agent: name of the format of the log; "chat" of a chat; "" where there is no conversation.
        project: folder that the agent began in, where the log tells it.
        turn: its number, as `pltz show --turns` takes it; 0 where there is none.
        role: who said it; the kind of the session where there is no conversation.
        time: in seconds since 1970; of the session, where the turn has none.
        line: what is around the words, on one line: the first that has most of them.
        score: how often the words are there, in proportion to the turn: more is better. What tools and systems say
            has a part of it.
    """

    tenant: str
    name: str
    version: int
    part: str
    agent: str
    project: str
    turn: int
    role: str
    time: int
    line: str
    score: float


@dataclass(frozen=True)
class SearchQuery:
    """Words and where they are searched for.

    Attributes:
        words: words that all have to be in one turn, in any case; "in quotes" a phrase; ``bel*`` a beginning. A pattern
            with ``regex``.
        agent: beginning of the name of a format, such as codex.
        project: part of the name of a session, or of the folder that its agent began in.
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
        phrases = [quoted or alone for quoted, alone in PHRASE.findall(self.words)]
        if not self.words.strip() or not (self.regex or all(map(words_of, map(folded, phrases)))):
            raise UsageError(f"name the words to search for; of signs alone, as a regular expression: {self.words!r}")
        try:
            pattern = unicodedata.normalize("NFC", self.words)
            found = [re.compile(pattern, re.IGNORECASE)] if self.regex else map(_pattern, phrases)
            object.__setattr__(self, "patterns", tuple(found))
        except re.error as exc:
            raise UsageError(f"expected a regular expression, found {self.words!r}: {exc}") from exc

    @property
    def terms(self) -> str:
        """Return the query as an index of words takes it: terms that all have to be there."""
        found = list[str]()
        for quoted, alone in PHRASE.findall(self.words):
            phrase = quoted or alone
            words = [f'"{word[:LONGEST]}"' for word in words_of(folded(phrase))]
            found += [*words[:-1], f"{words[-1]}*" if phrase.endswith("*") else words[-1]]
        marks = (_mark(key, value) for key, value in (("role", self.role), ("tool", self.tool)) if value is not None)
        return " AND ".join([*found, *(f'"{one}"' for one in marks)])

    def hits(self, version: Version, session: Session, only: Sequence[Place] = ()) -> Iterator[SearchHit]:
        """Yield the turns of a session, of one part, that match. ``only``: as of `conversations_of`."""
        place = version.tenant, version.name, version.version, version.part
        for talk, turn in turns_of(session, only):
            time = turn.time or last_of(version)
            if time >= self.since and self.is_about(version.name, talk) and (found := self._found(turn)):
                number = turn.number if talk.agent else 0
                yield SearchHit(*place, talk.agent, talk.usage.project, number, turn.role, time, *found)

    def is_about(self, name: str, talk: Conversation) -> bool:
        """Return whether a conversation in a session of a name is of the agent and the project."""
        project = self.project.casefold()
        return talk.agent.startswith(self.agent) and (
            project in name.casefold() or project in talk.usage.project.casefold()
        )

    def _found(self, turn: ConversationTurn) -> tuple[str, float] | None:
        """Return the line and the score of a turn, None where it does not match."""
        if self.role not in (None, turn.role):
            return None
        if self.tool is not None and self.tool not in [name for name, _ in turn.calls]:
            return None
        text, fold = said(turn), str if self.regex else folded
        looked = fold(text)
        places = [[found.start() for found in pattern.finditer(looked)] for pattern in self.patterns]
        if not all(places):
            return None
        times = sum(map(len, places))
        lines = [_around(text, place) for place in sorted(itertools.chain(*places))[:PLACES]]
        line = max(lines, key=lambda line: sum(bool(pattern.search(fold(line))) for pattern in self.patterns))
        return line, (BESIDE if turn.role in ASIDE else 1.0) * times / (times + 1 + len(text) / 2000)


def _around(text: str, place: int) -> str:
    """Return what is around a place, on one line."""
    begin = max(text.rfind("\n", 0, place) + 1, place - BEFORE)
    return " ".join(text[begin : begin + AROUND].split("\n", 1)[0].split())


def said(turn: ConversationTurn) -> str:
    """Return all that was said in a turn, and the calls of tools."""
    text = "\n".join([turn.text, *(f"{name} {' '.join(map(str, given.values()))}" for name, given in turn.calls)])
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Return a text in which words are looked for, in one case, without the colours of a terminal."""
    text = unicodedata.normalize("NFC", text).casefold()
    return COLOUR.sub(lambda found: " " * len(found[0]), text) if "\x1b" in text else text


def words_of(text: str) -> list[str]:
    """Return the words of a folded text.

    >>> words_of(folded("It's a_b 7.5 \\x1b[31mRed"))
    ['it', 's', 'a', 'b', '7', '5', 'red']
    """
    return WORD.findall(text)


def terms_of(turn: ConversationTurn) -> set[str]:
    """Return the terms that an index has of a turn: its words, who said it, and the tools that it calls."""
    words = {word[:LONGEST] for word in words_of(folded(said(turn)))}
    return words | {_mark("role", turn.role)} | {_mark("tool", name) for name, _ in turn.calls}


def _mark(key: str, value: str) -> str:
    return f"{key}={''.join(filter(str.isalnum, folded(value)))}"


ASIDE_TERMS = " OR ".join(f'"{_mark("role", role)}"' for role in ASIDE)  # of an index


def _pattern(phrase: str) -> re.Pattern[str]:
    """Return the pattern of words that follow each other, of a phrase that may end in ``*``."""
    words = words_of(folded(phrase))
    pattern = re.escape(words[0])
    for before, word in itertools.pairwise(words):
        pattern += (r"[\W_]*" if _is_sign(before) or _is_sign(word) else r"[\W_]+") + re.escape(word)
    begin = "" if _is_sign(words[0]) else rf"(?<![^\W_{SIGNS}])"
    end = "" if phrase.endswith("*") or _is_sign(words[-1]) else rf"(?![^\W_{SIGNS}])"
    return re.compile(begin + pattern + end)


def _is_sign(word: str) -> bool:
    return re.match(f"[{SIGNS}]", word) is not None


def turns_of(session: Session, only: Sequence[Place] = ()) -> Iterator[tuple[Conversation, ConversationTurn]]:
    """Yield the turns of a session with their conversation; one that has none as its text, in pieces."""
    met = False
    for talk in conversations_of(session, only) if session.kind != "ids" else ():
        if not (talk.turns or met or only):
            text = session.value if session.kind == "text" else session.to_bytes()
            for begin in range(0, len(text), PIECE):
                piece = text[begin : begin + PIECE].decode("utf-8", "replace")
                yield talk, ConversationTurn(0, session.kind, piece)
            return
        met = True
        for turn in talk.turns:
            yield talk, turn


def last_of(version: Version) -> int:
    """Return when something was said last in a version, or its own time."""
    return version.content.last or version.time


def newest_first(versions: Iterable[Version]) -> list[Version]:
    """Return the parts of versions, those of the session last talked in first."""
    sessions = sorted(versions, key=lambda version: (-max(map(last_of, version.each)), version.name))
    return [part for version in sessions for part in version.each]


def read(
    reader: SessionReader,
    versions: Iterable[Version],
    broken: list[tuple[Version, Exception]],
    looked: Callable[[], None] = lambda: None,
    *,
    parted: bool = False,
) -> Iterator[tuple[Version, Session]]:
    """Yield versions that can be read, with their sessions, and note the others in ``broken``.

    Some are decoded side by side, at first one. ``looked``: called after each that the caller is done with.
    ``parted``: long ones are decoded as they are read.
    """
    coming, size = iter(versions), 1
    while left := deque(version for _, version in zip(range(size), coming, strict=False)):
        size = min(4 * size, TOGETHER)
        side_by_side: Iterator[Session] | None = reader.read_many(tuple(left), parted=parted)
        while left:
            try:
                yield left[0], next(side_by_side) if side_by_side else reader.read(left[0])
            except (LostError, CorruptError, BundleMismatch) as exc:
                if side_by_side:  # it may be another one of the group
                    side_by_side = None
                    continue
                broken.append((left[0], exc))
            looked()
            left.popleft()
