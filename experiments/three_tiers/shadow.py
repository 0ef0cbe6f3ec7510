"""Shadow: the cold blocks of a pool on disk, written behind, so that a restart finds them again. Spec: FORMAT.md.

    tick, every 60 s:  new cold and pinned blocks --copied--> a thread: segments -> manifest -> old segments go
                       and those before them
    recover:           manifest, segments, each checked -> host memory, tree, metadata, pins; damage is a miss

Blocks of a tree never change, so each is written once. A pass takes at most a share of the interval, by the rate that
the passes before had; what is left comes with the next one. The caller's thread only copies.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.experiments.three_tiers.block_metadata import BlockMetadata, MetadataTable, PrefixPins
from pltz.kv.errors import MemoryFailed
from pltz.kv.memory.checked_file import FileKind, Shapes, clean
from pltz.kv.memory.memory_file import pages_id
from pltz.kv.port.private_file import opened, private_folder
from pltz.kv.store.background_worker import BackgroundWorker
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError
from pltz.plt_codec.identity import SIZE

if TYPE_CHECKING:
    import torch

    from pltz.kv.pool.prefix_tree import Step

log = logging.getLogger("pltz.kv")

SEGMENT = FileKind("pltz kv shadow", 1, frozenset({"shadow"}))
MANIFEST = FileKind("pltz kv shadow manifest", 1, frozenset({"shadow"}))
NAME = 32  # bytes of a step's name
INTERVAL = 60.0  # seconds between passes
SHARE = 0.02  # of the time that passes may take
FIRST = 64 << 20  # bytes of the first pass, before a rate is known
MOST = 32 << 20  # bytes of a segment
STATE = 4096  # bytes of the manifest for each block of the pool, at most
FILE = re.compile(r"[0-9a-f]{8}\.safetensors")


@dataclass
class ShadowStats:
    """Counts of this process. ``blocks``, ``bytes``: written. ``seconds``: that passes took, on both threads.

    ``copying``: seconds of them on the caller's thread. ``left``: steps that wait for the next pass. ``failed``:
    passes that the disk refused. ``recovered``: steps that came back. ``missed``: steps and files that could not.
    """

    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    copying: float = 0.0
    left: int = 0
    failed: int = 0
    recovered: int = 0
    missed: int = 0


@dataclass(eq=False)
class _Segment:
    """A copy of the blocks of steps, to be written."""

    number: int
    steps: list[Step]
    tensors: dict[str, torch.Tensor]


class Shadow:
    """The shadow of a tree's pool in a folder. One thread uses it at a time.

    Raises UsageError where the pool has no host memory, or another process writes this shadow.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        target: bytes,
        table: MetadataTable,
        pins: PrefixPins,
        *,
        interval: float = INTERVAL,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table, self.pins, self.tree, self.pool = table, pins, table.tree, table.tree.pool
        if self.pool.host is None:
            raise UsageError("a shadow is of host memory: open the pool with `host_tokens`")
        self.interval, self.share, self._clock = interval, share, clock
        facts = target + f"{pages_id(self.pool.form)} {self.pool.block}".encode()
        self.folder = Path(folder) / blake2b(facts, digest_size=SIZE, person=b"pltz shadow").hexdigest()
        self._meta = {"shadow": self.folder.name}
        self.stats = ShadowStats()
        self._written: dict[bytes, tuple[int, int]] = {}  # of each step, its segment and its serial
        self._rate = FIRST / (interval * share)  # bytes per second
        self._next = clock() + interval
        self._state = b""  # of the manifest that is there
        self._worker: BackgroundWorker[float] = BackgroundWorker("pltz-shadow", 1)
        self._job: tuple[Future[float], list[_Segment], bytes, float] | None = None
        self._lock = self._locked()
        # Steps of each segment. Those of a process before go with the first pass, unless they are recovered.
        self._segments = {int(path.stem, 16): 1 for path in self._files()}
        self._number = max(self._segments, default=-1) + 1

    def tick(self) -> bool:
        """Begin a pass if it is time. Returns whether it did. Call it often: it costs nothing in between."""
        now = self._clock()
        if now < self._next or not self._collect(wait=False):
            return False
        self._next = now + self.interval
        self._begin(self._rate * self.interval * self.share)
        return True

    def wait(self) -> None:
        """Wait for the pass under way."""
        self._collect(wait=True)

    def write(self) -> None:
        """Write all that is new now, and wait for the disk. Raises MemoryFailed where that refuses."""
        self._collect(wait=True)
        failed = self.stats.failed
        self._begin(float("inf"))
        self._collect(wait=True)
        if self.stats.failed > failed:
            raise MemoryFailed(f"the disk did not take the shadow in {self.folder}: make room")

    def close(self) -> None:
        """Wait for the pass under way, and let another process have the shadow."""
        self._collect(wait=True)
        self._worker.close()
        os.close(self._lock)

    def recover(self) -> int:
        """Bring back blocks, metadata and pins into an empty tree. Returns the steps that came back.

        Damaged files are misses, and are removed. Blocks that host memory has no room for are misses, too.
        Raises UsageError for a tree that is not empty, and MemoryFailed where the disk cannot read now.
        """
        if len(self.tree):
            raise UsageError("recover into an empty tree, before sessions come")
        metadata, pins = self._manifest()
        found: dict[bytes, tuple[int, bytes | None, dict[str, torch.Tensor]]] = {}
        for path in self._files():
            number = int(path.stem, 16)
            for name, parent, rows in self._steps_of(path):
                found[name] = number, parent, rows
        pinned = set[bytes]()
        for name in pins:
            pinned.update(self._line(name, found, pinned))
        order = [*(name for name in reversed(metadata) if name in found), *(n for n in found if n not in metadata)]
        tried = set[bytes]()  # in the tree, or refused for good: room never grows here
        for name in sorted(order, key=lambda one: one not in pinned):  # stable: the last used first
            line = self._line(name, found, tried)
            for step in reversed(line):
                self._adopt(step, found, metadata)
            tried.update(line)
        for name, times in pins.items():
            if name in self.tree:
                self.pins.hold(name, times)
        self.stats.recovered = len(self.tree)
        self.stats.missed += len(found) - len(self.tree)
        self._segments = {int(path.stem, 16): 0 for path in self._files()}
        for number, _, _ in found.values():
            self._segments[number] += 1
        return self.stats.recovered

    def _adopt(
        self,
        name: bytes,
        found: Mapping[bytes, tuple[int, bytes | None, dict[str, torch.Tensor]]],
        metadata: Mapping[bytes, BlockMetadata],
    ) -> None:
        """Put one step into host memory and the tree, if its parent is there and there is room."""
        host = self.pool.host
        assert host is not None
        number, parent, rows = found[name]
        if name in self.tree or (parent is not None and parent not in self.tree):
            return
        count = rows["kv"].shape[1]
        if count > host.free:  # without giving up others
            return
        blocks = host.allocate(count)
        for kind, tensor in host.tensors.items():
            tensor[:, blocks] = rows[kind]
        self._written[name] = number, self.tree.adopt(name, parent, blocks)
        if name in metadata:
            self.table.blocks[name] = metadata[name]

    def _begin(self, room: float) -> None:
        """Copy what is new, at most ``room`` bytes but at least a step, and give it to the thread."""
        start = time.perf_counter()
        self.table.prune()
        steps = list(self.tree.steps())
        # Forget what was written of steps that are gone or were filled anew.
        known = {step.name: step.serial for step in steps}
        for name in [name for name, (_, serial) in self._written.items() if known.get(name) != serial]:
            del self._written[name]
        # A segment of which less than half is alive is written again, so that the folder does not grow.
        live = Counter(number for number, _ in self._written.values())
        poor = {number for number, count in self._segments.items() if 2 * live[number] < max(count, 1)}
        cold = _with_beginnings(steps)
        due = [step for step in cold if step.name not in self._written or self._written[step.name][0] in poor]
        each = self.pool.block * self.pool.form.token_bytes
        # Copy in order until the room is spent. What is left over waits for the next pass.
        segments: list[_Segment] = []
        group: list[Step] = []
        size = 0
        left = len(due)
        for step in due:
            more = each * len(step.blocks)
            if room < more and left < len(due):
                break
            if group and size + more > MOST:
                segments.append(self._copied(group))
                group, size = [], 0
            group.append(step)
            size, room, left = size + more, room - more, left - 1
        if group:
            segments.append(self._copied(group))
        self.stats.left = left
        # A segment goes when nothing that it held is needed: all of it is copied, or gone.
        moved = {step.name for one in segments for step in one.steps}
        old = poor - {number for name, (number, _) in self._written.items() if name not in moved}
        state = self._state_now(steps)
        copied = time.perf_counter() - start
        self.stats.copying += copied
        if segments or old or state != self._state:
            job = self._worker.submit("pass", lambda: self._pass(segments, state, old))
            if job is not None:
                self._job = job, segments, state, copied

    def _pass(self, segments: list[_Segment], state: bytes, old: set[int]) -> float:
        """Write segments, then the manifest, then remove old segments. Returns the seconds. On the other thread."""
        import torch

        start = time.perf_counter()
        for one in segments:
            self.stats.bytes += SEGMENT.write(self._path(one.number), self._meta, one.tensors)
        if state != self._state:
            data = torch.frombuffer(bytearray(state), dtype=torch.uint8)
            self.stats.bytes += MANIFEST.write(self.folder / "manifest.safetensors", self._meta, {"state": data})
        for number in old:
            with suppress(OSError):
                self._path(number).unlink(missing_ok=True)
            self._segments.pop(number, None)
        return time.perf_counter() - start

    def _collect(self, *, wait: bool) -> bool:
        """Note the result of the pass under way. Returns whether none is."""
        if self._job is None:
            return True
        job, segments, state, copied = self._job
        if not wait and not job.done():
            return False
        self._job = None
        try:
            took = copied + job.result()
        except MemoryFailed as exc:
            self.stats.failed += 1
            log.warning("the shadow was not written: %s", exc)
            for one in segments:
                with suppress(OSError):
                    self._path(one.number).unlink(missing_ok=True)
            return True
        self._state = state
        self.stats.seconds += took
        size = 0
        for one in segments:
            self._segments[one.number] = len(one.steps)
            self.stats.blocks += sum(len(step.blocks) for step in one.steps)
            size += sum(tensor.nbytes for tensor in one.tensors.values())
            self._written.update({step.name: (one.number, step.serial) for step in one.steps})
        if size:
            self._rate = size / max(took, 1e-6)
        return True

    def _copied(self, steps: list[Step]) -> _Segment:
        """Return a segment with a copy of the blocks of steps."""
        import torch

        number, self._number = self._number, self._number + 1
        tensors: dict[str, torch.Tensor] = {
            "names": torch.frombuffer(bytearray(b"".join(s.name for s in steps)), dtype=torch.uint8).view(-1, NAME),
            "parents": torch.frombuffer(
                bytearray(b"".join(s.parent or bytes(NAME) for s in steps)), dtype=torch.uint8
            ).view(-1, NAME),
            "counts": torch.tensor([len(step.blocks) for step in steps], dtype=torch.int32),
        }
        for kind, there in self.pool.device.tensors.items():
            host = self.pool.host
            assert host is not None
            pieces = [
                (host.tensors[kind] if step.spilled else there)[:, list(step.blocks)].cpu() for step in steps
            ]
            tensors[kind] = torch.cat(pieces, 1)
        return _Segment(number, steps, tensors)

    def _state_now(self, steps: list[Step]) -> bytes:
        blocks = {s.name.hex(): astuple(self.table.blocks[s.name]) for s in steps if s.name in self.table.blocks}
        return json.dumps({"pins": [[n.hex(), t] for n, t in self.pins.pins.items()], "blocks": blocks}).encode()

    def _manifest(self) -> tuple[dict[bytes, BlockMetadata], dict[bytes, int]]:
        """Return metadata and pins; none where the manifest is damaged, which is then removed."""
        path = self.folder / "manifest.safetensors"
        try:
            found = MANIFEST.read(path, ("state",), self._fit_state)
            if found is None:
                return {}, {}
            state = json.loads(bytes(found[1]["state"].numpy()))
            pins = {bytes.fromhex(name): int(times) for name, times in state["pins"]}
            blocks = {bytes.fromhex(name): _metadata(facts) for name, facts in state["blocks"].items()}
        except (FormatError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._missed(path)
            return {}, {}
        if any(not 0 < times < 1 << 20 for times in pins.values()):
            self._missed(path)
            return {}, {}
        return blocks, pins

    def _steps_of(self, path: Path) -> list[tuple[bytes, bytes | None, dict[str, torch.Tensor]]]:
        """Return name, parent and blocks of each step of a segment; none of a damaged one, which is removed."""
        form = self.pool.form
        try:
            found = SEGMENT.read(path, ("names", "parents", "counts", *form.types), self._fit_segment)
        except FormatError:
            found = None
        if found is None:
            self._missed(path)
            return []
        tensors = found[1]
        names, parents, counts = (tensors[name] for name in ("names", "parents", "counts"))
        if not bool((counts > 0).all()) or int(counts.sum()) != tensors["kv"].shape[1]:
            self._missed(path)
            return []
        ends = np.cumsum(counts.numpy())
        steps = []
        for n, end in enumerate(ends.tolist()):
            parent = bytes(parents[n].tolist())
            rows = {kind: tensors[kind][:, end - int(counts[n]) : end] for kind in form.types}
            steps.append((bytes(names[n].tolist()), parent if any(parent) else None, rows))
        return steps

    def _fit_state(self, meta: Mapping[str, str], shapes: Shapes) -> None:
        """Refuse a manifest of another shadow, or of more bytes than the steps of this pool take."""
        assert self.pool.host is not None
        most = STATE * (1 + self.pool.device.blocks + self.pool.host.blocks)
        if meta != self._meta or math.prod(shapes["state"][1]) > most:
            raise CorruptError(f"a state of another shadow, or of more than {most} bytes")

    def _fit_segment(self, meta: Mapping[str, str], shapes: Shapes) -> None:
        """Refuse a segment of another shadow, of other pages, or of more than a segment and one step may hold."""
        form, block = self.pool.form, self.pool.block
        assert self.pool.host is not None
        steps, total = math.prod(shapes["counts"][1]), (*shapes["kv"][1], 0, 0)[1]
        most = max(MOST // (block * form.token_bytes), self.pool.host.blocks)
        fits = meta == self._meta and shapes["counts"] == ("int32", (steps,)) and steps <= total <= most
        fits = fits and shapes["names"] == shapes["parents"] == ("uint8", (steps, NAME))
        for kind, (wide, dtype) in form.types.items():
            name = str(dtype).removeprefix("torch.")
            fits = fits and shapes[kind] == (name, (form.layers, total, block, form.heads, wide))
        if not fits:
            raise CorruptError("not the blocks of these pages")

    def _line(
        self, name: bytes, found: Mapping[bytes, tuple[int, bytes | None, Any]], known: Container[bytes]
    ) -> list[bytes]:
        """Return a step and those before it up to the first that is ``known``, as far as they were found."""
        line: list[bytes] = []
        step: bytes | None = name
        while step is not None and step in found and step not in known and len(line) <= len(found):
            line.append(step)
            step = found[step][1]
        return line

    def _missed(self, path: Path) -> None:
        self.stats.missed += 1
        log.warning("removed a file that is no part of this shadow, or damaged: %s", path)
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08x}.safetensors"

    def _files(self) -> list[Path]:
        """Return the segments, ascending."""
        return sorted(path for path in self.folder.glob("*.safetensors") if FILE.fullmatch(path.name))

    def _locked(self) -> int:
        """Return a handle that holds the lock of the folder."""
        try:
            private_folder(self.folder)
            clean(self.folder)
            handle = opened(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise MemoryFailed(f"cannot open the shadow in {self.folder} ({exc.strerror})") from exc
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(handle)
            raise UsageError(f"another process writes the shadow in {self.folder}: give each its own") from exc
        return handle


def _with_beginnings(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that are cold or pinned, and those before them, wherever they are, in their order.

    A step is found by the ones before it, and the end of a prefix goes cold first.
    """
    parents = {step.name: step.parent for step in steps}
    chosen = set[bytes]()
    for step in steps:
        name: bytes | None = step.name if step.spilled or step.pins else None
        while name is not None and name not in chosen:
            chosen.add(name)
            name = parents[name]
    return [step for step in steps if step.name in chosen]


def _metadata(facts: Any) -> BlockMetadata:
    """Return metadata from a manifest. Raises ValueError or TypeError for others."""
    source, importance, created, attended, priority, (first, end), tenant, mass = facts
    texts, numbers = (source, tenant), (importance, created, attended, mass)
    if not all(isinstance(one, str) for one in texts) or not all(isinstance(one, int | float) for one in numbers):
        raise ValueError("not the metadata of a block")
    return BlockMetadata(
        source, importance, created, attended, int(priority), (int(first), int(end)), tenant, mass
    )
