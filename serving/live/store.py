"""LiveStore: transcripts of agents that run, as the `SessionStore` of the Claude Agent SDK keeps them.

    store = LiveStore.open("/var/lib/pltz/live", "s3://bucket/cold")
    options = ClaudeAgentOptions(session_store=store)       # of claude_agent_sdk, which pltz does not need

    append --group, sync--> journal --idle--> archive        load = the archive's entries, then the journal's

`append` returns when its batch is durable in the journal. A session that was idle is put into the archive as a log,
each sub-agent a part of it. Only then are its batches marked in the journal. A kill in between repeats the put: entries
are known by identities (`batch.py`), and none comes twice.

**Many hosts** have a journal each, and one archive. What a journal holds is seen by all processes of its host, and by
others once it froze. Two hosts may append to one session: no version says that it has what it has not, so both versions
are heads, `load` gives the entries of both, and the next freeze joins them.

**Order.** Entries of a process come in the order of their calls. Of several processes they come by their clocks, of
several hosts by versions. `load` reads the journal first: what freezes meanwhile is in the archive by then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from pltz.archive import Archive, NotFound, OsDisk, PutRequest, StoreError, Version, facts_of
from pltz.models import Bundle, Session
from pltz.plt_codec import PltzError, UsageError
from pltz.serving.eviction.journal.lock import FileLocks
from pltz.serving.eviction.journal.reader import JournalReader, JournalSegment
from pltz.serving.eviction.journal.segment import BATCHES, Name
from pltz.serving.eviction.journal.writer import Journal
from pltz.serving.live.batch import LiveBatch, Stream, entry_of, identity_of, line_of

TAG, SUMMARY = "pltz.live", "pltz.live.summary"
MAX_SUMMARY = 1024  # bytes of a summary that goes with each version; a session with more has none
GONE = "gone"  # a word of the tag
NAMED = 16  # hex digits by which a version is named
LOCK = "worker.lock"
POLL, WAIT = 0.02, 60.0  # seconds between tries to get the lock of a journal, and until they end
STEP = 30.0  # seconds between looks at what is idle, at most
GROUP = 8 << 20  # bytes of streams that are put at once, and more of a single session
MOST = 64 << 20  # bytes of waiting entries, from which all freezes
TICK_BITS = 20
Named = tuple[str, str]  # project and session
log = logging.getLogger("pltz.live")


class Placed(NamedTuple):
    """A batch and the place of its end: segment and offset."""

    segment: Name
    end: int
    batch: LiveBatch

    @property
    def order(self) -> tuple[int, Name, int]:
        """Return what batches are ordered by."""
        return self.batch.at, self.segment, self.end


@dataclass
class _SegmentTail:
    """The waiting batches of a segment, as far as it was read (``end``)."""

    end: int = 0
    batches: list[Placed] = field(default_factory=list)


class Merged(NamedTuple):
    """A stream by identity, its heads in the archive, and whether a put would change something."""

    lines: dict[str, bytes]
    heads: list[Version]
    new: bool


class LiveStore:
    """A store of transcripts (see the top of this file). Make one with `open`; close it at the end.

    Its methods that are coroutines are those of the SDK's `SessionStore`.
    Several processes may use one journal at once. Any thread may use it.
    """

    def __init__(self, journal: str | os.PathLike[str], open_archive: Callable[[], Archive], idle: float) -> None:
        """Make a store of what opens its archive. Else as `open`."""
        self._open_archive, self._failed = open_archive, False
        self._reading, self._writing = open_archive(), open_archive()
        self._disk, self._locks = OsDisk(journal), FileLocks(journal)
        self._journal = Journal(self._disk, self._locks, kind=BATCHES)
        self._backlog = JournalReader(self._disk, self._locks, BATCHES)
        self._write_lock, self._read_lock, self._freeze_lock = (threading.Lock() for _ in range(3))
        self._queue: deque[tuple[bytes, Future[None]]] = deque()
        self._segments: dict[Name, _SegmentTail] = {}
        self._at = 0
        self._idle = idle
        self._ended = threading.Event()
        self.failure = ""  # why nothing freezes, while that lasts
        self._thread = threading.Thread(target=self._run, name="pltz-live", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, journal: str | os.PathLike[str], archive: str | os.PathLike[str], *, idle: float = 300.0, **options: Any
    ) -> Self:
        """Open a store, and make journal and archive where there are none.

        Args:
            journal: a folder on a local disk, of this host alone. Entries are in the clear in it.
            archive: folder or URL of the archive, which all hosts share.
            idle: seconds after its last append at which a session freezes.
            options: of `Archive.open`.

        Raises the errors of `Archive.open`, and StoreError where the folder of the journal cannot be used.

        >>> import asyncio, pltz, tempfile
        >>> key = {"project_key": "shop", "session_id": "s1"}
        >>> with tempfile.TemporaryDirectory() as at, pltz.LiveStore.open(f"{at}/live", f"{at}/cold") as store:
        ...     asyncio.run(store.append(key, [{"type": "user", "uuid": "u1"}]))
        ...     store.freeze(), asyncio.run(store.load(key))
        (1, [{'type': 'user', 'uuid': 'u1'}])
        """
        options = {"create": True, "threads": 1, **options}
        options["bundle"] = options.get("bundle") or Bundle.load()

        def open_archive() -> Archive:
            opened = Archive.open(archive, **options)
            opened.parts.want_key()
            opened.load()
            return opened

        return cls(journal, open_archive, idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Freeze all that can be frozen, and close. What could not stays in the journal, and `failure` says why."""
        self._ended.set()
        self._thread.join()
        with self._write_lock:
            self._journal.close()
        self._try(0)
        with self._read_lock:
            self._reading.close()
            self._writing.close()

    # ---- the protocol of the SDK

    async def append(self, key: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
        """Keep entries of a transcript. On return they are durable in the journal.

        Raises UsageError for a key or entry that cannot be kept, StoreError: nothing was acknowledged.
        """
        if not entries:
            return
        lines = [line_of(entry, self._disk.random(8)) for entry in entries]
        done = self._enqueue(LiveBatch(Stream.of(key), self._now(), lines))
        await asyncio.to_thread(self._flush)
        done.result()

    async def load(self, key: Mapping[str, Any]) -> list[Any] | None:
        """Return all entries of a transcript in order, or None. Raises StoreError and the errors of `Archive.get`."""
        return await asyncio.to_thread(self._load, Stream.of(key))

    async def list_sessions(self, project_key: str) -> list[Any]:
        """Return ``session_id`` and ``mtime``, in milliseconds since 1970, of the sessions of a project."""
        return await asyncio.to_thread(self._list, project_key)

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """Return what the SDK's list shows of the sessions of a project, without decoding any.

        It is what the SDK folded when they froze, and what waits is folded over it. A session has none that two hosts
        appended to, or that froze in a process without the SDK: the SDK loads those.
        """
        return await asyncio.to_thread(self._summaries, project_key)

    async def delete(self, key: Mapping[str, Any]) -> None:
        """Delete a session with its sub-agents, or the transcript of one.

        A session is erased where the archive is sealed, else forgotten. The bytes of a sub-agent go with its session.
        All that waits freezes, so that no word stays in the journal. What another process of this host wrote of it goes
        within half a minute, and what another host did not freeze yet is not deleted. Raises StoreError, and the errors
        of `Archive.forget`.
        """
        await asyncio.to_thread(self._delete, Stream.of(key))

    async def list_subkeys(self, key: Mapping[str, Any]) -> list[str]:
        """Return the subpaths of the sub-agents of a session."""
        return await asyncio.to_thread(self._subkeys, Stream.of(key))

    # ---- in

    def _enqueue(self, batch: LiveBatch) -> Future[None]:
        """Queue a batch, in the order of calls, and return what says whether it is durable. Raises UsageError."""
        done: Future[None] = Future()
        self._queue.append((batch.encode(), done))
        return done

    def _now(self) -> int:
        """Return the time in ticks, later than all before."""
        self._at = max(self._at + 1, self._disk.ticks())
        return self._at

    def _flush(self) -> None:
        """Write what is queued with one sync. Whoever waits for the lock meanwhile finds its batch written."""
        with self._write_lock:
            group = [self._queue.popleft() for _ in range(len(self._queue))]
            try:
                if group:
                    if self._ended.is_set():
                        raise UsageError("the live store was closed: open it again")
                    self._journal.append([body for body, _ in group])
            except Exception as exc:  # noqa: BLE001  # each that waits gets it
                for _, done in group:
                    done.set_exception(exc)
            else:
                for _, done in group:
                    done.set_result(None)

    # ---- out

    def _waiting(self) -> list[Placed]:
        """Return the batches that are not archived yet, in order. Reads what is new in the journal.

        Raises StoreError where a segment cannot be read.
        """
        found: dict[Name, _SegmentTail] = {}
        for segment in self._backlog.segments():
            known = self._segments.get(segment.name) or _SegmentTail(segment.done)
            left = [placed for placed in known.batches if placed.end > segment.done]
            unread = replace(segment, done=max(known.end, segment.done))
            for frame in self._backlog.frames(unread):
                left.append(Placed(segment.name, frame.end, LiveBatch.decode(frame.body)))
            if unread.newer:
                raise StoreError(f"the journal cannot be read: {unread.newer}")
            found[segment.name] = _SegmentTail(max([unread.done, *(placed.end for placed in left)]), left)
        self._segments = found
        waiting = sorted((placed for segment in found.values() for placed in segment.batches), key=lambda p: p.order)
        return self._unerased(self._reading, waiting)[0]

    @staticmethod
    def _unerased(archive: Archive, waiting: list[Placed]) -> tuple[list[Placed], dict[Named, int]]:
        """Return batches but those from before an erase of their session or tenant, and when that was, by session.

        A deletion that waits may have erased its session itself, and says which batches go.
        """
        if not archive.parts.settings.sealed or not waiting:
            return waiting, {}
        archive.parts.catalog.look()
        names = {placed.batch.stream[:2] for placed in waiting}
        names -= {p.batch.stream[:2] for p in waiting if p.batch.deletes(p.batch.stream._replace(part=""))}
        at = {(project, name): archive.erased_at(name, tenant=project) for project, name in names}
        return [placed for placed in waiting if placed.batch.at > at.get(placed.batch.stream[:2], 0)], at

    @staticmethod
    def _versions(archive: Archive, stream: Stream) -> list[Version]:
        """Return the versions of a session, oldest first. Raises LostError and ArchiveError where damage hides any."""
        found = archive.directory.sight(stream.session, stream.project)
        if not found.whole:
            found.want_whole()
        return [version for version in found.versions if TAG in version.tags]

    @staticmethod
    def _merged(archive: Archive, versions: Sequence[Version], waiting: Sequence[Placed], stream: Stream) -> Merged:
        """Return the entries of a stream: those of all heads, then those that wait, without what was deleted."""
        deletions = [placed.batch for placed in waiting if placed.batch.deletes(stream)]
        gone = frozenset[str]().union(*(batch.versions for batch in deletions))
        heads = _heads(versions, stream.part)
        there = [head for head in heads if head.id.hex() not in gone]
        lines: dict[str, bytes] = {}
        for session in archive.sessions.read_many(there):
            for line in bytes(session.value[:]).splitlines():
                lines.setdefault(identity_of(line), line)
        new = len(there) < len(heads) or len(heads) > 1
        for segment, end, batch in waiting:
            if batch.stream == stream and not any(end <= (d.ends or {}).get(str(segment), 0) for d in deletions):
                for line in batch.lines:
                    new |= lines.setdefault(identity_of(line), line) is line
        return Merged(lines, heads, new)

    def _load(self, stream: Stream) -> list[Any] | None:
        with self._read_lock:
            waiting = self._waiting()
            found = self._merged(self._reading, self._versions(self._reading, stream), waiting, stream)
        return [entry_of(line) for line in found.lines.values()] or None

    def _list(self, project: str) -> list[Any]:
        with self._read_lock:
            waiting = self._waiting()
            last: dict[str, int] = {}
            for version in self._reading.list(project, parts=True):
                if not version.part and TAG in version.tags and GONE not in version.tags[TAG].split():
                    last[version.name] = max(version.moment, last.get(version.name, 0))
            for placed in waiting:
                stream, at = placed.batch.stream, placed.batch.at
                if stream.project == project and not stream.part and placed.batch.ends is None:
                    last[stream.session] = max(at, last.get(stream.session, 0))
            deleted = {p.batch.stream for p in waiting if p.batch.ends is not None and not p.batch.stream.part}
            for stream in deleted & {Stream(project, name) for name in last}:
                if not self._merged(self._reading, self._versions(self._reading, stream), waiting, stream).lines:
                    del last[stream.session]
        return [{"session_id": name, "mtime": at * 1000 >> TICK_BITS} for name, at in last.items()]

    def _summaries(self, project: str) -> list[Any]:
        listed, found = self._list(project), list[Any]()
        with self._read_lock:
            waiting, known = self._waiting(), dict[str, dict[bytes, Version]]()
            for whole in self._reading.directory.ls(project, history=True):
                known.setdefault(whole.name, {}).update((row.id, row) for row in whole.each if TAG in row.tags)
        for session in listed:
            stream = Stream(project, session["session_id"])
            heads = _heads([*known.get(stream.session, {}).values()], "")
            own = [placed.batch for placed in waiting if placed.batch.stream == stream]
            if len(heads) > 1 or any(batch.ends is not None for batch in own):
                continue
            lines = {identity_of(line): line for batch in own for line in batch.lines}
            data = _summary(stream, lines.values(), heads[0].tags.get(SUMMARY) if heads else "{}")
            found += [session | {"data": json.loads(data)}] if data else []
        return found

    def _subkeys(self, stream: Stream) -> list[str]:
        with self._read_lock:
            waiting, versions = self._waiting(), self._versions(self._reading, stream)
            parts = {version.part for version in versions if not version.forgotten}
            parts |= {p.batch.stream.part for p in waiting if p.batch.stream[:2] == stream[:2]}
            each = {part: self._merged(self._reading, versions, waiting, stream._replace(part=part)) for part in parts}
        return sorted(part for part, found in each.items() if part and found.lines)

    # ---- from the journal to the archive

    def freeze(self, idle: float = 0.0) -> int:
        """Put sessions into the archive whose last append is ``idle`` seconds ago. Returns how many streams were put.

        Raises StoreError and the errors of `Archive.put`: what is not in the archive stays in the journal.
        """
        with self._alone():
            return self._freeze(idle)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one that moves or deletes what the journal holds. Raises StoreError where another one stays."""
        with self._freeze_lock:
            end = time.monotonic() + WAIT
            while (lock := self._locks.take(LOCK)) is None:
                if time.monotonic() > end:
                    raise StoreError(f"another process has {LOCK} of the journal for {WAIT:.0f} s: try again")
                time.sleep(POLL)
            try:
                if self._failed:  # a writer that failed writes no more
                    self._writing = self._open_archive()
                self._failed = True
                yield
                self._failed = False
            finally:
                lock.free()

    def _freeze(self, idle: float) -> int:
        self._backlog.note_lost()
        segments, waiting, last, due, alive, erased = self._look(idle)
        open_, _ = self._journal.place or (None, 0)
        if due or any(segment.name == open_ and segment.done >= segment.size for segment in segments):
            with self._write_lock:  # what is archived shall not stay in a segment that goes on
                self._journal.leave()
            segments, waiting, last, due, alive, erased = self._look(idle)
        deletion = any(placed.batch.ends is not None for placed in waiting)
        refused: dict[Named, str] = {}
        group, put = list[PutRequest](), 0
        for number, session in enumerate(sorted(due), 1):
            group += self._requests(Stream(*session), alive, erased.get(session, True))
            if number == len(due) or sum(request.content.size for request in group) > GROUP:
                put += self._put(group, refused)
                group = []
        stays = {*last} if deletion and refused else {*last} - due | refused.keys()
        for segment in segments:
            own = [placed for placed in waiting if placed.segment == segment.name]
            kept = [placed.end for placed in own if placed.batch.stream[:2] in stays]
            done = [placed.end for placed in own if not kept or placed.end < min(kept)]
            if done:
                self._backlog.mark(segment, max(done))
            if not kept:
                self._backlog.finish(segment)
            if segment.aside or segment.newer or segment.stuck:
                why = segment.newer or segment.stuck or f"{segment.aside} damaged bytes were laid aside"
                log.warning("%s: %s", segment.name.journal, why)
        self._backlog.tidy()
        for (tenant, name), why in refused.items():
            raise StoreError(f"session {name!r} of {tenant!r} stays in the journal: {why}")
        return put

    def _look(
        self, idle: float
    ) -> tuple[list[JournalSegment], list[Placed], dict[Named, int], set[Named], list[Placed], dict[Named, int]]:
        """Return segments, their batches in order, when each session had its last, and the sessions that are due.

        Then the batches that no erase ended, and when sessions were erased (`_unerased`).
        """
        segments, waiting = self._backlog.segments(), list[Placed]()
        for segment in segments:
            for frame in self._backlog.frames(segment):
                waiting.append(Placed(segment.name, frame.end, LiveBatch.decode(frame.body)))
        waiting.sort(key=lambda placed: placed.order)
        last = {placed.batch.stream[:2]: placed.batch.at for placed in waiting}
        before = self._disk.ticks() - int(idle * (1 << TICK_BITS))
        alive, erased = self._unerased(self._writing, waiting)
        # a deletion is marked with all that it deletes, which may be in other segments, as is what an erase ended
        full = any(placed.batch.ends is not None for placed in waiting) or len(alive) < len(waiting)
        full |= sum(sum(map(len, placed.batch.lines)) for placed in waiting) > MOST
        due = {s for s, at in last.items() if full or at <= before or not idle}
        return segments, waiting, last, due, alive, erased

    def _put(self, group: Sequence[PutRequest], refused: dict[tuple[str, str], str]) -> int:
        """Put streams, and note those that the archive refuses. Raises the errors of `Archive.put`."""

        def note(request: PutRequest, error: PltzError) -> None:
            refused[request.tenant, request.name] = str(error)

        return len(list(self._writing.put_many(group, refused=note)))

    def _requests(self, session: Stream, waiting: Sequence[Placed], erased: int) -> Iterator[PutRequest]:
        """Yield the puts of the streams of a session that wait, after its deletions.

        ``erased``: when it was erased, as of `PutRequest.erased_too`: what was appended since was acknowledged.
        """
        own = [placed for placed in waiting if placed.batch.stream[:2] == session[:2]]
        for placed in own:
            if placed.batch.deletes(session):
                self._forget(session, placed.batch.versions)
        versions = self._versions(self._writing, session)
        for part in sorted({placed.batch.stream.part for placed in own}):
            lines, heads, new = self._merged(self._writing, versions, own, session._replace(part=part))
            if new:
                data = b"".join(line + b"\n" for line in lines.values())
                tag = " ".join([*(head.id.hex()[:NAMED] for head in heads), *([] if lines else [GONE])])
                text = Session("text", data)
                summary = "" if part else _summary(session, lines.values())
                yield PutRequest(
                    session.session,
                    text,
                    tenant=session.project,
                    part=part,
                    tags={TAG: tag} | ({SUMMARY: summary} if 0 < len(summary) <= MAX_SUMMARY else {}),
                    content=facts_of(text, len(data), own[-1].batch.at * 1_000_000_000 >> TICK_BITS),
                    erased_too=erased,
                )

    def _delete(self, stream: Stream) -> None:
        with self._alone():
            with self._read_lock:
                waiting = self._waiting()
            versions = [v for v in self._versions(self._writing, stream) if not v.forgotten]
            if stream.part:
                versions = [v for v in versions if v.part == stream.part]
            ends = {str(p.segment): p.end for p in sorted(waiting, key=lambda p: p.end)}
            ids = frozenset(version.id.hex() for version in versions)
            done = self._enqueue(LiveBatch(stream, self._now(), ends=ends, versions=ids))
            self._flush()
            done.result()
            if not stream.part:
                self._forget(stream, ids)
        self._try(self._idle)

    def _forget(self, session: Stream, ids: frozenset[str]) -> None:
        """Forget versions of a session, or erase all of it where that is possible and nothing else would go."""
        archive, name, tenant = self._writing, session.session, session.project
        left = [v for v in archive.directory.sight(name, tenant).versions if not v.forgotten]
        going = [v for v in left if v.id.hex() in ids]
        with suppress(NotFound):
            if len(going) < len(left):
                for version in going:
                    archive.forget(name, tenant=tenant, version=version.id)
            elif going and archive.parts.settings.sealed:
                archive.erase(name, tenant=tenant)
            elif going:
                archive.forget(name, tenant=tenant)

    def _run(self) -> None:
        """Freeze what is idle, until the store is closed."""
        while not self._ended.wait(min(STEP, self._idle / 4 + POLL)):
            self._try(self._idle)

    def _try(self, idle: float) -> None:
        try:
            self.freeze(idle)
            self.failure = ""
        except Exception as exc:  # noqa: BLE001  # on any error the entries are safe in the journal
            if self.failure != (why := f"{type(exc).__name__}: {exc}"):
                log.warning("sessions stay in the journal: %s", why)
            self.failure = why


def _summary(stream: Stream, lines: Iterable[bytes], before: str | None = "{}") -> str:
    """Return the SDK's summary of entries over that of those before, as JSON; empty where that or the SDK is not there.

    The SDK alone knows what is in it. Where it appended or lists, it is loaded.
    """
    lines, fold = [*lines], getattr(sys.modules.get("claude_agent_sdk"), "fold_session_summary", None)
    if not before or not lines:
        return before or ""
    if fold is None:
        return ""
    begun = {"session_id": stream.session, "mtime": 0, "data": json.loads(before)}
    return json.dumps(fold(begun, {"project_key": stream.project}, [*map(entry_of, lines)])["data"])


def _heads(versions: Sequence[Version], part: str) -> list[Version]:
    """Return the versions of a part that no other one has, oldest first."""
    own = [version for version in versions if version.part == part and not version.forgotten]
    named = {word for version in own for word in version.tags[TAG].split()}
    there = [v for v in own if v.id.hex()[:NAMED] not in named]
    longest = {v.leaf: v.lacks for v in sorted(own, key=lambda v: -v.lacks)}  # of a run the others are beginnings
    return [v for v in there if v.lacks == longest[v.leaf]]
