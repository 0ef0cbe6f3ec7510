"""KVBlock: the KV of one segment in one form. Caches are cut into blocks.

    DynamicCache of a tower      |  base  |  turn 1  |  turn 2  |        per layer K and V, (1, heads, T, D)
    blocks                       (L, 2, heads, T_base, D)  (L, 2, heads, T_1, D)  ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pltz.experiments.compose.raw_codec import RAW
from pltz.kv.port.arriving import shells
from pltz.kv.port.codec import KVCodec, Span
from pltz.kv.thaw.cache_kv import cut as cut_kv

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from pltz.kv.port.arriving import Parts

    Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class KVBlock:
    """The KV of a segment and the ids it was computed from.

    ``parts``: made by ``codec``; those of a file may still arrive (`kv/port/arriving.py`). ``ids``: (T,) int32, given
    to the target. ``tokens``: (n,) int32, the segment's tokens in the archive. ``logits``: (V,) of the last id, or None
    where they are not known.
    ``start``: number of ids before the segment. ``mass``: (T,) float32, the attention that each id received, where
    that was observed, of KV in an exact form: forms that are not exact code by it.
    """

    parts: Parts
    ids: Ids
    tokens: Ids
    start: int
    logits: torch.Tensor | None = None
    codec: KVCodec = RAW
    mass: NDArray[np.float32] | None = None

    @classmethod
    def raw(
        cls, kv: torch.Tensor, ids: Ids, tokens: Ids, start: int, logits: torch.Tensor | None = None
    ) -> KVBlock:
        """Return a block of KV as computed. ``kv``: (layers, 2, heads, T, D), keys then values."""
        return cls(RAW.encode(kv, Span(ids, start)), ids, tokens, start, logits)

    @property
    def kv(self) -> torch.Tensor:
        """Return the KV, (layers, 2, heads, T, D): of a raw block without a copy, else decoded anew.

        Raises CorruptError where a coded block is damaged.
        """
        return self.codec.decode(self.parts, self.span)

    def kv_near(self, device: torch.device) -> torch.Tensor:
        """Return the KV, decoded on ``device`` where its form is compact: fewer bytes cross the bus. Raises as `kv`.

        Other KV stays where it is.
        """
        return self.codec.decode(self.codec.near(self.parts, device), self.span)

    @property
    def span(self) -> Span:
        """Return the tokens of the block."""
        return Span(self.ids, self.start, self.mass)

    @property
    def size(self) -> int:
        """Return the bytes of all parts."""
        return sum(t.nbytes for t in shells(self.parts).values()) + self._besides

    @property
    def _besides(self) -> int:
        """Return the bytes of everything but the KV."""
        logits = 0 if self.logits is None else self.logits.nbytes
        mass = 0 if self.mass is None else self.mass.nbytes
        return logits + mass + self.ids.nbytes + self.tokens.nbytes

    def recode(self, codec: KVCodec) -> KVBlock:
        """Return the block in another form. One that is not exact stays as it is, so that no loss adds up.

        Raises UsageError where the form cannot hold it.
        """
        if codec.name == self.codec.name or not self.codec.exact:
            return self
        parts = codec.encode(self.kv, self.span)
        return replace(self, parts=parts, codec=codec, mass=self.mass if codec.exact else None)


def cut(cache: DynamicCache, start: int, ids: Ids, tokens: Ids, logits: torch.Tensor | None = None) -> KVBlock:
    """Return the block of positions ``start`` to ``start + len(ids)`` of a cache, in memory of its own.

    ``ids``: (T,) int32; ``tokens``: (n,) int32; ``logits``: (V,) of the last id, if known. Raises UsageError
    for a cache that cannot be cut or that ends earlier.
    """
    own = None if logits is None else logits.clone()
    return KVBlock.raw(cut_kv(cache, start, start + len(ids)), ids, tokens, start, own)
