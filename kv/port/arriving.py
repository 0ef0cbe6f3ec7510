"""ArrivingParts: the parts of a form while threads still read them, in the order in which they come.

    file     |  ids  |  states, ends  |  words of section 0  |  section 1  |  ...
                                            there ----^           threads bring the next chunk
    decoder                                 section 0 ->

A part that is asked for by its name is complete: the mapping waits for it. So code that knows nothing of arrival is
right. Code that can begin with the first layers takes the tensors from `shells` and waits for the bytes that it needs.
Bytes count as there only after their checksum was compared. Damage raises CorruptError from every wait for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING

from pltz.plt_codec import CorruptError

if TYPE_CHECKING:
    import torch

    Parts = Mapping[str, torch.Tensor]


@dataclass
class _Progress:
    """Hold how far the reading is. ``there``: bytes from the front."""

    there: int = 0
    failure: str | None = None
    changed: Condition = field(default_factory=Condition)


class ArrivingParts(Mapping[str, "torch.Tensor"]):
    """Parts whose memory is being filled from the front. Any thread may use it.

    ``shells``: the tensors, in the order in which they arrive, contiguous.
    """

    def __init__(self, shells: Mapping[str, torch.Tensor]) -> None:
        self.shells = dict(shells)
        self._begins: dict[str, int] = {}
        at = 0
        for name, tensor in self.shells.items():
            self._begins[name] = at
            at += tensor.nbytes
        self.size = at
        self._progress = _Progress()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.wait(name)
        return self.shells[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shells)

    def __len__(self) -> int:
        return len(self.shells)

    def wait(self, name: str, elements: int | None = None) -> int:
        """Wait until the first ``elements`` of a part are there, all if None. Returns how many are there by then.

        Raises KeyError for a part that is none, and CorruptError where they are damaged or cannot be read.
        """
        begin, tensor = self._begins[name], self.shells[name]
        each = tensor.element_size()
        wanted = begin + each * (tensor.numel() if elements is None else min(elements, tensor.numel()))
        now = self._progress
        with now.changed:
            now.changed.wait_for(lambda: now.there >= wanted or now.failure is not None)
            if now.there < wanted:
                raise CorruptError(f"the KV could not be read to its end: {now.failure}")
            return min((now.there - begin) // each, tensor.numel())

    @property
    def complete(self) -> bool:
        """Return whether all bytes are there and sound."""
        return self._progress.there == self.size

    @property
    def failed(self) -> bool:
        """Return whether some bytes will not come."""
        return self._progress.failure is not None and not self.complete

    def arrive(self, count: int) -> None:
        """Tell that the first ``count`` bytes of all parts are there. For the reader."""
        with self._progress.changed:
            self._progress.there = max(self._progress.there, min(count, self.size))
            self._progress.changed.notify_all()

    def fail(self, why: str) -> None:
        """Tell that what is not there will not come. For the reader. Only the first reason counts."""
        with self._progress.changed:
            self._progress.failure = self._progress.failure or why
            self._progress.changed.notify_all()

    def replaced(self, name: str, tensor: torch.Tensor) -> ArrivingParts:
        """Return the same parts, arriving with these, with another tensor in place of an empty one."""
        other = copy.copy(self)
        other.shells = self.shells | {name: tensor}
        return other


def shells(parts: Parts) -> Parts:
    """Return the tensors of parts at once, for their types and shapes; their memory may not be filled yet."""
    return parts.shells if isinstance(parts, ArrivingParts) else parts


def wait(parts: Parts, name: str | None = None, elements: int | None = None) -> None:
    """Wait for the first elements of a part, or for all parts. Raises CorruptError where they are damaged."""
    if isinstance(parts, ArrivingParts):
        for one in parts if name is None else (name,):
            parts.wait(one, elements)


def replaced(parts: Parts, name: str, tensor: torch.Tensor) -> Parts:
    """Return parts with another tensor in place of an empty one."""
    return parts.replaced(name, tensor) if isinstance(parts, ArrivingParts) else {**parts, name: tensor}
