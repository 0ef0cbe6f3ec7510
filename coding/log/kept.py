"""Kept: what was made of the parts above, the last ones used, within a budget of bytes. Several threads may use it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """A store of values by the bytes they were made of.

    Args:
        budget: bytes of keys and values that are kept; one value is kept in any case.
        size: returns the bytes of a value.
    """

    def __init__(self, budget: int, size: Callable[[T], int]) -> None:
        self._budget, self._size = budget, size
        self._values: OrderedDict[bytes, T] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> T | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: bytes, value: T) -> None:
        """Keep a value, and drop those that were not used for longest where the budget is spent."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._used += len(key) + self._size(value)
            while self._used > self._budget and len(self._values) > 1:
                old, dropped = self._values.popitem(last=False)
                self._used -= len(old) + self._size(dropped)
