"""A pool: device memory that was given back and is kept for who asks next.

Asking a driver for memory, and above all giving it back, takes it a fifth of a millisecond where other work has much of the device's memory
mapped; one session needs nine buffers and is decoded in fifteen milliseconds. What is kept is bounded, so that it is never missed elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAST = 512  # bytes
LARGEST = 32 << 20  # bytes of a buffer that is kept
KEPT = 64 << 20  # bytes of all that is kept


class Pool:
    """Buffers of powers of two bytes, those of more than LARGEST as large as asked for. Any thread may call.

    Args:
        get: asks the driver: bytes -> address. What it raises comes through, after a second try with nothing kept.
        put: gives an address back to the driver.
    """

    def __init__(self, get: Callable[[int], int], put: Callable[[int], None]) -> None:
        self._get, self._put = get, put
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}  # address -> bytes, of what is in use
        self._kept: dict[int, list[int]] = {}  # bytes -> addresses
        self.kept = 0  # bytes

    def take(self, size: int) -> int:
        """The address of at least `size` bytes; what is in them is anything."""
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
        """Take back what `take` gave."""
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
        """Give the driver all that is kept."""
        with self._lock:
            for addresses in self._kept.values():
                for address in addresses:
                    self._put(address)
            self._kept, self.kept = {}, 0
