"""Zip files: their members are inputs like files of a folder. Nothing is written to disk.

Bounds: MEMBERS members, UNPACKED bytes of all together, and of each what its own format allows. A member that cannot
be read stops no other. Zip files of other names (documents and programs are such), those within another and tar files
are kept byte for byte.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator

from pltz.datasets.byte_input import ByteInput, Readable
from pltz.datasets.input_format import InputFormat, Part, ReadOptions, whole
from pltz.plt_codec.errors import CorruptError, LimitError

ZIP_MAGIC = (b"PK\3\4", b"PK\5\6")
TAR_MAGIC = slice(257, 262)
MEMBERS = 100_000
UNPACKED = 1 << 34  # bytes
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError)  # of a member


class _Member:
    """The bytes of a member, read from when they are wanted. ``left``: bytes that all may still unpack to."""

    def __init__(self, packed: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, left: list[int]) -> None:
        self._packed, self._member, self._name, self._left = packed, member, name, left
        self._stream: Readable | None = None

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes. Raises CorruptError, LimitError past what all may unpack to."""
        try:
            self._stream = self._stream or self._packed.open(self._member)
            data = self._stream.read(size)
        except DAMAGED as exc:
            raise CorruptError(f"{self._name}: cannot be unpacked: {exc}") from exc
        self._left[0] -= len(data)
        if self._left[0] < 0:
            raise LimitError(f"{self._name}: expected at most {UNPACKED} unpacked bytes, found more: unpack it first")
        return data


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the members of a zip file, by name. Raises CorruptError, LimitError."""
    if source.path is None or source.path.suffix.lower() != ".zip" or source.peek(4) not in ZIP_MAGIC:
        yield from whole("binary")(source, options)
        return
    try:
        packed = zipfile.ZipFile(source.path)
    except DAMAGED as exc:
        raise CorruptError(f"{source.name}: expected a zip file: {exc}") from exc
    left = [UNPACKED]
    with packed:
        members = sorted((one for one in packed.infolist() if not one.is_dir()), key=lambda one: one.filename)
        if len(members) > MEMBERS:
            raise LimitError(f"{source.name}: expected at most {MEMBERS} members, found {len(members)}")
        for member in members:
            name = f"{source.name}/{member.filename}"
            yield Part(ByteInput(_Member(packed, member, name, left), name, options.max_bytes), name)


FORMAT = InputFormat(
    "packed",
    "binary",
    "zip files of inputs; other zip and tar files, byte for byte",
    of_head=lambda head: head[:4] in ZIP_MAGIC or head[TAR_MAGIC] == b"ustar",
    read=_read,
)
