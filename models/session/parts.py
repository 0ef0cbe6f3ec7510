"""What a codec is made of, as it sees them: a bundle, the coder of its tokens, a bridge to another tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

if TYPE_CHECKING:
    from pltz.models.bundle.tokenizer import BundleTokenizer, Ids
    from pltz.plt_codec.types import Encoded, FrameItem

Progress = Callable[[int], None]
Tokens = npt.NDArray[Any]  # (T,) integers


class Parts(Protocol):
    """What a codec asks of a bundle (`pltz.models.bundle.bundle.Bundle`)."""

    @property
    def id(self) -> bytes:
        """16 bytes."""

    @property
    def contract(self) -> int:
        """Numeric contract version."""

    @property
    def tokenizer(self) -> BundleTokenizer:
        """Bytes to bundle tokens."""

    @property
    def zstd_dict(self) -> bytes:
        """Dictionary of the fallback."""


class Coder(Protocol):
    """Bundle tokens to bits and back (`pltz.plt_codec.engines.token_coder.TokenCoder`)."""

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        lanes: int | None = None,
        steps: int | None = None,
        progress: Progress | None = None,
    ) -> Sequence[Encoded]:
        """One `Encoded` a sequence."""

    def decode(self, items: Sequence[FrameItem], *, progress: Progress | None = None) -> Sequence[Tokens]:
        """One sequence an item."""


class TokenBridge(Protocol):
    """Ids of another tokenizer to bundle tokens and back (`pltz.models.bundle.bridge.Bridge`)."""

    @property
    def fingerprint(self) -> bytes:
        """16 bytes, of the other tokenizer."""

    @property
    def identity(self) -> bool:
        """Whether its ids are the bundle's."""

    def to_bundle(self, ids: npt.ArrayLike) -> tuple[Ids, bytes]:
        """Bundle tokens and patch."""

    def from_bundle(self, bundle_ids: npt.ArrayLike, patch: bytes) -> Ids:
        """The ids again."""
