"""Bridged codec: segments of a target's own token ids, coded through a bundle (archive/format/FORMAT.md, "Bitstrings").

    ids of the target --bridge--> bundle tokens, patch --frame--> bitstring

A target must be prefilled again with exactly its ids, down to the last odd split, and the bundle knows only
its own vocabulary. Each segment is bridged and coded by itself, so segments may be cut anywhere, even within
a character. Such a cut costs patch bits, and what the tokens above would have told: 1.6 % of six chats that
were put turn by turn, until their turns are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.coding.codecs.codec import NO_MARK, BundleCodec, Coded, Plain, SegmentCodec
from pltz.plt_codec.container.frame import FAST
from pltz.plt_codec.errors import CorruptError, UsageError
from pltz.plt_codec.lanes import LayoutName, Tokens
from pltz.plt_codec.limits import MAX_DENSITY
from pltz.plt_codec.varint import read_varint, write_varint

if TYPE_CHECKING:
    from pltz.models.bundle.bridge import Bridge
    from pltz.models.bundle.bundle import Bundle


@dataclass(frozen=True)
class _Parts:
    """The parts of a bitstring: the bridge's patch, and a frame of ``tokens`` bundle tokens."""

    tokens: int
    patch: bytes
    frame: bytes

    def encode(self) -> bytes:
        """Return the bitstring."""
        head = write_varint(self.tokens << 1 | bool(self.patch))
        return head + (write_varint(len(self.patch)) + self.patch if self.patch else b"") + self.frame

    @classmethod
    def decode(cls, data: bytes) -> _Parts:
        """Return the parts of a bitstring. Raises CorruptError."""
        head, at = read_varint(data, 0)
        size = 0
        if head & 1:
            size, at = read_varint(data, at)
            if not 1 <= size <= len(data) - at:
                raise CorruptError(f"expected a patch within {len(data) - at} bytes, found {size}: damaged")
        parts = cls(head >> 1, data[at : at + size], data[at + size :])
        if parts.tokens > MAX_DENSITY * (len(parts.frame) + 1) or (parts.frame and not parts.tokens):
            raise CorruptError(f"{parts.tokens} bundle tokens cannot come from {len(parts.frame)} bytes: damaged")
        return parts


class BridgedCodec(SegmentCodec):
    """A decoder bundle's coder for the ids of another tokenizer.

    ``bridge``: from that tokenizer to the bundle's (`pltz.models.bundle.bridge.Bridge`). Raises UsageError
    where it is the bundle's own tokenizer.
    """

    mode = FAST

    def __init__(
        self,
        bundle: Bundle,
        bridge: Bridge,
        *,
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
    ):
        if bridge.fingerprint == bundle.tokenizer.fingerprint:
            raise UsageError("these ids are the bundle's own: use BundleCodec")
        self.bundle_id, self.tokenizer = bundle.id, bridge.fingerprint
        self.fast = layout == "fast"
        self.reach = 0
        self._bridge, self._codec = bridge, BundleCodec(bundle, device=device, threads=threads)

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return a bitstring for each segment. Raises ContentError for ids that are not of the tokenizer."""
        bridged = [self._bridge.to_bundle(p.tokens) for p in batch]
        frames = self._codec.encode([Plain(tokens, NO_MARK, fast=self.fast) for tokens, _ in bridged])
        return [
            _Parts(len(tokens), patch, frame).encode() if len(plain.tokens) else b""
            for plain, (tokens, patch), frame in zip(batch, bridged, frames, strict=True)
        ]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """Return the ids of each segment, (count,). Raises CorruptError."""
        parts = [_Parts.decode(c.data) if c.count else _empty(c) for c in batch]
        rows = zip(parts, batch, strict=True)
        found = self._codec.decode([Coded(part.frame, part.tokens, NO_MARK, coded.mode) for part, coded in rows])
        return [self._ids(c, p, tokens) for c, p, tokens in zip(batch, parts, found, strict=True)]

    def _ids(self, coded: Coded, parts: _Parts, tokens: Tokens) -> Tokens:
        ids = self._bridge.from_bundle(tokens, parts.patch)
        if len(ids) != coded.count:
            raise CorruptError(f"expected {coded.count} ids, found {len(ids)}: damaged")
        return ids.astype(np.int64)


def _empty(coded: Coded) -> _Parts:
    if coded.data:
        raise CorruptError(f"expected no bytes for no ids, found {len(coded.data)}: damaged")
    return _Parts(0, b"", b"")
