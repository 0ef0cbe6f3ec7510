"""A run: consecutive segments of one tower in one bitstring. Spec: FORMAT.md, "Runs".

    varint count | count varints: tokens of each segment | the codec's encoding of all tokens
"""

from __future__ import annotations

from collections.abc import Sequence

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

MAX_RUN = 4096  # segments


def pack_run(lengths: Sequence[int], data: bytes) -> bytes:
    """Return the bitstring of a run. ``lengths``: tokens of each segment; ``data``: all tokens, encoded.

    >>> unpack_run(pack_run([3, 200], b"bits"), 203)
    ([3, 200], b'bits')
    """
    return b"".join(map(write_varint, (len(lengths), *lengths))) + data


def unpack_run(bitstring: bytes, tokens: int) -> tuple[list[int], bytes]:
    """Return the tokens of each segment and the encoding of all. ``tokens``: as the record says.

    Raises CorruptError where the numbers do not fit.
    """
    count, at = read_varint(bitstring, 0)
    if not 0 < count <= MAX_RUN:
        raise CorruptError(f"a run of {count} segments, expected 1 to {MAX_RUN}: damaged")
    lengths = []
    for _ in range(count):
        length, at = read_varint(bitstring, at)
        lengths.append(length)
    if sum(lengths) != tokens:
        raise CorruptError(f"a run of {sum(lengths)} tokens, expected {tokens}: damaged")
    return lengths, bitstring[at:]
