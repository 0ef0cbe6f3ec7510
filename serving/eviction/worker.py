"""Worker: moves entries from the journal to the archive in batches, each stored, decoded back and compared.

    done = drain("/run/journal", "/data/cold")              # everything there now, once
    Worker(backlog, tokenizers, open_archive).run(stop)     # until stopped: the hook's own

One worker per journal at a time: the holder of `worker.lock`. If the archive refuses a batch, it is put entry
by entry. The refused entry is laid aside (`.refused`) and reported, so that it blocks no other. If the
archive itself fails (full, unreachable), everything stays in the journal and is tried again later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.archive import (
    MAX_SIZE,
    SETTINGS,
    Archive,
    ArchiveError,
    Disk,
    OsDisk,
    PutReceipt,
    PutRequest,
    Settings,
    StaysErased,
    StoreError,
    opener,
    reason,
)
from pltz.models import Session
from pltz.plt_codec import NONE, ContentError, ModelError, TokenizerMismatch, UsageError
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.lock import FileLocks, Lock
from pltz.serving.eviction.journal.reader import JournalReader, JournalSegment
from pltz.serving.eviction.journal.segment import EntryFrame
from pltz.serving.eviction.tokenizers import Tokenizers

if TYPE_CHECKING:
    from pltz.archive import KeySource, OpenArchive
    from pltz.models import Bundle
    from pltz.plt_codec import LayoutName

BATCH_TOKENS = 1 << 18  # per commit
BATCH_ENTRIES = 1024
POLL = 0.05  # seconds between attempts to take a lock that another worker holds
BACKOFF = 0.5, 60.0  # seconds before a failed pass is repeated: first, longest
KEPT = 1000  # refusals listed in full
WORKER_LOCK = "worker.lock"
# Errors of an entry. All others are the archive's.
REFUSED = (ContentError, TokenizerMismatch, UsageError)

Pending = tuple[EntryFrame, JournalEntry]


@dataclass
class Drained:
    """The result of moving a journal to an archive.

    ``stored``: entries that became a version, ``by_model`` of them by the model. ``unchanged``: entries the archive had
    already. ``frozen``: bytes of new segments, for ``raw`` bytes of ids. ``rejected``: entries laid aside; ``refused``:
    (tenant, name, reason) of the last of them. ``erased``: entries of sessions that were erased from the archive; they
    are dropped, and nothing of them stays in the journal. ``damaged``: bytes laid aside that were no entries. ``lost``:
    segments that are gone although no worker deleted them. ``left``: bytes of segments of a newer version, left alone.
    ``until``: time of the last archived entry. ``busy``: another worker had the journal. ``failure``: why it stopped.
    """

    stored: int = 0
    by_model: int = 0
    unchanged: int = 0
    tokens: int = 0
    raw: int = 0
    frozen: int = 0
    commits: int = 0
    rejected: int = 0
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    erased: int = 0
    damaged: int = 0
    lost: int = 0
    left: int = 0
    until: int = 0
    busy: bool = False
    failure: str = ""

    @property
    def entries(self) -> int:
        """Return the number of entries that left the journal."""
        return self.stored + self.unchanged + self.rejected + self.erased

    def as_fields(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        return {"entries": self.entries, **asdict(self)}


class Worker:
    """A worker of one journal (see the top of this file).

    Args:
        open_archive: returns the archive; called when it is first needed, and again after a failure.
        tokenizers: the tokenizers that entries name.
        batch_tokens: most tokens per commit, unless a single session has more.
        progress: called with all results so far after each commit, and when a failure begins or ends.
        identity: the id that the archive must have, 16 bytes; None for that of the first one opened.
    """

    def __init__(
        self,
        backlog: JournalReader,
        tokenizers: Tokenizers,
        open_archive: Callable[[], Archive],
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: Callable[[Drained], None] | None = None,
        identity: bytes | None = None,
    ) -> None:
        self._identity = identity
        self.backlog, self.tokenizers, self.batch_tokens = backlog, tokenizers, batch_tokens
        self.done = Drained()
        self._open = open_archive
        self._archive: Archive | None = None
        self._progress = progress or (lambda done: None)

    def once(
        self, *, wait: float = 0.0, until: float | None = None, stop: Callable[[], bool] = lambda: False
    ) -> Drained:
        """Archive the entries that are there now.

        ``wait``: seconds to wait for another worker. ``until``: monotonic time at which to stop, between commits.

        Raises StoreError, WriterFailed and Fenced: marked entries are archived, the rest stays. Raises
        KeyMismatch, FormatError and ModelError where the archive cannot be opened.
        """
        try:
            return self._once(wait, until, stop)
        except OSError as exc:
            raise StoreError(
                f"the journal cannot be worked through: {reason(exc)} ({exc}). What is in it stays; check its disk and "
                f"free space there, then drain it again"
            ) from exc

    def _once(self, wait: float, until: float | None, stop: Callable[[], bool]) -> Drained:
        lock = self._take(wait)
        self.done.busy = lock is None
        if lock is None:
            return self.done
        try:
            self._pass(lambda: stop() or (until is not None and time.monotonic() >= until))
        except BaseException:
            self._archive = None  # a writer that failed writes no more
            raise
        finally:
            lock.free()
        return self.done

    def run(self, stop: Callable[[float], bool], *, idle: float = 0.2) -> None:
        """Archive until ``stop(seconds)``, which waits that long, returns true.

        Failures are kept in `done` and tried again.
        """
        pause, longest = BACKOFF
        while True:
            before, failed = self.done.entries, self.done.failure
            try:
                self.once(stop=lambda: stop(0))
                delay, pause = idle, BACKOFF[0]
                self.done.failure = self.done.failure if self.done.left else ""
                if failed != self.done.failure:
                    self._progress(self.done)
            except Exception as exc:  # noqa: BLE001  # on any error the tokens are safe in the journal
                self.done.failure, delay = f"{type(exc).__name__}: {exc}", pause
                pause = min(2 * pause, longest)
                self._progress(self.done)
            if stop(0 if self.done.entries != before and not self.done.failure else delay):
                return

    def _take(self, wait: float) -> Lock | None:
        end = time.monotonic() + wait
        while (lock := self.backlog.locks.take(WORKER_LOCK)) is None and time.monotonic() < end:
            time.sleep(POLL)
        return lock

    def _pass(self, stop: Callable[[], bool]) -> None:
        self.done.left = 0
        stuck = []
        if lost := self.backlog.note_lost():
            self.done.lost += lost
            self._progress(self.done)
        for segment in self.backlog.segments():
            for batch in self._batches(segment):
                if stop():
                    return
                self._commit(segment, batch)
            if segment.newer:
                self.done.left += segment.size
                self.done.failure = segment.newer
            self.backlog.finish(segment)
            self.done.damaged += segment.aside
            stuck += [segment.stuck] if segment.stuck else []
        self.backlog.tidy()
        if stuck:
            raise StoreError(stuck[0])

    def _batches(self, segment: JournalSegment) -> Iterator[list[Pending]]:
        batch: list[Pending] = []
        tokens = 0
        for frame, entry in self.backlog.read(segment):
            if batch and (tokens + len(entry.ids) > self.batch_tokens or len(batch) >= BATCH_ENTRIES):
                yield batch
                batch, tokens = [], 0
            batch.append((frame, entry))
            tokens += len(entry.ids)
        if batch:
            yield batch

    def _commit(self, segment: JournalSegment, batch: Sequence[Pending]) -> None:
        """Archive a batch and mark it. Entries that cannot be archived are laid aside."""
        archive = self._opened()
        self._check_same(archive.parts)
        rest = list(batch)
        try:
            for put in self._put(archive, [entry for _, entry in batch]):
                rest.pop(0)
                self._count(put)
        except REFUSED as exc:
            if len(rest) > 1:
                for pending in rest:
                    self._commit(segment, [pending])
                return
            [(frame, entry)] = rest
            if isinstance(exc, StaysErased):
                self.done.erased += 1
            elif self.backlog.refuse(segment, frame):
                self.done.rejected += 1
                self.done.refused.append((entry.tenant, entry.name, f"{type(exc).__name__}: {exc}"))
                del self.done.refused[:-KEPT]
        self.backlog.mark(segment, batch[-1][0].end)
        self.done.commits += 1
        self.done.until = max(self.done.until, batch[-1][1].time)
        self._progress(self.done)

    def _opened(self) -> Archive:
        if self._archive is None:
            archive = self._open()
            archive.codecs  # noqa: B018  (loads the bundle: its errors are the archive's, and not of an entry)
            self._archive = archive
        return self._archive

    def _check_same(self, archive: OpenArchive) -> None:
        """Refuse an archive that was replaced during the run, so that no session goes to the wrong one.

        Raises ArchiveError and FormatError.
        """
        wanted = self._identity = self._identity or archive.settings.archive
        try:
            found = Settings.decode(archive.store.read(SETTINGS, 0, MAX_SIZE)).archive
        except FileNotFoundError as exc:
            raise ArchiveError(f"the archive is gone ({SETTINGS} is missing): bring it back, nothing is lost") from exc
        if found != wanted:
            raise ArchiveError(
                f"expected the archive {wanted.hex()}, found another in its place, {found.hex()}: "
                "bring it back, or close the hook and open it for the new one"
            )

    def _put(self, archive: Archive, entries: Sequence[JournalEntry]) -> Iterator[PutReceipt]:
        for tokenizer in {entry.tokenizer for entry in entries} - {NONE}:
            if not archive.codecs.of_ids(tokenizer) and (found := self.tokenizers.get(tokenizer)) is not None:
                with suppress(ModelError):  # its entries are refused then
                    archive.codecs.add(found)
        now = archive.parts.store.now()  # an eviction under a clock that went ahead is no later than this
        return archive.put_many([replace(item, time=min(item.time or now, now)) for item in map(as_item, entries)])

    def _count(self, put: PutReceipt) -> None:
        self.done.unchanged += put.unchanged
        self.done.stored += not put.unchanged
        self.done.by_model += put.by_model and not put.unchanged
        self.done.tokens += put.tokens
        self.done.raw += 4 * put.tokens
        self.done.frozen += put.size


def as_item(entry: JournalEntry) -> PutRequest:
    """Return a journal's entry in the form that the archive takes."""
    target = entry.target if any(entry.target) else None
    return PutRequest(
        entry.name,
        Session("ids", entry.ids),
        tenant=entry.tenant,
        tags=entry.tags,
        base=entry.base or None,
        target=target,
        tokenizer=entry.tokenizer,
        time=entry.time,
        prefixes=entry.prefixes,
        parent=entry.parent,
    )


