"""RawCodec: KV as the target computed it, as a form of blocks that experiments pass around.

The store keeps rows of pages in its place (`kv/pool/row_form.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.kv.port.arriving import shells
from pltz.kv.port.codec import PREFIX, Span
from pltz.plt_codec import CorruptError

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.arriving import Parts


class CompactForm:
    """The part of a codec that compact forms share: their parts may be decoded on any device."""

    def near(self, parts: Parts, device: torch.device) -> Parts:
        """Return the parts on a device. See `KVCodec.near`."""
        return {name: part.to(device, non_blocking=True) for name, part in parts.items()}


class RawCodec:
    """KV as the target computed it: one tensor (layers, 2, heads, T, D), exact."""

    name = "raw"
    exact = True
    receipt = None

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return ``kv`` itself, without a copy. See `KVCodec.encode`."""
        return {PREFIX: kv}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the tensor itself, without a copy. See `KVCodec.decode`."""
        return parts[PREFIX]

    def near(self, parts: Parts, device: torch.device) -> Parts:
        """Return the tensor where it is. See `KVCodec.near`."""
        return parts

    def check(self, parts: Parts, tokens: int) -> None:
        """Check the tensor. See `KVCodec.check`."""
        kv = shells(parts).get(PREFIX)
        if len(parts) != 1 or kv is None or not kv.is_floating_point() or kv.dim() != 5:
            raise CorruptError("expected one tensor of keys and values")
        if kv.shape[1] != 2 or kv.shape[3] != tokens:
            raise CorruptError(f"expected keys and values of {tokens} ids, found {tuple(kv.shape)}")


RAW = RawCodec()
