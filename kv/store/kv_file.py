"""KVFile: named tensors as a safetensors file with a checksum per chunk, read while it is decoded. Spec: FORMAT.md.

    write:  header | checksums | ids and other small tensors | small parts | the large part, layer after layer
    read:   header, by the library -> memory for every tensor -> chunks, each checked, by two threads at once

Of a sealed archive chunks are encrypted, and their tags are the checksums (`file_keys.py`).
What is read lies in memory of its own, so a page that cannot be read is an error of a call. Over mapped pages SIGBUS
ends the process: tried with a file that was cut short. Reading and hashing release the GIL. New memory costs its page
faults, two thirds of a read from the page cache (experiments/LOG.md).
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pltz.kv.errors import ForeignFile
from pltz.kv.port.arriving import ArrivingParts
from pltz.kv.port.codec import MAX_PARTS, PREFIX
from pltz.kv.port.private_file import opened
from pltz.kv.store.file_keys import CLEAR, Clear, FileKeys, Sealed
from pltz.plt_codec import MAX_POSITION, CorruptError, Readers, UsageError, number_in

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

NAME, VERSION = "pltz kv", 1
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
SUMS = "checksums"
PARENT = "parent"
FIELDS = {"format", "form", "space", "name", "tenant", "salt", "start", "label"}
VERSIONS = Readers("the file of KV", {VERSION: FIELDS})


@dataclass(frozen=True, eq=False)
class KVFile:
    """A file's contents. Names are bytes, and stand in it in hexadecimal.

    ``form``: of its parts, or what else it is. ``space``: of the target and its pages. ``name``: of the last block.
    ``tenant``: whose it is. ``parent``: of the block before the first, empty for none. ``start``: ids before it.
    ``label``: for people. ``head``: small tensors. ``parts``: of the form, their names begin with "kv".
    """

    form: str
    space: bytes
    name: bytes
    head: Tensors
    parts: Tensors = field(default_factory=dict)
    tenant: bytes = b""
    parent: bytes = b""
    start: int = 0
    label: str = ""


# ---- writing


class KVFileWriter:
    """A file as bytes, ready to be written. ``size``: of all of it. ``seal``: encrypts it.

    Raises UsageError for parts that a file cannot hold, and for KV with NaN or infinity: it is of a session that broke.
    """

    def __init__(self, file: KVFile, seal: Clear | Sealed = CLEAR) -> None:
        import torch

        if not all(name.startswith(PREFIX) for name in file.parts) or len(file.parts) > MAX_PARTS:
            raise UsageError(f"expected at most {MAX_PARTS} parts with names that begin with {PREFIX}")
        if not all(finite(t) for t in file.parts.values() if t.is_floating_point()):
            raise UsageError("this KV holds NaN or infinity: the session that it is of is broken")
        above = {PARENT: torch.frombuffer(bytearray(file.parent), dtype=torch.uint8)} if file.parent else {}
        head = {**file.head, **above}
        tensors = {**head, **dict(sorted(file.parts.items(), key=lambda part: (part[1].nbytes, part[0])))}
        kinds = {f"torch.{name}": short for short, name in DTYPES.items()}
        if unknown := {str(t.dtype) for t in tensors.values()} - kinds.keys():
            raise UsageError(f"expected tensors of {', '.join(kinds)}, found {min(unknown)}")
        pieces = [_bytes(t.detach().cpu()) for t in tensors.values()]
        self._chunks, self._seal = _chunks(pieces[: len(head)], pieces[len(head) :]), seal
        meta = {
            "format": FORMAT, "form": file.form, "space": file.space.hex(), "name": file.name.hex(),
            "tenant": file.tenant.hex(), "salt": seal.salt.hex(), "start": str(file.start), "label": file.label,
        }  # fmt: skip
        # The checksums are a tensor too, the first: any reader of safetensors may open the file.
        at = CHECKSUM * (1 + len(self._chunks))
        entry = {"dtype": "U8", "shape": [1 + len(self._chunks), CHECKSUM], "data_offsets": [0, at]}
        header: dict[str, Any] = {"__metadata__": meta, SUMS: entry}
        for (name, tensor), piece in zip(tensors.items(), pieces, strict=True):
            end = at + piece.nbytes
            header[name] = {
                "dtype": kinds[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [at, end],
            }  # fmt: skip
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        self._beginning = len(text).to_bytes(8, "little") + text
        self.size = len(self._beginning) + at

    def fill(self, handle: int) -> None:
        """Write everything to a file that has its size and is open for writing. Raises OSError."""
        sums = [self._seal.of_header(self._beginning)]
        at = len(self._beginning) + CHECKSUM * (1 + len(self._chunks))
        for number, some in enumerate(self._chunks, 1):
            pieces, row = self._seal.closed(number, some)
            for piece in pieces:
                at = _write(handle, piece, at)
            sums.append(row)
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


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _chunks(*groups: Sequence[memoryview]) -> list[list[memoryview]]:
    """Return each group of pieces cut into chunks: views that together have CHUNK bytes, the last of a group fewer."""
    found: list[list[memoryview]] = []
    for pieces in groups:
        room = 0
        for piece in pieces:
            while piece:
                if not room:
                    found.append([])
                    room = CHUNK
                found[-1].append(piece[:room])
                room -= found[-1][-1].nbytes
                piece = piece[found[-1][-1].nbytes :]
    return found


# ---- reading


def read(
    path: Path,
    keys: FileKeys | None = None,
    *,
    pin: bool = False,
    threads: Executor | None = None,
    failed: Callable[[Exception, os.stat_result], None] = lambda failure, stat: None,
    ended: Callable[[], None] = lambda: None,
) -> KVFile:
    """Return a file's contents. Its parts may still arrive, and are then `ArrivingParts`; its head is there.

    Args:
        path: the file.
        keys: of a sealed archive, whose files alone are read then; None for files in the clear.
        pin: read into page-locked memory.
        threads: read what is longer than a chunk on these, after this returns; None for all of it before.
        failed: called with what failed and the file's status if a thread cannot go on, before anyone who waits hears.
        ended: called once, when the file is closed.

    Raises CorruptError where it is damaged, ForeignFile where it is not of these keys, VersionError where it is later,
    and OSError and MemoryError where the machine cannot read it now.
    """
    handle, begun = -1, False
    reading: _Reading | None = None
    try:
        handle = opened(path)
        reading = _Reading(handle, keys, pin)
        if threads is None or reading.few:
            reading.rest()
        else:
            begun = True  # the threads close the file
            reading.begin(threads, failed, ended)
        return reading.file
    finally:
        if not begun:
            if handle >= 0:
                os.close(handle)
            ended()


def peek(path: Path, keys: FileKeys | None = None) -> KVFile:
    """Return a file without its parts: for a look at many. Raises as `read`."""
    with _opened(path) as handle:
        return replace(_Reading(handle, keys, pin=False).file, parts={})


def owner_of(path: Path, keys: FileKeys | None = None) -> bytes:
    """Return the tenant that a file names, also where there is no key of it. Raises as `read`."""
    with _opened(path) as handle:
        return bytes.fromhex(_Header(handle, keys).meta["tenant"])


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = opened(path)
    try:
        yield handle
    finally:
        os.close(handle)


class _Header:
    """The header of a file: its fields, and type and shape of each tensor. ``seal``: None for a file of other keys.

    Raises as `read`.
    """

    def __init__(self, handle: int, keys: FileKeys | None) -> None:
        from safetensors import SafetensorError, safe_open

        beginning = os.pread(handle, 8 + MAX_HEADER, 0)
        end = 8 + int.from_bytes(beginning[:8], "little")
        if not 8 < end <= len(beginning):
            raise CorruptError("the header is longer than the file, or than any")
        self.bytes = beginning[:end]
        row = os.pread(handle, CHECKSUM, end)
        self.seal: Clear | Sealed | None = CLEAR
        try:
            # the library maps the file, and is asked for the header alone
            with safe_open(f"/dev/fd/{handle}", "pt") as file:
                self.meta = file.metadata() or {}
                slices = {name: file.get_slice(name) for name in file.offset_keys()}
                shapes = [(name, one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()]
            if row != CLEAR.of_header(self.bytes):
                self.seal = _seal_of(self.meta, keys)
                if self.seal is not None and row != self.seal.of_header(self.bytes):
                    raise CorruptError("the key of its tenant does not open it: damaged, or from before an erasure")
            elif keys is not None:
                self.seal = None
        except (SafetensorError, OverflowError) as exc:
            raise CorruptError(f"no file of KV ({exc})") from exc
        if (version := number_in(self.meta.get("format"), NAME)) is None:
            raise CorruptError(f"expected the format {FORMAT}, found {str(self.meta.get('format'))[:40]!r}")
        if set(self.meta) != VERSIONS[version]:
            raise CorruptError("fields are missing, or there are others")
        self.kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, kind, shape in shapes:
            if kind not in DTYPES or (kind == "BF16" and not name.startswith(PREFIX)):
                raise CorruptError(f"tensor {name[:40]!r} is of the type {kind}")
            self.kinds[name] = DTYPES[kind], shape
        if next(iter(self.kinds), None) != SUMS:
            raise CorruptError("no checksums come first")
        try:
            self.start = int(self.meta["start"]) if self.meta["start"].isdigit() else -1
            self._names = {name: bytes.fromhex(self.meta[name]) for name in ("space", "name", "tenant")}
        except ValueError as exc:
            raise CorruptError(f"no header of a file of KV ({exc})") from exc
        if not 0 <= self.start <= MAX_POSITION:
            raise CorruptError("a start that cannot be")

    def file(self, head: dict[str, torch.Tensor], parts: Tensors) -> KVFile:
        """Return the contents of the file with these tensors."""
        parent = head.pop(PARENT, None)
        return KVFile(
            self.meta["form"], head=head, parts=parts, start=self.start, label=self.meta["label"],
            parent=b"" if parent is None else parent.numpy().tobytes(), **self._names,
        )  # fmt: skip


def _seal_of(meta: Mapping[str, str], keys: FileKeys | None) -> Sealed | None:
    """Return what opens a file that names tenant and salt, None where there is no key. Raises CorruptError."""
    try:
        owner, salt = (bytes.fromhex(meta[name]) for name in ("tenant", "salt"))
    except (KeyError, ValueError):
        owner = salt = b""
    if not salt:
        raise CorruptError("the checksum is not that of the header: damaged, or no file of KV")
    return None if keys is None else keys.seal(owner, salt)


class _Reading:
    """A file of which the header and the chunks of the head were read and checked. Raises as `read`."""

    def __init__(self, handle: int, keys: FileKeys | None, pin: bool) -> None:
        self._handle, self.stat = handle, os.fstat(handle)
        header = _Header(handle, keys)
        if header.seal is None:
            raise ForeignFile(bytes.fromhex(header.meta["tenant"]))
        self._seal, kinds = header.seal, header.kinds
        heads = [name for name in kinds if name != SUMS and not name.startswith(PREFIX)]
        parts = sorted((n for n in kinds if n.startswith(PREFIX)), key=lambda name: (_size(*kinds[name]), name))
        filled = [name for name in kinds if _size(*kinds[name])]  # where an empty one lies says nothing
        if filled != [name for name in (SUMS, *heads, *parts) if name in filled] or len(parts) > MAX_PARTS:
            raise CorruptError("the parts do not lie last, in the order of their sizes, or are too many")
        tensors = _memory({name: kinds[name] for name in (*heads, *parts)}, pin)
        head = {name: tensors.pop(name) for name in heads}
        own = _chunks([_bytes(t) for t in head.values()])
        self._views = own + _chunks([_bytes(t) for t in tensors.values()])
        self.few = len(self._views) - len(own) <= 1  # chunks of parts
        self._ends = list(itertools.accumulate(sum(view.nbytes for view in views) for views in self._views))
        self.chunks = len(self._views)
        if kinds[SUMS] != ("uint8", (1 + self.chunks, CHECKSUM)):
            raise CorruptError("expected a checksum for each chunk")
        self._data = len(header.bytes) + CHECKSUM * (1 + self.chunks)
        self._parts = ArrivingParts(tensors)
        self._lock = Lock()
        self._done = bytearray(self.chunks)
        self._there = 0  # chunks from the front
        self._left = 0  # threads at work
        self._failure: Exception | None = None
        sums = os.pread(handle, CHECKSUM * (1 + self.chunks), len(header.bytes))
        self._sums = [sums[at : at + CHECKSUM] for at in range(0, len(sums), CHECKSUM)]
        if len(self._sums) != 1 + self.chunks:
            raise CorruptError("the file ends too early")
        self._before = self._ends[len(own) - 1] if own else 0
        self._numbers = itertools.count(len(own))
        for number in range(len(own)):
            self._bring(number)
        self.file = header.file(head, self._parts if tensors else {})

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
                self._parts.fail(str(exc))
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            os.close(self._handle)
            ended()

    def _bring(self, number: int) -> None:
        """Read and check one chunk."""
        views = self._views[number]
        at = self._data + (self._ends[number - 1] if number else 0)
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
        if not self._seal.opened(1 + number, views, self._sums[1 + number]):
            raise CorruptError("the checksum is not that of the bytes: damaged")
        with self._lock:
            self._done[number] = 1
            while self._there < self.chunks and self._done[self._there]:
                self._there += 1
            there = self._there
        self._parts.arrive(self._ends[there - 1] - self._before if there else 0)


def _size(kind: str, shape: Sequence[int]) -> int:
    import torch

    dtype: torch.dtype = getattr(torch, kind)
    return math.prod(shape) * dtype.itemsize


def _memory(shapes: Mapping[str, tuple[str, tuple[int, ...]]], pin: bool) -> dict[str, torch.Tensor]:
    """Return tensors to read into. Raises MemoryError."""
    import torch

    try:
        return {
            name: torch.empty(shape, dtype=getattr(torch, kind), pin_memory=pin and name.startswith(PREFIX))
            for name, (kind, shape) in shapes.items()
        }
    except (RuntimeError, OverflowError) as exc:
        raise MemoryError(str(exc)) from exc
