"""A pool of device memory: freed buffers are kept for the next allocation.

To allocate and above all to free memory takes a driver 0.2 ms where other work has mapped much of the device's memory.
One session needs nine buffers and is decoded in 15 ms. To free also waits for all work of the device: a thread that
encodes waited for what others had queued to decode. The memory kept is bounded, so that others never miss it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from pltz.plt_codec.errors import ModelError

LEAST = 512  # bytes
LARGEST = 32 << 20  # bytes of a buffer that is kept
KEPT = 64 << 20  # bytes of all buffers that are kept
_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_POOLS_LOCK = threading.Lock()


class OutOfMemory(ModelError):
    """A device has less memory left than an allocation asks for."""


class Pool:
    """Buffers of powers of two bytes; those over LARGEST are as large as asked for, or a bit more. Any thread may call.

    Args:
        get: allocates bytes and returns the address. Its errors come through; OutOfMemory after a second try, with
            nothing kept by any pool of the device.
        put: frees an address.
        device: number of the device.
        kept: bytes that are kept at most; None: KEPT, and no buffer over LARGEST.
    """

    def __init__(
        self, get: Callable[[int], int], put: Callable[[int], None], *, device: int = 0, kept: int | None = None
    ) -> None:
        self._get, self._put, self.device = get, put, device
        self._most, self._largest = (KEPT, LARGEST) if kept is None else (kept, kept)
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}  # address -> bytes, of buffers in use
        self._kept: dict[int, list[int]] = {}  # bytes -> addresses
        self.kept = 0  # bytes
        with _POOLS_LOCK:
            _POOLS.add(self)

    def take(self, size: int) -> int:
        """Return the address of at least `size` bytes of any content."""
        step = 1 << (max(size, LEAST) - 1).bit_length()
        if size > LARGEST:
            step = 1 if self._largest == LARGEST else step // 8
        room = -(-max(size, LEAST) // step) * step
        try:
            return self._taken(room)
        except OutOfMemory:
            with _POOLS_LOCK:
                pools = [pool for pool in _POOLS if pool.device == self.device and pool.kept]
            if not pools:
                raise
            for pool in pools:
                pool.drop()
            return self._taken(room)

    def _taken(self, room: int) -> int:
        with self._lock:
            fits = [n for n in self._kept if self._kept[n] and room <= n <= (2 * room if room > LARGEST else room)]
            if fits:
                room = min(fits)
                address = self._kept[room].pop()
                self.kept -= room
            else:
                address = self._get(room)
            self._sizes[address] = room
            return address

    def give(self, address: int) -> None:
        """Take a buffer back."""
        with self._lock:
            room = self._sizes.pop(address)
            if room > self._largest:
                self._put(address)
                return
            if self.kept + room > self._most:
                self.drop()
            self._kept.setdefault(room, []).append(address)
            self.kept += room

    def drop(self) -> None:
        """Free all buffers that are kept."""
        with self._lock:
            for addresses in self._kept.values():
                for address in addresses:
                    self._put(address)
            self._kept, self.kept = {}, 0
