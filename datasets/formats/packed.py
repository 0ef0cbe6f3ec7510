"""Zip and tar files: kept as they are, and never opened, since unpacked they are a folder of inputs."""

from __future__ import annotations

from collections.abc import Iterator

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import InputFormat, Part, ReadOptions
from pltz.models.session.session import Session

ZIP_MAGIC = (b"PK\3\4", b"PK\5\6")
TAR_MAGIC = slice(257, 262)


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    yield Part(Session("text", source.rest()), source.name, "binary")


FORMAT = InputFormat(
    "packed",
    "binary",
    "zip and tar files, byte for byte",
    of_head=lambda head: head[:4] in ZIP_MAGIC or head[TAR_MAGIC] == b"ustar",
    read=_read,
)
