"""Eviction hook: a serving loop hands over the tokens of a session whose KV cache it evicts, and goes on.

    hook = EvictionHook.open("/run/journal", "/data/cold", tokenizer=tokenizer_json, target=target.fingerprint)
    ticket = hook.on_evict("chat-7", token_ids, tenant="acme", prefixes=(len(system_ids),))
    hook.durable(ticket)                               # on disk: after 50 ms or so

    on_evict --copy, queue--> flusher thread --group write, sync--> journal --worker, nice--> archive
    microseconds              durable within HookSettings.flush_seconds + a sync            encoded, decoded back, compared

`on_evict` copies the ids, appends to a queue and returns; it does no I/O, waits for nothing and raises nothing. What it cannot take is counted
by reason, logged once a reason, and shown by `status` and `metrics`. From the journal (FORMAT.md) on, a kill loses nothing.

The worker runs in a process of its own at low priority ("process", the default: the serving loop keeps its interpreter to itself), in a thread ("thread"), or
not at all ("none": drain the journal by `worker.drain`, `pltz hook drain` or the nightly job).

Back-pressure: the journal takes what comes, as far as the disk or ``journal_bytes`` goes (spill). Where it cannot be written, evictions wait in memory up to
``memory_bytes``; after that new ones are refused, or the oldest ones in memory dropped where ``when_full`` says so. Both are counted; what was reported
durable is never dropped.
"""

from __future__ import annotations

import atexit
import logging
import operator
import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from pltz.archive.hooks.backlog import Backlog
from pltz.archive.hooks.entry import MAX_PREFIXES, Entry
from pltz.archive.hooks.journal import SEGMENT, Journal
from pltz.archive.hooks.lock import FileLocks, Locks
from pltz.archive.hooks.segment import Name
from pltz.archive.hooks.tokenizers import Tokenizers
from pltz.archive.hooks.worker import BATCH_TOKENS
from pltz.archive.identity import NONE, SIZE
from pltz.archive.io import Disk, OsDisk
from pltz.archive.token_archive import target_of, tenant_of
from pltz.plt_codec.errors import PltzError, UsageError

if TYPE_CHECKING:
    from pltz.archive.hooks.background import Background
    from pltz.archive.hooks.metrics import HookCollector
    from pltz.archive.keys import Secret
    from pltz.models.bundle import Bundle

log = logging.getLogger("pltz.hook")

MAX_TOKENS = (1 << 26) - (1 << 16)  # of one eviction: what an entry holds
GROUP = 32 << 20  # bytes of one write
LIST_ITEM = 36  # bytes that an id of a Python list takes
OVERHEAD = 512  # bytes of an eviction in memory, ids aside
RETRY = 0.1, 5.0  # seconds until a failed write is tried again: at first, at most
LATENCIES = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)  # seconds; upper ends of the buckets
HOLES = 1024  # ranges of tickets that did not become durable, told apart
POLL = 0.02  # seconds between looks at what is archived

WorkerKind = Literal["process", "thread", "none"]


@dataclass(frozen=True)
class HookSettings:
    """How the hook works. Raises UsageError for what makes no sense.

    ``flush_seconds``: longest time an eviction waits before its group is written; ``flush_bytes``: a group of so many is written at once;
    ``memory_bytes``: of evictions not yet durable; ``journal_bytes``: of all journal files, None for what the disk holds; ``when_full``: what goes
    when memory is full; ``segment_bytes``: a journal file; ``batch_tokens``: of one commit; ``nice``: of the worker; ``threads``: of its coder.
    """

    flush_seconds: float = 0.05
    flush_bytes: int = 4 << 20
    memory_bytes: int = 256 << 20
    journal_bytes: int | None = None
    when_full: Literal["refuse", "drop-oldest"] = "refuse"
    segment_bytes: int = SEGMENT
    batch_tokens: int = BATCH_TOKENS
    nice: int = 19
    threads: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.flush_seconds <= 60:
            raise UsageError(f"expected flush_seconds over 0 and at most 60, got {self.flush_seconds}")
        for name in ("flush_bytes", "memory_bytes", "segment_bytes", "batch_tokens", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"expected {name} of at least 1, got {getattr(self, name)}")
        if self.journal_bytes is not None and self.journal_bytes < 1:
            raise UsageError(f"expected journal_bytes of at least 1, or None, got {self.journal_bytes}")
        if self.when_full not in ("refuse", "drop-oldest"):
            raise UsageError(f"expected when_full as refuse or drop-oldest, got {self.when_full!r}")
        if not 0 <= self.nice <= 19:
            raise UsageError(f"expected nice from 0 to 19, got {self.nice}")


