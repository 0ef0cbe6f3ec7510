"""BlockPool: the pages of a target on its device, and the same bytes in page-locked host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pltz.kv.errors import PoolFull
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.slab import Slab

if TYPE_CHECKING:
    import torch

    from pltz.models import Target


class BlockPool:
    """Room for the KV of ``tokens`` tokens on a device, and of ``host_tokens`` in host memory. Any thread may use it.

    ``form``: of the pages. ``block``: tokens per block, 16 or 256. ``device``: the slab that attention reads.
    ``host``: the slab that blocks are spilled to, None for no host tokens.

    Raises UsageError for sizes that make no sense, and PoolFull where memory does not suffice.
    """

    def __init__(
        self,
        form: PageFormat,
        tokens: int,
        *,
        block: int = 16,
        host_tokens: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        import torch

        self.form, self.block = form, block
        self.device = Slab(form, tokens, block, device)
        pin = torch.device(device).type == "cuda"
        self.host = Slab(form, host_tokens, block, "cpu", pin=pin) if host_tokens else None
        if self.host is not None:
            self.host.lock = self.device.lock  # one for both: blocks move between them

    @classmethod
    def of(cls, target: Target, kind: str, tokens: int, *, block: int = 16, host_tokens: int = 0) -> BlockPool:
        """Return a pool of a target, on its device. ``kind``: "raw", "q8" or "q4"."""
        form = PageFormat.of(target, kind)
        return cls(form, tokens, block=block, host_tokens=host_tokens, device=target.device)

    def spill(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks of the device to host memory, exchange the caller's hold on them, and return the host's.

        Raises PoolFull where the host has no room; the blocks are held as before then.
        """
        return self._move(blocks, self.device, self._host())

    def warm(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks of the host back to the device, exchange the caller's hold on them, and return the device's.

        Raises PoolFull where the device has no room; the blocks are held as before then.
        """
        return self._move(blocks, self._host(), self.device)

    def _host(self) -> Slab:
        if self.host is None:
            raise PoolFull("this pool has no host memory: open it with `host_tokens`")
        return self.host

    @staticmethod
    def _move(blocks: Sequence[int], source: Slab, target: Slab) -> list[int]:
        moved = target.allocate(len(blocks))
        try:
            source.copy(blocks, target, moved)
        except BaseException:
            target.release(moved)
            raise
        source.release(blocks)
        return moved
