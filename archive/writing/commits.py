"""Commits: groups sessions that are to be put into commits, small enough to lose little with the last one.

    for commit in Commits(catalog, last, cutter).of(requests, pace):
        for request, cut in commit:         # a new session in segments, or the stored version that is the same
            ...

A name comes once per commit, because its second version builds on the first, as a fork on its parent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import Tower
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SESSIONS
from pltz.archive.writing.cut import SessionCutter, size_of
from pltz.archive.writing.last_towers import LastTowers
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.pace import Pace
from pltz.archive.writing.put_request import PreparedRequest, PutRequest
from pltz.coding.codecs.codec import BytesCodec
from pltz.plt_codec.errors import ContentError, PltzError, TokenizerMismatch

COMMIT_TOKENS = 1 << 20  # tokens of the sessions of one commit
COMMIT_SESSIONS = 4096
AT_ONCE = 64  # sessions whose last versions are decoded side by side
READ_BYTES = 16 << 20  # content of sessions from which no more are read before the first of them is put

Refused = Callable[[PutRequest, PltzError], None]


class CutRequest(NamedTuple):
    """A request, and its session in segments, or the stored version that is the same."""

    request: PreparedRequest
    cut: NewSession | Tower


class Commits:
    """Forms the commits of one archive."""

    def __init__(self, catalog: Catalog, last: LastTowers, cutter: SessionCutter) -> None:
        self._catalog, self._last, self.cutter = catalog, last, cutter

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
        names: set[tuple[str, str]] = set()
        tokens = size = 0
        began = time.monotonic()
        source = self._ahead(requests)
        while True:
            try:
                request = next(source, None)
            except Exception:  # of the caller's iterator
                if batch:
                    yield batch
                raise
            # a commit ends where it is full, where time is up, or where a session comes again
            full = tokens >= COMMIT_TOKENS or len(batch) >= COMMIT_SESSIONS or pace.is_full(size, began)
            if request is None or full or _names(request) & names:
                if batch:
                    yield batch
                batch, names, tokens, size = [], set(), 0, 0
            if request is None:
                return
            if not batch:  # the request may have been long in coming
                began = time.monotonic()
                self._catalog.look(0)
            try:
                cut = self.cutter.cut(request, keep_opaque=keep_opaque)
            except PltzError as exc:
                if refused is None or not isinstance(exc, ContentError | TokenizerMismatch):
                    if batch:
                        yield batch
                    raise
                refused(request.request, exc)
                continue
            amount = size_of(cut) if isinstance(cut, NewSession) else 0
            if batch and size + amount > pace.limit:  # what is there does not wait for a large session
                yield batch
                batch, names, tokens, size, began = [], set(), 0, 0, time.monotonic()
            batch.append(CutRequest(request, cut))
            names.add((request.tenant, request.name))
            tokens += sum(map(len, cut.segments)) if isinstance(cut, NewSession) else 0
            size += amount

    def _ahead(self, requests: Iterable[PreparedRequest]) -> Iterator[PreparedRequest]:
        """Yield requests. Decode what they extend side by side: of AT_ONCE requests, or of READ_BYTES.

        So many are read before the first of them is yielded. An error of their source is raised after those before it.
        """
        source = iter(requests)
        while True:
            part: list[PreparedRequest] = []
            size = 0
            try:
                while size < READ_BYTES and len(part) < AT_ONCE:
                    part.append(next(source))
                    size += part[-1].size
            except StopIteration:
                pass
            except Exception:
                yield from part
                raise
            if not part:
                return
            if len(part) > 1:
                self._last.load(self._extended(part))
            yield from part

    def _extended(self, requests: Sequence[PreparedRequest]) -> list[Version]:
        """Return the last version of each session that requests extend. One look-up tells which are stored."""
        keys, found = self._catalog.keys, dict[bytes, tuple[str, str]]()
        try:
            for r in requests:
                found[keys.session_key(keys.domain(TENANT, r.tenant), r.name)] = r.tenant, r.name
        except (PltzError, UnicodeError):  # `put` tells which request is wrong
            return []
        stored = self._catalog.lookup.known(SESSIONS, list(found))
        last = [version for key in stored if (version := self.cutter.last_version(*found[key]))]
        return [v for v in last if v.tokenizer != BytesCodec.tokenizer]  # what a log begins with is told by ids


def _names(request: PreparedRequest) -> set[tuple[str, str]]:
    """Return the sessions that a request builds on."""
    return {(request.tenant, request.name), (request.tenant, request.request.parent or "")}
