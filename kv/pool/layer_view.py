"""LayerView: what attention reads of one layer: pages by their tables, and exact tokens beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.kv.pool.slab import Slab

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class LayerView:
    """One layer of a batch of B sessions.

    ``table``: (B, M) int32, the blocks of each session in ``slab``. ``packed``: (B,) int32, the tokens in them, of
    which the first ``slab.form.sinks`` do not count. ``keys``, ``values``: (B, heads, room, D), exact tokens in any
    order, of which ``columns`` are in use. ``real``: (B, room) uint8, 1 for those that are a token of the session.
    ``most``: the largest of ``packed``, known to the host.
    """

    slab: Slab
    layer: int
    table: torch.Tensor
    packed: torch.Tensor
    most: int
    keys: torch.Tensor
    values: torch.Tensor
    real: torch.Tensor
    columns: int

    def unpacked(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return keys and values (B, heads, most + columns, D), and which of them count, (B, most + columns) bool.

        Pages come first. The result is a scratch in the KV's type: of one layer at a time.
        """
        import torch

        slab, form = self.slab, self.slab.form
        batch, heads, _, dim = self.keys.shape
        scratch = self.keys.new_empty((batch, 2, heads, self.most + self.columns, dim))
        token = torch.arange(self.most, device=self.table.device)
        if self.most:
            places = self.table[:, token // slab.block].long() * slab.block + token % slab.block
            flat = {name: tensor[self.layer].flatten(0, 1) for name, tensor in slab.tensors.items()}
            rows = {name: tensor[places] for name, tensor in flat.items()}
            scratch[:, :, :, : self.most] = form.unpack_layer(self.layer, rows)
        scratch[:, 0, :, self.most :] = self.keys[:, :, : self.columns]
        scratch[:, 1, :, self.most :] = self.values[:, :, : self.columns]
        pages = (token >= form.sinks) & (token < self.packed[:, None])
        real = torch.cat([pages, self.real[:, : self.columns].bool()], 1)
        return scratch[:, 0], scratch[:, 1], real
