"""FusedPool: blocks of sessions in pages of a slab, of which several sessions of one tenant may hold the same.

    session -- table of a layer --> block of the slab: a direction of keys and one of values, held by so many
            \\- norms, tail          its own

A block is a layer's keys and values of 16 tokens. A page holds their directions, and the session keeps both norms of
each of its blocks. So a page may serve several blocks that point alike: `fuse` finds them. Layers have tables of their
own, as they fuse differently. A fused page is what `fast_fusion` makes of its members, so KV changes: this is an
experiment, and no store uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.experiments.joint.fast_fusion import Directions, fast_fusion
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.slab import Slab
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.rotary import Rotary

BLOCK = 16  # tokens


@dataclass(eq=False)
class FusedSession:
    """One session of a tenant.

    ``tables``: (layers, blocks) of the slab. ``norms``: (layers, blocks, 2) float32, of keys and values. ``tail``:
    (layers, 2, heads, t, D), the last tokens that fill no block, at their positions.
    """

    tenant: str
    tables: NDArray[np.int64]
    norms: torch.Tensor
    tail: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Return the bytes of the session beside the pages: tables of 4 bytes per block, norms and tail."""
        return 4 * self.tables.size + self.norms.nbytes + self.tail.nbytes


class FusedPool:
    """Room for ``tokens`` tokens of KV of so many layers, heads and dimensions. One thread uses it at a time.

    ``dtype``: of the pages. ``rotary``: keys are turned to position 0 before they are compared and kept; None keeps
    them at their positions, as Chunks Fast-Fusion does. ``centre``: (layers, 2, heads, D), the mean key at position 0
    and the mean value, left out of directions. Without it keys of a layer point alike whatever they say. Raises
    PoolFull where memory does not suffice, and UsageError for a centre of keys that are not turned.
    """

    def __init__(
        self, layers: int, heads: int, dim: int, tokens: int, rotary: Rotary | None, *,
        centre: torch.Tensor | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        import torch

        if centre is not None and (rotary is None or tuple(centre.shape) != (layers, 2, heads, dim)):
            raise UsageError(f"expected a centre of shape {(layers, 2, heads, dim)}, and keys turned to position 0")
        form = PageFormat("raw", 1, heads, dim, dtype or torch.float16)
        self.layers, self.heads, self.dim, self.rotary = layers, heads, dim, rotary
        self.centre = centre
        self.slab = Slab(form, layers * tokens, BLOCK, "cpu")
        self._unit = (BLOCK * heads * dim) ** 0.5  # directions are kept at this norm, so that their numbers are near 1

    @property
    def held(self) -> int:
        """Return how many blocks are in use."""
        return self.slab.blocks - self.slab.free

    @property
    def block_bytes(self) -> int:
        """Return the bytes of the pages of a block."""
        return BLOCK * self.slab.form.token_bytes

    def add(self, tenant: str, kv: torch.Tensor) -> FusedSession:
        """Return a session of KV (layers, 2, heads, T, D) from position 0, with blocks of its own.

        Raises PoolFull where there is no room: nothing is taken then. Raises UsageError for KV of another shape.
        """
        if kv.dim() != 5 or (*kv.shape[:3], kv.shape[4]) != (self.layers, 2, self.heads, self.dim):
            raise UsageError(f"expected KV of {self.layers} layers, {self.heads} heads of {self.dim}, got {kv.shape}")
        count = kv.shape[3] // BLOCK
        blocks = self.directions(kv)  # (layers, 2, count, r), not of norm 1 yet
        norms = blocks.norm(dim=-1).clamp_min(1e-12)
        table = np.array(self.slab.allocate(self.layers * count), np.int64).reshape(self.layers, count)
        self._write(table.flatten().tolist(), (blocks / norms[..., None]).transpose(0, 1).flatten(1, 2))
        return FusedSession(tenant, table, norms.transpose(1, 2).contiguous(), kv[:, :, :, count * BLOCK :].clone())

    def directions(self, kv: torch.Tensor) -> torch.Tensor:
        """Return the full blocks of KV (layers, 2, heads, T, D), as they are compared, (layers, 2, blocks, r)."""
        import torch

        kv = kv[:, :, :, : kv.shape[3] // BLOCK * BLOCK].float()
        if self.rotary is not None:
            kv = torch.stack([self.rotary.turn(kv[:, 0], 0, back=True), kv[:, 1]], 1)
        if self.centre is not None:
            kv = kv - self.centre[:, :, :, None]
        layers, two, heads, tokens, dim = kv.shape
        return kv.reshape(layers, two, heads, tokens // BLOCK, BLOCK, dim).transpose(2, 3).flatten(3)

    def fuse(self, sessions: Sequence[FusedSession], thresholds: Sequence[float], *, chunks: int = 0) -> int:
        """Fuse blocks of sessions, or with ``chunks`` those of so many chunks of each. Returns the blocks set free.

        Blocks that other sessions hold, too, are left as they are: their KV must not change.

        Args:
            sessions: of this pool, all of one tenant.
            thresholds: cosine of keys of each layer, above which two blocks fuse.

        Raises UsageError for sessions of several tenants, and for another number of thresholds.
        """
        if len({one.tenant for one in sessions}) > 1:
            raise UsageError("blocks of several tenants are never fused: one could read what another wrote")
        if len(thresholds) != self.layers:
            raise UsageError(f"expected a threshold for each of {self.layers} layers, got {len(thresholds)}")
        before = self.slab.free
        for layer, threshold in enumerate(thresholds):
            if not chunks:
                self._fuse_layer(layer, sessions, [one.tables[layer] for one in sessions], threshold)
            for one in sessions if chunks else ():
                self._fuse_layer(layer, [one], np.array_split(one.tables[layer], chunks), threshold)
        return self.slab.free - before

    def _fuse_layer(
        self, layer: int, sessions: Sequence[FusedSession], runs: Sequence[NDArray[np.int64]], threshold: float
    ) -> None:
        holders = np.bincount(np.concatenate([one.tables[layer] for one in sessions]), minlength=self.slab.blocks)
        seen: set[int] = set()
        found = []
        for run in runs:
            own = [b for b in dict.fromkeys(run.tolist()) if b not in seen and holders[b] == self.slab.holders(b)]
            seen.update(own)
            if own:
                keys, values = self._read(np.array(own)).float() / self._unit
                found.append(Directions(keys, values, [[block] for block in own]))
        if not found:
            return
        left = fast_fusion(found, threshold)
        for number, members in enumerate(left.members):
            if len(members) > 1:
                self._join(layer, sessions, members, left.keys[number], left.values[number])

    def _join(
        self, layer: int, sessions: Sequence[FusedSession], members: Sequence[int], key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:  # fmt: skip
        """Let one block stand for several, which only these sessions hold."""
        import torch

        for session in sessions:
            places = np.flatnonzero(np.isin(session.tables[layer], members))
            self.slab.release(session.tables[layer][places].tolist())
            session.tables[layer][places] = -1
        (block,) = self.slab.allocate(1)
        self._write([block], torch.stack([key, value])[:, None])
        holds = sum(int((session.tables[layer] == -1).sum()) for session in sessions)
        self.slab.retain([block] * (holds - 1))
        for session in sessions:
            session.tables[layer][session.tables[layer] == -1] = block

    def layer(self, sessions: Sequence[FusedSession], layer: int) -> torch.Tensor:
        """Return the full blocks of one layer of sessions of as many blocks each, (B, 2, heads, T, D) float32."""
        import torch

        tables = np.stack([one.tables[layer] for one in sessions])
        norms = torch.stack([one.norms[layer] for one in sessions])  # (B, blocks, 2)
        rows = self.slab.tensors["kv"][0][torch.from_numpy(tables)].float()  # (B, blocks, BLOCK, heads, 2 D)
        rows = rows.unflatten(-1, (2, -1)) * (norms / self._unit)[:, :, None, None, :, None]
        kv: torch.Tensor = rows.permute(0, 4, 3, 1, 2, 5).flatten(3, 4)
        if self.centre is not None:
            kv = kv + self.centre[layer, :, :, None]
        if self.rotary is not None:
            kv = torch.stack([self.rotary.turn(kv[:, 0], 0), kv[:, 1]], 1)
        return kv

    def kv(self, session: FusedSession) -> torch.Tensor:
        """Return the KV of a session, (layers, 2, heads, T, D), in the type of its tail."""
        import torch

        pages = torch.cat([self.layer([session], layer) for layer in range(self.layers)])
        return torch.cat([pages.to(session.tail.dtype), session.tail], 3)

    def release(self, session: FusedSession) -> None:
        """Give the blocks of a session back. A second call does nothing."""
        self.slab.release(session.tables.flatten().tolist())
        session.tables = session.tables[:, :0]

    def nbytes(self, sessions: Sequence[FusedSession]) -> int:
        """Return the bytes of all blocks in use, and of what sessions keep beside them."""
        return self.held * self.block_bytes + sum(one.nbytes for one in sessions)

    def _write(self, blocks: Sequence[int], directions: torch.Tensor) -> None:
        """Write directions (2, n, r) of norm 1 into blocks."""
        rows = (directions * self._unit).unflatten(2, (self.heads, BLOCK, self.dim))
        rows = rows.permute(1, 3, 2, 0, 4).flatten(0, 1).flatten(2)  # (n BLOCK, heads, 2 D)
        self.slab.write(blocks, 0, {"kv": rows[None].to(self.slab.form.dtype)})

    def _read(self, blocks: NDArray[np.int64]) -> torch.Tensor:
        """Return what `_write` was given of blocks, at the norm of pages."""
        rows = self.slab.read(blocks.tolist(), 0, BLOCK * len(blocks))["kv"][0]
        rows = rows.unflatten(0, (len(blocks), BLOCK)).unflatten(-1, (2, self.dim))
        found: torch.Tensor = rows.permute(3, 0, 2, 1, 4).flatten(2)
        return found