class Eviction(NamedTuple):
    """What `on_evict` was told, copied. ``at``: monotonic seconds; ``size``: bytes it takes in memory."""

    ticket: int
    at: float
    size: int
    session: str
    ids: Any
    tenant: str
    salt: str | bytes | None
    tags: dict[str, str]
    prefixes: tuple[int, ...]
    base: str
    parent: str
    target: bytes
    adapter: str | bytes | None
    time: int


@dataclass
class Counts:
    """What happened since the hook was opened. ``latency``: evictions by time until durable, a bucket each of LATENCIES and one for longer."""

    accepted: int = 0
    durable: int = 0
    dropped: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    failures: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCIES) + 1))
    latency_sum: float = 0.0


class EvictionHook:
    """See the head of this file. Make one with `open`; one a process, for a fork does not take threads along.

    Args:
        disk, locks: of the journal's directory.
        tokenizer, target: fingerprints of what is served; zeros are the bundle's own ids, and no target in particular.
    """

    def __init__(
        self,
        disk: Disk,
        locks: Locks,
        *,
        tokenizer: bytes = NONE,
        target: bytes = NONE,
        settings: HookSettings | None = None,
    ) -> None:
        self.settings = settings or HookSettings()
        self.disk, self.tokenizer, self.target = disk, tokenizer, target
        self.counts = Counts()
        self.failure = ""  # why nothing can be written, while that is so
        self.background: Background | None = None
        self.backlog = Backlog(disk, locks)
        self._journal = Journal(
            disk, locks, segment=self.settings.segment_bytes, quota=self.settings.journal_bytes
        )
        self._pid = os.getpid()
        self._opened = disk.now()
        self._queue: deque[Eviction] = deque()
        # Held for a few statements at a time; reentrant, for an eviction may come out of a finalizer.
        self._lock = threading.RLock()
        self._memory = 0  # bytes of evictions not durable
        self._last = 0  # ticket
        self._durable = 0  # all tickets up to here are, but for the holes
        self._holes: list[list[int]] = []
        self._signals: SimpleQueue[None] = SimpleQueue()
        self._signalled = self._urgent = self._closing = self._closed = False
        self._told: set[str] = set()
        self._error = ""
        self._given_up = threading.Event()
        self._changed = threading.Condition()
        self._flusher = threading.Thread(target=self._flush_loop, name="pltz-hook", daemon=True)
        self._flusher.start()
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        journal: str | os.PathLike[str],
        archive: str | os.PathLike[str] | None = None,
        *,
        tokenizer: bytes | str | os.PathLike[str] | None = None,
        target: bytes | None = None,
        bundle: Bundle | str | os.PathLike[str] | None = None,
        key: Secret | None = None,
        worker: WorkerKind = "process",
        settings: HookSettings | None = None,
    ) -> EvictionHook:
        """A hook over a journal directory, which is made where there is none; what dead processes left in it is archived too.

        Args:
            archive: where the worker puts sessions; it must be there. None with worker "none".
            tokenizer: the served model's tokenizer.json, as bytes or a path; None: its ids are the bundle's own.
            target: fingerprint of the served weights (`Target.fingerprint`).
            bundle, key: what the archive is opened with.

        Raises UsageError, ModelError, StoreError, OSError, and what opening the archive raises: here, never later.
        """
        from pltz.archive.hooks.background import start

        if worker not in ("process", "thread", "none"):
            raise UsageError(f"expected worker as process, thread or none, got {worker!r}")
        if (archive is None) != (worker == "none"):
            raise UsageError("a worker needs an archive, and worker='none' takes none")
        if target is not None and len(target) != SIZE:
            raise UsageError(f"expected a target fingerprint of {SIZE} bytes, got {len(target)}")
        chosen = settings or HookSettings()
        root = Path(journal)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk, locks = OsDisk(root), FileLocks(root)
        spec = tokenizer if isinstance(tokenizer, bytes | None) else Path(tokenizer).read_bytes()
        named = Tokenizers(disk).keep(spec) if spec is not None else NONE
        hook = cls(disk, locks, tokenizer=named, target=target or NONE, settings=chosen)
        if archive is not None:
            try:
                hook.background = start(worker, root, archive, bundle, key, chosen)
            except BaseException:
                hook.close()
                raise
        return hook

    # ---- the serving loop's side

    def on_evict(
        self,
        session: str,
        token_ids: Any,
        *,
        tenant: str = "default",
        salt: str | bytes | None = None,
        tags: Mapping[str, str] | None = None,
        prefixes: Sequence[int] = (),
        base: str | None = None,
        parent: str | None = None,
        target: bytes | None = None,
        adapter: str | bytes | bool | None = None,
        multimodal: bool = False,
        has_embeds: bool = False,
        time: int | None = None,
    ) -> int:
        """Take the tokens of a session whose KV cache goes. Never raises, never blocks.

        Args:
            session: its name in the archive; the same name again is its next version.
            token_ids: all tokens the KV stands for and the one sampled last, (T,): a list, tuple, numpy array or torch tensor on the CPU. Copied.
            salt: what its KV was shared under (vLLM's ``cache_salt``); kept as a digest, see `token_archive.tenant_of`.
            prefixes: token counts at which shared beginnings end, as a system prompt's; hints: those that do not fit are left out.
            base: name under which the first prefix is shared with all tenants. None: within the tenant.
            parent: session this one was forked from.
            target: fingerprint of the weights, where it is not the hook's.
            adapter: None, or its name, or 16 bytes that name its weights. True or "": there is one that nobody names, which is refused.
            multimodal, has_embeds: the KV holds more than tokens (images, prompt embeddings): refused.
            time: seconds since 1970, None is now.

        Returns:
            int: a ticket to ask `durable` for, ascending from 1; 0 where it was refused.
        """
        try:
            if os.getpid() != self._pid:
                return self._refuse_forked()
            if multimodal or has_embeds:
                return self._refuse("multimodal" if multimodal else "prompt embeddings")
            if adapter is not None and (adapter is True or adapter is False or not adapter):
                return self._refuse("adapter not named")
            ids, size = _copied(token_ids)
            if not 0 < len(ids) <= MAX_TOKENS:
                return self._refuse("too long" if len(ids) else "no tokens")
            rest = (tenant, salt, dict(tags) if tags else {}, tuple(prefixes), base or "", parent or "")
            named = (target or self.target, adapter, self.disk.now() if time is None else time)
            return self._accept(session, ids, size + OVERHEAD, rest, named)
        except _Refused as exc:
            return self._refuse(exc.reason)
        except Exception as exc:  # noqa: BLE001  # a bug here must not take the serving loop down
            self._error = f"{type(exc).__name__}: {exc}"
            return self._refuse("error")

    def _accept(self, session: str, ids: Any, size: int, rest: Any, named: Any) -> int:
        now = time.monotonic()
        with self._lock:
            if self._closing:
                return self._refuse("closed")
            while self._memory + size > self.settings.memory_bytes:
                if self.settings.when_full == "refuse" or not self._queue:
                    return self._refuse("memory full")
                self._drop()
            self._last = ticket = self._last + 1
            self._queue.append(Eviction(ticket, now, size, session, ids, *rest, *named))
            self._memory += size
            self.counts.accepted += 1
            full = self._memory > self.settings.flush_bytes
        if not self._signalled or (full and not self._urgent):
            self._signalled, self._urgent = True, full
            self._signals.put(None)
        return ticket

    def _drop(self) -> None:
        """Drop the oldest eviction that is not being written; the lock is held."""
        oldest = self._queue.popleft()
        self._memory -= oldest.size
        self.counts.dropped += 1
        self._hole(oldest.ticket)

    def _hole(self, ticket: int) -> None:
        """Keep in mind that a ticket did not become durable; the lock is held. Of very many, some that did count as not."""
        holes = self._holes
        if holes and holes[-1][1] + 1 >= ticket >= holes[-1][0]:
            holes[-1][1] = max(holes[-1][1], ticket)
        else:
            holes.append([ticket, ticket])
            holes.sort()
            if len(holes) > HOLES:
                holes[:2] = [[holes[0][0], holes[1][1]]]

    def _refuse(self, reason: str) -> int:
        with self._lock:
            known = self.counts.refused.get(reason, 0)
            self.counts.refused[reason] = known + 1
        if not known:
            self._signals.put(None)  # the flusher logs it
        return 0

    def _refuse_forked(self) -> int:
        """In a child there is no flusher, and the lock may be held for good: counted and logged without either."""
        self.counts.refused["forked"] = known = self.counts.refused.get("forked", 0) + 1
        if known == 1:
            log.warning("evictions are refused: this process was forked from the hook's; open one here")
        return 0

    def durable(self, ticket: int) -> bool:
        """Whether the eviction of a ticket is on disk: no kill and no power cut loses it any more."""
        with self._lock:
            lost = any(first <= ticket <= last for first, last in self._holes)
            return 0 < ticket <= self._durable and not lost

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was accepted is durable (or was dropped, where the settings say so); False when ``timeout`` seconds were not enough."""
        wanted = self._last
        self._urgent = self._signalled = True
        self._signals.put(None)
        with self._changed:
            return self._changed.wait_for(lambda: self._durable >= wanted or self._closed, timeout) and (
                self._durable >= wanted
            )

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was accepted is in the archive, or laid aside by the worker; False when ``timeout`` seconds were not enough.

        The worker must run, here or elsewhere. Raises OSError where the journal cannot be read.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self.flush(timeout):
            return False
        places = self._places()
        while places and (end is None or time.monotonic() < end):
            places = [(name, at) for name, at in places if not self._archived(name, at)]
            if places:
                time.sleep(POLL)
        return not places

    def _places(self) -> list[tuple[Name, int]]:
        """The segments of this hook, and their ends."""
        place = self._journal.place
        mine = [s for s in self.backlog.segments() if s.name.owner == self._journal.owner]
        return [(s.name, place[1] if place and s.name == place[0] else s.size) for s in mine]

    def _archived(self, name: Name, at: int) -> bool:
        found = [s for s in self.backlog.segments() if s.name == name]
        return not found or found[0].done >= at

    # ---- the flusher's side

    def _flush_loop(self) -> None:
        """Write groups, until closed."""
        while not self._given_up.is_set() and (not self._closing or self._queue):
            self._signals.get()
            if not (self._urgent or self._closing):
                try:
                    self._signals.get(timeout=self.settings.flush_seconds)
                except Empty:
                    pass
            self._signalled = self._urgent = False
            self._tell()
            while (group := self._group()) and self._write(group):
                pass
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _group(self) -> list[Eviction]:
        """What is written at once; it stays counted as memory."""
        with self._lock:
            group: list[Eviction] = []
            size = 0
            while self._queue and size < GROUP:
                group.append(self._queue.popleft())
                size += group[-1].size
            return group

    def _write(self, group: list[Eviction]) -> bool:
        """Make a group durable, trying until it is; False where the hook gives up before."""
        bodies, kept = self._bodies(group)
        pause, longest = RETRY
        while bodies:
            try:
                self._journal.append(bodies)
                break
            except Exception as exc:  # noqa: BLE001  # full, failing, whatever it is: memory holds on
                self.counts.failures += 1
                self.failure = str(exc)
                self._tell()
            if self._given_up.wait(pause):
                return False
            pause = min(2 * pause, longest)
        self.failure = ""
        self._count(group, kept, sum(map(len, bodies)))
        return True

    def _bodies(self, group: list[Eviction]) -> tuple[list[bytes], list[Eviction]]:
        """The journal's entries, and the evictions that have one: what cannot be kept is refused here, too."""
        bodies: list[bytes] = []
        kept: list[Eviction] = []
        for one in group:
            try:
                bodies.append(_entry(one, self.tokenizer).encode())
                kept.append(one)
            except Exception as exc:  # noqa: BLE001
                if not isinstance(exc, PltzError):
                    self._error = f"{type(exc).__name__}: {exc}"
                self._refuse("not valid" if isinstance(exc, PltzError) else "error")
                with self._lock:
                    self._hole(one.ticket)
        return bodies, kept

    def _count(self, group: list[Eviction], kept: list[Eviction], size: int) -> None:
        """A group is durable: say so."""
        now = time.monotonic()
        counts = self.counts
        for one in kept:
            counts.latency[bisect_left(LATENCIES, now - one.at)] += 1
            counts.latency_sum += now - one.at
        counts.durable += len(kept)
        counts.bytes += size
        with self._lock:
            self._memory -= sum(one.size for one in group)
            self._durable = group[-1].ticket
        with self._changed:
            self._changed.notify_all()

    def _tell(self) -> None:
        """Log what is new, once each: from this thread, for a log may block."""
        news = [f"evictions are refused: {reason}" for reason in list(self.counts.refused)]
        news += [f"evictions cannot be written, and wait in memory: {self.failure}"] if self.failure else []
        for line in news:
            if line not in self._told:
                self._told.add(line)
                log.warning("%s%s", line, f" ({self._error})" if line.endswith(": error") else "")

    # ---- looking and ending

    def status(self) -> dict[str, Any]:
        """What goes on, for people and as JSON; reads the journal's directory. Bytes, seconds, counts since the hook was opened."""
        with self._lock:
            queued, memory, refused = len(self._queue), self._memory, dict(self.counts.refused)
            found: dict[str, Any] = {"accepted": self.counts.accepted, "durable": self.counts.durable}
        try:
            held: dict[str, Any] = asdict(self.backlog.status())
        except OSError as exc:
            held = {"failure": str(exc)}
        worker = self.background.done if self.background else {}
        since = max(int(worker.get("until", 0)), self._opened)
        lag = max(0, self.disk.now() - since) if held.get("waiting") else 0
        found |= {
            "refused": refused,
            "dropped": self.counts.dropped,
            "queued": queued,
            "memory_bytes": memory,
        }
        ended = not (self._flusher.is_alive() or self._closing)
        failure = "the thread that writes ended: see the log" if ended else self.failure
        found |= {"failures": self.counts.failures, "failure": failure, "error": self._error}
        return {**found, "lag_seconds": lag, "journal": held, "worker": worker}

    def metrics(self) -> HookCollector:
        """A collector for prometheus_client: ``REGISTRY.register(hook.metrics())``. Needs the extra ``pltz[serve]``; raises UsageError without."""
        from pltz.archive.hooks.metrics import HookCollector

        return HookCollector(self)

    def close(self, timeout: float = 10.0) -> bool:
        """Take no more, make durable what was accepted, end the worker after its commit; what it did not come to stays in the journal.

        False where ``timeout`` seconds were not enough to make everything durable: the disk fails.
        """
        if os.getpid() != self._pid:
            return False
        atexit.unregister(self.close)
        with self._lock:
            self._closing = True
        self._signals.put(None)
        self._flusher.join(timeout)
        self._given_up.set()
        self._flusher.join(1.0)
        if not self._flusher.is_alive():
            self._journal.close()
        if self.background:
            self.background.close(timeout)
        lost = self._last > self._durable
        if lost and "lost" not in self._told:
            self._told.add("lost")
            log.error(
                "evictions of tickets %d to %d are not durable: %s",
                self._durable + 1,
                self._last,
                self.failure,
            )
        return not lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Bytes(NamedTuple):
    """An array of ids, (T,), as bytes."""

    data: bytes
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.data) // self.dtype.itemsize


