"""Reservation: host memory for a retrieval result that may be needed: taken cold, warmed on demand, or given back.

    reserve (cold) --> fill with the KV of a result --> warm: a session on the device
        \\------------------------\\--> release: a wrong bet costs some host blocks for a while

Source: "3-Tier KV Cache", GraphBlockReserver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch


class Reservation:
    """Host blocks for ``tokens`` tokens of a source. One thread uses it at a time.

    Raises PoolFull where host memory has no room.
    """

    def __init__(self, pool: BlockPool, source: str, tokens: int) -> None:
        if pool.host is None:
            raise PoolFull("this pool has no host memory: open it with `host_tokens`")
        if tokens < 1:
            raise UsageError(f"expected a reservation of at least 1 token, got {tokens}")
        self.pool, self.source, self.tokens = pool, source, tokens
        self.blocks = pool.host.allocate(-(-tokens // pool.block))
        self._exact: torch.Tensor | None = None
        self._packed = 0

    @property
    def filled(self) -> bool:
        """Return whether a result is there to be warmed."""
        return self._exact is not None

    def fill(self, session: PackedSession) -> None:
        """Copy the KV of a result, a session of the same pool on the device. The session stays as it is.

        Raises UsageError for one that does not fit, and for a reservation that was released.
        """
        host, slab = self.pool.host, self.pool.device
        if session.pool is not self.pool or session.spilled or session.tokens > self.tokens or not self.blocks:
            raise UsageError(f"expected a session of this pool, on the device, of at most {self.tokens} tokens")
        assert host is not None
        blocks = session.blocks
        slab.copy(blocks, host, self.blocks[: len(blocks)])
        self._packed, self._exact = session.packed, session.exact.cpu()

    def warm(self) -> PackedSession:
        """Return the result as a session on the device. The reservation ends: its blocks went there, or are free.

        Raises PoolFull where the device has no room, and the reservation goes on; UsageError for one not filled.
        """
        host = self.pool.host
        if self._exact is None or host is None:
            raise UsageError("nothing was filled into this reservation, or it ended")
        count = -(-self._packed // self.pool.block)
        blocks = self.pool.warm(self.blocks[:count])
        host.release(self.blocks[count:])
        session = PackedSession(self.pool, blocks, self._packed, self._exact.to(self.pool.device.device))
        self.blocks, self._exact = [], None
        return session

    def release(self) -> None:
        """Give the blocks back. A second call does nothing."""
        if self.pool.host is not None:
            self.pool.host.release(self.blocks)
        self.blocks, self._exact = [], None
