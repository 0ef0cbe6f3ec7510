"""Types of batch.c."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pltz.archive.format.ids import Tokens

Ints: TypeAlias = npt.NDArray[np.int64]

lanes: int  # messages that the processor hashes abreast; 0: none

def digests(
    person: bytes,
    size: int,
    key: int,
    heads: tuple[bytes, ...],
    rows: list[Tokens] | list[bytes],
    abreast: int = ...,
    /,
) -> bytes: ...
def same(rows: list[Tokens] | list[bytes], wanted: list[Tokens] | list[bytes], /) -> int: ...
def place(out: memoryview, begins: Ints, sizes: Ints, pieces: Sequence[bytes], /) -> None: ...
