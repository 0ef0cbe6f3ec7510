"""Zip and tar files: kept as they are, and never opened, since unpacked they are a folder of inputs."""

from __future__ import annotations

from pltz.datasets.input_format import InputFormat, whole

ZIP_MAGIC = (b"PK\3\4", b"PK\5\6")
TAR_MAGIC = slice(257, 262)


FORMAT = InputFormat(
    "packed",
    "binary",
    "zip and tar files, byte for byte",
    of_head=lambda head: head[:4] in ZIP_MAGIC or head[TAR_MAGIC] == b"ustar",
    read=whole("binary"),
)
