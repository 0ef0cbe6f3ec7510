"""Modes: bits that say how the tokens of a segment were coded; formats store them.

Spec: archive/format/FORMAT.md, "Pack".
"""

from typing import Protocol

ALONE, TOWER, FAST = 0, 1, 2
CODING = TOWER | FAST  # the bits that an archive's context tells
COPIES = 32  # the bitstring begins with copies; a record tells, and no context


class Identity(Protocol):
    """The part of a stored context that says which codec reads it. `mode` may have more bits than `CODING`."""

    @property
    def tokenizer(self) -> bytes:
        """Return the fingerprint of the tokenizer, 16 bytes."""

    @property
    def bundle(self) -> bytes:
        """Return the id of the bundle, 16 bytes."""

    @property
    def contract(self) -> int:
        """Return the version of the numeric contract."""

    @property
    def mode(self) -> int:
        """Return the modes, as bits."""