class _Refused(Exception):
    """An eviction that is not taken, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _copied(ids: Any) -> tuple[Any, int]:
    """A copy of token ids that the caller cannot change, and its bytes. What it costs is a copy of memory: no id is looked at.

    An array is copied by ``tobytes``, which keeps the interpreter: ``copy`` would let go of it, and may wait 5 ms to have it back.
    """
    if isinstance(ids, list | tuple):
        return tuple(ids), LIST_ITEM * len(ids)
    if hasattr(ids, "detach"):  # torch, which is not imported for this
        if ids.device.type != "cpu":
            raise _Refused("tokens on a device")  # to copy them would wait for it
        ids = ids.detach().numpy()
    if not isinstance(ids, np.ndarray):
        raise _Refused("not token ids")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise _Refused("not token ids")
    return _Bytes(ids.tobytes(), ids.dtype), ids.nbytes


def _entry(one: Eviction, tokenizer: bytes) -> Entry:
    """The journal's entry of an eviction. Raises ContentError, UsageError, and what numpy raises for ids that are none."""
    try:
        ids = np.frombuffer(*one.ids) if isinstance(one.ids, _Bytes) else np.asarray(one.ids)
    except (ValueError, OverflowError) as exc:
        raise UsageError("expected token ids") from exc
    tenant, target = tenant_of(one.tenant, one.salt), target_of(one.target, one.adapter)
    if not one.session or not all(isinstance(t, str) for t in (one.session, tenant, one.base, one.parent)):
        raise UsageError("expected the name of a session, and of its tenant, base and parent")
    return Entry(
        one.session,
        ids,
        int(one.time),
        tenant,
        tokenizer,
        target,
        one.tags,
        _ends(one.prefixes, len(ids)),
        one.base,
        one.parent,
    )


def _ends(prefixes: tuple[Any, ...], length: int) -> tuple[int, ...]:
    """The prefixes that fit, ascending: they are hints."""
    ends: list[int] = []
    for end in prefixes:
        with suppress(TypeError):
            if (ends[-1] if ends else 0) < operator.index(end) <= length:
                ends.append(operator.index(end))
    return tuple(ends[:MAX_PREFIXES])
