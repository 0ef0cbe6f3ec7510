"""Modes: bits that say how the tokens of a segment were coded; and what says which codec codes them.

Spec: archive/format/FORMAT.md, "Pack", "Block".
"""

from typing import Protocol

from pltz.plt_codec.container.frame import Method
from pltz.plt_codec.identity import SIZE

ALONE, TOWER, FAST = 0, 1, 2
CODING = TOWER | FAST  # the bits of a record's mode that tell how it was coded
COPIES = 32  # the bitstring begins with copies; of files, and of no record


class Identity(Protocol):
    """The part of a stored context that says which codec reads it."""

    @property
    def method(self) -> int:
        """Return the method."""

    @property
    def tokenizer(self) -> bytes:
        """Return the fingerprint of the tokenizer, 16 bytes, or `tokenizer_of_bytes`."""

    @property
    def bundle(self) -> bytes:
        """Return the id of the bundle, 16 bytes; zeros: none."""


def tokenizer_of_bytes(method: int, splitter: int = 0) -> bytes:
    """Return what stands in the place of a tokenizer's fingerprint, 16 bytes, where tokens are bytes.

    ``splitter``: of a log, the number of the splitter that cut it into a table.

    >>> is_bytewise(tokenizer_of_bytes(Method.LOG, 1)), is_bytewise(bytes(range(16)))
    (True, False)
    """
    return bytes([method, splitter]).ljust(SIZE, b"\0")


def is_bytewise(tokenizer: bytes) -> bool:
    """Return whether the tokens of a tokenizer are bytes."""
    return tokenizer[0] in (Method.LOG, Method.BYTES) and not any(tokenizer[2:])
