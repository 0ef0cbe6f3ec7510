"""Decoder bundles: a folder with everything that decides a bit, and its fingerprint.

FORMAT.md, "Bundle", describes the files and the identity; folder.py reads them. Files are checked against
bundle.json when a bundle is loaded, so a damaged bundle is refused, not used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from pltz.models.bundle import locations
from pltz.models.bundle.folder import CARD, DICTIONARY, FORMAT, HEAD, PACKED, PLAIN, TOKENIZER, BundleFolder
from pltz.models.bundle.locations import described, how_to_get
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.plt_codec.errors import BundleMismatch, ModelError, PltzError, UsageError
from pltz.plt_codec.extras import need
from pltz.plt_codec.weights import Weights

if TYPE_CHECKING:
    from pltz.plt_codec.engines.cuda.coder import CudaCoder
    from pltz.plt_codec.engines.native.coder import NativeCoder
    from pltz.plt_codec.engines.token_coder import TokenCoder

DEFAULT = "mini"
ENGINE_VARIABLE = "PLTZ_ENGINE"
PART = 15_500_000  # bytes of weights in one file of a bundle, before compression


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle. Make one with `Bundle.load`.

    Immutable: any thread may use it.

    >>> Bundle.load("mini").contract
    1
    """

    name: str
    path: Path
    weights: Weights
    tokenizer: BundleTokenizer
    zstd_dict: bytes
    card: dict[str, Any]
    id: bytes  # 16 bytes

    @property
    def contract(self) -> int:
        """Return the version of the numeric contract."""
        return self.weights.contract

    @staticmethod
    def names() -> list[str]:
        """Return the names of the bundles at hand: embedded, installed and added ones."""
        return sorted(location.name for location in locations.locations())

    @staticmethod
    def load(name_or_path: str | os.PathLike[str] | None = None) -> Bundle:
        """Load a bundle at hand by its name, or any bundle folder.

        Raises:
            UsageError: there is no such bundle.
            ModelError: its files are missing or damaged.
            VersionError: its format or contract is unknown.
        """
        wanted = os.fspath(name_or_path or DEFAULT)
        location = locations.by_name(wanted)
        folder = location.folder if location else Path(wanted)
        if not (folder / HEAD).is_file():
            raise UsageError(
                f"no bundle {wanted!r}: expected one of {', '.join(Bundle.names())} or a folder with bundle.json; "
                f"{how_to_get(wanted)}"
            )
        return _load(folder.resolve(), BundleFolder.open(folder).id)

    @staticmethod
    def find(bundle_id: bytes) -> Bundle:
        """Load the bundle at hand with this id.

        Raises:
            BundleMismatch: there is none.
            ModelError: its files are missing or damaged.
        """
        if location := locations.by_id(bundle_id):
            return Bundle.load(location.folder)
        have = ", ".join(_identities())
        raise BundleMismatch(
            f"frozen with bundle {described(bundle_id)}, which is not here (have {have}): {how_to_get(bundle_id)}"
        )

    def coder(self, device: str = "cpu", threads: int | None = None) -> TokenCoder | NativeCoder | CudaCoder:
        """Return the fastest coder for these weights, see `coder_of`."""
        return coder_of(self.weights, device, threads)


def coder_of(weights: Weights, device: str = "cpu", threads: int | None = None) -> TokenCoder | NativeCoder | CudaCoder:
    """Return the fastest coder: compiled for the CPU or CUDA where that works, else torch. The bits are the same.

    The environment variable PLTZ_ENGINE set to `torch` forces the reference engine.

    Raises:
        UsageError: torch is needed and not installed, or the device makes no sense here.
    """
    from pltz.plt_codec.engines.native import coder as native

    if device == "cpu" and os.environ.get(ENGINE_VARIABLE) != "torch":
        if native.available():
            return native.NativeCoder(weights, threads)
        _warn_once("no compiled engine here (no C compiler at install)")
    if device.partition(":")[0] == "cuda" and os.environ.get(ENGINE_VARIABLE) != "torch":
        from pltz.plt_codec.engines.cuda import device as gpu

        if gpu.count():
            from pltz.plt_codec.engines.cuda.coder import CudaCoder

            try:
                return CudaCoder(weights, device)
            except (UsageError, ModelError) as exc:
                _warn_once(f"the CUDA engine does not run here ({exc})")
        else:
            _warn_once("the CUDA engine needs the extra pltz[cuda] and an NVIDIA driver")
    need("thaw", "coding without a compiled engine", "torch", "constriction")
    from pltz.plt_codec.engines.token_coder import TokenCoder
    from pltz.plt_codec.engines.torch import TorchEngine

    return TokenCoder(TorchEngine(weights, device, threads))


