"""WarmFile: a block as a file with a checksum per chunk, read while its first layers are decoded. Spec: FORMAT.md.

    write:  header | checksums | ids, tokens, mass, logits | small parts | the large part, layer after layer
    read:   header, checked -> memory for every tensor -> chunks, each checked, by two threads at once

What is read lies in memory of its own. So it may move into a tier of memory without a copy, and a page that cannot be
read is an error of a call. Over mapped pages SIGBUS ends the process: tried with a file that was cut short. Reading and
hashing release the GIL, as hashing mapped pages does. New memory costs its page faults, two thirds of a read from the
page cache (experiments/LOG.md).
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.archive import NO_SEGMENT
from pltz.kv.port.arriving import ArrivingParts
from pltz.kv.port.codec import MAX_PARTS, PREFIX, KVCodec
from pltz.kv.port.private_file import opened
from pltz.kv.port.receipt import Receipt
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.tier import StoredBlock
from pltz.plt_codec import MAX_POSITION, CorruptError, Readers, UsageError, number_in

if TYPE_CHECKING:
    import torch

NAME, VERSION = "pltz hot", 1
FORMAT = f"{NAME} {VERSION}"
ALIGN = 64  # bytes: data begins at a multiple of it
CHECKSUM = 16  # bytes
CHUNK = 1 << 20  # bytes under one checksum
MAX_HEADER = 1 << 16  # bytes
READERS = 2  # threads that read one file
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
}  # fmt: skip
HEAD = ("checksums", "ids", "tokens", "mass", "logits")  # tensors before those of the codec
VERSIONS = Readers("the warm file", {VERSION: HEAD})
FIELDS = {"format", "form", "space", "segment", "parent", "start", "born", "receipt"}
MAX_RECEIPT = 1024  # characters


# ---- writing


class WarmFile:
    """A block as bytes, ready to be written. ``size``: of the whole file, in bytes.

    Raises UsageError for parts that a file cannot hold, and for KV with NaN or infinity: it is of a session that broke.
    """

    def __init__(self, space: bytes, segment: bytes, stored: StoredBlock, block: KVBlock) -> None:
        import torch

        if not all(name.startswith(PREFIX) for name in block.parts) or len(block.parts) > MAX_PARTS:
            raise UsageError(f"expected at most {MAX_PARTS} parts with names that begin with {PREFIX}")
        if not all(finite(t) for t in block.parts.values() if t.is_floating_point()):
            raise UsageError("this KV holds NaN or infinity: the session that it is of is broken")
        logits = torch.zeros(0) if block.logits is None else block.logits
        parts = sorted(block.parts.items(), key=lambda part: (part[1].nbytes, part[0]))
        tensors = {"logits": logits} | dict(parts)
        kinds = {f"torch.{name}": short for short, name in DTYPES.items()}
        if unknown := {str(t.dtype) for t in tensors.values()} - kinds.keys():
            raise UsageError(f"expected tensors of {', '.join(kinds)}, found {min(unknown)}")
        mass = () if block.mass is None else block.mass
        arrays = (("ids", "I32", block.ids), ("tokens", "I32", block.tokens), ("mass", "F32", mass))
        # Ids and tokens lie first, then logits, then the parts by size.
        rows = [(name, kind, np.shape(a), _packed(a, kind)) for name, kind, a in arrays]
        rows += [(name, kinds[str(t.dtype)], tuple(t.shape), _bytes(t.detach().cpu())) for name, t in tensors.items()]
        chunks = -(-sum(row[3].nbytes for row in rows) // CHUNK)
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
        # The checksums are a tensor too, the first: any reader of safetensors may open the file.
        at = CHECKSUM * (1 + chunks)
        entry = {"dtype": "U8", "shape": [1 + chunks, CHECKSUM], "data_offsets": [0, at]}
        header: dict[str, Any] = {"__metadata__": meta, "checksums": entry}
        for name, kind, shape, piece in rows:
            header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + piece.nbytes]}
            at += piece.nbytes
        # Spaces behind the header align what follows.
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        self._beginning = len(text).to_bytes(8, "little") + text
        self._pieces = [row[3] for row in rows]
        self._chunks = chunks
        self.size = len(self._beginning) + at

    def fill(self, handle: int) -> None:
        """Write everything to a file that has its size and is open for writing. Raises OSError."""
        import xxhash

        sums = [xxhash.xxh3_128_digest(self._beginning)]
        at = len(self._beginning) + CHECKSUM * (1 + self._chunks)
        for some in _chunks(self._pieces):
            state = xxhash.xxh3_128()
            for piece in some:
                state.update(piece)
                at = _write(handle, piece, at)
            sums.append(state.digest())
        _write(handle, memoryview(self._beginning + b"".join(sums)), 0)


def finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds no NaN and no infinity, by one look at each number and no copy."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.aminmax())


def _write(handle: int, data: memoryview, at: int) -> int:
    """Write at a place of a file. Returns the place after the data."""
    while data:
        count = os.pwrite(handle, data, at)
        data, at = data[count:], at + count
    return at


def _packed(array: Any, kind: str) -> memoryview:
    """Return the bytes of numbers, little-endian."""
    packed: memoryview = np.ascontiguousarray(array, {"I32": "<i4", "F32": "<f4"}[kind]).view(np.uint8).data
    return packed


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _chunks(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the pieces cut into chunks: views that together have CHUNK bytes, the last ones fewer."""
    some: list[memoryview] = []
    room = CHUNK
    for piece in pieces:
        while piece:
            some.append(piece[:room])
            room -= some[-1].nbytes
            piece = piece[some[-1].nbytes :]
            if not room:
                yield some
                some, room = [], CHUNK
    if some:
        yield some


