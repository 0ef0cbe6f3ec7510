"""MemoryFolder: the memories of a target's agents on disk, each a file of its own. Spec: FORMAT.md, "Agent memory"."""

from __future__ import annotations

import dataclasses
import fcntl
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.errors import MemoryFailed, MemoryMismatch, PoolFull
from pltz.kv.memory.checked_file import FileKind, Shapes, clean
from pltz.kv.memory.prefix_match import WITHIN
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.port.private_file import opened, private_folder
from pltz.kv.store.warm_file import finite
from pltz.plt_codec import SIZE, CorruptError, TargetMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray

    from pltz.models import Target

MEMORY = FileKind("pltz agent memory", 1, frozenset({"agent", "target", "pages", "packed"}))
CENTRE = FileKind("pltz memory centre", 1, frozenset({"target"}))
MAX_TOKENS = 1 << 24  # of an agent, where the target has no bound
PACKED = re.compile(r"0|[1-9][0-9]{0,9}")
MAX_ID = 4096  # bytes of text that an id may be
FORGET = "forget the agent, and let it begin again"
RELOAD = "`reload` the agent to go on from that file, or move the file away and save again; one process per agent"


@dataclass(eq=False)
class Remembered:
    """The memory of an agent. ``ids``: (T,) int32, those of ``text``. ``ends``: (T,) int32, see `ends_of`.

    ``session``: the KV of the first ids, all or all but the last. ``saved``: the file has the same.
    ``stamp``: checksum of the file that this was read from or written to last, None for none.
    """

    text: str
    ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    session: PackedSession
    saved: bool = False
    stamp: bytes | None = None


