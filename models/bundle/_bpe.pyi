"""Types of bpe.c."""

import numpy as np
import numpy.typing as npt

def table(triples: bytes, /) -> bytes: ...
def encode(table: bytes, byte_ids: npt.NDArray[np.int32], text: bytes, /) -> bytes | None: ...
