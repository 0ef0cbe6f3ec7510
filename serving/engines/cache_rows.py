"""CacheRows: blocks of an engine's KV cache as rows of bytes, to host memory and back, beside the engine's own work.

    take:  cache -> gather one row per block -> page-locked memory      the step goes on, an event says when it is done
    put:   memory -> the device -> scatter the rows into the blocks     in a thread, behind an event, until it is done

A row holds one block of all layers: the bytes of each layer in the order of its logical shape, whatever its strides. On
a GPU two streams of their own copy. `take` gathers in the engine's stream, so the blocks may be used again at once, and
copies out of two stages of `AT_ONCE` bytes. `put` waits for an event of the engine's stream, so no kernel under way
reads or writes the blocks. On a CPU both are plain copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch

AT_ONCE = 64 << 20  # bytes that are on their way at once


class CacheRows:
    """The blocks of a cache. One thread takes, and one thread puts.

    ``size``: bytes of a row. ``form``: type, shape and rows of each layer, for names of what the bytes mean.

    Args:
        caches: by layer, (blocks, ...) or (blocks times n, ...) each, all on one device.
        blocks: of the cache.

    Raises UsageError for a cache of another form.
    """

    def __init__(self, caches: Mapping[str, torch.Tensor], blocks: int) -> None:
        import torch

        layers: dict[int, torch.Tensor] = {}
        for tensor in caches.values():
            layers.setdefault(tensor.data_ptr(), tensor)  # layers that share a cache
        self._layers = list(layers.values())
        if not self._layers or any(t.shape[0] % blocks or not t.shape[0] for t in self._layers):
            raise UsageError(f"warm KV needs caches with {blocks} blocks first: leave warm out with this model")
        self._rows = [t.shape[0] // blocks for t in self._layers]  # of the cache per block
        self._sizes = [t[0].nbytes * rows for t, rows in zip(self._layers, self._rows, strict=True)]
        self.size = sum(self._sizes)
        self.form = [(str(t.dtype), list(t.shape[1:]), r) for t, r in zip(self._layers, self._rows, strict=True)]
        self.device = self._layers[0].device
        self.some = max(1, AT_ONCE // max(1, self.size))  # rows of a stage
        self._gpu = self.device.type == "cuda"
        if self._gpu:
            self._in, self._out = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
            self._stages: list[tuple[torch.Tensor, torch.cuda.Event]] = []
            self._turn = 0

    def room(self, rows: int) -> torch.Tensor:
        """Return host memory for rows, (rows, size) uint8, page-locked where there is a GPU. Raises RuntimeError."""
        import torch

        return torch.empty((rows, self.size), dtype=torch.uint8, pin_memory=self._gpu)

    def now(self) -> torch.cuda.Event | None:
        """Return an event behind all that the calling thread gave the device so far; None on a CPU."""
        import torch

        return torch.cuda.current_stream(self.device).record_event() if self._gpu else None

    def take(self, blocks: Sequence[int], room: torch.Tensor) -> torch.cuda.Event | None:
        """Copy blocks to host memory, (len(blocks), size). Returns the event when it is done; None where it is.

        The blocks may be overwritten by later work of the calling thread at once. Raises RuntimeError without memory.
        """
        if not self._gpu:
            self._gather(blocks, room)
            return None
        import torch

        current, done = torch.cuda.current_stream(self.device), None
        for begin in range(0, len(blocks), self.some):
            part = blocks[begin : begin + self.some]
            if len(self._stages) < 2:
                stage = torch.empty((self.some, self.size), dtype=torch.uint8, device=self.device)
                self._stages.append((stage, torch.cuda.Event()))
            stage, done = self._stages[self._turn % len(self._stages)]
            self._turn += 1
            current.wait_event(done)  # of its last copy
            self._gather(part, stage[: len(part)])
            self._out.wait_stream(current)
            with torch.cuda.stream(self._out):
                room[begin : begin + len(part)].copy_(stage[: len(part)], non_blocking=True)
                done.record(self._out)
        return None if done is None else self._out.record_event()

    def put(self, blocks: Sequence[int], room: torch.Tensor, after: torch.cuda.Event | None) -> None:
        """Copy rows, (len(blocks), size), into blocks, and wait until they are there.

        ``after``: event of `now`. Raises RuntimeError without memory.
        """
        if not self._gpu:
            self._scatter(blocks, room)
            return
        import torch

        with torch.cuda.stream(self._in):
            if after is not None:
                self._in.wait_event(after)
            self._scatter(blocks, room.to(self.device, non_blocking=True))
        self._in.synchronize()

    def _gather(self, blocks: Sequence[int], into: torch.Tensor) -> None:
        """Copy blocks into rows of the same device, or of the host where the cache is there."""
        import torch

        at = 0
        for tensor, rows, size in zip(self._layers, self._rows, self._sizes, strict=True):
            data = tensor[self._index(blocks, rows)].contiguous()
            into[:, at : at + size] = data.reshape(-1).view(torch.uint8).reshape(len(blocks), size)
            at += size

    def _scatter(self, blocks: Sequence[int], rows_of: torch.Tensor) -> None:
        at = 0
        for tensor, rows, size in zip(self._layers, self._rows, self._sizes, strict=True):
            data = rows_of[:, at : at + size].contiguous().view(tensor.dtype)
            tensor[self._index(blocks, rows)] = data.reshape(-1, *tensor.shape[1:])
            at += size

    def _index(self, blocks: Sequence[int], rows: int) -> torch.Tensor:
        import torch

        found = torch.tensor(blocks)
        if rows > 1:
            found = (found[:, None] * rows + torch.arange(rows)).reshape(-1)
        return found.pin_memory().to(self.device, non_blocking=True) if self._gpu else found
