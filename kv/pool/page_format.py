"""PageFormat: rows of a fixed number of bytes that the KV of each token becomes. Spec: FORMAT.md, "Pages".

    kv (layers, 2, heads, T, D)  --pack-->  rows of T tokens: "kv", "scale"  --unpack-->  kv

A row depends on its token and its position alone. So rows may be written one by one, read in any order, shared by
sessions that begin alike, and attended to as they lie. Keys are at their positions. A key bias would need a coarse
scale, so the centre, a mean key at position 0, is turned to the position and subtracted first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pltz.kv.port.rotary import Rotary, turned
from pltz.models import is_plain, pairs_of
from pltz.plt_codec import ModelError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.models import Target

    Rows = Mapping[str, torch.Tensor]

KINDS = ("raw", "q8", "q4")
SINKS = 4  # tokens at the beginning of a session, kept exactly: most attention goes to them
LARGEST = 127  # code of q8
# Lloyd-Max centroids of a Gaussian of variance 1, 16 levels; D = 0.0095
HALF_BOOK = (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6180, 2.0690, 2.7326)
ASCENDING = tuple(-c for c in reversed(HALF_BOOK)) + HALF_BOOK
BOOK = HALF_BOOK + tuple(-c for c in HALF_BOOK)  # by nibble: bit 3 is the sign, the others say the centroid
TILE = 64  # tokens of a tile of attention, in attend.c too
SAMPLE = 512  # ids of the prefill that finds the centre


@dataclass(frozen=True, eq=False)
class PageFormat:
    """The pages of a target's KV.

    ``kind``: "raw", "q8" or "q4". ``dtype``: of the KV. ``rotary``: the target's. ``centre``: (layers, 2, heads, D)
    float32, the mean key at position 0 and the mean value; None for raw pages.
    """

    kind: str
    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    rotary: Rotary | None = None
    centre: torch.Tensor | None = None
    _angles: dict[torch.device, PageAngles] = field(default_factory=dict, init=False, repr=False)
    _centres: dict[torch.device, torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise UsageError unless the parts fit."""
        if self.kind not in KINDS:
            raise UsageError(f"expected pages of a kind of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "raw":
            return
        shape = (self.layers, 2, self.heads, self.dim)
        if self.rotary is None or self.centre is None or tuple(self.centre.shape) != shape:
            raise UsageError(f"expected the rotary embedding of the target, and a centre of shape {shape}")
        if self.kind == "q4" and (self.dim < 2 or self.dim & (self.dim - 1)):
            raise UsageError(f"expected heads of a power of two for pages of q4, got {self.dim}: take q8")

    @classmethod
    def of(cls, target: Target, kind: str = "q4") -> PageFormat:
        """Return the pages of a target. Its centre is that of a prefill of ids spread over its vocabulary.

        So it is the same in every process, and no session's content is in it. Raises ModelError where keys cannot be
        turned; raw pages take them.
        """
        import torch

        rotary = None if kind == "raw" else Rotary.of(target)
        limit = min(SAMPLE, target.max_positions or SAMPLE)
        ids = [(n * 7919 + 11) % target.vocab_size for n in range(limit)]
        with torch.inference_mode():
            cache, _ = target.prefill(ids if rotary else ids[:1])
            if not is_plain(cache) or len({t.shape for pair in pairs_of(cache) for t in pair}) != 1:
                raise ModelError("some layers of this target keep a window, a latent or a state: no KV in blocks")
            kv = torch.stack([torch.cat(pair) for pair in pairs_of(cache)])
            centre = None if rotary is None else centre_of(kv, rotary)
        layers, _, heads, _, dim = kv.shape
        return cls(kind, layers, heads, dim, kv.dtype, rotary, centre)

    @property
    def sinks(self) -> int:
        """Return the number of tokens at the beginning of a session that are kept exactly, beside their rows."""
        return 0 if self.kind == "raw" else SINKS

    @property
    def width(self) -> int:
        """Return the elements of a row's "kv": those of the key, then those of the value."""
        return self.dim if self.kind == "q4" else 2 * self.dim

    @property
    def types(self) -> dict[str, tuple[int, torch.dtype]]:
        """Return, for each tensor of pages, the elements of a row and their type."""
        import torch

        if self.kind == "raw":
            return {"kv": (self.width, self.dtype)}
        return {"kv": (self.width, torch.uint8 if self.kind == "q4" else torch.int8), "scale": (2, torch.float16)}

    @property
    def token_bytes(self) -> int:
        """Return the bytes that a token takes over all layers."""
        return self.layers * self.heads * sum(size * dtype.itemsize for size, dtype in self.types.values())

    def angles(self, tokens: int, device: torch.device) -> PageAngles:
        """Return the angles that attention over pages of up to ``tokens`` tokens needs, on a device. They are kept."""
        found = self._angles.get(device)
        if found is None or found.tile_cos.shape[0] * TILE < tokens:
            tiles = 1 << max(-(-tokens // TILE) - 1, 3).bit_length()
            found = self._angles[device] = PageAngles.of(self.rotary, tiles, device)
        return found

    def pack(self, kv: torch.Tensor, start: int) -> dict[str, torch.Tensor]:
        """Return the rows (layers, T, heads, elements) of KV (layers, 2, heads, T, D) at positions from ``start``.

        Rows of sinks are zeros where the kind keeps sinks. Raises UsageError for KV that is not finite, or too large.
        """
        import torch

        if kv.dim() != 5 or (kv.shape[0], kv.shape[1], kv.shape[2], kv.shape[4]) != (
            self.layers, 2, self.heads, self.dim,
        ):  # fmt: skip
            raise UsageError(f"expected KV of {self.layers} layers, {self.heads} heads of {self.dim}, got {kv.shape}")
        if self.kind == "raw":
            return {"kv": kv.permute(0, 3, 2, 1, 4).flatten(3).to(self.dtype)}
        apart = kv.float() - self._placed(self.centre_on(kv.device), start, kv.shape[3])
        apart[:, :, :, : max(self.sinks - start, 0)] = 0
        if not bool(torch.isfinite(apart).all()):
            raise UsageError("keys or values are not finite: keep them in raw pages")
        apart = apart.permute(0, 3, 2, 1, 4)  # (layers, T, heads, 2, D)
        if self.kind == "q8":
            codes, scale = quantise(apart, (apart.abs().amax(-1) / LARGEST).half())
        else:
            codes, scale = levels(hadamard(apart))
            codes = torch.where(codes < 8, 15 - codes, codes - 8)
            codes = codes[..., 0::2] | codes[..., 1::2] << 4
        return {"kv": codes.flatten(3), "scale": scale}

    def unpack(self, rows: Rows, start: int) -> torch.Tensor:
        """Return the KV (layers, 2, heads, T, D) of rows at positions from ``start``."""
        return self._unpacked(rows, start, None)

    def unpack_layer(self, layer: int, rows: Rows) -> torch.Tensor:
        """Return KV (B, 2, heads, T, D) of one layer: of rows (B, T, heads, elements) at positions from 0."""
        return self._unpacked(rows, 0, layer)

    def _unpacked(self, rows: Rows, start: int, layer: int | None) -> torch.Tensor:
        import torch

        codes = rows["kv"].unflatten(3, (2, -1))  # (n, T, heads, 2, elements of a half)
        if self.kind == "raw":
            exact: torch.Tensor = codes.permute(0, 3, 2, 1, 4).contiguous()
            return exact
        scale = rows["scale"].float()[..., None]
        if self.kind == "q8":
            apart = codes.float() * scale
        else:
            both = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
            apart = butterflies(centroids(codes.device)[both.int()] * (scale * self.dim**-0.5))
        centre = self.centre_on(codes.device)
        centre = centre if layer is None else centre[layer : layer + 1]
        kv: torch.Tensor = apart.permute(0, 3, 2, 1, 4) + self._placed(centre, start, codes.shape[1])
        return kv.to(self.dtype)

    def centre_on(self, device: torch.device) -> torch.Tensor:
        """Return the centre on a device. It is kept: a copy would make the host wait for the device."""
        if self.centre is None:
            raise UsageError("raw pages have no centre")
        if device not in self._centres:
            self._centres[device] = self.centre.to(device).contiguous()
        return self._centres[device]

    def _placed(self, centre: torch.Tensor, start: int, tokens: int) -> torch.Tensor:
        """Return a centre (n, 2, heads, D) at positions, (n, 2, heads, tokens, D)."""
        import torch

        if self.rotary is None:
            raise UsageError("expected a rotary embedding")
        cos, sin = self.rotary.angles(start, tokens, centre.device)
        wide = centre[:, :, :, None].expand(-1, -1, -1, tokens, -1)
        return torch.stack([turned(wide[:, 0], cos, sin), wide[:, 1]], 1)


@dataclass(frozen=True, eq=False)
class PageAngles:
    """Cosines and sines by which attention turns a centre: position = TILE tile + place.

    ``tile_cos``, ``tile_sin``: of the first position of each tile, (tiles, n). ``cos``, ``sin``: of the places, (TILE,
    n). float32; n is the number of frequencies, rounded up to a multiple of 16 with zeros. ``places``: those of the
    places in float16, in the order in which lanes of attend_pages.cu hold them.
    """

    tile_cos: torch.Tensor
    tile_sin: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, rotary: Rotary | None, tiles: int, device: torch.device) -> PageAngles:
        """Return the angles of a rotary embedding, or of none."""
        import torch

        inv_freq = torch.zeros(0, dtype=torch.float64) if rotary is None else rotary.inv_freq
        count = len(inv_freq)
        inv_freq = torch.nn.functional.pad(inv_freq.cpu(), (0, -count % 16))
        real = torch.arange(len(inv_freq)) < count

        def of_positions(step: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            angle = (step * torch.arange(count, dtype=torch.float64))[:, None] * inv_freq
            return (angle.cos() * real).float().to(device), (angle.sin() * real).float().to(device)

        cos, sin = of_positions(1, TILE)
        return cls(*of_positions(TILE, tiles), cos, sin, _as_operands(torch.stack([cos, sin])).half())


def _as_operands(angles: torch.Tensor) -> torch.Tensor:
    """Return (2, TILE, n) as left operands of mma.m16n8k16: (16 places, cos or sin, step, lane, 8).

    Lane 4g + t has quarter t of the frequencies of places g and g + 8, four of them at each step.
    """
    parts = angles.reshape(2, TILE // 16, 2, 8, 4, -1, 2, 2)  # kind, tile, row, g, t, step, column, pair
    return parts.permute(1, 0, 5, 3, 4, 6, 2, 7).contiguous()


def centre_of(kv: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Return the mean (layers, 2, heads, D), float32, of KV (layers, 2, heads, T, D) from position 0, without sinks."""
    import torch

    still = torch.stack([rotary.turn(kv[:, 0], 0, back=True), kv[:, 1].float()], 1)
    return still[:, :, :, min(SINKS, kv.shape[3] - 1) :].mean(3)


@functools.cache
def centroids(device: torch.device, *, ascending: bool = False) -> torch.Tensor:
    """Return the centroids, (16,) float32, by nibble or ascending, on a device. They are kept there."""
    import torch

    return torch.tensor(ASCENDING if ascending else BOOK, device=device)


def quantise(values: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes and their scales. Raises UsageError where a float16 cannot hold a scale."""
    import torch

    if not bool(torch.isfinite(scale).all()):
        raise UsageError("keys or values are too large for a float16 scale: keep them in the form raw")
    divisor = scale.float().clamp_min(2.0**-24)[..., None]
    return (values / divisor).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def levels(turned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of rotated rows (..., D), uint8 below 16, and their scales (...), float16.

    Raises UsageError where a float16 cannot hold a scale.
    """
    import torch

    book = centroids(turned.device, ascending=True)
    edges = (book[1:] + book[:-1]) / 2
    first = scale = turned.pow(2).mean(-1).sqrt()
    for _ in range(3):  # the best scale for the codes, and the best codes for the scale
        codes = torch.bucketize(turned / scale.clamp_min(1e-20)[..., None], edges)
        picked = book[codes]
        scale = (turned * picked).sum(-1) / picked.pow(2).sum(-1)
    half = scale.half()
    if not bool(torch.isfinite(half).all() & torch.isfinite(first.half()).all()):  # sums beyond float32 may cancel
        raise UsageError("keys or values are too large for a float16 scale: keep them in the form raw")
    return torch.bucketize(turned / half.float().clamp_min(2.0**-24)[..., None], edges).to(torch.uint8), half


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Return the orthonormal Walsh-Hadamard transform of the last dimension, a power of two; its own inverse."""
    return butterflies(x * x.shape[-1] ** -0.5)


def butterflies(x: torch.Tensor) -> torch.Tensor:
    """Return the sums and differences of the transform. The kernel has the same order, so the same roundings."""
    import torch

    shape, size = x.shape, x.shape[-1]
    half = 1
    while half < size:
        x = x.reshape(-1, size // (2 * half), 2, half)
        x = torch.stack([x[:, :, 0] + x[:, :, 1], x[:, :, 0] - x[:, :, 1]], 2)
        half *= 2
    return x.reshape(shape)