# ---- reading


def read(
    path: Path,
    space: bytes,
    segment: bytes,
    codec: KVCodec,
    *,
    pin: bool = False,
    threads: Executor | None = None,
    failed: Callable[[Exception, os.stat_result], None] = lambda failure, stat: None,
    ended: Callable[[], None] = lambda: None,
) -> StoredBlock:
    """Return the block of a file. Its parts may still arrive, and are then `ArrivingParts`.

    Args:
        path: the file.
        space, segment, codec: what it must hold.
        pin: read into page-locked memory.
        threads: read what is longer than a chunk on these, after this returns; None for all of it before.
        failed: called with what failed and the file's status if a thread cannot go on, before anyone who waits hears.
        ended: called once, when the file is closed.

    Raises CorruptError where it is damaged or another file, and OSError and MemoryError where the
    machine cannot read it now.
    """
    handle, begun = -1, False
    reading: _Reading | None = None
    try:
        handle = opened(path)
        reading = _Reading(handle, space, segment, codec, pin)
        if threads is None or reading.chunks <= 1:
            reading.rest()
        else:
            begun = True  # the threads close the file
            reading.begin(threads, failed, ended)
        return reading.block(codec)  # after that: a codec may look at what is still to come
    except BaseException:
        if reading is not None:
            reading.stop()
        raise
    finally:
        if not begun:
            if handle >= 0:
                os.close(handle)
            ended()


