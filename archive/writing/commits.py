"""Commits: groups sessions that are to be put into commits, small enough to lose little with the last one.

    for commit in Commits(catalog, last, cutter).of(requests, pace):
        for request, cut in commit:         # a new session in segments, or the stored version that is the same
            ...

A part of a session comes once per commit, because its second version builds on the first, as a fork on its parent.
Parts of one session that follow each other are in one commit, so that they are one version.

Parts of large logs are put before the whole (`put_parts`), as segments without a version, so that a put that is cut off
goes on behind them: the next put of the log finds them by their ids. Nothing names them until then, so a collector
frees them once it would free what was forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import Tower
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SESSIONS
from pltz.archive.writing.cut import LOG_PART, PACKED_PART, SessionCutter, Tokenised, size_of
from pltz.archive.writing.last_towers import LastTowers
from pltz.archive.writing.new_session import CommitReceipt, NewSession, Slices
from pltz.archive.writing.put_request import PreparedRequest, PutRequest
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.bundle_codecs import BundleCodecs
from pltz.coding.codecs.codec import PpmdCodec
from pltz.coding.workers import START_BYTES, Later, ahead
from pltz.plt_codec.container.frame import is_bytewise
from pltz.plt_codec.errors import ContentError, FormatError, PltzError, TokenizerMismatch

COMMIT_SESSIONS = 4096
# parts of one session, and their bytes, that are in one commit: of more the last ones are another version
MOST_PARTS, TOGETHER = 1 << 14, 1 << 26
COMMIT_BYTES = 16 << 20  # of content: what keeps a GPU busy; on a CPU the seconds decide
COMMIT_SECONDS = 30.0
FIRST = 1 << 18  # bytes of content of the first commit: how long coding takes is not known yet
TELLING = 1 << 16  # bytes of content from which a commit tells how long coding takes
REMEMBERED = 4  # commits
SAFETY = 0.7  # share of the time that is aimed at
AT_ONCE = 256  # sessions that are looked up, and whose last versions are decoded, together
READ_BYTES = 16 << 20  # content of sessions from which no more are read before the first of them is put
PARTS_AHEAD = 32  # parts that are read ahead for processes, fewer where they have more than GROUP_BYTES
GROUP, GROUP_BYTES = 64, 1 << 19  # sessions that a process tokenises in one call, or their bytes

Refused = Callable[[PutRequest, PltzError], None]


class Pace:
    """The size of commits: at most ``most_bytes`` of content, or what is coded in ``most_seconds``.

    The slowest of the ``last`` commits counts: sessions that zstd codes in no time stand between those that the model
    codes. ``first``: bytes of the first one; 0: `FIRST`.

        pace.is_full(size, began)     # before a session is added to a commit
        pace.took(size, seconds)      # after a commit: the next ones are as large as can be coded in that time
    """

    def __init__(self, most_bytes: int, most_seconds: float, *, last: int = REMEMBERED, first: int = 0) -> None:
        self._most_bytes, self._most_seconds, self._first = most_bytes, most_seconds, first
        self._rates: deque[float] = deque(maxlen=last)  # bytes per second of commits

    @property
    def limit(self) -> int:
        """Return the bytes of content from which a commit is full."""
        if not self._rates:
            return min(self._most_bytes, self._first or FIRST)
        return min(self._most_bytes, int(SAFETY * self._most_seconds * min(self._rates)))

    def is_full(self, size: int, began: float) -> bool:
        """Return whether a commit of ``size`` bytes of content, begun at a time of the monotonic clock, is full."""
        return size >= self.limit or time.monotonic() - began >= self._most_seconds

    def took(self, size: int, seconds: float) -> None:
        """Count a commit of so many new bytes of content that took so long to code."""
        if size >= TELLING or (size and seconds >= self._most_seconds):
            self._rates.append(size / max(seconds, 1e-6))


class CutRequest(NamedTuple):
    """A request, its session in segments or the stored version that is the same, and the bytes of new content."""

    request: PreparedRequest
    cut: NewSession | Tower
    size: int


class Commits:
    """Forms the commits of one archive."""

    def __init__(self, catalog: Catalog, last: LastTowers, cutter: SessionCutter, codecs: BundleCodecs) -> None:
        self._catalog, self._last, self.cutter = catalog, last, cutter
        self._codecs, self._workers = codecs, codecs.workers

    def of(
        self,
        requests: Iterable[PreparedRequest],
        pace: Pace,
        *,
        keep_opaque: bool = False,
        refused: Refused | None = None,
    ) -> Iterator[list[CutRequest]]:
        """Yield requests, cut into segments, commit by commit.

        An error is raised after the requests before it were yielded. ``refused`` takes those of single sessions.
        """
        batch: list[CutRequest] = []
        coding = _Coding()
        names: set[tuple[str, str, str]] = set()
        size = 0
        began = time.monotonic()
        source, unseen = self._ahead(requests, keep_opaque), set[tuple[str, str]]()
        while True:
            try:
                request, begun, unseen = next(source, (None, None, unseen))
            except Exception:  # of the caller's iterator
                if batch:
                    yield batch
                raise
            # a commit ends where it is full, where time is up, or where a part of a session comes again
            full = len(batch) >= COMMIT_SESSIONS or pace.is_full(size, began)
            room = size < TOGETHER and len(batch) < MOST_PARTS
            goes_on = bool(request and batch and _is_of(request, batch[-1].request) and room)
            if request is None or (full and not goes_on) or _names(request) & names:
                if batch:
                    yield batch
                unseen.difference_update((tenant, name) for tenant, name, _ in names)
                batch, names, size = [], set(), 0
            if request is None:
                return
            if not batch:  # the request may have been long in coming
                began = time.monotonic()
                coding.drop()
                self._catalog.look(0)
            try:
                new = (request.tenant, request.name) in unseen
                cut = self.cutter.cut(request, keep_opaque=keep_opaque, begun=begun, new=new)
            except PltzError as exc:
                if refused is None or not isinstance(exc, ContentError | TokenizerMismatch | FormatError):
                    if batch:
                        yield batch
                    raise
                refused(request.request, exc)
                continue
            amount = size_of(cut) if isinstance(cut, NewSession) else 0
            if begun and isinstance(cut, NewSession):
                coding.add(cut)
            if batch and size + amount > pace.limit and not goes_on:  # what is there does not wait for a large session
                yield batch
                unseen.difference_update((tenant, name) for tenant, name, _ in names)
                batch, names, size, began = [], set(), 0, time.monotonic()
            batch.append(CutRequest(request, cut, amount))
            names.add((request.tenant, request.name, request.part))
            size += amount

    def _ahead(
        self, requests: Iterable[PreparedRequest], keep_opaque: bool
    ) -> Iterator[tuple[PreparedRequest, Tokenised | None, set[tuple[str, str]]]]:
        """Yield requests, each with its tokens to come where processes make them, and the new sessions of its part.

        These are tenants and names that no session has; who puts one takes it out.

        What requests extend is decoded side by side: of AT_ONCE requests, or of READ_BYTES. So many are read before the
        first of them is yielded, and where processes prepare them about READ_BYTES more, so that these have work while
        a commit is coded. An error of their source is raised after those before it.
        """
        for part in self._parts_ahead(self._parts(requests, keep_opaque)):
            unseen = set[tuple[str, str]]()
            if len(part.requests) > 1:
                unseen = self._unseen(part.requests)  # as others were put since it was read
                self._last.load(self._extended(part.requests, unseen))
            yield from zip(part.requests, part.begun, repeat(unseen))

    def _parts_ahead(self, parts: Iterator[_Part]) -> Iterator[_Part]:
        """Yield parts, from where processes are at work with others read behind them."""
        for part in parts:
            if self._workers.on:
                yield from ahead(chain([part], parts), PARTS_AHEAD, lambda one: 1 + one.size // GROUP_BYTES)
                return
            yield part

    def _parts(self, requests: Iterable[PreparedRequest], keep_opaque: bool) -> Iterator[_Part]:
        """Yield requests as they are read, with their tokens to come. The error of their source is raised behind."""
        source, seen = iter(requests), 0
        failed: Exception | None = None
        while failed is None:
            part: list[PreparedRequest] = []
            size = 0
            try:
                while size < READ_BYTES and len(part) < AT_ONCE:
                    part.append(next(source))
                    size += part[-1].size
            except Exception as exc:  # noqa: BLE001 - of the caller's iterator, or its end
                failed = exc
            if not seen:  # all of a small put
                known = sum(r.size for r in part if not (r.size and r.is_log)) if failed else None
                self._codecs.begin_put(known)
            seen += size
            if seen >= START_BYTES and self._workers.count:
                self._workers.on = True
            if part:
                yield _Part(part, self._begin(part, keep_opaque), size)
        if not isinstance(failed, StopIteration):
            raise failed

    def _begin(self, requests: Sequence[PreparedRequest], keep_opaque: bool) -> list[Tokenised | None]:
        """Begin to tokenise the requests of new sessions, in processes; None for each other one."""
        begun: list[Tokenised | None] = [None] * len(requests)
        if not self._workers.on:
            return begun
        unseen = self._unseen(requests)
        group, size = list[int](), 0
        for n, r in enumerate(requests):
            if self._is_for_model(r) and (r.tenant, r.name) in unseen:
                group.append(n)
                size += r.size
            if group and (len(group) == GROUP or size >= GROUP_BYTES or n + 1 == len(requests)):
                later = self._workers.submit("tokens", [requests[at].session for at in group], keep_opaque)
                for place, at in enumerate(group):
                    begun[at] = partial(_one_of, later, place)
                group, size = [], 0
        return begun

    def _is_for_model(self, request: PreparedRequest) -> bool:
        return not request.as_ids and request.size > 0 and not request.is_log

    def _extended(self, requests: Sequence[PreparedRequest], unseen: set[tuple[str, str]]) -> list[Version]:
        """Return the last version of each session that requests extend, but of logs."""
        stored = [r for r in requests if (r.tenant, r.name) not in unseen and r.size]
        known = [(r.tenant, r.name, r.part) for r in stored if r.as_ids or not r.is_log]
        last = [version for place in known if (version := self.cutter.last_version(*place))]
        return [v for v in last if not is_bytewise(v.tokenizer)]  # what a log begins with is told by ids

    def _unseen(self, requests: Sequence[PreparedRequest]) -> set[tuple[str, str]]:
        """Return tenant and name of requests of which no session is stored. One look-up tells them."""
        keys, found = self._catalog.keys, dict[bytes, tuple[str, str]]()
        try:
            for r in requests:
                found[keys.session_key(keys.domain(TENANT, r.tenant), r.name)] = r.tenant, r.name
            known = self._catalog.lookup.known(SESSIONS, list(found))
        except (PltzError, UnicodeError):  # `put` tells which request is wrong
            return set()
        return {place for key, place in found.items() if key not in known}


class _Part(NamedTuple):
    """Requests that were read together, what gives the tokens of each, and the bytes of their content."""

    requests: list[PreparedRequest]
    begun: list[Tokenised | None]
    size: int


class _Coding:
    """Codes new sessions of one segment by PPMd, in threads, while others are cut."""

    def __init__(self) -> None:
        self._waiting: list[NewSession] = []  # fewer than GROUP
        self._threads: ThreadPoolExecutor | None = None

    def add(self, cut: NewSession) -> None:
        """Begin to code a session together with those before it, once they are GROUP."""
        codec = cut.codec
        if not isinstance(codec, PpmdCodec) or len(cut.segments) != 1:
            return
        self._waiting.append(cut)
        if len(self._waiting) == GROUP:
            self._threads = self._threads or ThreadPoolExecutor(codec.threads)
            later = self._threads.submit(codec.coded_alone, [one.segments[0] for one in self._waiting])
            for place, one in enumerate(self._waiting):
                one.begun.append(partial(_one_of, later, place))
            self._waiting.clear()

    def drop(self) -> None:
        """Forget the sessions that wait: they were put."""
        self._waiting.clear()


def _one_of(later: Later, place: int) -> Any:
    """Return the tokens, (T,), or the bitstring of one session of a group. Raises the error in its place."""
    row = later.result()[place]
    if isinstance(row, PltzError):
        raise row
    return row


def _names(request: PreparedRequest) -> set[tuple[str, str, str]]:
    """Return the sessions and parts that a request builds on."""
    return {(request.tenant, request.name, request.part), (request.tenant, request.request.parent or "", "")}


def _is_of(request: PreparedRequest, other: PreparedRequest) -> bool:
    """Return whether two requests are of one session."""
    return (request.tenant, request.name) == (other.tenant, other.name)


def is_begun(cut: NewSession | Tower) -> bool:
    """Return whether a session is the rest of a log whose beginning is stored."""
    return isinstance(cut, NewSession) and cut.after is not None


class StoredPart(NamedTuple):
    """A part of a log that is durable. ``size``: bytes of its content."""

    size: int
    receipt: CommitReceipt


def put_parts(
    writer: ArchiveWriter,
    commit: Sequence[CutRequest],
    pace: Pace,
    coding: Callable[[int, int], None] | None = None,
) -> tuple[list[NewSession], list[StoredPart], int]:
    """Put the beginnings of large logs, each longer by a commit, and return what is left of all sessions, and them.

    Also the bytes of content of what is left.

    They are segments without a version until the whole is put: what is cut off is never taken for all of a log.

    ``coding``: as in `Archive.put_many`. Raises the errors of `ArchiveWriter.put`.
    """
    left, parts = list[NewSession](), list[StoredPart]()
    for session in (one.cut for one in commit if isinstance(one.cut, NewSession)):
        size = begin = 0
        slices, rest = session.segments, session
        for count, length in enumerate(slices.sizes[:-1] if isinstance(slices, Slices) else (), 1):
            size += length
            if size >= min(max(pace.limit, LOG_PART), PACKED_PART):
                if coding:
                    coding(1, size)
                began = time.monotonic()
                [receipt] = writer.put([replace(rest, segments=slices[begin:count], begins=True)])
                rest = replace(rest, segments=slices[count:], after=receipt.after)
                parts.append(StoredPart(size, receipt._replace(after=None)))  # which holds content
                pace.took(size if receipt.new else 0, time.monotonic() - began)
                size, begin = 0, count
        left.append(rest)
    return left, parts, sum(one.size for one in commit) - sum(part.size for part in parts)


def with_parts(before: Sequence[StoredPart], committed: Sequence[CommitReceipt]) -> list[CommitReceipt]:
    """Return the receipts of sessions together with those of their parts, if they were put in parts."""
    found = list[CommitReceipt]()
    for last in committed:
        parts = [one.receipt for one in before if one.receipt[:3] == last[:3]]
        found.append(
            last._replace(
                new=last.new + sum(one.new for one in parts),
                size=last.size + sum(one.size for one in parts),
                coded=[*(data for one in parts for data in one.coded), *last.coded],
            )
        )
    return found
