"""DiskTier: blocks as memory-mapped files on local disk, shared by any number of processes. Spec: FORMAT.md.

    write: reserve room under the lock -> DIR/space/segment.form.random.part -> rename    all or nothing
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
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.archive.errors import StoreError
from pltz.archive.format.ids import MAX_TOKENS, SIZE
from pltz.archive.kv_store.kv_block import KVBlock
from pltz.archive.kv_store.tier import FormStats, StoredBlock, TierStats
from pltz.models.kv.codec import MAX_PARTS, PREFIX, RAW, KVCodec
from pltz.models.kv.receipt import Receipt
from pltz.plt_codec.errors import CorruptError, PltzError, UsageError

if TYPE_CHECKING:
    import torch

FORMAT = "pltz hot 3"
ALIGN = 64  # bytes: data begins at a multiple of it
CHECKSUM = 16  # bytes
MAX_HEADER = 1 << 16  # bytes
STALE = 3600  # seconds after which remains of a killed process are removed
PIECE = 1 << 26  # bytes hashed and written at once
POPULATE_READ = 22  # flag of madvise: fault in all pages at once
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
}  # fmt: skip
TAIL = ("logits", "ids", "tokens", "checksum")  # tensors after those of the codec
FIELDS = {"format", "form", "space", "segment", "parent", "start", "born", "receipt"}
MAX_RECEIPT = 1024  # characters
FORM = re.compile(r"[a-z0-9-]{1,64}")


@dataclass
class _File:
    path: Path
    size: int
    used: float

    @property
    def key(self) -> str:
        """Return space and segment in hexadecimal."""
        return self.path.parent.name + self.path.name.partition(".")[0]

    @property
    def left(self) -> bool:
        """Return whether a killed process left it: hours old, or hours ahead of a clock that was set back."""
        return self.path.suffix == ".part" and abs(time.time() - self.used) > STALE


class DiskTier:
    """A folder of warm files, in the form of one codec; blocks that are not exact keep their own.

    ``budget``: bytes that all files together may take. ``damaged``, ``written``, ``evicted``, ``failed``:
    counts of this process. ``failed`` counts reads and writes that the machine refused.

    Raises UsageError where the folder cannot be made, and for a budget below zero.
    """

    name = "disk"

    def __init__(self, folder: str | os.PathLike[str], budget: int, codec: KVCodec = RAW) -> None:
        if budget < 0:
            raise UsageError(f"expected a budget in bytes from 0 up, got {budget}")
        self.folder, self.budget, self.codec = Path(folder), budget, codec
        self.path(bytes(SIZE), bytes(SIZE), codec.name)  # a bad name is refused now
        self.damaged = self.written = self.evicted = self.failed = 0
        self._counted: dict[str, int] = {}  # ids of files, which never change
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "lock").touch()
        except OSError as exc:
            raise UsageError(f"cannot keep warm files in {self.folder}: {exc.strerror or exc}") from exc

    def path(self, space: bytes, segment: bytes, form: str = RAW.name) -> Path:
        """Return where the file of a segment in a form is or would be. Raises UsageError for a bad name."""
        if not FORM.fullmatch(form):
            raise UsageError(f"expected a form of letters a to z, digits and hyphens, got {form!r}")
        return self.folder / space.hex() / f"{segment.hex()}.{form}.safetensors"

    def usage(self) -> tuple[int, int]:
        """Return the bytes and the number of all files, of any process.

        Returns (0, 0) where the folder cannot be read.
        """
        try:
            with self._locked():
                sizes = [file.size for file in self._files()]
        except OSError:
            return 0, 0
        return sum(sizes), len(sizes)

    def stats(self) -> TierStats:
        """Return bytes, number and ids of all files, by form too, and how many this process found damaged."""
        found = TierStats(self.codec.name, self.budget, damaged=self.damaged)
        try:
            with self._locked():
                files = list(self._files())
        except OSError:
            return found
        counted: dict[str, int] = {}
        for file in files:
            _, form, *rest = file.path.name.split(".")
            whole = rest == ["safetensors"]
            tokens = 0
            if whole:
                key = f"{file.key} {form} {file.size}"
                tokens = counted[key] = self._counted.get(key) or _tokens_of(file.path)
                found.forms.setdefault(form, FormStats()).add(file.size, tokens)
            found.enter(file.size, tokens)
        self._counted = counted
        return found

    def read(self, space: bytes, segment: bytes, codecs: Sequence[KVCodec] = (RAW,)) -> StoredBlock | None:
        """Return the segment's block over the mapped file, or None.

        None means that the file is missing in every form of ``codecs``, unavailable now, or damaged. A damaged
        file is removed.
        """
        for codec in codecs:
            if (stored := self._read(space, segment, codec)) is not None:
                return stored
        return None

    def _read(self, space: bytes, segment: bytes, codec: KVCodec) -> StoredBlock | None:
        path = self.path(space, segment, codec.name)
        try:
            stored = _decode(_mapped(path), space, segment, codec)
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
        return stored

    def write(
        self,
        space: bytes,
        segment: bytes,
        stored: StoredBlock,
        in_use: frozenset[bytes] = frozenset(),
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write a file unless it exists.

        Returns False if there is no room, the disk fails, the form cannot hold the block, or it was discarded
        during the write. ``in_use`` and ``wanted``: as in `SharedTier.write`.
        """
        form = self.codec.name if stored.block.codec.exact else stored.block.codec.name
        path = self.path(space, segment, form)
        try:
            if path.exists():
                os.utime(path)
                return True
            pieces = _encode(space, segment, stored, stored.block.recode(self.codec))
            part = self._begin(path, sum(piece.nbytes for piece in pieces) + CHECKSUM, in_use)
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
        except (PltzError, OSError, RuntimeError, MemoryError):  # the disk, or no memory to bring KV to the host
            self.failed += 1
            return False
        self.written += 1
        return True

    def discard(self, space: bytes, segment: bytes) -> None:
        """Remove a segment's files of all forms and any unfinished write of them, by any process.

        Raises StoreError where that is not possible.
        """
        folder = self.folder / space.hex()
        try:
            with self._locked():
                for path in folder.glob(f"{segment.hex()}.*"):
                    path.unlink(missing_ok=True)
        except FileNotFoundError:  # no folder, no file
            return
        except OSError as exc:
            raise StoreError(
                f"cannot remove the warm files {folder / segment.hex()}.*: {exc.strerror or exc}. "
                "Make the folder writable, then discard the segment again"
            ) from exc

    def clear(self) -> None:
        """Remove all files."""
        with suppress(OSError), self._locked():
            for file in self._files():
                with suppress(OSError):
                    file.path.unlink()

    def _begin(self, path: Path, size: int, in_use: frozenset[bytes]) -> Path | None:
        """Evict until ``size`` bytes have room, and reserve them.

        Returns None where all that remains must be kept.
        """
        with self._locked():
            files = sorted(self._files(), key=lambda f: (not f.left, f.used, f.path))
            free = self.budget - sum(file.size for file in files)
            kept = {key.hex() for key in in_use}
            for file in files:
                if free >= size:
                    break
                if file.left or (file.path.suffix != ".part" and file.key not in kept):
                    with suppress(OSError):
                        file.path.unlink()
                        free += file.size
                        self.evicted += 1
            if free < size:
                return None
            part = path.with_name(f"{path.stem}.{os.urandom(4).hex()}.part")
            part.parent.mkdir(exist_ok=True)
            with part.open("xb") as empty:
                empty.truncate(size)
            return part

    def _files(self) -> Iterator[_File]:
        for space in [p for p in self.folder.iterdir() if len(p.name) == 2 * SIZE]:
            with suppress(OSError):
                for file in os.scandir(space):
                    if file.name.endswith((".safetensors", ".part")):
                        with suppress(OSError):
                            stat = file.stat(follow_symlinks=False)
                            yield _File(Path(file.path), stat.st_size, stat.st_mtime)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _tokens_of(path: Path) -> int:
    """Return the number of ids that a file says it has, 0 where that cannot be read. For statistics only."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            count = json.loads(file.read(min(size, MAX_HEADER)))["ids"]["shape"][0]
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return 0
    return count if type(count) is int and 0 <= count <= MAX_TOKENS else 0


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


def _encode(space: bytes, segment: bytes, stored: StoredBlock, block: KVBlock) -> list[memoryview]:
    """Return header and data as bytes, all but the checksum. ``block``: the stored one in the file's form."""
    import torch

    logits = torch.zeros(0) if block.logits is None else block.logits
    tensors = {name: block.parts[name] for name in sorted(block.parts)} | {"logits": logits}
    kinds = {f"torch.{name}": short for short, name in DTYPES.items()}
    arrays = {name: np.ascontiguousarray(a, "<i4") for name, a in (("ids", block.ids), ("tokens", block.tokens))}
    meta = {
        "format": FORMAT,
        "form": block.codec.name,
        "space": space.hex(),
        "segment": segment.hex(),
        "parent": stored.parent.hex(),
        "start": str(block.start),
        "born": str(int(stored.born)),
        "receipt": json.dumps(receipt.to_dict()) if (receipt := block.codec.receipt) else "",
    }
    header: dict[str, Any] = {"__metadata__": meta}
    pieces: list[memoryview] = []
    at = 0
    if not all(name.startswith(PREFIX) for name in block.parts) or len(block.parts) > MAX_PARTS:
        raise UsageError(f"expected at most {MAX_PARTS} parts with names that begin with {PREFIX}")
    if unknown := {str(t.dtype) for t in tensors.values()} - kinds.keys():
        raise UsageError(f"expected tensors of {', '.join(kinds)}, found {min(unknown)}")
    rows = [(name, kinds[str(t.dtype)], tuple(t.shape), _bytes(t.detach().cpu())) for name, t in tensors.items()]
    rows += [(name, "I32", a.shape, a.view(np.uint8).data) for name, a in arrays.items()]
    for name, kind, shape, piece in [*rows, ("checksum", "U8", (CHECKSUM,), None)]:
        size = CHECKSUM if piece is None else piece.nbytes
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        pieces += [] if piece is None else [piece]
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return [memoryview(len(text).to_bytes(8, "little") + text), *pieces]


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


