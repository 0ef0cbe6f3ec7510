"""KVStore: the one store of a target's KV. A block is named by the ids up to its end, and is the same rows everywhere.

    ids -> trie (`trie.py`) -> device | host | folder (rows, or runs in a small form) | archive (ids only)

    session = store.match(tenant, ids)       pages of the longest known beginning, for attention over a pool
    found = store.read(tenant, ids, device)  the same as KV, for a cache of transformers
    store.insert(tenant, ids, session)       offer the full blocks of a session
    store.keep(tenant, ids, cut)             offer those of KV that a prefill computed

* Any tier may be missing: a pool has a slab on the device, and perhaps one in host memory (`BlockPool`); a folder
  outlives the process, and others share it (`kv_folder.py`).
* Blocks that nobody else holds leave a full tier, ends of prefixes first, in the order of `rank`: the device for host
  memory, that for the folder, where a thread writes them. What waits for it has bounds, and is dropped beyond them.
* `save` writes the blocks of a session that is idle while they are still in memory, `fetch` brings back those that only
  the folder has. A block in memory is found in its tier alone, whatever the folder has of it.
* Names begin with the tenant. KV of ``apart`` is found under the same word only: for pages that lose something, what a
  session says depends on how it came to be.
* A form that loses something is served to those only whose bound on the loss its receipt keeps. Its blocks are never
  coded again, and what is computed over them is never written.
* Thread-safe: the pool's lock protects the bookkeeping. Files are read and written outside of it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.row_form import SINKS, RowForm, short
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import KVCodec, Span, loss, serves
from pltz.kv.store.kv_file import KVFile, finite
from pltz.kv.store.kv_folder import CENTRE, BlockRun, KVFolder
from pltz.kv.store.store_metrics import StoreCollector
from pltz.kv.store.trie import Node, Rank, Trie, chains, names_of, root_of
from pltz.plt_codec import CorruptError, PltzError, UsageError, digest

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.archive import Archive
    from pltz.kv.pool.slab import Slab
    from pltz.kv.store.trie import Ids
    from pltz.models import Target

log = logging.getLogger("pltz.kv")

EXACT, ANY = Bound(0.0, 0.0), Bound(np.inf, np.inf)
QUEUE_BYTES = 1 << 30  # of runs that wait to be written; one alone may be larger
LEAST = 64  # blocks that leave a full tier at once, so that a file or a look for them is not of one each
ENDS = 64  # sessions whose last ids and logits are kept in the memory of the process
DEVICE, HOST, DISK = "device", "host", "disk"


@dataclass
class TierStats:
    """The contents of a tier. ``budget``, ``used``: bytes. ``hit_tokens``: ids whose KV was found there.

    ``blocks``: in it. ``damaged``: files that failed a check. ``failed``: what the machine refused to read or write.
    """

    budget: int
    used: int
    blocks: int
    hit_tokens: int = 0
    damaged: int = 0
    failed: int = 0


@dataclass
class Stats:
    """The tiers of a store, by name, and counts of blocks since it was made.

    ``hit_tokens``: ids whose KV was found. ``miss_tokens``: those asked for whose KV was not. ``inserted``: new ones.
    ``spilled``, ``warmed``: moved to host memory, and back. ``dropped``: that left memory, and that no file has.
    ``failed``: of those, that met an error nobody expected; ``failure``: the last of them.
    """

    tiers: dict[str, TierStats] = field(default_factory=dict)
    hit_tokens: int = 0
    miss_tokens: int = 0
    inserted: int = 0
    spilled: int = 0
    warmed: int = 0
    dropped: int = 0
    failed: int = 0
    failure: str = ""


@dataclass(frozen=True, eq=False)
class FoundKV:
    """KV of the first ``tokens`` of some ids, in pieces (layers, 2, heads, T, D) that follow each other.

    ``forms``: that lost something of it. ``tiers``: tokens by the tier that had them. ``logits``: of the last id, where
    the KV is that of all ids. ``cache``: in place of pieces, where it has none (`snapshots.py`).
    """

    tokens: int = 0
    pieces: tuple[torch.Tensor, ...] = ()
    forms: tuple[KVCodec, ...] = ()
    tiers: Counter[str] = field(default_factory=Counter)
    logits: torch.Tensor | None = None
    cache: Any = None


@dataclass(eq=False)
class _Waiting:
    """A run that waits to be written. ``keys``: `KVFolder.changes` then. ``gone``: a block was discarded since."""

    file: KVFile
    ids: NDArray[np.int32]
    mass: NDArray[np.float32] | None
    names: list[bytes]
    size: int
    keys: int
    gone: bool = False


class KVStore:
    """The KV of one target, in one kind of pages (see the top of this file). Any thread may use it.

    Methods that look up take a ``bound`` on what a form may lose: a `Bound`, or bits per token; exact KV only unless
    given.

    Args:
        pages: their format.
        pool: the pages in memory; None for none.
        folder: files; None for none.
        form: of the files: None for rows as they are, or a small one (`kv_forms`), made of pages that are exact.
        receipt: what pages that lose something were measured to lose.
        rank: of a block by its name; those of a lower rank leave first. None: the least recently used.
        queue_bytes: most bytes of runs that wait to be written.
        clock: returns seconds since 1970.
        fingerprint: of the target, b"" where nobody compares it.

    Raises UsageError for a small form of pages that lose something, and without pool and folder.
    """

    def __init__(
        self,
        pages: PageFormat,
        pool: BlockPool | None = None,
        folder: KVFolder | None = None,
        *,
        form: KVCodec | None = None,
        rows: RowForm | None = None,
        rank: Rank | None = None,
        queue_bytes: int = QUEUE_BYTES,
        clock: Callable[[], float] = time.time,
        fingerprint: bytes = b"",
    ) -> None:
        self.fingerprint = fingerprint
        self.pages, self.pool, self.folder, self.queue_bytes = pages, pool, folder, queue_bytes
        self.rows = rows or RowForm(pages)
        self.form: KVCodec = form or self.rows
        if self.form is not self.rows and not self.rows.exact:
            raise UsageError(f"files in the form {self.form.name} are made of raw pages, these are {pages.kind}")
        if pool is None and folder is None:
            raise UsageError("expected a pool, a folder, or both")
        self.block = pool.block if pool else folder.block if folder else 0
        self.trie = Trie(rank)
        self._clock = clock
        self._lock = pool.device.lock if pool else RLock()
        self._stats, self._hits = Stats(), Counter[str]()
        self._own = Counter[tuple[bool, int]]()  # nodes that hold a block of the host, or of the device
        self._erasures = 0  # so that what was read before one does not come back by it
        self._ends: OrderedDict[bytes, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()  # last KV, and logits
        self._waiting: list[_Waiting] = []
        self._writing: list[Future[None]] = []
        self._writer: ThreadPoolExecutor | None = None
        if pool is not None:
            pool.device.reclaimers.append(lambda missing: self._reclaim(missing, spilled=False))
            if pool.host is not None:
                pool.host.reclaimers.append(lambda missing: self._reclaim(missing, spilled=True))

    @classmethod
    def open(
        cls,
        target: Target,
        tokens: int = 0,
        host_tokens: int = 0,
        disk_bytes: int = 0,
        *,
        kind: str = "raw",
        folder: str | os.PathLike[str] | None = None,
        form: KVCodec | None = None,
        receipts: Any = None,
        block: int = 16,
        **options: Any,
    ) -> KVStore:
        """Return a store of a target.

        Args:
            tokens, host_tokens, disk_bytes: room on the device, in host memory, and of the folder. 0 for none.
            kind: of the pages, "raw", "q8" or "q4".
            folder: of the files; needed where ``disk_bytes`` is given. It keeps the centre of the pages, too.
            form: of the files (`KVStore`).
            receipts: a `Calibration`, which says what pages lose.
            block: ids per block, 16 or 256.
            options: as `KVStore`.

        Raises UsageError where only one of folder and its room is given, and what `PageFormat.of` and `BlockPool` do.
        """
        if (folder is None) != (disk_bytes == 0):
            raise UsageError("a folder of KV and its room (disk_bytes) belong together: give both, or neither")
        pages = PageFormat.of(target, kind)
        files = None
        if folder is not None:
            pin = target.device.type == "cuda"
            space = space_of(target.fingerprint, pages)
            files = KVFolder(folder, space, disk_bytes, block=block, rank=options.get("rank"), pin=pin)
            pages = centred(files, pages)
        pool = BlockPool(pages, tokens, block=block, host_tokens=host_tokens, device=target.device) if tokens else None
        receipt = None if receipts is None or kind == "raw" else receipts.receipt(kind)
        rows = RowForm(pages, receipt)
        return cls(pages, pool, files, form=form, rows=rows, fingerprint=target.fingerprint, **options)

    @property
    def lossy(self) -> bool:
        """Return whether files are in a form that codes by the attention that each id received."""
        return not self.form.exact and self.form is not self.rows

    # ---- looking up

    def match(self, tenant: str, ids: Ids, *, apart: str = "", bound: Bound | float = EXACT) -> PackedSession | None:
        """Return a session of the longest beginning of ``ids`` that is in memory, at most all but the last id.

        None for none. It holds its blocks, and has no tail yet. Blocks in host memory are warmed by one copy; where the
        device has no room for them, it ends before. Its ``lost`` names a form that lost something of it, ``warmed``
        how many of its tokens were in host memory.
        """
        pool = self._pool()
        with self._lock:
            names = self._names(tenant, ids, apart)
            warm = sum(node.spilled for node in self.trie.path(names))
            path = self._held(names, bound)
            on = next((n for n, node in enumerate(path) if node.spilled), len(path))
            self._release(path[on:])
            path = path[:on]
            warm = min(warm, on)
            self._count(len(ids), Counter({DEVICE: (on - warm) * self.block, HOST: warm * self.block}))
            if not path:
                return None
            sinks = path[0].blocks[1:]
            exact = pool.device.sinks(sinks) if sinks else empty(self.pages, pool.device.device)
            pool.device.release(sinks)  # copied
            session = PackedSession(pool, [node.blocks[0] for node in path], on * self.block, exact)
            session.lost = next((node.lost for node in path if node.lost is not None), None)
            session.warmed = warm * self.block
            return session

    def read(
        self, tenant: str, ids: Ids, device: torch.device, *, apart: str = "", bound: Bound | float = EXACT
    ) -> FoundKV:
        """Return the KV of the longest beginning of ``ids`` in any tier, on a device.

        That is all but the ids after the last full block, or all, with the logits, where the end was kept, too.
        """
        names, tiers, forms = self._names(tenant, ids, apart), Counter[str](), list[KVCodec]()
        pieces: list[torch.Tensor] = []
        at = 0
        if self.pool is not None:
            with self._lock:
                warm = sum(node.spilled for node in self.trie.path(names))
                path = self._held(names, bound)
                try:
                    for _, group in groupby(path, key=lambda node: node.spilled):
                        pieces.append(self._kv_of(list(group), device))
                    tiers += Counter({HOST: min(warm, len(path)) * self.block})
                    tiers += Counter({DEVICE: max(len(path) - warm, 0) * self.block})
                    forms = [node.lost or self.rows for node in path]
                    at = len(path)
                finally:
                    self._release(path)
        while at < len(names) and (found := self._find(names, at, bound)) is not None:
            run, count = found
            form, file = self._form_of(run), self._load(run)
            kv = None if file is None else self._decoded(run, form, file, device)
            if kv is None:
                continue  # it is gone, and perhaps there is another
            first = (at - run.first) * self.block
            pieces.append(kv[:, :, :, first : first + count * self.block].to(device))
            forms.append(form)
            tiers[DISK] += count * self.block
            at += count
        total, logits = at * self.block, None
        with self._lock:
            end = self._ends.get(self._end_name(tenant, ids, apart)) if at == len(names) else None
        if end is not None:
            pieces.append(end[0].to(device))
            tiers[HOST] += len(ids) - total
            total, logits = len(ids), end[1].to(device)
        self._count(len(ids), tiers)
        lossy = {form.name: form for form in forms if not form.exact}
        return FoundKV(total, tuple(pieces), tuple(lossy.values()), tiers, logits)

    def fetch(self, tenant: str, ids: Ids, *, apart: str = "", bound: Bound | float = EXACT) -> int:
        """Bring blocks of ids that only the folder has to the device, as far as there is room. Returns how many ids.

        For a thread beside the one that runs the model.
        """
        pool, names, brought = self._pool(), self._names(tenant, ids, apart), 0
        with self._lock:
            at, erasures = len(self.trie.path(names)), self._erasures
        while at < len(names) and (found := self._find(names, at, bound)) is not None:
            run, count = found
            form, file = self._form_of(run), self._load(run)
            if file is None:
                continue
            first, stop = (at - run.first) * self.block, (at - run.first + count) * self.block
            if form is self.rows:
                rows, sinks = self.rows.rows(file.parts, first, stop - first), file.parts[SINKS]
            else:
                kv = self._decoded(run, form, file, pool.device.device)
                if kv is None:
                    continue
                rows, sinks = self.pages.pack(kv[:, :, :, first:stop], at * self.block), kv[:, :, :, :0]
            new, span = names[at : at + count], np.asarray(ids[at * self.block : (at + count) * self.block], np.int32)
            with self._lock:
                held = self._held(names[:at], ANY)
                try:
                    if len(held) < at or self.trie.get(names[at]) is not None or self._erasures > erasures:
                        break  # others changed what was there, or it has to go
                    lost = None if form is self.rows else form
                    self._add(new, held, tenant, span, rows, sinks, pool.device, apart=apart, lost=lost)
                except PoolFull:
                    break
                finally:
                    self._release(held)
            at += count
            brought += count * self.block
        self._hits[DISK] += brought
        return brought

    def tier(self, name: bytes) -> str:
        """Return the fastest tier that has a block, "" for none. Any thread may call."""
        node = self.trie.get(name)
        if node is not None:
            return HOST if node.spilled else DEVICE
        return DISK if self._filed(name) else ""

    def name(self, tenant: str, ids: Ids, apart: str = "") -> bytes:
        """Return the name of the last block of ids that some tier has, b"" for none."""
        known = self._known(tenant, ids, apart)
        return known[-1] if known else b""

    def known(self, tenant: str, ids: Ids, apart: str = "") -> int:
        """Return the number of ids whose KV some tier has."""
        return self.block * len(self._known(tenant, ids, apart))

    def _known(self, tenant: str, ids: Ids, apart: str) -> list[bytes]:
        if self.folder is not None:
            self.folder.look()
        return list(takewhile(self.tier, self._names(tenant, ids, apart, 0)))

    # ---- taking in

    def insert(
        self,
        tenant: str,
        ids: Ids,
        session: PackedSession,
        *,
        apart: str = "",
        lost: KVCodec | None = None,
        lasting: bool = True,
    ) -> int:
        """Offer the full blocks of a session. Returns how many are new here.

        ``ids``: of its tokens, at least of those that are packed. ``lost``: a form that lost something of it, or of
        what it was computed over. ``lasting``: else what no session has is in memory alone. A full pool takes none, and
        nothing else happens. Raises UsageError for too few ids.
        """
        pool = self._pool()
        if len(ids) < session.packed or session.pool is not pool:
            raise UsageError("expected a session of this pool, and the ids of all its packed tokens")
        root, owner = root_of(tenant, apart), self._owner(tenant)
        array = np.asarray(ids[: session.packed], np.int32)
        parent, added = None, 0
        with self._lock:
            for step, name in enumerate(names_of(root, array, self.block)):
                node = self.trie.get(name)
                if node is None or (node.lost is not None and lost is None and self._idle(node)):
                    blocks = [session.blocks[step]]
                    if step == 0 and session.sinks:
                        try:
                            blocks += pool.device.put_sinks(session.exact[:, :, :, : session.sinks])
                        except PoolFull:
                            break
                    pool.device.retain(blocks[:1])
                    if node is not None:  # exact KV in the place of that which lost something
                        self._slab(node).release(node.blocks)
                        self._move(node, blocks, spilled=False)
                        node.lost = None
                    else:
                        own = array[step * self.block : (step + 1) * self.block]
                        above = root if parent is None else parent.name
                        node = Node(name, above, parent, owner, own, step * self.block, blocks, lost=lost)
                        node.lasting = lasting
                        self._enter(node)
                    added += 1
                node.lasting |= lasting
                parent = node
            self.trie.touch(parent, self._clock())
            self._stats.inserted += added
        return added

    def keep(
        self,
        tenant: str,
        ids: Ids,
        cut: Callable[[int, int], torch.Tensor],
        mass: NDArray[np.float32] | None = None,
        *,
        apart: str = "",
        logits: torch.Tensor | None = None,
    ) -> int:
        """Offer the full blocks of KV that was computed from ids alone. Returns how many are new here.

        ``cut``: returns the KV (layers, 2, heads, T, D) from one position to another. ``mass``: (T,), the attention
        that each id received, where it was seen. ``logits``: of the last id. With them the end of the session is kept
        in memory, so that reading all of it needs no pass of the model. What finds no room in memory goes to the
        folder. Raises UsageError where ``cut`` returns another number of tokens.
        """
        names = names_of(root_of(tenant, apart), ids, self.block)
        with self._lock:
            if logits is not None and len(ids):
                self.keep_end(tenant, ids, cut, logits, apart=apart)
            held = self._held(names, ANY) if self.pool is not None else []
            try:
                at = len(held) if self.pool is not None else self._on_disk(names, 0)
                if at == len(names):
                    return 0
                kv = cut(at * self.block, len(names) * self.block)
                span = np.asarray(ids[at * self.block : len(names) * self.block], np.int32)
                if kv.shape[3] != len(span):
                    raise UsageError(f"expected KV of {len(span)} tokens, got {kv.shape[3]}")
                seen = None if mass is None else mass[at * self.block : len(names) * self.block]
                kept = self._keep(names, at, held, tenant, apart, span, kv, seen)
            finally:
                self._release(held)
            self._stats.inserted += kept
            self._stats.dropped += len(names) - at - kept
        return kept

    def keep_end(
        self, tenant: str, ids: Ids, cut: Callable[[int, int], torch.Tensor], logits: torch.Tensor, *, apart: str = ""
    ) -> None:
        """Keep the KV of the last 1 to `block` ids of a session and its logits, in the memory of this process."""
        at = (len(ids) - 1) // self.block * self.block
        with self._lock:
            self._ends[self._end_name(tenant, ids, apart)] = cut(at, len(ids)).cpu(), logits.cpu()
            while len(self._ends) > ENDS:
                self._ends.popitem(last=False)

    def _keep(
        self, names: list[bytes], at: int, held: list[Node], tenant: str, apart: str, ids: NDArray[np.int32],
        kv: torch.Tensor, mass: NDArray[np.float32] | None,
    ) -> int:  # fmt: skip
        """Put new blocks into the fastest tier that has room for all. Returns how many that are. Lock held."""
        count, sinks = len(names) - at, kv[:, :, :, : self.pages.sinks]
        if self.pool is not None:
            rows = self.pages.pack(kv, at * self.block)
            for slab in (self.pool.device, self.pool.host):
                try:
                    if slab is not None:
                        self._add(names[at:], held, tenant, ids, rows, sinks, slab, apart=apart, mass=mass)
                        return count
                except PoolFull:
                    continue
        more = self._on_disk(names, at) - at
        if more == count or self.folder is None:
            return 0
        at, kv, ids = at + more, kv[:, :, :, more * self.block :], ids[more * self.block :]
        mass = None if mass is None else mass[more * self.block :]
        above = names[at - 1] if at else root_of(tenant, apart)
        span = Span(ids, at * self.block)
        parts = {"kv": kv} if self.lossy else self.rows.encode(kv, span)
        return (count - more) * self._write_behind(names[at:], self._owner(tenant), above, span, parts, mass)

    def _add(
        self, names: Sequence[bytes], held: list[Node], tenant: str, ids: NDArray[np.int32], rows: Any,
        sinks: torch.Tensor, slab: Slab, *, apart: str, mass: NDArray[np.float32] | None = None,
        lost: KVCodec | None = None,
    ) -> None:  # fmt: skip
        """Add blocks after those of ``held``, in new pages of a slab. Raises PoolFull. Lock held."""
        first = len(held) * self.block
        blocks = slab.allocate(len(names))
        try:
            slab.write(blocks, 0, rows)
            more = slab.put_sinks(sinks) if not held and self.pages.sinks else []
        except BaseException:
            slab.release(blocks)
            raise
        parent, owner, root = held[-1] if held else None, self._owner(tenant), root_of(tenant, apart)
        for n, name in enumerate(names):
            own = slice(n * self.block, (n + 1) * self.block)
            node = Node(
                name, root if parent is None else parent.name, parent, owner, ids[own], first + own.start,
                [blocks[n], *(more if n == 0 else [])], slab is not self._pool().device, lost,
                None if mass is None else mass[own],
            )  # fmt: skip
            self._enter(node)
            parent = node
        self.trie.touch(parent, self._clock())

    # ---- leaving

    def pin(self, name: bytes) -> None:
        """Keep a prefix, named by its last block, in memory until `unpin`. Raises UsageError for an unknown one."""
        with self._lock:
            self.trie.pin(name)

    def unpin(self, name: bytes) -> None:
        """End one `pin`. Raises UsageError for a prefix that has none."""
        with self._lock:
            self.trie.pin(name, -1)

    def save(self, tenant: str, ids: Ids, mass: NDArray[np.float32] | None = None, *, apart: str = "") -> bool:
        """Let the blocks of ids that are in memory, and in no file, be written. They stay in memory.

        ``mass``: (T,), the attention that each id received, for a form that codes by it. Returns whether all full
        blocks of ids are in files, or wait for it.
        """
        if self.folder is None:
            return False
        names = self._names(tenant, ids, apart, 0)
        with self._lock:
            path = self.trie.path(names)
            if mass is not None:
                for node in path:
                    node.mass = mass[node.start : node.start + self.block]
            self._behind(path)
            waits = {name for one in self._waiting for name in one.names}
            return all(self._filed(name) or name in waits for name in names)

    def release(self, tenant: str, ids: Ids, *, apart: str = "") -> None:
        """Forget the blocks of ids in memory that no other prefix goes on from and nobody holds. Files stay."""
        with self._lock:
            for node in reversed(self.trie.path(self._names(tenant, ids, apart, 0))):
                if node.children or node.pins or not self._idle(node):
                    return
                self._free(self.trie.remove(node))

    def discard(self, tenant: str, ids: Ids, *, apart: str = "") -> None:
        """Forget the blocks of ids in every tier, for an erasure, but for those in memory that others go on from.

        Sessions that hold them keep them, but they are not found again. Raises WarmFileError where a file cannot be
        removed.
        """
        names = self._names(tenant, ids, apart, 0)
        with self._lock:
            shared = 0
            for node in reversed(self.trie.path(names)):
                if node.children:
                    shared = node.start // self.block + 1
                    break
                self._free(self.trie.remove(node))
            self._cancel(set(names[shared:]))
        if self.folder is not None:
            self.folder.discard(set(names[shared:]))

    def erase(self, name: bytes) -> None:
        """Forget the prefix that a block ends, as `discard` does, where nobody has its ids any more.

        Files go with all that they hold. Raises as `discard`.
        """
        with self._lock:
            gone, node = {name}, self.trie.get(name)
            while node is not None and not node.children:
                above = node.parent
                gone.add(node.name)
                self._free(self.trie.remove(node))
                node = above
            self._cancel(gone)
        if self.folder is not None:
            self.folder.discard(gone | self.folder.leading(name))

    def expire(self, seconds: float) -> None:
        """Forget what was not used for so long, in memory and in files. Raises as `discard`."""
        before = self._clock() - seconds
        with self._lock:
            self._ends.clear()
            for node in self.trie:  # the least recently used first, ends of prefixes before their beginnings
                if node.used < before and not node.children and not node.pins and self._idle(node):
                    self._free(self.trie.remove(node))
        if self.folder is not None:
            self.folder.expire(before)

    def clear(self, tenant: str | None = None) -> None:
        """Forget everything, or all of a tenant, in every tier. Raises as `discard`."""
        owner = None if tenant is None else self._owner(tenant)
        with self._lock:
            for node in self.trie:
                if node.parent is None and owner in (None, node.tenant):
                    self._free(self.trie.remove(node))
            self._cancel({name for one in self._waiting if owner in (None, one.file.tenant) for name in one.names})
        if self.folder is not None:
            self.folder.clear(owner)

    def admit(self, archive: Archive, tenants: Iterable[str] = ()) -> None:
        """Keep files by the newest keys of tenants, where an archive is sealed (`KVFolder.admit`). In its thread.

        What waits to be written is not, where a key is another: something of it may be erased.
        """
        if self.folder is not None and self.folder.admit(archive, tenants):
            with self._lock:
                self._cancel({name for one in self._waiting for name in one.names})

    def _reclaim(self, missing: int, *, spilled: bool) -> bool:
        """Give up blocks of a slab that only the trie holds, until enough are free. Returns whether there were any."""
        pool = self._pool()
        slab = pool.host if spilled else pool.device
        assert slab is not None
        has_below = self.folder is not None or (not spilled and pool.host is not None)
        wanted = max(missing, min(LEAST, slab.blocks // 8)) if has_below else missing
        victims = self.trie.leaving(spilled, wanted, self._idle)
        if not victims:
            return False
        flat = [block for node in victims for block in node.blocks]
        if not spilled and pool.host is not None and len(flat) <= pool.host.blocks:
            try:
                moved = pool.spill(flat)
            except PoolFull:
                pass
            else:
                for node in victims:
                    own, moved = moved[: len(node.blocks)], moved[len(node.blocks) :]
                    self._move(node, own, spilled=True)
                self._stats.spilled += len(victims)
                return True
        self._behind(victims)
        waits = {name for one in self._waiting for name in one.names}
        for node in victims:
            if self.trie.get(node.name) is node:  # not gone with its parent
                gone = self.trie.remove(node)
                self._free(gone)
                self._stats.dropped += sum(one.name not in waits and not self._filed(one.name) for one in gone)
        return True

    def _free(self, nodes: list[Node]) -> None:
        """Give back the blocks of nodes that left the trie."""
        for node in nodes:
            self._slab(node).release(node.blocks)
            self._move(node, [], spilled=False)

    def _enter(self, node: Node) -> None:
        self.trie.add(node)
        self._own.update((node.spilled, block) for block in node.blocks)

    def _move(self, node: Node, blocks: list[int], *, spilled: bool) -> None:
        """Note that a node holds these blocks instead of those before. One block may be of several nodes."""
        for block in node.blocks:
            self._own[node.spilled, block] -= 1
            if not self._own[node.spilled, block]:
                del self._own[node.spilled, block]
        node.blocks, node.spilled = blocks, spilled
        self._own.update((spilled, block) for block in blocks)

    def _behind(self, nodes: Sequence[Node]) -> None:
        """Let nodes that no file has be written, in as few runs as may be. Lock held."""
        if self.folder is None:
            return
        waits = {name for one in self._waiting for name in one.names}
        may = (n for n in nodes if n.lasting and n.lost is None)
        new = [n for n in may if not self._filed(n.name) and n.name not in waits]
        for chain in (*chains([n for n in new if not n.spilled]), *chains([n for n in new if n.spilled])):
            seen = [node.mass for node in chain if node.mass is not None]
            mass = np.concatenate(seen) if len(seen) == len(chain) else None
            if self.lossy and mass is None:
                continue  # the form codes by it
            span = Span(np.concatenate([node.ids for node in chain]), chain[0].start)
            parts = {"kv": self._kv_of(chain)} if self.lossy else self._parts_of(chain)
            names = [node.name for node in chain]
            self._write_behind(names, chain[0].tenant, chain[0].above, span, parts, mass)

    def _write_behind(
        self, names: list[bytes], tenant: bytes, above: bytes, span: Span, parts: Any, mass: NDArray[np.float32] | None
    ) -> bool:
        """Let a run wait to be written. Returns False where too much waits. Lock held."""
        if self.folder is None:
            return False
        import torch

        size = sum(part.nbytes for part in parts.values())
        if self._waiting and sum(one.size for one in self._waiting) + size > self.queue_bytes:
            return False
        head = {"ids": torch.from_numpy(np.array(span.ids))}
        name = self.form.name
        file = KVFile(name, self.folder.space, names[-1], head, parts, tenant, above, span.start)
        one = _Waiting(file, span.ids, mass, names, size, self.folder.changes)
        self._waiting.append(one)
        self._writer = self._writer or ThreadPoolExecutor(1, "pltz-kv-write")
        self._writing = [future for future in self._writing if not future.done()]
        self._writing.append(self._writer.submit(self._write, one))
        return True

    def _write(self, one: _Waiting) -> None:
        """Write a run. An error is counted, and costs this run only. In the writer's thread."""
        assert self.folder is not None
        folder, kept = self.folder, False
        try:
            file = one.file
            if self.lossy and not one.gone:
                parts = self.form.encode(file.parts["kv"], Span(one.ids, file.start, one.mass))
                file = KVFile(file.form, file.space, file.name, file.head, parts, file.tenant, file.parent, file.start)
            kept = not one.gone and folder.write(file, lambda: not one.gone and one.keys == folder.changes)
        except Exception as exc:  # noqa: BLE001 - nobody waits here who could be told
            with self._lock:
                self._stats.failed += len(one.names)
                self._stats.failure = f"{type(exc).__name__}: {exc}"
            log.warning("a run of KV is not written: %s", self._stats.failure)
        finally:
            with self._lock:
                self._waiting.remove(one)
                if not kept and not one.gone:
                    self._stats.dropped += sum(self.trie.get(name) is None for name in one.names)

    def _cancel(self, names: set[bytes]) -> None:
        """Let no run with one of these blocks be written, nor what was read before enter memory. Lock held."""
        self._erasures += 1
        self._ends.clear()
        for one in self._waiting:
            one.gone = one.gone or not names.isdisjoint(one.names)

    def drain(self) -> None:
        """Wait until everything that waits is written."""
        wait(list(self._writing))

    def close(self) -> None:
        """Wait until everything that waits is written, and end the thread. The store can be used again."""
        self.drain()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.shutdown()

    # ---- parts

    def _owner(self, tenant: str) -> bytes:
        return root_of(tenant) if self.folder is None else self.folder.owner(tenant)

    def _names(self, tenant: str, ids: Ids, apart: str, last: int = 1) -> list[bytes]:
        """Return the names of the full blocks of all but the last ids."""
        return names_of(root_of(tenant, apart), ids[: max(len(ids) - last, 0)], self.block)

    @staticmethod
    def _end_name(tenant: str, ids: Ids, apart: str) -> bytes:
        """Return the name of all ids of a session."""
        return names_of(root_of(tenant, apart), ids, max(len(ids), 1))[-1] if len(ids) else b""

    def _held(self, names: Sequence[bytes], bound: Bound | float) -> list[Node]:
        """Return the nodes of a prefix that serve a bound, held, on the device as far as it has room. Lock held."""
        bound = bound if isinstance(bound, Bound) else Bound.of(bound)
        path = self.trie.path(names)
        served = next((n for n, node in enumerate(path) if not serves(node.lost or self.rows, bound)), len(path))
        path = path[:served]
        if not path:
            return path
        self.trie.touch(path[-1], self._clock())
        for slab, blocks in self._blocks(path):  # so that room for the others is not made of these
            slab.retain(blocks)
        count = len(path)
        while away := [node for node in path[:count] if node.spilled]:
            flat, host = [block for node in away for block in node.blocks], self._slab(away[0])
            try:
                moved = self._pool().warm(flat)  # the caller's hold
            except PoolFull:
                count = path.index(away[len(away) // 2])
                continue
            host.release(flat)  # the trie's
            self._pool().device.retain(moved)
            for node in away:
                own, moved = moved[: len(node.blocks)], moved[len(node.blocks) :]
                self._move(node, own, spilled=False)
            self._stats.warmed += len(away)
        return path

    def _release(self, nodes: Sequence[Node]) -> None:
        """End the hold of `_held`."""
        for slab, blocks in self._blocks(nodes):
            slab.release(blocks)

    def _blocks(self, nodes: Sequence[Node]) -> list[tuple[Slab, list[int]]]:
        """Return the blocks of nodes by slab: one call for all costs as much as one for each."""
        apart = [[node for node in nodes if node.spilled == spilled] for spilled in (False, True)]
        return [(self._slab(some[0]), [block for node in some for block in node.blocks]) for some in apart if some]

    def _filed(self, name: bytes) -> bool:
        return self.folder is not None and self.folder.has(name, (self.rows.name, self.form.name))

    def _on_disk(self, names: Sequence[bytes], at: int) -> int:
        """Return the place of the first name from ``at`` on that no file has."""
        while at < len(names) and self._filed(names[at]):
            at += 1
        return at

    def _find(self, names: Sequence[bytes], at: int, bound: Bound | float) -> tuple[BlockRun, int] | None:
        """Return the run of the folder that has block ``at``, in a form that serves a bound, and how many it has."""
        if self.folder is None:
            return None
        bound = bound if isinstance(bound, Bound) else Bound.of(bound)
        forms = sorted({self.rows, self.form}, key=lambda form: (not form.exact, loss(form)))
        return self.folder.find(names, at, [form.name for form in forms if serves(form, bound)])

    def _form_of(self, run: BlockRun) -> KVCodec:
        return self.rows if run.form == self.rows.name else self.form

    def _load(self, run: BlockRun) -> KVFile | None:
        """Return a run's file, whose parts its form takes, or None where it is gone or damaged."""
        assert self.folder is not None
        file = self.folder.read(run.names[-1], run.form, run.tenant)
        if file is None:
            self.folder.forget(run)
            return None
        try:
            ids = file.head["ids"].numpy()
            if names_of(file.parent, ids, self.block) != run.names or file.start != run.first * self.block:
                raise CorruptError("not the blocks that its name says")
            self._form_of(run).check(file.parts, len(ids))
        except (PltzError, KeyError, ValueError) as exc:
            self.folder.drop(run, exc)
            return None
        return file

    def _decoded(self, run: BlockRun, form: KVCodec, file: KVFile, device: torch.device) -> torch.Tensor | None:
        """Return the KV of a run near a device, or None where it is damaged."""
        assert self.folder is not None
        pages, span = self.pages, Span(file.head["ids"].numpy(), file.start)
        try:
            kv = form.decode(form.near(file.parts, device), span)
            if kv.shape != (pages.layers, 2, pages.heads, len(span.ids), pages.dim) or kv.dtype != pages.dtype:
                raise CorruptError("KV of another shape than the target's")
        except PltzError as exc:
            self.folder.drop(run, exc)
            return None
        return kv

    def _parts_of(self, nodes: Sequence[Node]) -> Any:
        """Return the rows of nodes of one slab that follow each other, and their sinks, on the CPU."""
        slab, first = self._slab(nodes[0]), nodes[0].blocks[1:]
        rows = slab.read([node.blocks[0] for node in nodes], 0, len(nodes) * self.block)
        parts = self.rows.parts(rows, slab.sinks(first) if first else empty(self.pages, slab.device))
        return {name: part.cpu() for name, part in parts.items()}

    def _kv_of(self, nodes: Sequence[Node], device: torch.device | None = None) -> torch.Tensor:
        """Return the KV of nodes of one slab that follow each other, there or on another device."""
        slab = self._slab(nodes[0])
        rows = slab.read([node.blocks[0] for node in nodes], 0, len(nodes) * self.block, device)
        kv = self.pages.unpack(rows, nodes[0].start)
        if nodes[0].blocks[1:]:
            kv[:, :, :, : self.pages.sinks] = slab.sinks(nodes[0].blocks[1:])
        return kv

    def _idle(self, node: Node) -> bool:
        """Return whether only the trie holds the blocks of a node."""
        slab = self._slab(node)
        return all(slab.holders(block) <= self._own[node.spilled, block] for block in node.blocks)

    def _slab(self, node: Node) -> Slab:
        pool = self._pool()
        slab = pool.host if node.spilled else pool.device
        assert slab is not None
        return slab

    def _pool(self) -> BlockPool:
        if self.pool is None:
            raise UsageError("this store has no pool: open it with `tokens`")
        return self.pool

    def _count(self, asked: int, tiers: Counter[str]) -> None:
        with self._lock:
            hits = tiers.total()
            self._hits += tiers
            self._stats.hit_tokens += hits
            self._stats.miss_tokens += asked - hits

    # ---- telling

    def stats(self) -> Stats:
        """Return a copy of the counts as they are now. Bytes of the folder are those of all processes."""
        with self._lock:
            now = self._stats
            found = Stats({}, *(getattr(now, name) for name in list(Stats.__dataclass_fields__)[1:]))
            blocks = Counter(HOST if node.spilled else DEVICE for node in self.trie)
            slabs = {} if self.pool is None else {DEVICE: self.pool.device, HOST: self.pool.host}
            each = self.block * self.pages.token_bytes
            for name, slab in slabs.items():
                if slab is not None:
                    used = (slab.blocks - slab.free) * each
                    found.tiers[name] = TierStats(slab.blocks * each, used, blocks[name], self._hits[name])
        if (folder := self.folder) is not None:
            used, _, count = folder.usage()
            found.tiers[DISK] = TierStats(
                folder.budget, used, count, self._hits[DISK], folder.damaged, folder.failed
            )  # fmt: skip
        return found

    def metrics(self) -> StoreCollector:
        """Return a collector for a registry of prometheus_client. Raises UsageError without that."""
        return StoreCollector(self.stats)


def empty(pages: PageFormat, device: torch.device) -> torch.Tensor:
    """Return the KV of no token, (layers, 2, heads, 0, D)."""
    import torch

    return torch.empty((pages.layers, 2, pages.heads, 0, pages.dim), dtype=pages.dtype, device=device)


def space_of(fingerprint: bytes, pages: PageFormat) -> bytes:
    """Return the 16 bytes that name a target and the kind and numbers of its pages."""
    return digest(b"pltz kv", fingerprint, f"{pages.kind} {short(pages.dtype)}".encode())


def centred(folder: KVFolder, pages: PageFormat) -> PageFormat:
    """Return pages with the centre that a folder keeps; the first to ask puts it there.

    One that was computed again may differ by float noise, and rows are worth nothing without theirs. Raises
    CorruptError, VersionError and MemoryFailed where the folder has one that cannot be used.
    """
    import dataclasses

    if pages.centre is None:
        return pages
    name = bytes(32)
    found = folder.get(name, CENTRE)
    if found is None:
        folder.put(KVFile(CENTRE, folder.space, name, {"centre": pages.centre.cpu()}))
        found = folder.get(name, CENTRE)
    centre = None if found is None else found.head.get("centre")
    if centre is None or centre.shape != pages.centre.shape or centre.dtype != pages.centre.dtype or not finite(centre):
        raise CorruptError(f"no centre of these pages in {folder.folder}: remove that folder, and all KV in it")
    return dataclasses.replace(pages, centre=centre)