def drain(
    journal: str | os.PathLike[str] | Disk,
    archive: str | os.PathLike[str] | Archive,
    *,
    bundle: Bundle | str | os.PathLike[str] | None = None,
    key: KeySource | None = None,
    threads: int | None = None,
    layout: LayoutName = "default",
    model_ids: bool | None = None,
    merge_turns: bool = True,
    batch_tokens: int = BATCH_TOKENS,
    max_seconds: float | None = None,
    wait: float = 60.0,
    progress: Callable[[Drained], None] | None = None,
) -> Drained:
    """Freeze the current contents of a journal.

    They are all entries of dead processes, and those that living ones have written so far.

    It may be killed anywhere and run again. Two at once do no harm.

    Args:
        archive: the destination: an open `pltz.Archive`, or a path or URL, opened when there is something to put.
        layout, model_ids, merge_turns: as for `Archive.open`.
        max_seconds: stop after the commit during which this time passes.
        wait: seconds to wait for the worker of a serving process to end its pass; then ``busy``.

    Raises UsageError where there is no journal or archive, StoreError, WriterFailed and Fenced. Work done
    before the error stays.
    """
    if not isinstance(journal, str | os.PathLike):
        raise UsageError("expected the directory of a journal")
    if not Path(journal).is_dir():
        raise UsageError(f"no journal at {os.fspath(journal)}: expected the directory that the hook was opened with")

    def open_archive() -> Archive:
        if isinstance(archive, Archive):
            return archive
        opened = opener.open_at(archive, key=key)
        opened.want_key()
        return Archive(
            opened,
            name=os.fspath(archive),
            bundle=bundle,
            threads=threads,
            layout=layout,
            model_ids=model_ids,
            merge_turns=merge_turns,
        )

    disk = OsDisk(journal)
    worker = Worker(
        JournalReader(disk, FileLocks(journal)),
        Tokenizers(disk),
        open_archive,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    until = None if max_seconds is None else time.monotonic() + max_seconds
    return worker.once(wait=wait, until=until)
