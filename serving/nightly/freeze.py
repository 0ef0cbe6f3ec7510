"""Freezing a shard: new and changed sessions go into the archive, refused ones to quarantine.

    entries, BATCH at a time --keys, values--> new ones --parse--> items --put--> durable --receipt--> known

Files are written in this order. A kill after each step leaves:

    pending    only where names repeat: sessions that may or may not be in. The next run compares each
               with all versions of its name before it puts it
    archive    the commit. Without a receipt the next run puts the session again, and the archive finds
               it unchanged
    receipt    known
    pending gone

If the archive refuses a commit because of one session, the commit is halved until that session is found.
"""

from __future__ import annotations

import hashlib
import json
import time
import typing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from pltz.archive import Archive, Fenced, NotFound, PutReceipt, PutRequest, RecentTowers, VerifiedSegments, opener
from pltz.coding import HostWork, Workers, codecs_of, helpers
from pltz.models import Bundle
from pltz.plt_codec import (
    BundleMismatch,
    ContentError,
    CorruptError,
    FormatError,
    PltzError,
    TokenizerMismatch,
    UsageError,
    refusing,
)
from pltz.serving.nightly.config import Config
from pltz.serving.nightly.receipt import ReceiptLedger
from pltz.serving.nightly.run_stats import RefusedSession, RunStats
from pltz.serving.nightly.sources.source import (
    DrainedSource,
    EntrySource,
    LeftOut,
    ReceiptKeys,
    Sink,
    SourceEntry,
    SourceShard,
    Unreadable,
)
from pltz.serving.nightly.state import StateFolder

BATCH_SESSIONS = 4096  # given to the archive in one call, which makes commits of them
BATCH_BYTES = 1 << 24  # the same, of entries as they are read
RECEIPT_S = 30.0  # seconds after which receipts of what is durable are written
TRIES = 5  # attempts of a commit that collection overtook
PERSON = b"pltz refused"
OF_THE_SESSION = (ContentError, TokenizerMismatch, UsageError, CorruptError)  # errors blamed on one session


@dataclass(frozen=True)
class KeyedEntry:
    """An entry with its key and value in a receipt."""

    entry: SourceEntry
    key: bytes
    value: bytes


class Freezer:
    """A freezer of shards, one after the other.

    It loads the bundle once and opens the archive anew for each shard, so that memory does not grow with the
    number of shards. Sessions put last are remembered from shard to shard, within the budget of `RecentTowers`.

    Args:
        run: its number, for receipts.
        dry_run: look, parse and count, but write nothing.
    """

    def __init__(self, config: Config, run: int = 0, *, dry_run: bool = False) -> None:
        self.config, self.run, self.dry_run = config, run, dry_run
        self.state = StateFolder(config.state)
        self.bundles = [Bundle.load(name) for name in config.bundles or (None,)]
        self._codecs = codecs_of(
            self.bundles, workers=self._workers(), device=config.device, threads=config.threads, layout=config.layout
        )
        self.secret = config.secret()
        self._ledger = ReceiptLedger()
        self._remembered: tuple[RecentTowers, VerifiedSegments] | None = None

    def _workers(self) -> Workers:
        """Return processes beside the model of what is put."""
        first = self.bundles[0]
        return Workers(HostWork(first.tokenizer, first.zstd_dict), helpers(self.config.threads))

    def open(self) -> Archive:
        """Open the archive as it is now. Raises UsageError, KeyMismatch and StoreError."""
        return Archive(
            opener.open_at(self.config.archive, self._codecs, key=self.secret),
            name=self.config.archive,
            bundle=self.bundles,
            device=self.config.device,
            threads=self.config.threads,
            layout=self.config.layout,
            merge_turns=self.config.merge_turns,
        )

    def open_to_put(self) -> Archive:
        """Open the archive as it is now, to put sessions into it. Raises the errors of `open`."""
        cold = self.open()
        writer = cold.parts.writer
        if self._remembered:
            writer.take_over(*self._remembered)
        self._remembered = writer.recent, writer.proved
        return cold

    def freeze(self, shard: SourceShard) -> RunStats:
        """Freeze everything in a shard that is new or changed.

        A failure is recorded in the tally, not raised.
        """
        start = time.monotonic()
        source, tally = self.config.source[shard.source], RunStats(shard.source)
        try:
            if not isinstance(source, DrainedSource):
                _Shard(self, typing.cast(EntrySource, source), tally).freeze(shard)
            elif not self.dry_run:
                cold = self.open_to_put()
                cold.parts.want_key()
                tally.add(source.drain(cold))
        except MemoryError:
            raise
        except Exception as exc:  # noqa: BLE001  # one shard stops no other
            tally.failures.append(f"source {source.name!r}, {shard.place}: {type(exc).__name__}: {exc}")
        tally.seconds = time.monotonic() - start
        return tally

    def ledger(self) -> ReceiptLedger:
        """Return the ledger of all receipts so far."""
        return self.state.refresh(self._ledger)


