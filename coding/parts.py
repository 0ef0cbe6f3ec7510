"""The parts of a codec, as protocols: a bundle, the coder of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy.typing as npt

if TYPE_CHECKING:
    from pltz.models.bundle.tokenizer import BundleTokenizer
    from pltz.plt_codec.lanes import Layouts
    from pltz.plt_codec.types import Encoded, FrameItem

Progress = Callable[[int], None]
"""Called with the number of tokens done since the last call. One with phases is told them, see `begin`."""

Tokens = npt.NDArray[Any]  # (T,) integers


@runtime_checkable
class PhasedProgress(Protocol):
    """A `Progress` that is told which phase of the work begins."""

    def __call__(self, amount: int, /) -> None:
        """Count ``amount`` more tokens."""

    def begin(self, phase: str, total: int | None = None) -> None:
        """Begin a phase (encode, verify) of ``total`` tokens."""


def begin(progress: Progress, phase: str, total: int) -> None:
    """Tell a progress with phases which phase begins, and of how many tokens."""
    if isinstance(progress, PhasedProgress):
        progress.begin(phase, total)


class Parts(Protocol):
    """The interface of a bundle that a codec uses (`pltz.models.bundle.bundle.Bundle`)."""

    @property
    def id(self) -> bytes:
        """Return the bundle's 16-byte id."""

    @property
    def tokenizer(self) -> BundleTokenizer:
        """Return the tokenizer from bytes to bundle tokens."""

    @property
    def zstd_dict(self) -> bytes:
        """Return the dictionary of the fallback."""


class Coder(Protocol):
    """A coder of bundle tokens to bits and back (`pltz.plt_codec.engines.token_coder.TokenCoder`)."""

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        layouts: Layouts = None,
        contexts: Sequence[Tokens | None] | None = None,
        progress: Progress | None = None,
    ) -> Sequence[Encoded]:
        """Encode sequences, each (T,), in its layout and after its context, and return one `Encoded` per sequence."""

    def decode(self, items: Sequence[FrameItem], *, progress: Progress | None = None) -> Sequence[Tokens]:
        """Decode items, and return one sequence (T,) per item."""


@runtime_checkable
class Doubling(Protocol):
    """A coder on a device that can have others beside it, each for a thread of its own."""

    def twin(self, *, urgent: bool = False) -> Coder:
        """Return another coder of the same model on the same device, which gives the same bytes.

        ``urgent``: its work comes before that of others.
        """

    def rest(self) -> None:
        """Give back the memory that is kept from call to call."""
