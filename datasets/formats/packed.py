"""Zip and tar files: their members are inputs like files of a folder. Nothing is written to disk.

Bounds: MEMBERS members, UNPACKED bytes of all together, and of each what its own format allows. A member whose name
leads out of the archive makes the whole file refused. Links and devices are left out, with a remark. An archive
inside an archive is not opened: it is refused, as it would be frozen as bytes.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pltz.datasets.byte_input import ByteInput, Readable
from pltz.datasets.input_format import InputFormat, Part, ReadOptions
from pltz.plt_codec.errors import CorruptError, LimitError, UsageError

MEMBERS = 100_000
UNPACKED = 1 << 34  # bytes
TAR_MAGIC = slice(257, 262)


class _BudgetedStream:
    """A member's stream that counts what all members of an archive unpack to."""

    def __init__(self, stream: Readable, name: str, budget: list[int]) -> None:
        self._stream, self._name, self._budget = stream, name, budget

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes. Raises LimitError past the limit of all, CorruptError for damaged data."""
        try:
            data = self._stream.read(size)
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, OSError) as exc:
            raise CorruptError(f"{self._name}: damaged: {exc}") from exc
        self._budget[0] -= len(data)
        if self._budget[0] < 0:
            raise LimitError(f"{self._name}: expected at most {UNPACKED} unpacked bytes, found more: split the archive")
        return data


def _read_zip(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of the members of a zip file, by name. Raises UsageError, LimitError, CorruptError."""
    try:
        file = zipfile.ZipFile(source.path or io.BytesIO(source.rest()))
    except (zipfile.BadZipFile, OSError, NotImplementedError) as exc:
        raise CorruptError(f"{source.name}: expected a zip file: {exc}") from exc
    budget = [UNPACKED]
    with file:
        members = [member for member in file.infolist() if not member.is_dir()]
        _check([member.filename for member in members], source.name)
        for member in sorted(members, key=lambda member: member.filename):
            name = f"{source.name}/{member.filename}"
            if member.flag_bits & 1:
                raise UsageError(f"{name}: is encrypted: unpack it first")
            if (member.external_attr >> 28) == 0o12:
                options.warn(f"{name}: a link, left out")
                continue
            try:
                stream = file.open(member)
            except (zipfile.BadZipFile, NotImplementedError, OSError) as exc:
                raise CorruptError(f"{name}: damaged: {exc}") from exc
            with stream:
                yield Part(ByteInput(_BudgetedStream(stream, name, budget), name, options.max_bytes), name)


def _read_tar(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of the members of a tar file, in their order. Raises UsageError, LimitError, CorruptError."""
    budget = [UNPACKED]
    stream_of_all: Any = _BudgetedStream(source, source.name, [1 << 62])  # tarfile only reads it
    try:
        with tarfile.open(fileobj=stream_of_all, mode="r|") as file:
            for number, member in enumerate(file):
                _check([member.name], source.name, number)
                name = f"{source.name}/{member.name}"
                stream = file.extractfile(member) if member.isreg() else None
                if stream is not None:
                    yield Part(ByteInput(_BudgetedStream(stream, name, budget), name, options.max_bytes), name)
                elif not member.isdir():
                    options.warn(f"{name}: a link or device, left out")
    except (tarfile.TarError, EOFError) as exc:
        raise CorruptError(f"{source.name}: expected a tar file: {exc}") from exc


def _check(names: list[str], archive: str, before: int = 0) -> None:
    """Refuse an archive of too many members, or with a member outside of it. Raises LimitError, UsageError."""
    if before + len(names) > MEMBERS:
        raise LimitError(f"{archive}: expected at most {MEMBERS} members, found more: split the archive")
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or any(part.endswith(":") for part in path.parts[:1]):
            raise UsageError(f"{archive}: member {name!r} lies outside of the archive: nothing of it is read")


def _is_tar(head: bytes) -> bool:
    return head[TAR_MAGIC] == b"ustar"


FORMATS = (
    InputFormat(
        "zip", "binary", "zip files of inputs", of_head=lambda head: head[:4] in (b"PK\3\4", b"PK\5\6"), read=_read_zip
    ),
    InputFormat("tar", "binary", "tar files of inputs", of_head=_is_tar, read=_read_tar),
)