def _decode(data: torch.Tensor, space: bytes, segment: bytes, codec: KVCodec) -> StoredBlock:
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
        parts, tail = list(header)[: -len(TAIL)], tuple(header)[-len(TAIL) :]
        named = 0 < len(parts) <= MAX_PARTS and all(name.startswith(PREFIX) for name in parts)
        if set(meta) != FIELDS or tail != TAIL or not named or parts != sorted(parts):
            raise CorruptError("fields are missing, or there are others")
        known = (meta["format"], meta["form"], meta["space"], meta["segment"])
        if known != (FORMAT, codec.name, space.hex(), segment.hex()):
            raise CorruptError("a file of another format, form, target or segment")
        if meta["receipt"]:
            Receipt.of(json.loads(meta["receipt"][:MAX_RECEIPT]))
        parent, start, born = bytes.fromhex(meta["parent"]), int(meta["start"]), float(meta["born"])
        tensors = _tensors(header, data[end:])
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise CorruptError(f"not the header of a warm file ({exc})") from exc
    if len(parent) != SIZE or not 0 <= start <= MAX_TOKENS or not 0 <= born < 1 << 40:
        raise CorruptError("no parent, or a start or a time that cannot be")
    block = _block({name: tensors[name] for name in parts}, tensors, start, codec)
    return StoredBlock(block, parent, born)  # the codec's parts and the logits are on the mapped pages


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
        dtype = getattr(torch, DTYPES[kind])
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


def _block(
    parts: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], start: int, codec: KVCodec
) -> KVBlock:
    """Return the block of a file's tensors. Raises CorruptError where they do not fit each other."""
    logits, ids, tokens, checksum = (tensors[name] for name in TAIL)
    flat = logits.dim() == ids.dim() == tokens.dim() == 1 and checksum.shape == (CHECKSUM,)
    kinds = [str(t.dtype) for t in (ids, tokens, checksum)]
    if not flat or not logits.is_floating_point() or kinds != ["torch.int32", "torch.int32", "torch.uint8"]:
        raise CorruptError("the tensors do not fit each other")
    codec.check(parts, len(ids))
    known = logits if len(logits) else None
    return KVBlock(parts, ids.numpy().copy(), tokens.numpy().copy(), start, known, codec)