class MemoryFolder:
    """The files of one target and one kind of pages in a folder. Any thread may use it."""

    def __init__(self, folder: str | os.PathLike[str], target: Target, form: PageFormat) -> None:
        self.fingerprint, self.pages = target.fingerprint, pages_id(form)
        self.longest = target.max_positions or MAX_TOKENS
        self.folder = _space(folder, target, form)
        clean(self.folder)

    @staticmethod
    def form(folder: str | os.PathLike[str], target: Target, kind: str) -> PageFormat:
        """Return the pages of a target with the centre that the folder keeps; the first to ask puts it there.

        Raises CorruptError, VersionError and MemoryFailed where the folder has a centre that cannot be used.
        """
        form = PageFormat.of(target, kind)
        if form.centre is None:
            return form
        path = _space(folder, target, form) / "centre.safetensors"
        like = {"centre": (_short(form.centre.dtype), tuple(form.centre.shape))}

        facts = {"target": target.fingerprint.hex()}

        def fit(meta: Mapping[str, str], shapes: Shapes) -> None:
            if shapes != like or meta != facts:
                raise CorruptError("no centre of these pages: remove its folder, and all memories in it")

        found = CENTRE.read(path, like, fit)
        if found is None:
            mine = path.with_name(f"centre.{os.getpid()}.safetensors")
            CENTRE.write(mine, facts, {"centre": form.centre})
            try:
                os.link(mine, path)  # which replaces none: another process may have been first
            except FileExistsError:
                pass
            except OSError as exc:
                raise MemoryFailed(f"cannot write {path} ({exc.strerror})") from exc
            finally:
                mine.unlink(missing_ok=True)
            found = CENTRE.read(path, like, fit)
        if found is None:
            raise MemoryFailed(f"{path} was removed while it was read: try again")
        return dataclasses.replace(form, centre=found[1]["centre"])

    def path(self, agent: str) -> Path:
        """Return where an agent's file is."""
        name = blake2b(agent.encode("utf8", "surrogatepass"), digest_size=SIZE, person=b"pltz agent").hexdigest()
        return self.folder / f"{name}.safetensors"

    def agents(self) -> Iterator[str]:
        """Yield the names of agents whose files can be read, by their headers alone."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if (meta := MEMORY.peek(path)) is not None:
                yield meta["agent"]

    def save(self, agent: str, memory: Remembered) -> int:
        """Write a memory, and return the bytes of its file.

        Raises MemoryMismatch where another process wrote the file since ``memory`` was read or saved, or writes it
        now, and MemoryFailed. The file before is there then.
        """
        with self._locked(agent):
            self.check(agent, memory)
            try:
                size = self._write(agent, memory)
            finally:  # a write whose sync failed may be there, and is this memory's
                memory.stamp = MEMORY.stamp(self.path(agent))
        memory.saved = True
        return size

    def check(self, agent: str, memory: Remembered) -> None:
        """Raise MemoryMismatch where the agent's file is not the one that ``memory`` was read from or saved to.

        A file that is gone is none: a save writes it again.
        """
        if (found := MEMORY.stamp(self.path(agent))) is not None and found != memory.stamp:
            raise MemoryMismatch(f"{self.path(agent)} was written by another process since it was read: {RELOAD}")

    @contextmanager
    def _locked(self, agent: str) -> Iterator[None]:
        """Hold the lock of an agent's file. Raises MemoryMismatch where another process has it: it writes the file."""
        path = self.path(agent).with_suffix(".lock")
        try:
            private_folder(path.parent)
            handle = opened(path, os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise MemoryFailed(f"cannot open {path} ({exc.strerror}): make room, or name another folder") from exc
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise MemoryMismatch(f"another process writes {self.path(agent)} now: {RELOAD}") from exc
            except OSError as exc:
                raise MemoryFailed(f"cannot lock {path} ({exc.strerror}): name another folder") from exc
            yield
        finally:
            os.close(handle)

    def _write(self, agent: str, memory: Remembered) -> int:
        """Write a memory's file, and return its bytes."""
        import torch

        session = memory.session
        slab = session.pool.host if session.spilled else session.pool.device
        assert slab is not None
        meta = {"agent": agent, "target": self.fingerprint.hex(), "pages": self.pages, "packed": str(session.packed)}
        return MEMORY.write(
            self.path(agent),
            meta,
            {
                "ids": torch.from_numpy(memory.ids),
                "ends": torch.from_numpy(memory.ends),
                "text": torch.frombuffer(bytearray(memory.text.encode() or b"\0"), dtype=torch.uint8),
                "exact": session.exact,
                **slab.read(session.blocks, 0, session.packed),
            },
        )

    def load(self, agent: str, pool: BlockPool) -> Remembered | None:
        """Return an agent's memory with its KV in a pool, None where there is none.

        Raises MemoryMismatch and TargetMismatch for a file of another agent, target or pages, CorruptError and
        VersionError for a damaged or a later one, MemoryFailed where the disk cannot read it now, and PoolFull.
        """
        path, form = self.path(agent), pool.form
        stamp = MEMORY.stamp(path)  # before: a file that comes between is refused at the next save

        def fit(meta: Mapping[str, str], shapes: Shapes) -> None:
            packed = int(meta["packed"]) if PACKED.fullmatch(meta["packed"]) else -1
            if (why := _misfit(shapes, packed, form, self.longest)) is not None:
                raise CorruptError(f"{why}: {FORGET}")
            if packed > pool.device.tokens:
                raise PoolFull(f"the pool has room for {pool.device.tokens} tokens, the agent {agent!r} has {packed}")

        found = MEMORY.read(path, ("ids", "ends", "text", "exact", *form.types), fit)
        if found is None:
            return None
        meta, tensors = found
        if meta["target"] != self.fingerprint.hex() or meta["pages"] != self.pages:
            raise TargetMismatch(f"{path} is a memory of another target, or of other pages: {FORGET}")
        if meta["agent"] != agent:
            raise MemoryMismatch(f"{path} is the memory of another agent, {meta['agent'][:80]!r}: {FORGET}")
        packed = int(meta["packed"])
        try:
            memory = _checked(tensors, pool)
        except ValueError as exc:
            raise CorruptError(f"{path} is damaged ({exc}): {FORGET}") from exc
        rows = {name: tensors[name] for name in form.types}
        session = memory.session
        session.blocks = pool.device.allocate(-(-packed // pool.block))
        pool.device.write(session.blocks, 0, rows)
        session.packed = packed
        memory.stamp = stamp
        return memory

    def remove(self, agent: str, memory: Remembered | None = None) -> None:
        """Remove an agent's file, damaged or not. ``memory``: what this process knows of the agent.

        Raises MemoryMismatch where another process wrote the file since ``memory`` was read or saved, or writes it
        now, and MemoryFailed where it is still there.
        """
        with self._locked(agent):
            if memory is not None and MEMORY.peek(self.path(agent)) is not None:
                self.check(agent, memory)
            try:
                self.path(agent).unlink(missing_ok=True)
            except OSError as exc:
                raise MemoryFailed(f"cannot remove {self.path(agent)} ({exc.strerror})") from exc


def pages_id(form: PageFormat) -> str:
    """Return what names pages, in hexadecimal. Rows of other pages mean other numbers."""
    facts = f"{form.kind} {form.layers} {form.heads} {form.dim} {_short(form.dtype)}".encode()
    centre = b"" if form.centre is None else form.centre.cpu().numpy().astype("<f4").tobytes()
    return blake2b(facts + centre, digest_size=SIZE, person=b"pltz pages").hexdigest()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _space(folder: str | os.PathLike[str], target: Target, form: PageFormat) -> Path:
    facts = target.fingerprint + f"{form.kind} {_short(form.dtype)}".encode()
    return Path(folder) / blake2b(facts, digest_size=SIZE, person=b"pltz memory").hexdigest()


def _misfit(shapes: Shapes, packed: int, form: PageFormat, longest: int) -> str | None:
    """Return why tensors of these shapes are no memory of at most ``longest`` tokens, None where they may be one."""
    count = math.prod(shapes["ids"][1])
    if shapes["ids"] != ("int32", (count,)) or shapes["ends"] != shapes["ids"]:
        return "ids and their ends do not fit each other"
    if count > longest:
        return f"{count} ids, where the target has {longest} positions"
    if shapes["text"][0] != "uint8" or math.prod(shapes["text"][1]) > MAX_ID * (count + 1):
        return "the text is not bytes, or more than its ids may be"
    if not 0 <= packed <= count or 0 < packed <= form.sinks:
        return "pages of more tokens than there are, or of too few"
    for name, (size, dtype) in form.types.items():
        if shapes[name] != (_short(dtype), (form.layers, packed, form.heads, size)):
            return f"the rows {name!r} are not those of {packed} tokens"
    kind, exact = shapes["exact"]
    sinks = min(form.sinks, packed)
    own = exact[3] if len(exact) == 5 else -1
    if kind != _short(form.dtype) or exact != (form.layers, 2, form.heads, own, form.dim):
        return "the exact tokens have another shape or type"
    tokens = packed + own - sinks
    if own < sinks or not count - 1 <= tokens <= count:
        return f"the KV of {tokens} tokens does not fit {count} ids"
    return None


def _checked(tensors: Mapping[str, torch.Tensor], pool: BlockPool) -> Remembered:
    """Return a memory without its pages. Raises ValueError unless all numbers fit each other."""
    ids, ends, text, exact = (tensors[name] for name in ("ids", "ends", "text", "exact"))
    said = bytes(text.numpy()).decode() if len(ids) else ""
    where = ends[ends != WITHIN].numpy()
    if (where[1:] < where[:-1]).any() or (len(where) and not 0 <= where[0] <= where[-1] <= len(said)):
        raise ValueError("ends of ids are not ascending, or beyond the text")
    if bool((ids < 0).any()):
        raise ValueError("ids below 0")
    if not all(finite(tensor) for tensor in tensors.values() if tensor.is_floating_point()):
        raise ValueError("KV with NaN or infinity")
    session = PackedSession(pool, [], 0, exact.to(pool.device.device))
    return Remembered(said, ids.numpy().copy(), ends.numpy().copy(), session, saved=True)
