"""Snapshot: token ids as they are at this moment, whatever the caller does to them later. What it costs is a copy of memory: no id is looked at.

    held, size = Snapshots().take(token_ids)        # in the serving loop: microseconds
    ids = ids_of(held)                              # later, in the flusher: (T,), an array

Ids are copied into memory that was touched before: the first touch of a page costs more than the copy that goes into it (118 us against 35
for 256 KB). Neither `ndarray.copy` nor `copyto` will do: they let go of the interpreter, and may wait 5 ms to have it back. Lists, arrays and tensors of
integers are read by `ids.c`, which looks at them on its way; without it, or where anything else is in them, an array is copied as it is, and a list
kept as a tuple of the same objects and looked at in the flusher. Bytes and tuples nobody can change are kept as they are.

After a step of a model nothing of this is in a near cache, and then each line of Python costs some tenths of a microsecond: so the usual kinds are asked for
first, and little is asked of them.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from typing import Any

import numpy as np

from pltz.archive.format.ids import Tokens
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.limits import MAX_IDS

try:
    from pltz.archive.eviction._ids import copy_ids, copy_memory
except ImportError:  # it is built where there is a C compiler
    copy_ids = None  # type: ignore[assignment]  # which is looked at before each use

TUPLE_ITEM = 36  # bytes that an id of a Python list takes, where it is kept
RAW, PLAIN = np.dtype("<u4"), np.dtype(np.uint32)  # what bytes are, and what `copy_ids` writes
BUFFER = 1 << 16  # bytes: 16,384 ids of 4
BUFFERS, MOST = 256, 1024
SMALL = 1 << 14  # bytes; to a copy up to here the allocator gives memory that is in use anyway
PIECE = 4096  # ids turned into an array at a time, 20 us; between pieces the serving loop may go on
PAUSE = 5e-5  # seconds


TENSORS = {"torch.int64": 8, "torch.int32": 4}  # bytes of an id, of the usual kinds


class Refused(Exception):
    """An eviction that is not taken. ``reason``: one of a few, to count by; ``why``: more of it."""

    def __init__(self, reason: str, why: str = "") -> None:
        super().__init__(reason)
        self.reason, self.why = reason, why


class Raw:
    """``count`` ids in ``pieces``, filled one after the other: buffers that go home when nobody needs them any more, or bytes. ``known``: all are in range."""

    __slots__ = ("_home", "count", "dtype", "known", "pieces")

    def __init__(
        self, pieces: list[Any], count: int, dtype: np.dtype[Any], home: deque[bytearray] | None = None
    ) -> None:
        self.pieces, self.count, self.dtype, self._home, self.known = pieces, count, dtype, home, False

    def __len__(self) -> int:
        return self.count

    def __del__(self) -> None:
        if self._home is not None:
            self._home.extend(self.pieces)


class Snapshots:
    """See the head of this file. Holds BUFFERS * BUFFER bytes, and MOST * BUFFER at most where the disk is slow."""

    def __init__(self) -> None:
        touched = (bytearray(b"\1") * BUFFER for _ in range(BUFFERS))  # as zeros need not be
        self._free = deque(touched, MOST)

    def take(self, ids: Any) -> tuple[tuple[Any, ...] | Raw, int]:
        """The ids, and the bytes they take in memory. Raises Refused."""
        kind = type(ids)
        if copy_ids is None:
            return self._as_it_is(ids)
        if kind is list or (kind is np.ndarray and ids.ndim == 1):
            raw = self._room(len(ids))
            raw.known = copy_ids(ids, raw.pieces)
        elif kind.__module__ == "torch" and (found := _memory_of(ids)):
            raw = self._room(found[2])
            raw.known = copy_memory(*found, raw.pieces)
        else:
            return self._as_it_is(ids)
        return (raw, sum(map(len, raw.pieces))) if raw.known else self._as_it_is(ids)

    def _as_it_is(self, ids: Any) -> tuple[tuple[Any, ...] | Raw, int]:
        """What is not plain, to be looked at later. Raises Refused."""
        if isinstance(ids, (list, tuple)):
            _check_length(len(ids))
            return tuple(ids), TUPLE_ITEM * len(ids)
        if isinstance(ids, (bytes, bytearray)):
            if len(ids) % RAW.itemsize:
                raise Refused("not token ids")
            _check_length(len(ids) // RAW.itemsize)
            return Raw([bytes(ids)], len(ids) // RAW.itemsize, RAW), len(ids)
        if not isinstance(ids, np.ndarray):
            ids = _of_torch(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise Refused("not token ids")
        _check_length(len(ids))
        return Raw([ids.tobytes()], len(ids), ids.dtype), ids.nbytes

    def _room(self, count: int) -> Raw:
        """Memory for so many ids. Raises Refused."""
        _check_length(count)
        size = PLAIN.itemsize * count
        if size > SMALL:
            raw = Raw([], count, PLAIN, self._free)
            for _ in range(0, size, BUFFER):
                try:
                    raw.pieces.append(self._free.pop())  # the last one that came back
                except IndexError:  # all of them wait to be written: one more, which stays, too
                    raw.pieces.append(bytearray(BUFFER))
            return raw
        return Raw([bytearray(size)], count, PLAIN)


def ids_of(held: tuple[Any, ...] | Raw) -> Tokens:
    """(T,) ids; they may lie in the memory of a `Raw`. Raises UsageError."""
    if isinstance(held, Raw):
        pieces = [np.frombuffer(piece, held.dtype) for piece in held.pieces]
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces))[: held.count]
    found = array("I")
    try:
        for at in range(0, len(held), PIECE):
            if at:
                time.sleep(PAUSE)
            found.extend(array("I", held[at : at + PIECE]))
    except (TypeError, ValueError, OverflowError) as exc:
        raise UsageError("expected token ids") from exc
    return np.frombuffer(found, np.uintc)


def _memory_of(ids: Any) -> tuple[int, int, int] | None:
    """Where a tensor's ids lie, the bytes of each, and how many there are; None where they are not of the usual kind, in a row, in memory. torch is not
    imported for this, and what of it lets go of the interpreter, `numpy` too, is not called."""
    size = TENSORS.get(str(getattr(ids, "dtype", "")))
    if size is None or not ids.is_cpu or len(shape := ids.shape) != 1 or not ids.is_contiguous():
        return None
    at = ids.data_ptr()
    return (at, size, shape[0]) if at else None


def _of_torch(ids: Any) -> Any:
    """The array over a tensor's memory."""
    if not hasattr(ids, "requires_grad") or ids.requires_grad:  # which integers never do
        raise Refused("not token ids")
    if not ids.is_cpu:
        raise Refused("tokens on a device")  # to copy them would wait for it
    if ids.shape.numel() and not ids.data_ptr():
        raise Refused("not token ids")  # its memory was taken away; numpy would make up some
    return ids.numpy()


def _check_length(length: int) -> None:
    if not 0 < length <= MAX_IDS:
        raise Refused("too long" if length else "no tokens")
