"""Decoder bundles: a folder with everything that decides a bit, and its fingerprint.

    bundle.json          format, contract, name, shape, and the size and BLAKE2b of each file below
    weights-*.safetensors  the integers of NUMERICS.md; with .zst at the end, compressed
    tokenizer.json.zst   byte-level BPE with classes
    dictionary.zst       the zstd dictionary of the fallback coder
    card.json, CARD.md   figures, data, licences (not part of the identity)

bundle id = BLAKE2b-16 over contract, shape, every tensor (name, type, shape, bytes), the tokenizer's fingerprint and the
dictionary. Files are checked against bundle.json when a bundle is loaded, so a damaged bundle is refused, not used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from pltz.models.tokenizer import BundleTokenizer
from pltz.plt_codec.errors import BundleMismatch, ModelError, UsageError, VersionError
from pltz.plt_codec.weights import CONTRACTS, Shape, Weights

if TYPE_CHECKING:
    from pltz.plt_codec.cuda.coder import CudaCoder
    from pltz.plt_codec.engine import TorchEngine
    from pltz.plt_codec.frame import TokenCoder
    from pltz.plt_codec.native import NativeCoder

FORMAT = 1
DEFAULT = "mini"
EMBEDDED = Path(__file__).resolve().parent / "bundles"
ENGINE_VARIABLE = "PLTZ_ENGINE"
MAX_FILE = 1 << 30  # bytes of one bundle file, unpacked
PACKED = ".safetensors.zst"
PART = 15_500_000  # bytes of weights in one file of a bundle, before compression


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle. Make one with `Bundle.load`.

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
        """Version of the numeric contract."""
        return self.weights.contract

    @staticmethod
    def names() -> list[str]:
        """Names of the embedded bundles."""
        return sorted(p.parent.name for p in EMBEDDED.glob("*/bundle.json"))

    @staticmethod
    def load(name_or_path: str | os.PathLike[str] | None = None) -> Bundle:
        """An embedded bundle by name, or any bundle folder. Raises UsageError, ModelError, VersionError."""
        wanted = os.fspath(name_or_path or DEFAULT)
        folder = EMBEDDED / wanted if wanted in Bundle.names() else Path(wanted)
        if not (folder / "bundle.json").is_file():
            raise UsageError(
                f"no bundle {wanted!r}: expected one of {', '.join(Bundle.names())} or a folder with bundle.json"
            )
        return _load(folder.resolve())

    @staticmethod
    def find(bundle_id: bytes) -> Bundle:
        """The embedded bundle with this id. Raises BundleMismatch where there is none."""
        known = {name: str(_head(EMBEDDED / name)["id"]) for name in Bundle.names()}
        for name, identity in known.items():
            if identity == bundle_id.hex():
                return Bundle.load(name)  # none but the one wanted
        have = ", ".join(f"{name} {identity}" for name, identity in known.items())
        raise BundleMismatch(
            f"frozen with bundle {bundle_id.hex()}, which is not here (have {have}): pass its folder with --bundle"
        )

    def engine(self, device: str = "cpu", threads: int | None = None) -> TorchEngine:
        """The reference engine on a torch device."""
        from pltz.plt_codec.engine import TorchEngine

        return TorchEngine(self.weights, device, threads)

    def coder(self, device: str = "cpu", threads: int | None = None) -> TokenCoder | NativeCoder | CudaCoder:
        """The fastest coder there is: compiled for the CPU or CUDA where that works, else torch. The bits are the same.

        The environment variable PLTZ_ENGINE set to `torch` keeps to the reference engine.
        """
        from pltz.plt_codec import native

        if device == "cpu" and os.environ.get(ENGINE_VARIABLE) != "torch":
            if native.available():
                return native.NativeCoder(self.weights, threads)
            _warn_once("no compiled engine here (no C compiler at install)")
        if device.partition(":")[0] == "cuda" and os.environ.get(ENGINE_VARIABLE) != "torch":
            from pltz.plt_codec.cuda import device as gpu

            if gpu.count():
                from pltz.plt_codec.cuda.coder import CudaCoder

                try:
                    return CudaCoder(self.weights, device)
                except (UsageError, ModelError) as exc:
                    _warn_once(f"the CUDA engine does not run here ({exc})")
            else:
                _warn_once("the CUDA engine needs the extra pltz[cuda] and an NVIDIA driver")
        from pltz.plt_codec.frame import TokenCoder

        return TokenCoder(self.engine(device, threads))

    def size(self) -> int:
        """Bytes of the bundle's files."""
        return sum(p.stat().st_size for p in self.path.iterdir() if p.is_file())

    def verify(self) -> list[str]:
        """Check every file against bundle.json again; the names checked. Raises ModelError."""
        head = _head(self.path)
        for name, entry in head["files"].items():
            _read(self.path, name, entry)
        return sorted(head["files"])


@functools.cache
def _warn_once(why: str) -> None:
    warnings.warn(f"pltz: {why}, torch codes the same bits slowly", stacklevel=3)


