"""The files of a bundle folder, read as untrusted input. Format: FORMAT.md, "Bundle".

bundle.json comes first and bounds the rest. A file is opened only if its name is known and its size is the
one in bundle.json. A packed file is unpacked only up to its limit, and weights up to the bytes that the shape
needs. So the shape bounds memory, and NUMERICS.md and `MAX_WEIGHTS` bound the shape.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from pltz.plt_codec.errors import ModelError, VersionError
from pltz.plt_codec.versions import Readers
from pltz.plt_codec.weights import CONTRACTS, Shape, Weights

FORMAT = 1
HEAD, CARD = "bundle.json", "card.json"
TOKENIZER, DICTIONARY = "tokenizer.json.zst", "dictionary.zst"
PLAIN, PACKED = ".safetensors", ".safetensors.zst"
MAX_HEAD = 1 << 20  # bytes of bundle.json, and of the head of a weight file
MAX_CARD = 1 << 24
MAX_TOKENIZER = 1 << 26  # unpacked
MAX_DICTIONARY = 1 << 28  # unpacked
MAX_WEIGHTS = 1 << 30  # of all weights, unpacked
WEIGHTS = re.compile(r"weights-[0-9]{1,4}\.safetensors(\.zst)?")


def _is_file(name: str) -> bool:
    """Return whether a bundle of format 1 may have a file of this name."""
    return name in (TOKENIZER, DICTIONARY) or WEIGHTS.fullmatch(name) is not None


VERSIONS = Readers("the bundle", {FORMAT: _is_file})


@dataclass(frozen=True)
class BundleFolder:
    """A folder and its bundle.json. Every method raises ModelError.

    Args:
        files: name -> (bytes, BLAKE2b-16 in hex).
        id: 32 hex digits, as claimed.
    """

    path: Path
    name: str
    id: str
    shape: Shape
    files: dict[str, tuple[int, str]]

    @staticmethod
    def open(path: Path) -> BundleFolder:
        """Read bundle.json.

        Raises:
            ModelError: it cannot be read, or is no bundle description.
            VersionError: its format or contract is unknown.
        """
        place = path / HEAD
        try:
            head = json.loads(_bounded(place, MAX_HEAD))
            version, contract = head["format"], head["contract"]
            name, identity, sizes = str(head["name"]), str(head["id"]), dict(head["shape"])
            files = {str(k): (int(v["size"]), str(v["blake2b"])) for k, v in head["files"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
            raise ModelError(f"{place} is not a bundle description: {exc}") from exc
        is_file = VERSIONS[version if type(version) is int else str(version)]
        if contract not in CONTRACTS:
            raise VersionError(
                f"bundle {name}: expected a contract of {CONTRACTS}, found {contract!r:.40}: use a newer pltz"
            )
        for file in files:
            if not is_file(file):
                raise ModelError(f"bundle {name}: {file!r} is no file of a bundle")
        try:
            shape = Shape(**sizes)
        except TypeError as exc:
            raise ModelError(f"bundle {name}: its shape is not one: {exc}") from exc
        if shape.contract != contract:
            raise ModelError(f"bundle {name}: contract {contract} with a shape of contract {shape.contract}")
        return BundleFolder(path, name, identity, shape, files)

    def weights(self) -> Weights:
        """Read the integer weights.

        Raises:
            ModelError: a file is missing or damaged, or the weights do not fit the shape.
        """
        left = sum(prod(shape) * np.dtype(dtype).itemsize for dtype, shape in self.shape.tensors().values())
        if left > MAX_WEIGHTS:
            raise ModelError(
                f"bundle {self.name}: its shape needs {left} bytes of weights, at most {MAX_WEIGHTS} are allowed"
            )
        tensors: dict[str, Any] = {}
        for name in sorted(set(self.files) - {TOKENIZER, DICTIONARY}):
            found = _tensors(name, self._content(name, left + MAX_HEAD))
            left -= sum(t.nbytes for t in found.values())
            if left < 0 or found.keys() & tensors.keys():
                raise ModelError(f"bundle file {name} holds more than the shape of bundle {self.name} needs")
            tensors |= found
        return Weights(self.shape, tensors)

    def tokenizer(self) -> bytes:
        """Read the tokenizer's JSON."""
        return self._content(TOKENIZER, MAX_TOKENIZER)

    def dictionary(self) -> bytes:
        """Read the dictionary of the fallback coder."""
        return self._content(DICTIONARY, MAX_DICTIONARY)

    def card(self) -> dict[str, Any]:
        """Read the bundle's card for people; return an empty dict where there is none.

        Raises:
            ModelError: the card is no JSON object.
        """
        place = self.path / CARD
        if not place.exists():
            return {}
        try:
            return dict(json.loads(_bounded(place, MAX_CARD)))
        except (ValueError, TypeError, RecursionError) as exc:
            raise ModelError(f"{place} is not a card: {exc}") from exc

    def size(self) -> int:
        """Return the bytes of all files in the folder, cards included."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def _content(self, name: str, limit: int) -> bytes:
        """Return the content of a file, unpacked where it is packed; at most `limit` bytes."""
        if name not in self.files:
            raise ModelError(f"bundle {self.name} is incomplete: it has no {name}")
        if not name.endswith(".zst"):
            return self._read(name, limit)
        data = self._read(name, limit + (limit >> 8) + 64)  # zstd adds that at most
        try:
            size = zstandard.frame_content_size(data)
            if not 0 <= size <= limit:
                raise ModelError(f"bundle file {name} claims {size} bytes, at most {limit} are allowed")
            return zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError as exc:
            raise ModelError(f"bundle file {name} does not unpack: {exc}") from exc

    def _read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a file as they are."""
        size, digest = self.files[name]
        place = self.path / name
        if size > limit:
            raise ModelError(f"bundle file {name} claims {size} bytes, at most {limit} are allowed")
        data = _bounded(place, size)
        found = hashlib.blake2b(data, digest_size=16).hexdigest()
        if (len(data), found) != (size, digest):
            raise ModelError(
                f"bundle file {name} is damaged: expected {size} bytes, {digest}; got {len(data)}, {found}: "
                "reinstall pltz"
            )
        return data


def publish(part: Path, final: Path) -> None:
    """Give a finished folder its name, after an fsync of all of it."""
    for path in part.rglob("*"):
        if path.is_file():
            sync(path)
    sync(part)
    os.rename(part, final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Fsync a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _bounded(place: Path, limit: int) -> bytes:
    """Return the bytes of a plain file of at most `limit` bytes."""
    try:
        if not place.is_file():  # a pipe would never end
            raise ModelError(f"bundle file {place.name} cannot be read: it is no plain file, or not there")
        if (size := place.stat().st_size) > limit:
            raise ModelError(f"bundle file {place.name} is damaged: expected at most {limit} bytes, found {size}")
        with place.open("rb") as file:
            return file.read(limit)
    except OSError as exc:
        raise ModelError(f"bundle file {place.name} cannot be read: {exc.strerror}") from exc


def _tensors(name: str, data: bytes) -> dict[str, Any]:
    import safetensors
    from safetensors.numpy import load

    if int.from_bytes(data[:8], "little") > MAX_HEAD:
        raise ModelError(f"bundle file {name} has a head of more than {MAX_HEAD} bytes")
    try:
        return load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, OverflowError) as exc:
        raise ModelError(f"bundle file {name} is damaged: {exc}") from exc
