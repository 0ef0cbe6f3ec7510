"""RowForm: the pages of a target as a form of KV, for files and receipts. Spec: FORMAT.md, "Pages".

    kv (layers, 2, heads, T, D)  --encode-->  rows as they lie in a pool, and the sinks  --decode-->  kv

A file of rows goes into a pool as it is. Receipts of `q8` and `q4` are of these: what a pool keeps is what is measured.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from pltz.kv.port.arriving import shells
from pltz.plt_codec import SIZE, CorruptError

if TYPE_CHECKING:
    import torch

    from pltz.kv.pool.page_format import PageFormat
    from pltz.kv.port.arriving import Parts
    from pltz.kv.port.codec import Span
    from pltz.kv.port.receipt import Receipt

ROWS, SCALE, SINKS = "kv", "kv.scale", "kv.sinks"


class RowForm:
    """Rows of pages. ``pages``: their format. ``receipt``: what was measured of it; None for raw ones, which are exact.

    Its name has the centre in it where there is one: rows of another mean other numbers.
    """

    def __init__(self, pages: PageFormat, receipt: Receipt | None = None) -> None:
        self.pages, self.receipt, self.exact = pages, receipt, pages.kind == "raw"
        self.name = pages.kind if pages.centre is None else f"{pages.kind}-{pages_id(pages)}"

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the rows, and the sinks of KV from position 0. See `KVCodec.encode`."""
        rows = self.pages.pack(kv, span.start)
        sinks = kv[:, :, :, : max(self.pages.sinks - span.start, 0)].to(self.pages.dtype)
        return self.parts(rows, sinks)

    @staticmethod
    def parts(rows: Parts, sinks: torch.Tensor) -> Parts:
        """Return the parts of rows (layers, T, heads, ...) and sinks (layers, 2, heads, S, D), S being 0 mostly."""
        return {ROWS: rows["kv"], **({SCALE: rows["scale"]} if "scale" in rows else {}), SINKS: sinks.contiguous()}

    @staticmethod
    def rows(parts: Parts, first: int, count: int) -> dict[str, torch.Tensor]:
        """Return ``count`` rows of parts, from ``first``, as a slab takes them."""
        names = {"kv": ROWS, "scale": SCALE}
        return {name: parts[part][:, first : first + count] for name, part in names.items() if part in parts}

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of rows. See `KVCodec.decode`."""
        kv = self.pages.unpack(self.rows(parts, 0, len(span.ids)), span.start)
        sinks = parts[SINKS]
        kv[:, :, :, : sinks.shape[3]] = sinks
        return kv

    def near(self, parts: Parts, device: torch.device) -> Parts:
        """Return the parts on a device. See `KVCodec.near`."""
        return {name: part.to(device, non_blocking=True) for name, part in parts.items()}

    def check(self, parts: Parts, tokens: int) -> None:
        """Check rows and sinks. See `KVCodec.check`."""
        import torch

        pages, there = self.pages, shells(parts)
        names = {"kv": ROWS, "scale": SCALE}
        rows = pages.layers, tokens, pages.heads
        wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]]
        wanted = {names[name]: (dtype, (*rows, size)) for name, (size, dtype) in pages.types.items()}
        sinks = there.get(SINKS)
        if sinks is None or sinks.dim() != 5 or sinks.shape[3] not in (0, min(pages.sinks, tokens)):
            raise CorruptError("expected the sinks of a session, or none")
        wanted[SINKS] = pages.dtype, (pages.layers, 2, pages.heads, sinks.shape[3], pages.dim)
        if {name: (part.dtype, tuple(part.shape)) for name, part in there.items()} != wanted:
            raise CorruptError(f"expected rows of {tokens} tokens of {self.name}")
        if not all(bool(torch.isfinite(parts[name]).all()) for name in (SCALE, SINKS) if name in there):
            raise CorruptError("scales or sinks are not finite")


def pages_id(form: PageFormat) -> str:
    """Return what names pages, in hexadecimal. Rows of other pages mean other numbers."""
    facts = f"{form.kind} {form.layers} {form.heads} {form.dim} {short(form.dtype)}".encode()
    centre = b"" if form.centre is None else form.centre.cpu().numpy().astype("<f4").tobytes()
    return blake2b(facts + centre, digest_size=SIZE, person=b"pltz pages").hexdigest()


def short(dtype: torch.dtype) -> str:
    """Return the name of a type of numbers without its module."""
    return str(dtype).removeprefix("torch.")
