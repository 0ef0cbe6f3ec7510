"""Snapshot: token ids as they are now, unaffected by later changes of the caller's.

It costs one copy of memory.

    held, size = TokenBuffers().take(token_ids)        # in the serving loop: microseconds
    ids = ids_of(held)                              # later, in the flusher: (T,), an array

Ids are copied into memory that was touched before, because the first touch of a page costs more than the copy
(118 us against 35 us for 256 KB). Neither `ndarray.copy` nor `copyto` will do. They release the GIL, and
taking it back may wait 5 ms.

Lists, arrays and tensors of integers are read by `ids.c`, which checks the ids as it copies them. Without it,
or for other content, an array is copied as it is. A list is then kept as a tuple of the same objects and
checked in the flusher. Bytes and tuples are immutable and kept as they are.

After a step of a model none of this is in a near cache, and each line of Python costs some tenths of a
microsecond. So the usual kinds are tested first, with few attribute accesses.
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
    from pltz.serving.eviction._ids import copy_ids, copy_memory
except ImportError:  # it is built where there is a C compiler
    copy_ids = None  # type: ignore[assignment]  # tested before each use

TUPLE_ITEM = 36  # bytes per id of a Python list that is kept
# the type of ids in bytes, and the type that `copy_ids` writes
RAW, PLAIN = np.dtype("<u4"), np.dtype(np.uint32)
BUFFER = 1 << 16  # bytes: 16,384 ids of 4
BUFFERS, MOST = 256, 1024
SMALL = 1 << 14  # bytes; for copies up to this size the allocator returns memory that is in use anyway
PIECE = 4096  # ids converted to an array at a time, 20 us; the serving loop may run between pieces
PAUSE = 5e-5  # seconds


TENSORS = {"torch.int64": 8, "torch.int32": 4}  # bytes per id, of the usual kinds


class EvictionRefused(Exception):
    """An eviction that is not accepted.

    ``reason``: one of a few words to count by. ``why``: a longer explanation.
    """

    def __init__(self, reason: str, why: str = "") -> None:
        super().__init__(reason)
        self.reason, self.why = reason, why


class HeldTokens:
    """``count`` ids in ``pieces``, which are filled one after the other.

    The pieces are bytes, or buffers that return to their pool when this object is deleted. ``known``: all ids
    are known to be in range.
    """

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


class TokenBuffers:
    """A pool of buffers for snapshots (see the top of this file).

    It holds BUFFERS * BUFFER bytes, and at most MOST * BUFFER where the disk is slow.
    """

    def __init__(self) -> None:
        touched = (bytearray(b"\1") * BUFFER for _ in range(BUFFERS))  # pages of zeros may be untouched
        self._free = deque(touched, MOST)

    def take(self, ids: Any) -> tuple[tuple[Any, ...] | HeldTokens, int]:
        """Return a snapshot of the ids and the bytes it takes in memory. Raises EvictionRefused."""
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

    def _as_it_is(self, ids: Any) -> tuple[tuple[Any, ...] | HeldTokens, int]:
        """Keep ids that are not of a usual kind, to be checked later. Raises EvictionRefused."""
        if isinstance(ids, (list, tuple)):
            _check_length(len(ids))
            return tuple(ids), TUPLE_ITEM * len(ids)
        if isinstance(ids, (bytes, bytearray)):
            if len(ids) % RAW.itemsize:
                raise EvictionRefused("not token ids")
            _check_length(len(ids) // RAW.itemsize)
            return HeldTokens([bytes(ids)], len(ids) // RAW.itemsize, RAW), len(ids)
        if not isinstance(ids, np.ndarray):
            ids = _of_torch(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise EvictionRefused("not token ids")
        _check_length(len(ids))
        return HeldTokens([ids.tobytes()], len(ids), ids.dtype), ids.nbytes

    def _room(self, count: int) -> HeldTokens:
        """Return memory for ``count`` ids. Raises EvictionRefused."""
        _check_length(count)
        size = PLAIN.itemsize * count
        if size > SMALL:
            raw = HeldTokens([], count, PLAIN, self._free)
            for _ in range(0, size, BUFFER):
                try:
                    raw.pieces.append(self._free.pop())  # the most recently returned one
                except IndexError:  # all of them wait to be written: add one, which stays in the pool
                    raw.pieces.append(bytearray(BUFFER))
            return raw
        return HeldTokens([bytearray(size)], count, PLAIN)


def ids_of(held: tuple[Any, ...] | HeldTokens) -> Tokens:
    """Return the ids of a snapshot, (T,), possibly in the memory of a `HeldTokens`. Raises UsageError."""
    if isinstance(held, HeldTokens):
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
    """Return the address of a tensor's ids, the bytes per id, and their number.

    Returns None unless the ids are of a usual kind, contiguous and in host memory. It does not import torch,
    and calls nothing that releases the GIL, such as ``numpy``.
    """
    size = TENSORS.get(str(getattr(ids, "dtype", "")))
    if size is None or not ids.is_cpu or len(shape := ids.shape) != 1 or not ids.is_contiguous():
        return None
    at = ids.data_ptr()
    return (at, size, shape[0]) if at else None


def _of_torch(ids: Any) -> Any:
    """Return the array over a tensor's memory. Raises EvictionRefused."""
    if not hasattr(ids, "requires_grad") or ids.requires_grad:  # integers never require gradients
        raise EvictionRefused("not token ids")
    if not ids.is_cpu:
        raise EvictionRefused("tokens on a device")  # copying them would wait for the device
    if ids.shape.numel() and not ids.data_ptr():
        raise EvictionRefused("not token ids")  # its memory was released; numpy would invent ids
    return ids.numpy()


def _check_length(length: int) -> None:
    if not 0 < length <= MAX_IDS:
        raise EvictionRefused("too long" if length else "no tokens")
