"""LosslessCodec: the form `lossless-1`: bfloat16 KV, exact, in 10.9 bits per element. Spec: FORMAT.md, "lossless-1".

    bfloat16  =  sign, 8 bits of exponent, 7 bits of mantissa
                 exponents of a layer's keys, or values  --zstd-->  2.9 bits each;  sign and mantissa as they are

Neighbouring numbers have similar sizes, so few exponents occur. Signs and mantissas are noise, which no coder makes
smaller. The bound for exponents is 2.3 to 2.6 bits, by a table per channel (models/LOG.md).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from pltz.kv.port.arriving import shells
from pltz.kv.port.codec import CompactForm, Span
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.receipt import Receipt

LEVEL = 1  # of zstd: higher ones look for repeats, find chance ones, and take more bytes
NAMES = {"kv.high", "kv.low", "kv.sizes"}
SLACK = 64  # bytes of a frame beyond those of its content; and one in 256 of them


class LosslessCodec(CompactForm):
    """Exact KV in bfloat16 with coded exponents."""

    name = "lossless-1"
    exact = True
    receipt: Receipt | None = None

    def size(self, kv: torch.Tensor) -> int:
        """Return the most bytes of the parts of ``kv``. See `KVCodec.size`."""
        frames = kv.shape[0] * kv.shape[1]
        return 2 * kv.numel() + kv.numel() // 256 + frames * (SLACK + 4)

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return signs with mantissas, and frames of exponents. See `KVCodec.encode`."""
        import torch

        if kv.dtype != torch.bfloat16 or kv.dim() != 5 or kv.shape[1] != 2:
            raise UsageError(f"expected keys and values in bfloat16 for the form lossless, got {kv.dtype}")
        bits = kv.contiguous().view(torch.int16)
        low = (bits & 0x7F | bits >> 8 & 0x80).to(torch.uint8)
        planes = (bits >> 7 & 0xFF).to(torch.uint8).flatten(0, 1).flatten(1).cpu().numpy()

        def frame(plane: NDArray[np.uint8]) -> bytes:
            return zstandard.ZstdCompressor(level=LEVEL).compress(plane.data)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            frames = list(pool.map(frame, planes))
        sizes = torch.tensor([len(one) for one in frames], dtype=torch.int32).reshape(kv.shape[:2])
        high = torch.from_numpy(np.frombuffer(b"".join(frames), np.uint8).copy())
        return {"kv.low": low, "kv.high": high.to(kv.device), "kv.sizes": sizes.to(kv.device)}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of the parts. See `KVCodec.decode`."""
        import torch

        low, sizes = parts["kv.low"], parts["kv.sizes"].cpu().numpy().ravel().astype(np.int64)
        data = parts["kv.high"].cpu().numpy()
        if (sizes < 0).any() or sizes.sum() != len(data):
            raise CorruptError("the frames of exponents do not fill their part")
        cuts = np.cumsum(sizes)
        count = low[0, 0].numel() if len(sizes) else 0

        def plane(number: int) -> NDArray[np.uint8]:
            return _plane(data[cuts[number] - sizes[number] : cuts[number]].tobytes(), count)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            planes = list(pool.map(plane, range(len(sizes))))
        exponents = torch.from_numpy(np.stack(planes)) if planes else torch.zeros(0, dtype=torch.uint8)
        there = exponents.to(low.device).reshape(low.shape).to(torch.int16)
        wide = low.to(torch.int16)
        bits = (wide & 0x80) << 8 | there << 7 | wide & 0x7F
        return bits.view(torch.bfloat16)

    def outline(self, parts: Parts) -> torch.Tensor:
        """Return a tensor without memory. See `ExactCodec.outline`."""
        import torch

        return torch.empty(shells(parts)["kv.low"].shape, dtype=torch.bfloat16, device="meta")

    def check(self, parts: Parts, tokens: int) -> None:
        """Check types and shapes. See `KVCodec.check`."""
        import torch

        if set(parts) != NAMES:
            raise CorruptError("expected signs with mantissas, frames of exponents, and their sizes")
        low, high, sizes = (shells(parts)[name] for name in ("kv.low", "kv.high", "kv.sizes"))
        if low.dtype != torch.uint8 or low.dim() != 5 or low.shape[1] != 2 or low.shape[3] != tokens:
            raise CorruptError(f"expected signs with mantissas of {tokens} ids, found {tuple(low.shape)}")
        if high.dtype != torch.uint8 or high.dim() != 1 or sizes.dtype != torch.int32 or sizes.shape != low.shape[:2]:
            raise CorruptError("the frames of exponents do not fit the mantissas")


def _plane(frame: bytes, count: int) -> NDArray[np.uint8]:
    """Return ``count`` exponents of a frame. Raises CorruptError; takes no more memory than they do."""
    try:
        if zstandard.get_frame_parameters(frame).content_size != count:
            raise CorruptError("a frame of exponents has another length")
        plain = zstandard.ZstdDecompressor().decompress(frame, max_output_size=count)
    except zstandard.ZstdError as exc:
        raise CorruptError(f"the exponents do not decode: {exc}") from exc
    if len(plain) != count:
        raise CorruptError("a frame of exponents has another length")
    return np.frombuffer(plain, np.uint8)
