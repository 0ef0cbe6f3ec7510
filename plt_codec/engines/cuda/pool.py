"""A pool of device memory: freed buffers are kept for the next allocation.

To allocate and above all to free memory takes a driver 0.2 ms where other work has mapped much of the device's memory.
One session needs nine buffers and is decoded in 15 ms. The memory kept is bounded, so that others never miss it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAST = 512  # bytes
LARGEST = 32 << 20  # bytes of a buffer that is kept
KEPT = 64 << 20  # bytes of all buffers that are kept


class Pool:
    """Buffers of powers of two bytes; those over LARGEST are as large as asked for. Any thread may call.

    Args:
        get: allocates bytes and returns the address. Its errors come through, after a second try with nothing kept.
        put: frees an address.
    """

    def __init__(self, get: Callable[[int], int], put: Callable[[int], None]) -> None:
        self._get, self._put = get, put
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}  # address -> bytes, of buffers in use
        self._kept: dict[int, list[int]] = {}  # bytes -> addresses
        self.kept = 0  # bytes

    def take(self, size: int) -> int:
        """Return the address of at least `size` bytes of any content."""
        room = size if size > LARGEST else 1 << (max(size, LEAST) - 1).bit_length()
        with self._lock:
            found = self._kept.get(room)
            if found:
                address = found.pop()
                self.kept -= room
            else:
                try:
                    address = self._get(room)
                except Exception:
                    if not self.kept:
                        raise
                    self.drop()
                    address = self._get(room)
            self._sizes[address] = room
            return address

    def give(self, address: int) -> None:
        """Take a buffer back."""
        with self._lock:
            room = self._sizes.pop(address)
            if room > LARGEST:
                self._put(address)
                return
            if self.kept + room > KEPT:
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