def _head(folder: Path) -> dict[str, Any]:
    try:
        head = json.loads((folder / "bundle.json").read_text("utf8"))
        found = head["format"], head["contract"]
        files = {str(k): (int(v["size"]), str(v["blake2b"])) for k, v in head["files"].items()}
        shape, name, identity = dict(head["shape"]), str(head["name"]), str(head["id"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{folder / 'bundle.json'} is not a bundle description: {exc}") from exc
    if found[0] != FORMAT or found[1] not in CONTRACTS:
        raise VersionError(
            f"bundle {name}: expected format {FORMAT} and a contract of {CONTRACTS}, found {found[0]} and {found[1]}: update pltz"
        )
    return {"files": files, "shape": shape, "name": name, "id": identity, "contract": found[1]}


def _read(folder: Path, name: str, entry: tuple[int, str]) -> bytes:
    if Path(name).name != name:
        raise ModelError(f"bundle file {name!r} is not a plain file name")
    try:
        data = (folder / name).read_bytes()
    except OSError as exc:
        raise ModelError(f"bundle file {name} cannot be read: {exc.strerror}") from exc
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    if (len(data), digest) != entry:
        raise ModelError(
            f"bundle file {name} is damaged: expected {entry[0]} bytes, {entry[1]}; got {len(data)}, {digest}: reinstall pltz"
        )
    return data


def _unpack(data: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_FILE:
            raise ModelError(f"bundle file claims {size} bytes, at most {MAX_FILE} are allowed")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as exc:
        raise ModelError(f"bundle file does not unpack: {exc}") from exc


def read_weights(folder: Path) -> Weights:
    """The integer weights of a bundle folder alone, whatever else it lacks. Raises ModelError."""
    from safetensors.numpy import load

    head = _head(folder)
    tensors: dict[str, Any] = {}
    for name in _weight_files(head["files"]):
        tensors |= load(_plain(name, _read(folder, name, head["files"][name])))
    return Weights(Shape(**head["shape"]), tensors)


def _weight_files(names: Iterable[str]) -> list[str]:
    return sorted(n for n in names if n.endswith((".safetensors", PACKED)))


def _plain(name: str, data: bytes) -> bytes:
    return _unpack(data) if name.endswith(PACKED) else data


@functools.lru_cache(maxsize=4)
def _load(folder: Path) -> Bundle:
    import safetensors
    from safetensors.numpy import load

    head = _head(folder)
    files = {name: _read(folder, name, entry) for name, entry in head["files"].items()}
    tensors: dict[str, Any] = {}
    try:
        for name in _weight_files(files):
            tensors |= load(_plain(name, files.pop(name)))
        shape = Shape(**head["shape"])
        tokenizer = BundleTokenizer(_unpack(files["tokenizer.json.zst"]))
        dictionary = _unpack(files["dictionary.zst"])
    except (safetensors.SafetensorError, KeyError, TypeError) as exc:
        raise ModelError(f"bundle {head['name']} is incomplete or damaged: {exc}") from exc
    weights = Weights(shape, tensors)
    if weights.contract != head["contract"]:
        raise ModelError(
            f"bundle {head['name']}: contract {head['contract']} with a shape of contract {weights.contract}"
        )
    if tokenizer.size != shape.vocab:
        raise ModelError(
            f"bundle {head['name']}: the tokenizer has {tokenizer.size} ids, the model {shape.vocab}"
        )
    identity = bundle_id(weights, tokenizer.fingerprint, dictionary)
    if identity.hex() != head["id"]:
        raise ModelError(
            f"bundle {head['name']}: content has the id {identity.hex()}, bundle.json says {head['id']}"
        )
    card = folder / "card.json"
    return Bundle(
        head["name"],
        folder,
        weights,
        tokenizer,
        dictionary,
        json.loads(card.read_text("utf8")) if card.exists() else {},
        identity,
    )


def bundle_id(weights: Weights, tokenizer: bytes, dictionary: bytes) -> bytes:
    """16-byte fingerprint of everything that decides a bit."""
    h = hashlib.blake2b(digest_size=16, person=b"pltz bundle")
    h.update(
        json.dumps(
            [weights.contract, weights.shape.to_dict()], sort_keys=True, separators=(",", ":")
        ).encode()
    )
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
    """Write a bundle folder. Weights go to files of at most 16 MB; `packed`: compressed, for weights of few bits."""
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = BundleTokenizer(tokenizer_json)
    parts: list[dict[str, Any]] = [{}]
    for key in sorted(weights.tensors):
        if sum(t.nbytes for t in parts[-1].values()) + weights.tensors[key].nbytes > PART and parts[-1]:
            parts.append({})
        parts[-1][key] = np.ascontiguousarray(weights.tensors[key])
    packer = zstandard.ZstdCompressor(level=22)
    saved = [save(part) for part in parts]
    if packed:  # level 1: weights hold no repeats, Huffman codes alone do best (4.14 bits a weight; level 9 takes 4.4)
        entropy = zstandard.ZstdCompressor(level=1)
        files = {f"weights-{i:02}{PACKED}": entropy.compress(part) for i, part in enumerate(saved)}
    else:
        files = {f"weights-{i}.safetensors": part for i, part in enumerate(saved)}
    files |= {
        "tokenizer.json.zst": packer.compress(tokenizer_json),
        "dictionary.zst": packer.compress(dictionary),
    }
    head = {
        "format": FORMAT,
        "contract": weights.contract,
        "name": name,
        "id": bundle_id(weights, tokenizer.fingerprint, dictionary).hex(),
        "shape": weights.shape.to_dict(),
        "files": {
            k: {"size": len(v), "blake2b": hashlib.blake2b(v, digest_size=16).hexdigest()}
            for k, v in sorted(files.items())
        },
    }
    for key, data in files.items():
        (folder / key).write_bytes(data)
    (folder / "bundle.json").write_text(json.dumps(head, indent=1) + "\n")
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n")