@functools.cache
def _warn_once(why: str) -> None:
    warnings.warn(f"pltz: {why}, torch codes the same bits slowly", stacklevel=3)


def _identities() -> Iterator[str]:
    """Yield name and id of the bundles at hand, and which of them cannot be read."""
    for location in locations.locations():
        try:
            yield f"{location.name} {location.open().id}"
        except PltzError:
            yield f"{location.name}, which cannot be read"


@functools.lru_cache(maxsize=4)
def _load(path: Path, identity: str) -> Bundle:
    """Load a folder; `identity`, the id it states, keeps another bundle of the same place out of the cache."""
    folder = BundleFolder.open(path)
    tokenizer, dictionary, weights = BundleTokenizer(folder.tokenizer()), folder.dictionary(), folder.weights()
    if tokenizer.size != weights.shape.vocab:
        raise ModelError(
            f"bundle {folder.name}: the tokenizer has {tokenizer.size} ids, the model {weights.shape.vocab}"
        )
    found = bundle_id(weights, tokenizer.fingerprint, dictionary)
    if found.hex() != identity:
        raise ModelError(f"bundle {folder.name}: content has the id {found.hex()}, bundle.json says {identity}")
    return Bundle(folder.name, path, weights, tokenizer, dictionary, folder.card(), found)


def bundle_id(weights: Weights, tokenizer: bytes, dictionary: bytes) -> bytes:
    """Return the 16-byte fingerprint of everything that decides a bit."""
    h = hashlib.blake2b(digest_size=16, person=b"pltz bundle")
    shape = [weights.contract, weights.shape.to_dict()]
    h.update(json.dumps(shape, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(weights.tensors):
        t = weights.tensors[name]
        h.update(f"{name} {t.dtype.str} {t.shape}\n".encode())
        h.update(np.ascontiguousarray(t).tobytes())
    h.update(tokenizer)
    h.update(hashlib.blake2b(dictionary, digest_size=16).digest())
    return h.digest()


def write_bundle(
    folder: Path,
    name: str,
    weights: Weights,
    tokenizer_json: bytes,
    dictionary: bytes,
    card: dict[str, Any],
    *,
    packed: bool = False,
) -> None:
    """Write a bundle folder. Weights go to files of at most 16 MB.

    Args:
        packed: compress the weights, for weights of few bits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packer = zstandard.ZstdCompressor(level=22)
    files = _files(weights, packed=packed)
    files |= {TOKENIZER: packer.compress(tokenizer_json), DICTIONARY: packer.compress(dictionary)}
    head = {
        "format": FORMAT,
        "contract": weights.contract,
        "name": name,
        "id": bundle_id(weights, BundleTokenizer(tokenizer_json).fingerprint, dictionary).hex(),
        "shape": weights.shape.to_dict(),
        "files": {
            k: {"size": len(v), "blake2b": hashlib.blake2b(v, digest_size=16).hexdigest()}
            for k, v in sorted(files.items())
        },
    }
    for key, data in files.items():
        (folder / key).write_bytes(data)
    (folder / HEAD).write_text(json.dumps(head, indent=1) + "\n")
    (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n")


def _files(weights: Weights, *, packed: bool) -> dict[str, bytes]:
    if not packed:
        return {f"weights-{i}{PLAIN}": part for i, part in enumerate(_parts(weights))}
    entropy = zstandard.ZstdCompressor(level=1)  # no repeats to find: Huffman codes alone do best
    return {f"weights-{i:02}{PACKED}": entropy.compress(part) for i, part in enumerate(_parts(weights))}


def _parts(weights: Weights) -> list[bytes]:
    """Return the tensors by sorted name, in files of at most 16 MB."""
    from safetensors.numpy import save

    parts: list[dict[str, Any]] = [{}]
    for key in sorted(weights.tensors):
        if sum(t.nbytes for t in parts[-1].values()) + weights.tensors[key].nbytes > PART and parts[-1]:
            parts.append({})
        parts[-1][key] = np.ascontiguousarray(weights.tensors[key])
    return [save(part) for part in parts]
