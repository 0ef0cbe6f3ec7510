"""Snapshot: token ids as they are at this moment, whatever the caller does to them later. What it costs is a copy of memory: no id is looked at.

    held, size = Snapshots().take(token_ids)        # in the serving loop: microseconds
    ids = ids_of(held)                              # later, in the flusher: (T,), an array

Ids are copied into memory that was touched before: the first touch of a page costs more than the copy that goes into it (118 us against 35
for 256 KB). Neither `ndarray.copy` nor `copyto` will do: they let go of the interpreter, and may wait 5 ms to have it back. Lists and arrays of signed
integers are read by `ids.c`, which looks at them on its way; without it, or where anything else is in them, an array is copied as it is, and a list kept
as a tuple of the same objects and looked at in the flusher. Bytes and tuples nobody can change are kept as they are.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections import deque
from typing import Any

import numpy as np

from pltz.archive.identity import Tokens
from pltz.plt_codec.errors import UsageError

try:
    from pltz.archive.hooks._ids import copy_ids
except ImportError:  # it is built where there is a C compiler
    copy_ids = None  # type: ignore[assignment]  # which is looked at before each use

MAX_TOKENS = (1 << 26) - (1 << 16)  # of one eviction: what an entry holds
TUPLE_ITEM = 36  # bytes that an id of a Python list takes, where it is kept
RAW, PLAIN = np.dtype("<u4"), np.dtype(np.uint32)  # what bytes are, and what `copy_ids` writes
BUFFER = 1 << 18  # bytes: 65,536 ids of 4
BUFFERS = 64
SMALL = 1 << 14  # bytes; to a copy up to here the allocator gives memory that is in use anyway
PIECE = 4096  # ids turned into an array at a time, 20 us; between pieces the serving loop may go on
PAUSE = 5e-5  # seconds


USUAL: dict[str, np.dtype[Any]] = {"torch.int64": np.dtype(np.int64), "torch.int32": np.dtype(np.int32)}
READ = 0x100  # PyBUF_READ
_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


class Refused(Exception):
    """An eviction that is not taken, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Raw:
    """An array of ids, (T,), as bytes; where ``data`` is a memoryview, its buffer goes home when nobody needs it any more. ``known``: all are in range."""

    __slots__ = ("_home", "data", "dtype", "known")

    def __init__(self, data: Any, dtype: np.dtype[Any], home: deque[bytearray] | None = None) -> None:
        self.data, self.dtype, self._home, self.known = data, dtype, home, False

    def __len__(self) -> int:
        return len(self.data) // self.dtype.itemsize

    def __del__(self) -> None:
        if self._home is not None:
            self._home.append(self.data.obj)


class Snapshots:
    """See the head of this file. Holds BUFFERS * BUFFER bytes."""

    def __init__(self) -> None:
        self._free = deque(bytearray(b"\1") * BUFFER for _ in range(BUFFERS))  # zeros would not be touched

    def take(self, ids: Any) -> tuple[tuple[Any, ...] | Raw, int]:
        """The ids, and the bytes they take in memory. Raises Refused."""
        if isinstance(ids, list | tuple):
            _check_length(len(ids))
            if type(ids) is list and (plain := self._plain(ids)):
                return plain, len(plain.data)
            return tuple(ids), TUPLE_ITEM * len(ids)
        if isinstance(ids, bytes | bytearray):
            if len(ids) % RAW.itemsize:
                raise Refused("not token ids")
            _check_length(len(ids) // RAW.itemsize)
            return Raw(bytes(ids), RAW), len(ids)
        if not isinstance(ids, np.ndarray):
            ids = _of_torch(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise Refused("not token ids")
        _check_length(len(ids))
        held = self._copied(ids)
        return held, len(held.data)

    def _plain(self, ids: list[Any] | Tokens) -> Raw | None:
        """As 32-bit integers; None where it is not compiled, or there is anything else among them."""
        if copy_ids is None:
            return None
        raw = self._room(PLAIN.itemsize * len(ids), PLAIN)
        raw.known = copy_ids(ids, raw.data)
        return raw if raw.known else None

    def _copied(self, ids: Tokens) -> Raw:
        if ids.nbytes <= SMALL or not ids.flags.c_contiguous:
            return Raw(ids.tobytes(), ids.dtype)
        if ids.dtype in (np.int64, np.int32) and (plain := self._plain(ids)):
            return plain
        raw = self._room(ids.nbytes, ids.dtype)
        raw.data[:] = ids.view(np.uint8).data
        return raw

    def _room(self, size: int, dtype: np.dtype[Any]) -> Raw:
        """Memory for a copy of so many bytes."""
        if SMALL < size <= BUFFER:
            try:
                return Raw(
                    memoryview(self._free.pop())[:size], dtype, self._free
                )  # the last one that came back
            except IndexError:  # all of them wait to be written
                pass
        return Raw(bytearray(size), dtype)


def ids_of(held: tuple[Any, ...] | Raw) -> Tokens:
    """(T,) ids; those of a `Raw` lie in its memory. Raises UsageError."""
    if isinstance(held, Raw):
        return np.frombuffer(held.data, held.dtype)
    found = array("I")
    try:
        for at in range(0, len(held), PIECE):
            if at:
                time.sleep(PAUSE)
            found.extend(array("I", held[at : at + PIECE]))
    except (TypeError, ValueError, OverflowError) as exc:
        raise UsageError("expected token ids") from exc
    return np.frombuffer(found, np.uintc)


def _of_torch(ids: Any) -> Any:
    """The array over a tensor's memory. torch is not imported for this, and what of it lets go of the interpreter, `numpy` too, is called only for
    tensors that are not of the usual kind."""
    if not hasattr(ids, "requires_grad") or ids.requires_grad:  # which integers never do
        raise Refused("not token ids")
    if ids.device.type != "cpu":
        raise Refused("tokens on a device")  # to copy them would wait for it
    dtype = USUAL.get(str(ids.dtype))
    plain = ids.ndim == 1 and ids.is_contiguous() and type(ids).__module__ == "torch"
    if dtype is None or not plain or not (at := ids.data_ptr()):
        return ids.numpy()
    return np.frombuffer(_memory(at, dtype.itemsize * len(ids), READ), dtype)


def _check_length(length: int) -> None:
    if not 0 < length <= MAX_TOKENS:
        raise Refused("too long" if length else "no tokens")
