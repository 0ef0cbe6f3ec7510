"""PackedSession: the KV of one session in pages of a pool, with its first and its last tokens exact.

    tokens     0 1 2 3 4 5 6 ...                         packed       packed + KEEP
    pages      - - - - x x x x x x x x x x x x x x x x x |            in blocks of the pool, shared where they may be
    exact      s s s s                                   t t t t t t t t t          sinks, then the tail, as computed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pltz.kv.pool.block_pool import BlockPool
from pltz.models import cache_of, pairs_of
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache

    from pltz.kv.port.codec import KVCodec

KEEP = 128  # last tokens that stay exact


class PackedSession:
    """One session. It holds its blocks until `release`. One thread uses it at a time.

    ``packed``: tokens that pages hold, from position 0; the first of them are sinks, whose rows are not looked at.
    ``blocks``: their table, of the device's slab. ``exact``: (layers, 2, heads, E, D) in
    the KV's type, keys at their positions: the sinks if any token is packed, then the tail. ``lost``: a form that some
    of it was in before, and that lost something. ``warmed``: tokens that were in host memory when it was matched.
    """

    def __init__(self, pool: BlockPool, blocks: Sequence[int], packed: int, exact: torch.Tensor) -> None:
        self.pool, self.blocks, self.packed, self.exact = pool, list(blocks), packed, exact
        self.lost: KVCodec | None = None
        self.warmed = 0

    @classmethod
    def of(cls, kv: torch.Tensor | DynamicCache, pool: BlockPool, *, keep: int = KEEP) -> PackedSession:
        """Return a session of KV (layers, 2, heads, T, D) from position 0, or of a cache of one row.

        ``keep``: tokens at the end that stay exact. Raises PoolFull where the pool has no room, and UsageError for KV
        that pages cannot hold.
        """
        import torch

        if not isinstance(kv, torch.Tensor):
            kv = torch.stack([torch.cat(pair) for pair in pairs_of(kv)])
        session = cls(pool, [], 0, kv.to(pool.device.device))
        session.pack(keep)
        return session

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return self.packed + self.exact.shape[3] - self.sinks

    @property
    def sinks(self) -> int:
        """Return how many of the exact tokens are sinks, whose rows in the pages do not count."""
        return min(self.pool.form.sinks, self.packed)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the blocks and the exact tokens. Blocks that are shared count for each session."""
        slab = self.pool.device
        return len(self.blocks) * slab.block * slab.form.token_bytes + self.exact.nbytes

    def pack(self, keep: int = KEEP) -> None:
        """Move all but the last ``keep`` exact tokens into pages. No token is ever packed twice."""
        tail = self.exact[:, :, :, self.sinks :]
        count = tail.shape[3] - keep
        if count <= self.pool.form.sinks:
            return
        blocks = extended(self.pool, self.blocks, self.packed, tail[:, :, :, :count])
        sinks = self.exact[:, :, :, : self.pool.form.sinks]
        import torch

        self.exact = torch.cat([sinks, tail[:, :, :, count:]], 3)
        self.blocks, self.packed = blocks, self.packed + count

    def kv(self) -> torch.Tensor:
        """Return the KV of all tokens, (layers, 2, heads, T, D): pages unpacked, the rest exact."""
        import torch

        rows = self.pool.device.read(self.blocks, 0, self.packed)
        pages = self.pool.form.unpack(rows, 0)[:, :, :, self.sinks :]
        sinks, tail = self.exact[:, :, :, : self.sinks], self.exact[:, :, :, self.sinks :]
        return torch.cat([sinks, pages, tail], 3)

    def cache(self, config: Any) -> DynamicCache:
        """Return a cache of transformers with the KV of all tokens, unpacked. ``config``: the model's."""
        return cache_of([(layer[:1], layer[1:]) for layer in self.kv()], config)

    def cut(self, tokens: int) -> None:
        """Drop all but the first ``tokens`` tokens. Blocks beyond them are given back."""
        if not 0 <= tokens <= self.tokens:
            raise UsageError(f"the session has {self.tokens} tokens: cannot cut it to {tokens}")
        exact = self.sinks + max(tokens - self.packed, 0)
        packed = min(tokens, self.packed)
        if packed <= self.pool.form.sinks:
            packed, exact = 0, min(exact, tokens)
        needed = -(-packed // self.pool.block)
        self.pool.device.release(self.blocks[needed:])
        self.exact = self.exact[:, :, :, :exact]
        self.blocks, self.packed = self.blocks[:needed], packed

    def fork(self) -> PackedSession:
        """Return another session of the same tokens that goes its own way. Its blocks are shared until one writes."""
        self.pool.device.retain(self.blocks)
        return PackedSession(self.pool, self.blocks, self.packed, self.exact)

    def release(self) -> None:
        """Give the blocks back, and drop all tokens. A second call does nothing."""
        self.pool.device.release(self.blocks)
        self.blocks, self.packed, self.exact = [], 0, self.exact[:, :, :, :0]


def extended(pool: BlockPool, blocks: Sequence[int], packed: int, kv: torch.Tensor) -> list[int]:
    """Return a table of blocks to which the pages of KV (layers, 2, heads, T, D) are added, after ``packed`` tokens.

    The last block is copied first if others hold it too. Raises PoolFull where there is no room: nothing changed then.
    """
    slab, count = pool.device, kv.shape[3]
    rows = pool.form.pack(kv, packed)
    table = list(blocks)
    added = slab.allocate(-(-(packed + count) // slab.block) - len(table))
    try:
        if packed % slab.block:
            table[-1] = slab.writable(table[-1])
        slab.write(table + added, packed, rows)
    except BaseException:
        slab.release(added)
        raise
    return table + added
