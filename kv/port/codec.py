"""KVCodec: the port of a form of KV.

    kv (layers, 2, heads, T, D)  --encode-->  parts: named tensors  --decode-->  kv

A block carries the codec that made it, so every copy of it says its form. A form has a name of its own, and so
has each set of tables of one codec. The store finds exact forms only, unless its caller allows a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from pltz.kv.port.bound import Bound, limits
from pltz.kv.port.receipt import Receipt
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.arriving import Parts

MAX_PARTS = 64  # tensors of one block
PREFIX = "kv"  # with which the name of every part begins


@dataclass(frozen=True, eq=False)
class Span:
    """The tokens that a KV is of.

    ``ids``: (T,) int32, of the target. ``start``: number of ids before them. ``mass``: (T,) float32, the attention
    that each received from the last queries of its session, where that was observed.
    """

    ids: NDArray[np.int32]
    start: int
    mass: NDArray[np.float32] | None = None

    def observed(self) -> NDArray[np.float32]:
        """Return the mass, (T,), for a form that codes by it.

        Raises UsageError where it was not observed: the form's receipt was measured with it, and says nothing then.
        """
        if self.mass is None and len(self.ids):
            raise UsageError(
                "this form codes by the attention that each token received, which was not observed here: "
                "keep the KV in the form raw or q8"
            )
        mass = np.zeros(0, np.float32) if self.mass is None else np.asarray(self.mass, np.float32)
        if mass.shape != (len(self.ids),) or not (np.isfinite(mass) & (mass >= 0)).all():
            raise UsageError(f"expected the attention that {len(self.ids)} tokens received, not below 0 each")
        return mass


@runtime_checkable
class KVCodec(Protocol):
    """A form of KV. Instances are immutable, and any thread may call them."""

    @property
    def name(self) -> str:
        """Return the name of the form: lower-case letters, digits and hyphens, at most 64.

        A codec whose tables change what is decoded has another name for each of them.
        """

    @property
    def exact(self) -> bool:
        """Return whether `decode` gives back every bit that `encode` was given."""

    @property
    def receipt(self) -> Receipt | None:
        """Return what was measured of this form on held-out sessions, or None where nothing was."""

    def encode(self, kv: torch.Tensor, span: Span) -> Parts:
        """Return the parts of ``kv``, (layers, 2, heads, T, D), on its device. Their names begin with "kv".

        Raises UsageError for KV that this form cannot hold, and for a span without a mass where the form codes by it.
        The block stays out of the tier then.
        """

    def decode(self, parts: Parts, span: Span) -> torch.Tensor:
        """Return the KV of parts that `check` accepted, (layers, 2, heads, T, D), on their device.

        Parts of a file may still arrive (`arriving.py`). Raises CorruptError where they turn out to be damaged, or are
        in a way that `check` does not see.
        """

    def near(self, parts: Parts, device: torch.device) -> Parts:
        """Return parts of which `decode` makes the KV on a device, with few bytes over the bus."""

    def check(self, parts: Parts, tokens: int) -> None:
        """Check names, types and shapes of parts that are read from a file. Waits for those only whose values it needs.

        Raises CorruptError unless they are the KV of ``tokens`` ids.
        """


def loss(codec: KVCodec) -> float:
    """Return the most that a form loses, in bits per token, by its receipt.

    0 for an exact form, infinity where nothing was measured. A 0 does not say that a form is exact: `serves` tells.
    """
    return 0.0 if codec.exact else limits(codec.receipt)[0]


def recall_loss(codec: KVCodec) -> float:
    """Return the most that a form loses where an early passage is asked for, as `loss` does."""
    return 0.0 if codec.exact else limits(codec.receipt)[1]


def serves(codec: KVCodec, bound: Bound) -> bool:
    """Return whether KV in a form may be handed to a caller who allows a loss.

    Those who allow none get exact forms only, whatever a receipt says.
    """
    return codec.exact or bound.keeps(codec.receipt)
