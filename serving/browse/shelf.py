"""Shelf: the sessions of an archive as pages show them: listed, searched and read. It changes nothing there.

    shelf = Shelf(cold, other)          two objects of one archive: a search does not wait for what is read
    shelf.start()                       the index of words catches up in a thread
    shelf.chosen("bell", "codex")       rows, those talked in last first
    shelf.said("bell")                  turns, the best first

Rows stay in memory until the manifest changes, so that a page of 100,000 sessions costs a look at it and a filter. Any
thread may call it: one lists or reads at a time, and one searches.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pltz.archive import Archive, ArchiveError, SearchHit, disk_bytes, last_of
from pltz.datasets import Conversation, ConversationTurn, conversation_of, conversations_of, lines_of
from pltz.plt_codec import PltzError
from pltz.serving.server.errors import Refused

if TYPE_CHECKING:
    from pltz.archive import Version, VersionName
    from pltz.datasets import Redactor
    from pltz.models import Session

FRESH = 2.0  # seconds for which a look at the archive holds
HITS = 20  # parts of sessions that a search shows
READ = 4  # sessions that stay decoded
WHOLE = 1 << 26  # bytes of a log, of a longer one the end is shown


class Row(NamedTuple):
    """A session in the list. ``last``: when something was said last, in seconds since 1970. ``low``: to filter by."""

    tenant: str
    name: str
    title: str
    agent: str
    project: str
    turns: int
    size: int
    last: int
    low: str


class Listed(NamedTuple):
    """All sessions, those talked in last first; how many are of each agent and project; bytes of the archive."""

    rows: list[Row]
    agents: Counter[str]
    projects: Counter[str]
    stored: int


class Reading(NamedTuple):
    """A part of a session that was decoded. ``turns``: its lines as one turn, where there is no conversation."""

    version: Version
    session: Session
    talk: Conversation
    turns: Sequence[ConversationTurn]


class Shelf:
    """An archive, opened twice: ``reading`` lists and decodes, ``searching`` has the index of words.

    ``marked``: puts marks in the place of secrets, in titles and in what is found, read and downloaded. A title loses
    its last word, which may be a part of one.

    Attributes:
        indexing: parts of sessions that the index took in, and how many there are; None once it has all.
    """

    def __init__(self, reading: Archive, searching: Archive, marked: Redactor | None = None) -> None:
        self._reading, self._searching, self._marked = reading, searching, marked
        self._shown: Callable[[Session], Session] = marked.session if marked else lambda session: session
        reading.parts.catalog.max_age = searching.parts.catalog.max_age = FRESH
        self._lock, self._search_lock = threading.Lock(), threading.Lock()
        self._numbers = itertools.count(1)
        self._newest = 0  # number of the search that counts
        self._listed = Listed([], Counter(), Counter(), 0)
        self._state: tuple[str, bool] | None = None
        self._read = OrderedDict[bytes, Reading]()
        self.indexing: tuple[int, int] | None = (0, 0)

    def start(self) -> None:
        """Let the index of words catch up in a thread."""
        threading.Thread(target=self._catch_up, name="index of words").start()

    def close(self) -> None:
        """End the searches that run, and the thread: after the session that each decodes."""
        self._newest = -1

    def _catch_up(self) -> None:
        def progress(done: int, total: int) -> None:
            self._want(0)
            self.indexing = done, total

        try:
            with self._search_lock:
                self._searching.word_index().catch_up(progress)
        except PltzError:
            pass  # a search says it
        self.indexing = None

    def _want(self, number: int) -> None:
        """Raise Refused where a search is outdated, or all has ended."""
        if self._newest < 0 or 0 < number < self._newest:
            raise Refused(409, "a newer search took the place of this one")

    def listed(self) -> Listed:
        """Return the list of the present state. Raises StoreError."""
        with self._lock:
            self._reading.parts.catalog.look()
            state = self._reading.token(), self.indexing is None
            if state != self._state:
                rows = sorted(self._rows(), key=lambda row: (-row.last, row.name))
                agents = Counter(row.agent for row in rows if row.agent)
                projects = Counter(row.project for row in rows if row.project)
                self._listed = Listed(rows, agents, projects, disk_bytes(self._reading.parts.store))
                self._state = state
            return self._listed

    def _rows(self) -> Iterator[Row]:
        index = self._reading.word_index()
        try:
            index.load()
            known = index.facts()
        except PltzError:
            known = {}
        for whole in self._reading.directory.ls():
            facts = [known[part.id] for part in whole.each if part.id in known]
            agent = next((fact.agent for fact in facts if fact.agent), "")
            project = next((fact.usage.project for fact in facts if fact.usage.project), "")
            title = whole.content.title
            if self._marked:
                title = self._marked.text(title).rpartition(" ")[0]
            low = whole.name, title, project, whole.tenant
            counts = whole.content.turns, whole.content.size, max(map(last_of, whole.each))
            yield Row(whole.tenant, whole.name, title, agent, project, *counts, "\n".join(low).casefold())

    def chosen(self, text: str = "", agent: str = "", project: str = "") -> list[Row]:
        """Return the sessions of an agent that have a text in name or title, and one in the folder of the project."""
        rows, text, project = self.listed().rows, text.casefold(), project.casefold()
        return [
            row
            for row in rows
            if text in row.low and (not agent or row.agent == agent) and project in row.project.casefold()
        ]

    def said(self, words: str, agent: str = "", project: str = "") -> tuple[list[tuple[SearchHit, int]], str]:
        """Return the best turn of each session found with the number of its others, and what could not be searched.

        Raises Refused where a newer search has begun, UsageError where there are no words.
        """
        number = next(self._numbers)
        if self._newest >= 0:
            self._newest = number
        found: list[tuple[SearchHit, int]] = []
        with self._search_lock:
            self._want(number)
            look: Callable[[int, int], None] = lambda done, total: self._want(number)
            hits = self._searching.search(
                typed(words), agent=agent, project=project, limit=HITS, progress=look, mark=self._shown
            )
            try:
                for _, group in itertools.groupby(hits, key=lambda hit: (hit.tenant, hit.name, hit.part)):
                    some = list(group)
                    found.append((max(some, key=lambda hit: hit.score), len(some) - 1))
                    self._want(number)
            except ArchiveError as exc:
                return found, str(exc)
        return found, ""

    def read(self, tenant: str, name: str, number: VersionName | None = None, part: str = "") -> Reading:
        """Return a part of a session, decoded. Raises the errors of `Archive.get`."""
        with self._lock, self._reading.parts.catalog.lookup.keeping_blocks():
            version = self._reading.directory.version(name, tenant, number, part)
            if version.id not in self._read:
                session = self._shown(self._reading.sessions.read(version))
                whole = len(session.value) <= WHOLE
                talk, *talks = conversations_of(session) if whole else [conversation_of(session, every=True)]
                turns = list(itertools.chain(talk.turns, *(more.turns for more in talks)))
                self._read[version.id] = Reading(version, session, talk, turns or [lines_of(session)])
            self._read.move_to_end(version.id)
            while len(self._read) > READ:
                self._read.popitem(last=False)
            return self._read[version.id]._replace(version=version)

    def about(self, tenant: str, name: str, number: VersionName | None = None) -> tuple[list[str], list[int]]:
        """Return the paths of a session's parts at a version, and the numbers of its versions. Raises NotFound."""
        with self._lock:
            parts = [version.part for version in self._reading.directory.parts(name, tenant, number)]
            versions = self._reading.history(name, tenant=tenant)
            return parts, [version.version for version in versions if not version.forgotten]


def typed(words: str) -> str:
    """Return words that somebody types: the last one may go on.

    >>> typed("where bel"), typed('"the bell"'), typed("bel*")
    ('where bel*', '"the bell"', 'bel*')
    """
    return f"{words}*" if words[-1:].isalnum() else words