class _Reading:
    """A file of which the header and the first chunks were read and checked. Raises as `read`."""

    def __init__(self, handle: int, space: bytes, segment: bytes, codec: KVCodec, pin: bool) -> None:
        self._handle, self.stat = handle, os.fstat(handle)
        header, end = self._header()
        try:
            meta = header.pop("__metadata__")
            parts = _checked(header, meta, space, segment, codec)
            self._parent, self._start, self._born = (
                bytes.fromhex(meta["parent"]), int(meta["start"]), float(meta["born"]),
            )  # fmt: skip
            shapes = dict(_shapes(header, self.stat.st_size - end))
        except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise CorruptError(f"not the header of a warm file ({exc})") from exc
        whose = len(self._parent) == len(NO_SEGMENT)
        if not whose or not 0 <= self._start <= MAX_POSITION or not 0 <= self._born < 1 << 40:
            raise CorruptError("no parent, or a start or a time that cannot be")
        if parts != sorted(parts, key=lambda name: (_size(*shapes[name]), name)):
            raise CorruptError("the parts do not lie in the order of their sizes")
        tensors = _memory({name: shapes[name] for name in (*HEAD[1:], *parts)}, pin)
        self._head = {name: tensors.pop(name) for name in HEAD[1:]}
        self.parts = ArrivingParts(tensors)
        self._before = sum(t.nbytes for t in self._head.values())
        self._views = list(_chunks([_bytes(t) for t in (*self._head.values(), *tensors.values())]))
        self.chunks = len(self._views)
        self._data = end + CHECKSUM * (1 + self.chunks)
        if shapes["checksums"] != ("uint8", (1 + self.chunks, CHECKSUM)):
            raise CorruptError("expected a checksum for each chunk")
        self._lock = Lock()
        self._done = bytearray(self.chunks)
        self._there = 0  # chunks from the front
        self._left = 0  # threads at work
        self._failure: Exception | None = None
        sums = os.pread(handle, CHECKSUM * (1 + self.chunks), end)
        self._sums = [sums[at : at + CHECKSUM] for at in range(0, len(sums), CHECKSUM)]
        if len(self._sums) != 1 + self.chunks or self._sums[0] != self._sum_of_header:
            raise CorruptError("the checksum is not that of the header: damaged")
        self._numbers = itertools.count(-(-self._before // CHUNK))
        for number in range(-(-self._before // CHUNK)):
            self._bring(number)

    def _header(self) -> tuple[dict[str, Any], int]:
        """Return the header and the place of the data."""
        import xxhash

        beginning = os.pread(self._handle, 8 + MAX_HEADER, 0)
        end = 8 + int.from_bytes(beginning[:8], "little")
        if not 8 < end <= len(beginning):
            raise CorruptError("the header is longer than the file")
        self._sum_of_header = xxhash.xxh3_128_digest(beginning[:end])
        try:
            header = json.loads(beginning[8:end])
        except (ValueError, RecursionError) as exc:
            raise CorruptError(f"not the header of a warm file ({exc})") from exc
        if not isinstance(header, dict):
            raise CorruptError("not the header of a warm file")
        return header, end

    def block(self, codec: KVCodec) -> StoredBlock:
        """Return the block. Raises CorruptError where the codec refuses its parts."""
        logits, mass, ids, tokens = (self._head[name] for name in ("logits", "mass", "ids", "tokens"))
        flat = logits.dim() == mass.dim() == ids.dim() == tokens.dim() == 1
        if not flat or not logits.is_floating_point() or {str(ids.dtype), str(tokens.dtype)} != {"torch.int32"}:
            raise CorruptError("the tensors do not fit each other")
        if str(mass.dtype) != "torch.float32" or len(mass) not in ((0, len(ids)) if codec.exact else (0,)):
            raise CorruptError(f"expected the attention that {len(ids)} ids received")
        codec.check(self.parts, len(ids))
        known = logits if len(logits) else None
        seen = mass.numpy() if len(mass) else None
        block = KVBlock(self.parts, ids.numpy(), tokens.numpy(), self._start, known, codec, seen)
        return StoredBlock(block, self._parent, self._born)

    def rest(self) -> None:
        """Read all chunks that are left."""
        for number in self._numbers:
            if number >= self.chunks:
                return
            self._bring(number)

    def begin(
        self, threads: Executor, failed: Callable[[Exception, os.stat_result], None], ended: Callable[[], None]
    ) -> None:
        """Read the rest on other threads, which then close the file."""
        self._left = READERS
        for _ in range(READERS):
            try:
                threads.submit(self._work, failed, ended)
            except RuntimeError:  # the interpreter ends, and takes no more work
                self._work(failed, ended)

    def stop(self) -> None:
        """Let threads read no more."""
        with self._lock:
            self._failure = self._failure or CorruptError("the block was refused")

    def _work(self, failed: Callable[[Exception, os.stat_result], None], ended: Callable[[], None]) -> None:
        try:
            for number in self._numbers:
                if number >= self.chunks or self._failure is not None:
                    break
                self._bring(number)
        except Exception as exc:  # noqa: BLE001 - whoever waits must hear of any failure
            with self._lock:
                first, self._failure = self._failure is None, self._failure or exc
            if first:
                failed(exc, self.stat)
                self.parts.fail(str(exc))
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            os.close(self._handle)
            ended()

    def _bring(self, number: int) -> None:
        """Read and check one chunk."""
        import xxhash

        views = self._views[number]
        at = self._data + number * CHUNK
        left = list(views)
        while left:
            count = os.preadv(self._handle, left, at)
            if not count:
                raise CorruptError("the file ends too early")
            at += count
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if count:
                left[0] = left[0][count:]
        state = xxhash.xxh3_128()
        for view in views:
            state.update(view)
        if state.digest() != self._sums[1 + number]:
            raise CorruptError("the checksum is not that of the bytes: damaged")
        with self._lock:
            self._done[number] = 1
            while self._there < self.chunks and self._done[self._there]:
                self._there += 1
            there = self._there
        self.parts.arrive(there * CHUNK - self._before)


def _checked(header: dict[str, Any], meta: Any, space: bytes, segment: bytes, codec: KVCodec) -> list[str]:
    """Return the names of the parts. Raises CorruptError, and others where the header is malformed."""
    if (version := number_in(meta["format"], NAME)) not in VERSIONS:
        raise CorruptError(VERSIONS.refusal(version))  # a cache: it is removed as a damaged one is
    head, parts = tuple(header)[: len(HEAD)], list(header)[len(HEAD) :]
    named = 0 < len(parts) <= MAX_PARTS and all(name.startswith(PREFIX) for name in parts)
    if set(meta) != FIELDS or head != HEAD or not named:
        raise CorruptError("fields are missing, or there are others")
    if (meta["form"], meta["space"], meta["segment"]) != (codec.name, space.hex(), segment.hex()):
        raise CorruptError("a file of another form, target or segment")
    if meta["receipt"]:
        Receipt.of(json.loads(meta["receipt"][:MAX_RECEIPT]))
    return parts


Shape = tuple[str, tuple[int, ...]]


def _shapes(header: Mapping[str, Any], size: int) -> Iterator[tuple[str, Shape]]:
    """Yield names, types and shapes of tensors that fill ``size`` bytes without gaps.

    Raises CorruptError; ValueError, TypeError and KeyError if the header is malformed.
    """
    at = 0
    for name, entry in header.items():
        kind, shape, (begin, stop) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in shape) and math.prod(n or 1 for n in shape) < 1 << 48
        if not sound or begin != at or stop != at + _size(kind, shape) or stop > size:
            raise CorruptError(f"tensor {name} does not lie where it must")
        yield name, (kind, shape)
        at = stop
    if at != size:
        raise CorruptError("the tensors do not fill the file")


def _size(kind: str, shape: Sequence[int]) -> int:
    import torch

    dtype: torch.dtype = getattr(torch, kind)
    return math.prod(shape) * dtype.itemsize


def _memory(shapes: Mapping[str, Shape], pin: bool) -> dict[str, torch.Tensor]:
    """Return tensors to read into. Raises MemoryError."""
    import torch

    try:
        return {
            name: torch.empty(shape, dtype=getattr(torch, kind), pin_memory=pin and name.startswith(PREFIX))
            for name, (kind, shape) in shapes.items()
        }
    except RuntimeError as exc:
        raise MemoryError(str(exc)) from exc
