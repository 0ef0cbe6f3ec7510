"""KVBlock: the KV of one segment in one form. Caches are cut into blocks and joined from them.

    DynamicCache of a tower      |  base  |  turn 1  |  turn 2  |        per layer K and V, (1, heads, T, D)
    blocks                       (L, 2, heads, T_base, D)  (L, 2, heads, T_1, D)  ...

A raw block is one tensor: one allocation, one copy to another device, and one contiguous range in a file. In
another form (`kv/`) a block is a few tensors.

Joining a single raw block copies nothing. A `DynamicCache` grows by concatenation and never writes into the
tensors it was given, so any number of sessions may share one block. Several blocks are copied side by side
once, since attention needs K and V in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pltz.kv.port.arriving import ArrivingParts, pieces, shells, wait
from pltz.kv.port.codec import PREFIX, RAW, ExactCodec, KVCodec, Span
from pltz.models import cache_of, is_plain, pairs_of
from pltz.plt_codec import UsageError

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
    def there(self) -> bool:
        """Return whether all parts are in memory and sound. False for one that is being read or was damaged."""
        return not isinstance(self.parts, ArrivingParts) or self.parts.complete

    @property
    def damaged(self) -> bool:
        """Return whether a file's parts turned out to be damaged, or could not be read to the end."""
        return isinstance(self.parts, ArrivingParts) and self.parts.failed

    def wait(self) -> None:
        """Wait until all parts are in memory. Raises CorruptError where they are damaged."""
        wait(self.parts)

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

    def size_in(self, codec: KVCodec) -> int:
        """Return the most bytes that the block can take once recoded."""
        if codec.name == self.codec.name or not self.codec.exact:
            return self.size
        return codec.size(cast(ExactCodec, self.codec).outline(self.parts)) + self._besides

    def recode(self, codec: KVCodec) -> KVBlock:
        """Return the block in another form. One that is not exact stays as it is, so that no loss adds up.

        Raises UsageError where the form cannot hold it.
        """
        if codec.name == self.codec.name or not self.codec.exact:
            return self
        parts = codec.encode(self.kv, self.span)
        return replace(self, parts=parts, codec=codec, mass=self.mass if codec.exact else None)

    def owns_memory_on(self, device: torch.device, *, pin: bool = False) -> bool:
        """Return whether all parts are on a device, and keep no memory but their own alive. ``pin``: page-locked."""
        parts = [t for t in shells(self.parts).values() if t.nbytes]
        own = all(t.device == device and t.untyped_storage().nbytes() == t.nbytes for t in parts)
        return own and (not pin or all(t.is_pinned() for t in parts))

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context for another thread to use the block in: with this thread's stream, on a GPU."""
        import torch

        device = next((t.device for t in shells(self.parts).values() if t.is_cuda), None)
        return nullcontext() if device is None else torch.cuda.stream(torch.cuda.current_stream(device))

    def to(self, device: torch.device, *, pin: bool = False) -> KVBlock:
        """Return a copy in memory of its own on a device.

        With ``pin`` the copy is in page-locked host memory, which a GPU reads at the full rate of the bus. What is
        still being read is copied as it arrives. Raises CorruptError where that is damaged.
        """
        logits = None if self.logits is None else _copy({PREFIX: self.logits}, PREFIX, device, pin)
        parts = {name: _copy(self.parts, name, device, pin) for name in self.parts}
        _wait(*self.parts.values(), *parts.values())
        return replace(self, parts=parts, logits=logits)


def cut(cache: DynamicCache, start: int, ids: Ids, tokens: Ids, logits: torch.Tensor | None = None) -> KVBlock:
    """Return the block of positions ``start`` to ``start + len(ids)`` of a cache, in memory of its own.

    ``ids``: (T,) int32; ``tokens``: (n,) int32; ``logits``: (V,) of the last id, if known. Raises UsageError
    for a cache that cannot be cut (see `can_cut`) or that ends earlier.
    """
    import torch

    stop = start + len(ids)
    if not can_cut(cache) or int(cache.get_seq_length()) < stop:
        raise UsageError(f"expected a cache of {stop} tokens or more, of one session and all layers alike")
    parts = [t[0, :, start:stop] for pair in pairs_of(cache) for t in pair]
    with torch.inference_mode():
        kv = torch.stack(parts).unflatten(0, (-1, 2))
        own = None if logits is None else logits.clone()
    return KVBlock.raw(kv, ids, tokens, start, own)


def can_cut(cache: DynamicCache) -> bool:
    """Return whether all layers keep K and V of all tokens in one shape.

    That excludes sliding windows, latents and states of linear attention.
    """
    if not is_plain(cache) or not cache.get_seq_length():
        return False
    shapes = {t.shape for pair in pairs_of(cache) for t in pair}
    return len(shapes) == 1 and shapes.pop()[0] == 1


def join(blocks: Sequence[KVBlock], config: Any, device: torch.device) -> DynamicCache:
    """Return a cache on a device that holds all blocks in their order.

    Nothing is copied where a single raw block, already on the device, holds everything. ``config``: of the
    target's model. Raises CorruptError where a block is damaged.
    """
    return join_kv([block.kv_near(device) for block in blocks if len(block.ids)], config, device)


def join_kv(filled: Sequence[torch.Tensor], config: Any, device: torch.device) -> DynamicCache:
    """Return a cache on a device of the KV of consecutive segments, (layers, 2, heads, T, D) each. See `join`."""
    import torch

    if len(filled) == 1 and filled[0].device == device:
        return cache_of(((kv[0][None], kv[1][None]) for kv in filled[0]), config)
    if not filled:
        return cache_of((), config)
    layers, two, heads, _, width = filled[0].shape
    total = sum(kv.shape[3] for kv in filled)
    with torch.inference_mode():
        whole = torch.empty((layers, two, heads, total, width), dtype=filled[0].dtype, device=device)
        at = 0
        for kv in filled:
            whole[:, :, :, at : at + kv.shape[3]].copy_(kv, non_blocking=True)
            at += kv.shape[3]
    _wait(filled[-1], whole)
    return cache_of(((kv[0][None], kv[1][None]) for kv in whole), config)


def _copy(parts: Parts, name: str, device: torch.device, pin: bool) -> torch.Tensor:
    """Return a copy of a part on a device."""
    import torch

    whole = shells(parts)[name]
    with torch.inference_mode():
        out = torch.empty(whole.shape, dtype=whole.dtype, device=device, pin_memory=pin)
        if not isinstance(parts, ArrivingParts):
            return out.copy_(whole, non_blocking=True)
        for piece in pieces(parts, name):
            out.view(-1)[piece].copy_(whole.view(-1)[piece], non_blocking=True)
        return out


def _wait(*tensors: torch.Tensor) -> None:
    """Wait for copies between a GPU and host memory, which run asynchronously to the host."""
    import torch

    on = {t.device for t in tensors}
    if len(on) > 1:
        for device in on:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
