"""CheckedFile: named tensors in a safetensors file under one checksum, whole or refused. Spec: FORMAT.md.

    write: name.random.part -> sync -> rename -> sync of the folder      a kill leaves the old file or the new one
    read:  header, every field of it -> sizes that may be -> data -> checksum -> tensors      or a named error
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.kv.errors import MemoryFailed
from pltz.kv.port.private_file import opened, private_folder
from pltz.kv.store.warm_file import DTYPES
from pltz.plt_codec import CorruptError, FormatError, Readers, VersionError, number_in

if TYPE_CHECKING:
    import torch

LEFT = 3600.0  # seconds after which a .part file is one that a kill left
ALIGN = 64  # bytes: data begins at a multiple of it
CHECKSUM = 16  # bytes
MAX_HEADER = 1 << 20  # bytes
MAX_SIZE = 1 << 44  # elements of a dimension

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]  # of each tensor, its type in torch and its shape
Fit = Callable[[Mapping[str, str], Shapes], None]


@dataclass(frozen=True)
class FileKind:
    """A kind of checked file. ``name`` and ``version``: its format. ``fields``: of the metadata beside it."""

    name: str
    version: int
    fields: frozenset[str]

    def write(self, path: Path, meta: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> int:
        """Write a file, all or nothing, and return its bytes. It is on the disk then.

        Raises MemoryFailed where the disk takes it not.
        """
        beginning, pieces = self._laid_out(meta, tensors)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            private_folder(path.parent)
            handle = opened(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                size = _write_all(handle, beginning, pieces)
                os.fsync(handle)
            finally:
                os.close(handle)
            part.rename(path)
            _sync(path.parent)
        except BaseException as exc:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            if isinstance(exc, OSError):
                raise MemoryFailed(f"cannot write {path} ({exc.strerror}): make room, or name another folder") from exc
            raise
        return size

    def read(
        self, path: Path, names: Collection[str], fit: Fit
    ) -> tuple[dict[str, str], dict[str, torch.Tensor]] | None:
        """Return metadata and tensors of a file, None where there is none.

        ``fit``: called with the metadata and the shapes before any data is read. It raises CorruptError where tensors
        of these shapes cannot be what is asked for, so that a sparse file of any size takes no memory.

        Raises CorruptError where it is damaged, foreign, or has other tensors than ``names``, VersionError for
        another version, MemoryFailed where the disk cannot read it now, and what ``fit`` does.
        """
        try:
            handle = opened(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise MemoryFailed(f"cannot open {path} ({exc.strerror})") from exc
        try:
            return self._read(handle, names, fit)
        except CorruptError as exc:
            raise CorruptError(f"{path} is damaged or foreign: {exc}") from exc
        except VersionError as exc:
            raise VersionError(f"{path}: {exc}") from exc
        except OSError as exc:
            raise MemoryFailed(f"cannot read {path} ({exc.strerror})") from exc
        finally:
            os.close(handle)

    def peek(self, path: Path) -> dict[str, str] | None:
        """Return the metadata of a file by its header alone, unchecked; None where it cannot be read."""
        try:
            handle = opened(path)
        except OSError:
            return None
        try:
            return self._header(handle)[1]
        except (FormatError, OSError):
            return None
        finally:
            os.close(handle)

    def stamp(self, path: Path) -> bytes | None:
        """Return the checksum that a file says it has, unchecked; None where there is no file, b"" where it has none.

        Raises MemoryFailed where the disk cannot read it now.
        """
        try:
            handle = opened(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise MemoryFailed(f"cannot open {path} ({exc.strerror})") from exc
        try:
            size = int.from_bytes(os.pread(handle, 8, 0), "little")
            return os.pread(handle, CHECKSUM, 8 + size) if size <= MAX_HEADER else b""
        except OSError as exc:
            raise MemoryFailed(f"cannot read {path} ({exc.strerror})") from exc
        finally:
            os.close(handle)

    def _laid_out(
        self, meta: Mapping[str, str], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[bytes, list[memoryview]]:
        """Return the bytes before the data, and the data after the checksum."""
        import torch

        kinds = {f"torch.{name}": short for short, name in DTYPES.items()}
        order = sorted(tensors.items(), key=lambda one: -one[1].element_size())
        at = CHECKSUM
        header: dict[str, Any] = {
            "__metadata__": {"format": f"{self.name} {self.version}", **meta},
            "checksum": {"dtype": "U8", "shape": [CHECKSUM], "data_offsets": [0, at]},
        }
        pieces = []
        for name, tensor in order:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            pieces.append(flat.view(torch.uint8).numpy().data)
            kind, end = kinds[str(tensor.dtype)], at + pieces[-1].nbytes
            header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        return len(text).to_bytes(8, "little") + text, pieces

    def _header(self, handle: int) -> tuple[bytes, dict[str, str], dict[str, Any]]:
        """Return the bytes before the data, the metadata and the entries of tensors."""
        size = int.from_bytes(os.pread(handle, 8, 0), "little")
        if not 0 < size <= MAX_HEADER:
            raise CorruptError("no header of safetensors")
        beginning = os.pread(handle, 8 + size, 0)
        try:
            header = json.loads(beginning[8:])
        except (ValueError, RecursionError) as exc:
            raise CorruptError("no header of safetensors") from exc
        meta = header.pop("__metadata__", None) if isinstance(header, dict) else None
        if len(beginning) != 8 + size or not isinstance(meta, dict):
            raise CorruptError("no header of safetensors with metadata")
        version = number_in(meta.get("format"), self.name)
        if version is None:
            raise CorruptError(f"not a file of the format {self.name!r}")
        Readers(f"the file of the format {self.name!r}", {self.version: None}).of(version)
        del meta["format"]
        if set(meta) != self.fields or not all(isinstance(value, str) for value in meta.values()):
            raise CorruptError("expected other fields in the metadata")
        return beginning, meta, header

    def _read(
        self, handle: int, names: Collection[str], fit: Fit
    ) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        import torch
        import xxhash

        beginning, meta, header = self._header(handle)
        size = os.fstat(handle).st_size - len(beginning)
        if header.keys() != {"checksum", *names}:
            raise CorruptError("expected other tensors")
        places = _places(header, size)
        fit(meta, {name: (dtype, tuple(shape)) for name, (_, _, dtype, shape) in places.items()})
        data = torch.empty(size, dtype=torch.uint8)
        left = data.numpy().data
        while left:
            count = os.preadv(handle, [left], len(beginning) + size - len(left))
            if not count:
                raise CorruptError("the file ends too early")
            left = left[count:]
        state = xxhash.xxh3_128(beginning)
        state.update(data[CHECKSUM:].numpy().data)
        if state.digest() != bytes(data[:CHECKSUM].tolist()):
            raise CorruptError("the checksum does not match")
        tensors = {}
        for name, (begin, end, dtype, shape) in places.items():
            tensors[name] = data[begin:end].view(getattr(torch, dtype)).reshape(shape)
        return meta, tensors


def _places(header: Mapping[str, Any], size: int) -> dict[str, tuple[int, int, str, list[int]]]:
    """Return where each tensor lies, without the checksum. Raises CorruptError unless they fill ``size`` bytes."""
    import torch

    found: dict[str, tuple[int, int, str, list[int]]] = {}
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            right = isinstance(shape, list) and len(shape) <= 8
            right = right and all(type(n) is int and 0 <= n < MAX_SIZE for n in (*shape, begin, end))
        except (KeyError, TypeError, ValueError) as exc:
            raise CorruptError(f"no place of the tensor {name[:40]!r}") from exc
        each = getattr(torch, dtype).itemsize
        if not right or end - begin != each * math.prod(shape) or begin % each:
            raise CorruptError(f"the tensor {name[:40]!r} has a size or a place that cannot be")
        found[name] = begin, end, dtype, shape
    at = 0
    for begin, end, _, _ in sorted(found.values(), key=lambda place: place[:2]):
        if begin != at:
            raise CorruptError("the tensors overlap, or leave gaps")
        at = end
    if at != size or found.pop("checksum") != (0, CHECKSUM, "uint8", [CHECKSUM]):
        raise CorruptError("the tensors do not fill the file, or no checksum comes first")
    return found


def _write_all(handle: int, beginning: bytes, pieces: list[memoryview]) -> int:
    """Write a file and return its bytes."""
    import xxhash

    state = xxhash.xxh3_128(beginning)
    for piece in pieces:
        state.update(piece)
    size = 0
    for piece in (memoryview(beginning), memoryview(state.digest()), *pieces):
        left = piece
        while left:
            left = left[os.write(handle, left) :]
        size += piece.nbytes
    return size


def clean(folder: Path) -> None:
    """Remove the .part files that a kill left. Call it once, when a folder is opened."""
    for part in folder.glob("*.part"):
        with suppress(OSError):
            if time.time() - part.lstat().st_mtime > LEFT:
                part.unlink()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
