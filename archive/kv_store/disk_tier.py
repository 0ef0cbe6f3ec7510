"""DiskTier: slabs as memory-mapped files on local disk, shared by any number of processes. Spec: FORMAT.md.

    write: reserve room under the lock -> DIR/space/segment.random.part -> rename    all or nothing
    read:  map -> checksum -> check every field -> tensors over the mapping          or a miss

A read copies nothing. Tensors are laid over the mapped pages, so all processes of a machine share one copy in
the page cache. A file evicted during use stays readable for processes that have it mapped. No condition of
the disk raises an error here. KV can be recomputed from tokens, so damage, a full disk and a missing file are
all a miss.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.archive.errors import StoreError
from pltz.archive.format.ids import MAX_TOKENS, SIZE
from pltz.archive.kv_store.kv_block import KVBlock
from pltz.plt_codec.errors import CorruptError, PltzError, UsageError

if TYPE_CHECKING:
    import torch

FORMAT = "pltz hot 1"
ALIGN = 64  # bytes: data begins at a multiple of it
CHECKSUM = 16  # bytes
MAX_HEADER = 1 << 16  # bytes
STALE = 3600  # seconds after which remains of a killed process are removed
PIECE = 1 << 26  # bytes hashed and written at once
POPULATE_READ = 22  # flag of madvise: fault in all pages at once
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32"}
TENSORS = ("kv", "logits", "ids", "tokens", "checksum")
FIELDS = {"format", "space", "segment", "parent", "start", "born"}


@dataclass(frozen=True, eq=False)
class Warm:
    """The content of a file. ``parent``: id of the segment above. ``born``: seconds since 1970."""

    slab: KVBlock
    parent: bytes
    born: float


@dataclass
class _Entry:
    path: Path
    size: int
    used: float

    @property
    def left(self) -> bool:
        """Return whether a killed process left it: hours old, or hours ahead of a clock that was set back."""
        return self.path.suffix == ".part" and abs(time.time() - self.used) > STALE


class DiskTier:
    """A folder of warm files.

    ``budget``: bytes that all files together may take. ``damaged``, ``written``, ``evicted``, ``failed``:
    counts of this process. ``failed`` counts reads and writes that the machine refused.

    Raises UsageError where the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], budget: int) -> None:
        self.folder, self.budget = Path(folder), budget
        self.damaged = self.written = self.evicted = self.failed = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "lock").touch()
        except OSError as exc:
            raise UsageError(f"cannot keep warm files in {self.folder}: {exc.strerror or exc}") from exc

    def path(self, space: bytes, segment: bytes) -> Path:
        """Return where the file of a segment is or would be."""
        return self.folder / space.hex() / f"{segment.hex()}.safetensors"

    def usage(self) -> tuple[int, int]:
        """Return the bytes and the number of all files, of any process.

        Returns (0, 0) where the folder cannot be read.
        """
        try:
            with self._locked():
                sizes = [entry.size for entry in self._entries()]
        except OSError:
            return 0, 0
        return sum(sizes), len(sizes)

    def read(self, space: bytes, segment: bytes) -> Warm | None:
        """Return the segment's slab over the mapped file, or None.

        None means that the file is missing, unavailable now, or damaged; a damaged file is removed.
        """
        path = self.path(space, segment)
        try:
            found = _decode(_mapped(path), space, segment)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # too many open files, no memory to map: the file may be sound
            self.failed += 1
            return None
        except (PltzError, RuntimeError):
            self.damaged += 1
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return found

    def write(
        self,
        space: bytes,
        segment: bytes,
        warm: Warm,
        kept: Callable[[Path], bool] = lambda path: False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write a file unless it exists.

        Returns False if there is no room, the disk fails or it was discarded during the write.

        ``kept``: files that must not be evicted for it. ``wanted``: called just before the file appears.
        """
        path = self.path(space, segment)
        try:
            if path.exists():
                os.utime(path)
                return True
            pieces = _encode(space, segment, warm)
            part = self._begin(path, sum(piece.nbytes for piece in pieces) + CHECKSUM, kept)
            if part is None:
                return False
            try:
                _fill(part, pieces)
                # Under the lock, `usage` sees the file under one name, and `discard` under one or the other.
                with self._locked():
                    if not (wanted() and part.exists()):
                        return False
                    part.replace(path)
            finally:
                with suppress(OSError):
                    part.unlink()
        except (OSError, RuntimeError, MemoryError):  # the disk, or no memory to bring the KV to the host
            self.failed += 1
            return False
        self.written += 1
        return True

    def discard(self, space: bytes, segment: bytes) -> None:
        """Remove a segment's file and any unfinished write of it, by any process.

        Raises StoreError where that is not possible.
        """
        path = self.path(space, segment)
        try:
            with self._locked():
                for found in [path, *path.parent.glob(f"{path.stem}.*.part")]:
                    found.unlink(missing_ok=True)
        except FileNotFoundError:  # no folder, no file
            return
        except OSError as exc:
            raise StoreError(f"cannot remove the warm file {path}: {exc.strerror or exc}") from exc

    def clear(self) -> None:
        """Remove all files."""
        with suppress(OSError), self._locked():
            for entry in self._entries():
                with suppress(OSError):
                    entry.path.unlink()

    def _begin(self, path: Path, size: int, kept: Callable[[Path], bool]) -> Path | None:
        """Evict until ``size`` bytes have room, and reserve them.

        Returns None where all that remains must be kept.
        """
        with self._locked():
            entries = sorted(self._entries(), key=lambda e: (not e.left, e.used, e.path))
            free = self.budget - sum(entry.size for entry in entries)
            for entry in entries:
                if free >= size:
                    break
                if self._goes(entry, kept):
                    with suppress(OSError):
                        entry.path.unlink()
                        free += entry.size
                        self.evicted += 1
            if free < size:
                return None
            part = path.with_name(f"{path.stem}.{os.urandom(4).hex()}.part")
            part.parent.mkdir(exist_ok=True)
            with part.open("xb") as file:
                file.truncate(size)
            return part

    def _goes(self, entry: _Entry, kept: Callable[[Path], bool]) -> bool:
        return entry.left or (entry.path.suffix != ".part" and not kept(entry.path))

    def _entries(self) -> Iterator[_Entry]:
        for space in [p for p in self.folder.iterdir() if len(p.name) == 2 * SIZE]:
            with suppress(OSError):
                for found in os.scandir(space):
                    if found.name.endswith((".safetensors", ".part")):
                        with suppress(OSError):
                            stat = found.stat(follow_symlinks=False)
                            yield _Entry(Path(found.path), stat.st_size, stat.st_mtime)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _fill(part: Path, pieces: list[memoryview]) -> None:
    """Write the pieces and their checksum over the reserved file."""
    import xxhash

    state = xxhash.xxh3_128()
    with part.open("r+b", buffering=0) as file:
        for piece in pieces:
            for at in range(0, piece.nbytes, PIECE):
                rest = piece[at : at + PIECE]
                state.update(rest)
                while rest:
                    rest = rest[file.write(rest) or 0 :]
        file.write(state.digest())


def _encode(space: bytes, segment: bytes, warm: Warm) -> list[memoryview]:
    """Return header and data as bytes, all but the checksum."""
    import torch

    slab = warm.slab
    none = torch.zeros(0, dtype=slab.kv.dtype)
    tensors = [slab.kv, none if slab.logits is None else slab.logits]
    names = {f"torch.{name}": short for short, name in DTYPES.items()}
    parts = [_bytes(t.detach().cpu()) for t in tensors]
    parts += [np.ascontiguousarray(a, "<i4").view(np.uint8).data for a in (slab.ids, slab.tokens)]
    kinds = [names[str(t.dtype)] for t in tensors] + ["I32", "I32", "U8"]
    shapes = [list(t.shape) for t in tensors] + [[len(slab.ids)], [len(slab.tokens)], [CHECKSUM]]
    meta = {
        "format": FORMAT,
        "space": space.hex(),
        "segment": segment.hex(),
        "parent": warm.parent.hex(),
        "start": str(slab.start),
        "born": str(int(warm.born)),
    }
    header: dict[str, Any] = {"__metadata__": meta}
    at = 0
    for name, kind, shape, size in zip(
        TENSORS, kinds, shapes, [*(p.nbytes for p in parts), CHECKSUM], strict=True
    ):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return [memoryview(len(text).to_bytes(8, "little") + text), *parts]


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _mapped(path: Path) -> torch.Tensor:
    """Map a file and return its bytes, (size,) uint8. Raises OSError and CorruptError."""
    import torch

    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8 + CHECKSUM:
            raise CorruptError(f"{path.name} has {size} bytes: damaged")
        pages = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # an older kernel maps pages one by one
        pages.madvise(POPULATE_READ)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _decode(data: torch.Tensor, space: bytes, segment: bytes) -> Warm:
    """Check a whole file and lay tensors over it. Raises CorruptError."""
    import xxhash

    whole = data.numpy().data
    if xxhash.xxh3_128_digest(whole[:-CHECKSUM]) != bytes(whole[-CHECKSUM:]):
        raise CorruptError("the checksum is not that of the bytes: damaged")
    end = 8 + int.from_bytes(whole[:8], "little")
    if not 8 < end <= min(len(whole), MAX_HEADER):
        raise CorruptError("the header is longer than the file")
    try:
        header = json.loads(bytes(whole[8:end]))
        meta = header.pop("__metadata__")
        if set(meta) != FIELDS or tuple(header) != TENSORS:
            raise CorruptError("fields are missing, or there are others")
        if (meta["format"], meta["space"], meta["segment"]) != (FORMAT, space.hex(), segment.hex()):
            raise CorruptError("a file of another format, target or segment")
        parent, start, born = bytes.fromhex(meta["parent"]), int(meta["start"]), float(meta["born"])
        tensors = _tensors(header, data[end:])
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise CorruptError(f"not the header of a warm file ({exc})") from exc
    if len(parent) != SIZE or not 0 <= start <= MAX_TOKENS or not 0 <= born < 1 << 40:
        raise CorruptError("no parent, or a start or a time that cannot be")
    return Warm(_slab(tensors, start), parent, born)  # kv and logits are on the mapped pages


def _tensors(header: dict[str, Any], data: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return tensors over the data, which they fill without gaps.

    Raises CorruptError; ValueError, TypeError and KeyError if the header is malformed.
    """
    import math

    import torch

    out = {}
    at = 0
    for name, entry in header.items():
        kind, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = torch.uint8 if name == "checksum" else getattr(torch, DTYPES[kind])
        sound = all(type(n) is int and 0 <= n < 1 << 40 for n in shape) and begin == at
        if not sound or stop != at + math.prod(shape) * dtype.itemsize or stop > len(data):
            raise CorruptError(f"tensor {name} does not lie where it must")
        bits = data[begin:stop]
        if bits.storage_offset() % dtype.itemsize or not len(bits):
            bits = bits.clone()  # a small tensor after a row of odd length
        out[name] = bits.view(dtype).reshape(shape)
        at = stop
    if at != len(data):
        raise CorruptError("the tensors do not fill the file")
    return out


def _slab(tensors: dict[str, torch.Tensor], start: int) -> KVBlock:
    kv, logits, ids, tokens = (tensors[name] for name in TENSORS[:4])
    flat = logits.dim() == ids.dim() == tokens.dim() == 1 and tensors["checksum"].shape == (CHECKSUM,)
    kinds = (
        kv.is_floating_point()
        and logits.is_floating_point()
        and str(ids.dtype) == str(tokens.dtype) == "torch.int32"
    )
    if not flat or not kinds or kv.dim() != 5 or kv.shape[1] != 2 or kv.shape[3] != len(ids):
        raise CorruptError("the tensors do not fit each other")
    known = logits if len(logits) else None
    return KVBlock(kv, ids.numpy().copy(), tokens.numpy().copy(), start, known)
