"""NumPy files of token ids: .npy with one sequence (T,), or several (n, T)."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import InputFormat, Part, ReadOptions
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, UsageError

MAGIC = b"\x93NUMPY"


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of a .npy of integers: one for (T,), or one per row of (n, T). Raises UsageError."""
    array = _npy(source.rest(), source.name)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or (array.ndim == 2 and not array.shape[1]):
        found = f"{array.dtype} of shape {array.shape}"
        raise UsageError(f"{source.name}: expected integer ids with one or two axes, found {found}")
    for number, row in enumerate(array if array.ndim == 2 else array[None], 1):
        try:
            session = Session("ids", row)
        except ContentError as exc:
            raise ContentError(f"{source.name}: sequence {number}: {exc}") from exc
        yield Part(session, source.name)


def _npy(data: bytes, name: str) -> np.ndarray[Any, Any]:
    """Return the array of a .npy file, without pickles and never larger than the file. Raises UsageError."""
    stream = io.BytesIO(data)
    try:
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = headers[np.lib.format.read_magic(stream)](stream)
        size = math.prod(shape) * dtype.itemsize  # bytes
    except Exception as exc:  # the header is a Python literal: nearly any exception may be raised
        raise UsageError(f"{name}: expected a .npy file of integers: {exc}") from exc
    held = len(data) - stream.tell()
    if size != held or min(shape, default=0) < 0 or dtype.hasobject:
        raise UsageError(f"{name}: expected {size} bytes for {dtype} of shape {shape}, found {held}")
    return cast("np.ndarray[Any, Any]", np.load(io.BytesIO(data), allow_pickle=False))


FORMAT = InputFormat("npy", "ids", "token ids in .npy files", of_head=lambda head: head.startswith(MAGIC), read=_read)