class _Shard:
    """The work on one shard."""

    def __init__(self, freezer: Freezer, source: EntrySource, tally: RunStats) -> None:
        self.freezer, self.source, self.tally = freezer, source, tally
        self.cold = freezer.open_to_put()
        self.putter: Sink = source.sink(self.cold, freezer.bundles[0])
        self.namer = ReceiptKeys(self.cold.parts.settings.archive, source)
        self.ledger = freezer.ledger()
        self.doubted = ReceiptLedger()
        if source.repeats:
            freezer.state.refresh(self.doubted, "pending")

    def freeze(self, shard: SourceShard) -> None:
        """Put the new entries of a shard, a batch per commit. Raises what the source and the archive raise."""
        for batch in _batches(self._rows(shard)):
            known = self.ledger.last([row.key for row in batch])
            fresh = [row for row, value in zip(batch, known, strict=True) if value != row.value]
            self.tally.known += len(batch) - len(fresh)
            pairs = [(row, item) for row in fresh if (item := self._item(row)) is not None]
            pairs = [(row, item) for row, item in pairs if not self._was_erased(row, item)]
            if self.source.repeats:
                pairs = self._once(pairs)
            if self.freezer.dry_run:
                self._count(pairs)
            elif pairs:
                self._put(pairs)

    def _rows(self, shard: SourceShard) -> Iterator[KeyedEntry]:
        for entry in self.source.entries(shard):
            if isinstance(entry, LeftOut):
                self.tally.leave(entry.where, entry.rule, entry.why)
                continue
            self.tally.seen += 1
            if isinstance(entry, Unreadable):
                self._refuse(entry.where, entry.name, None, "ContentError", entry.reason, entry.size)
                continue
            self.tally.bytes_seen += entry.size
            self.tally.packings |= {entry.packing} - {""}
            yield KeyedEntry(entry, *self.namer.row(entry))

    def _item(self, row: KeyedEntry) -> PutRequest | None:
        entry = row.entry
        try:
            with refusing(entry.where):
                item, now = self.source.item(entry), self.cold.parts.store.now()
                return item if item.time is None else replace(item, time=min(item.time, now))
        except (*OF_THE_SESSION, FormatError) as exc:
            self._blame(row, entry.name, entry.tenant, exc)
            return None

    def _was_erased(self, row: KeyedEntry, item: PutRequest) -> bool:
        """Return whether a session was erased from the archive, and leave it out then."""
        erased = self.cold.was_erased(item.name, tenant=item.tenant, salt=item.salt)
        if erased:
            self.tally.seen -= 1
            self.tally.leave(row.entry.where, "erased before", f"session {item.name!r} was erased from the archive")
        return erased

    def _once(self, pairs: list[tuple[KeyedEntry, PutRequest]]) -> list[tuple[KeyedEntry, PutRequest]]:
        """Keep the first of equal lines."""
        first: dict[bytes, tuple[KeyedEntry, PutRequest]] = {}
        for row, item in pairs:
            first.setdefault(row.value, (row, item))
        self.tally.known += len(pairs) - len(first)
        return list(first.values())

    def _count(self, pairs: list[tuple[KeyedEntry, PutRequest]]) -> None:
        for row, _ in pairs:
            self.tally.frozen += 1
            self.tally.bytes += row.entry.size

    def _put(self, pairs: list[tuple[KeyedEntry, PutRequest]]) -> None:
        state, run = self.freezer.state, self.freezer.run
        pending = state.intend(run, {row.key: row.value for row, _ in pairs}) if self.source.repeats else None
        rows: dict[bytes, bytes] = {}
        written = time.monotonic()
        try:
            for row, stored in self._stored(self._missing(pairs, rows)):
                rows[row.key] = row.value
                self._took(row, stored)
                if time.monotonic() - written >= RECEIPT_S:
                    state.done(run, rows, None)
                    rows, written = {}, time.monotonic()
        finally:
            state.done(run, rows, None)
        if pending:
            state.done(run, {}, pending)

    def _missing(
        self, pairs: list[tuple[KeyedEntry, PutRequest]], rows: dict[bytes, bytes]
    ) -> list[tuple[KeyedEntry, PutRequest]]:
        """Return the sessions not in the archive.

        Those pending in a killed run are looked up among all versions.
        """
        doubted = self.doubted.last([row.key for row, _ in pairs])
        missing = []
        with self.cold.parts.catalog.one_look():
            for (row, item), value in zip(pairs, doubted, strict=True):
                if value == row.value and self._is_there(item):
                    rows[row.key] = row.value
                    self.tally.frozen += 1
                    self.tally.unchanged += 1
                else:
                    missing.append((row, item))
        return missing

    def _is_there(self, item: PutRequest) -> bool:
        for version in self.cold.directory.sight(item.name, item.tenant).versions:
            try:
                same = (version.part, version.tags) == (item.part, item.tags)
                if same and self.cold.sessions.read(version) == item.session:
                    return True
            except (NotFound, FormatError, BundleMismatch):
                continue
        return False

    def _stored(self, pairs: list[tuple[KeyedEntry, PutRequest]]) -> Iterator[tuple[KeyedEntry, PutReceipt]]:
        """Put sessions. One that cannot be put is refused, and the others are put."""
        done = 0
        for tries in range(TRIES):
            try:
                opaque = self.freezer.config.keep_opaque
                for stored in self.putter.put_many([item for _, item in pairs[done:]], keep_opaque=opaque):
                    yield pairs[done][0], stored
                    done += 1
                return
            except Fenced:
                if tries == TRIES - 1:
                    raise
            except OF_THE_SESSION as exc:
                rest = pairs[done:]
                if len(rest) == 1:
                    row, item = rest[0]
                    self._blame(row, item.name, item.tenant, exc)
                    return
                for half in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
                    yield from self._stored(half)
                return

    def _took(self, row: KeyedEntry, stored: PutReceipt) -> None:
        tally = self.tally
        tally.frozen += 1
        tally.by_model += stored.by_model
        tally.bytes += row.entry.size
        tally.tokens += stored.tokens
        tally.frozen_bytes += stored.size
        tally.unchanged += stored.unchanged
        tally.wait(row.entry.since, time.time())

    def _blame(self, row: KeyedEntry, name: str | None, tenant: str | None, exc: PltzError) -> None:
        self._refuse(row.entry.where, name, tenant, type(exc).__name__, str(exc), row.entry.size)

    def _refuse(
        self, where: str, name: str | None, tenant: str | None, error: str, reason: str, size: int | None
    ) -> None:
        facts = self.source.name, where, name, tenant, error, reason[:1000], size
        identity = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16, person=PERSON).hexdigest()
        refused = RefusedSession(identity, *facts)
        self.tally.refuse(refused)
        if not self.freezer.dry_run:
            self.freezer.state.quarantine(identity, json.dumps(asdict(refused), indent=1).encode() + b"\n")


def _batches(rows: Iterable[KeyedEntry]) -> Iterator[list[KeyedEntry]]:
    batch: list[KeyedEntry] = []
    size = 0
    for row in rows:
        if batch and (len(batch) >= BATCH_SESSIONS or size + row.entry.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row.entry.size
    if batch:
        yield batch
