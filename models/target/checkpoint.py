"""Checkpoint: the folder of a target's files, and the fingerprint of their content.

A name is an embedded target, a local folder or a hub name. The fingerprint covers config, weights, tokenizer, chat
template and special tokens in 16 bytes. It is the same however the weights are cut into shards, and computed from the
files alone. Weights are safetensors; pickles are refused.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pltz.plt_codec.errors import ModelError

WHOLE = 8  # bytes of a fingerprint that are the digest of all parts; the others are `PART` of the digest of each
PART = 2  # bytes
PARTS = ("config or weights", "tokenizer", "chat template", "special tokens")
SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "additional_special_tokens",
    "extra_special_tokens",
    "add_bos_token",
    "add_eos_token",
)  # keys of tokenizer_config.json that a prompt depends on
TEMPLATES = "additional_chat_templates"  # folder
TARGETS = Path(__file__).parents[1] / "targets"  # the targets that ship with pltz, one folder each
SHIPPED = "mini-llama"  # whose chat template writes a chat as the tokens of a bundle
# Keys of config.json that say how it was written or is to be run, and do not change what the model computes. The
# dtype is among them because the weights' own dtype is hashed with every tensor.
VOLATILE_KEYS = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
# Files fetched from the hub: the root folder's safetensors, config and tokenizer; never a pickle.
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# A hub name: one or two parts of letters, digits, dots, dashes and underscores.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def resolve(name: str | os.PathLike[str], *, revision: str | None = None) -> Path:
    """Return the local folder of a target: a folder as given, a target that ships with pltz, or a fetched hub model.

    Raises:
        ModelError: there is no such folder, or the hub does not give it.
    """
    folder = Path(name)
    if os.fspath(name) and folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelError(f"expected a model folder, found the file {name}: give the folder that holds config.json")
    if (TARGETS / str(name) / "config.json").is_file() and _HUB_NAME.fullmatch(str(name)):
        return TARGETS / str(name)
    if isinstance(name, os.PathLike) or not _HUB_NAME.fullmatch(name):
        raise ModelError(f"expected a model folder or a hub name, found {os.fspath(name)!r}: no such folder")
    return _fetch(name, revision)


def _fetch(name: str, revision: str | None) -> Path:
    """Download the files of a hub model that HUB_FILES lists, or find them in the hub's cache."""
    import huggingface_hub

    try:
        # "*/*": a file in a subfolder (an export for another runtime) is never part of the model proper.
        return Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=list(HUB_FILES), ignore_patterns=["*/*"]
            )
        )
    except Exception as exc:  # the hub client raises errors of its own, of its HTTP client and of the system
        raise ModelError(
            f"cannot fetch {name!r} from the hub ({reason(exc)}): check the name and the network, "
            "or download the model yourself and give its folder"
        ) from exc


def reason(exc: BaseException) -> str:
    """Return the first line of a foreign error, for the brackets of one of ours."""
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0][:300]}" if lines else type(exc).__name__


def read_json(path: Path) -> dict[str, Any]:
    """Parse one of the model's JSON files.

    Raises:
        ModelError: the file is missing or broken; the message says which.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise ModelError(f"expected {path.name} in {path.parent}, found none: is this a model folder?") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelError(f"cannot read {path} ({reason(exc)}): copy the model again") from exc
    if not isinstance(value, dict):
        raise ModelError(f"expected a JSON object in {path}, found a {type(value).__name__}: copy the model again")
    return value


def positions_of(folder: Path) -> int | None:
    """Return the most tokens that the config of a model allows, None where it sets no bound. Raises ModelError."""
    config = read_json(folder / "config.json")
    inner = config.get("text_config")
    found = (inner if isinstance(inner, dict) else config).get("max_position_embeddings")
    return found if isinstance(found, int) and found > 0 else None


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files transformers loads from a folder: one, or the shards its index names.

    Raises:
        ModelError: there are none (the message says if there are pickles instead), or the index names a file
            that is missing, not safetensors, or outside the folder.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(_no_safetensors(folder))
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(f"expected a weight_map of file names in {index}, found none: copy the model again")
    names = sorted(set(shards.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"expected safetensors file names in {index}, found {name!r}: refused")
        if not (folder / name).is_file():
            raise ModelError(f"expected {name} in {folder} (its index names it), found none: copy the model again")
    return [folder / name for name in names]


def _no_safetensors(folder: Path) -> str:
    pickles = sorted({path.name for pattern in PICKLES for path in folder.glob(pattern)})
    if not pickles:
        return f"expected model.safetensors in {folder}, found no weights: is this a model folder?"
    return (
        f"expected model.safetensors in {folder}, found pickled weights ({pickles[0]}), which are refused because "
        "opening a pickle can run code. To convert, where you trust the file: "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
    )


def check_weights(model: Any, folder: Path) -> None:
    """Compare each weight of a loaded model with the files of a folder.

    A tensor is compared in the dtype that the model has it in. Weights that share memory count as one.

    Raises:
        ModelError: a weight differs, or is in the model or in the files alone.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    known = model.state_dict()
    prefix = f"{model.base_model_prefix}."
    compared: set[int] = set()  # addresses of the weights found in the files
    try:
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (it is no mapping)
                    found = next((n for n in (name, prefix + name, name.removeprefix(prefix)) if n in known), None)
                    if found is None:
                        raise ModelError(f"the model has no weight {name}, and {path} has: load it from that folder")
                    weight, stored = known[found], file.get_tensor(name)
                    same = weight.shape == stored.shape and torch.equal(weight.cpu(), stored.to(weight.dtype))
                    if not same:
                        raise ModelError(
                            f"weight {found} is not the one in {path}: save the model into a folder of its own, "
                            "and name that folder"
                        )
                    compared.add(weight.data_ptr())
    except SafetensorError as exc:
        raise ModelError(f"{folder} holds no sound safetensors ({reason(exc)}): copy the model again") from exc
    if extra := [name for name, weight in known.items() if weight.data_ptr() not in compared]:
        raise ModelError(f"the files in {folder} have no weight {extra[0]}: save the model, and name its folder")


def fingerprint_of(name: str | os.PathLike[str], *, revision: str | None = None) -> bytes:
    """Return the fingerprint (16 bytes) of a target's files, without loading the model.

    It is `WHOLE` bytes of blake2b over `PARTS`, and `PART` bytes of each. They are config.json without VOLATILE_KEYS
    with every tensor of the safetensors files (name, dtype, shape, bytes) by name; tokenizer.json in canonical form;
    chat templates by name; and the `SPECIAL` tokens. Every weight is read once, through mmap. The result is kept for
    the life of the process, as long as size and mtime of the files stay the same.

    Raises:
        ModelError: a file is missing or damaged.
    """
    folder = resolve(name, revision=revision)
    return fingerprint_folder(folder, file_signature(folder))


def file_signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and mtime (ns) of the files a fingerprint covers, which tell that they are still the same.

    Raises:
        ModelError: a file cannot be read.
    """
    files = [folder / "config.json", _tokenizer(folder), *weight_files(folder)]
    others = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "chat_template.jinja")
    files += [path for path in map(folder.joinpath, others) if path.exists()]
    files += sorted(folder.glob(f"{TEMPLATES}/*.jinja"))
    try:
        return tuple((path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files)
    except OSError as exc:
        raise ModelError(f"cannot read the model in {folder} ({reason(exc)}): is this a model folder?") from exc


@functools.lru_cache(maxsize=64)
def fingerprint_folder(folder: Path, signature: tuple[tuple[str, int, int], ...]) -> bytes:
    """Return the fingerprint (16 bytes) of a folder whose files have this signature.

    Raises:
        ModelError: a file is missing or damaged.
    """
    tensors = _tensor_digests(weight_files(folder))
    weights = [_canonical(_stable(read_json(folder / "config.json")))]
    weights += [_canonical([name, *tensors[name]]) for name in sorted(tensors)]
    words = (templates_of(folder), _special_tokens(folder))
    parts = [_digest(weights), _digest([_canonical_tokenizer(tokenizer_json_of(folder))])]
    parts += [_digest([_canonical(word)]) for word in words]
    return _digest(parts)[:WHOLE] + b"".join(part[:PART] for part in parts)


def _digest(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16, person=b"pltz target 1")
    for part in parts:  # length before content: no two lists of parts give the same bytes
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def differing(expected: bytes, found: bytes) -> list[str]:
    """Return which of `PARTS` differ in two fingerprints, none where all do: then they are of other models.

    >>> differing(b"12345678aabbccdd", b"87654321aabbCCdd")
    ['chat template']
    """
    pieces = ([data[at : at + PART] for at in range(WHOLE, len(data), PART)] for data in (expected, found))
    same = [one == other for one, other in zip(*pieces, strict=False)]
    return [part for part, alike in zip(PARTS, same, strict=False) if not alike] if any(same) else []


def templates_of(folder: Path) -> dict[str, str]:
    """Return the chat templates of a target by name, as transformers finds them. Raises ModelError."""
    found: Any = None
    for name in ("chat_template.json", "tokenizer_config.json"):
        if found is None and (folder / name).exists():
            found = read_json(folder / name).get("chat_template")
    named = found if isinstance(found, list) else [] if found is None else [{"name": "default", "template": found}]
    templates = {str(one.get("name")): str(one.get("template")) for one in named if isinstance(one, dict)}
    single, others = folder / "chat_template.jinja", sorted(folder.glob(f"{TEMPLATES}/*.jinja"))
    try:
        templates |= {path.stem: path.read_text("utf8") for path in others}
        return templates | ({"default": single.read_text("utf8")} if single.exists() else {})
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(f"cannot read a chat template in {folder} ({reason(exc)}): copy the model again") from exc


def _special_tokens(folder: Path) -> dict[str, Any]:
    """Return the special tokens of a tokenizer's settings by their names, each as its text."""
    found = dict[str, Any]()
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            found |= {key: value for key, value in read_json(folder / name).items() if key in SPECIAL}
    return {key: _words(value) for key, value in found.items() if value is not None and value != []}


def _words(token: Any) -> Any:
    if isinstance(token, list):
        return [_words(one) for one in token]
    return token["content"] if isinstance(token, dict) and "content" in token else token


def _canonical(value: Any) -> bytes:
    """Return a JSON value as bytes that do not depend on key order, spaces or escapes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _stable(value: Any) -> Any:
    """Return a config without its volatile keys, at every depth (composite models nest configs)."""
    if isinstance(value, dict):
        return {key: _stable(item) for key, item in value.items() if key not in VOLATILE_KEYS}
    return [_stable(item) for item in value] if isinstance(value, list) else value


def _canonical_tokenizer(data: bytes) -> bytes:
    """Return tokenizer.json without padding and truncation, which mere use changes, and with merges in one spelling."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"tokenizer.json is not JSON ({reason(exc)}): copy the model again") from exc
    if not isinstance(value, dict):
        raise ModelError(f"expected a JSON object in tokenizer.json, found a {type(value).__name__}")
    value = {key: item for key, item in value.items() if key not in ("padding", "truncation")}
    model = value.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        # The tokenizers library wrote merges as "a b" up to 0.19 and as ["a", "b"] since.
        merges = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        value["model"] = {**model, "merges": merges}
    return _canonical(value)


def _tensor_digests(files: Sequence[Path]) -> dict[str, tuple[str, list[int], str]]:
    """Return (dtype, shape, blake2b-32 of the bytes in hex) of every tensor in some safetensors files, by name."""
    found: dict[str, tuple[str, list[int], str]] = {}
    for path in files:
        for name, entry in _hash_file(path).items():
            if name in found:
                raise ModelError(f"tensor {name!r} stands twice in the shards of {path.parent}: copy the model again")
            found[name] = entry
    return found


def _hash_file(path: Path) -> dict[str, tuple[str, list[int], str]]:
    """Hash the tensors of one safetensors file where they lie, several at a time.

    Layout (safetensors format): u64 little-endian header length, JSON header, data; offsets count from the data.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):  # checks header, offsets and file length; reads no tensor
            pass
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            start = 8 + int.from_bytes(mapped[:8], "little")
            header = {k: v for k, v in json.loads(mapped[8:start]).items() if k != "__metadata__"}
            with memoryview(mapped) as view, ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
                spans = [[start + offset for offset in entry["data_offsets"]] for entry in header.values()]
                hashes = list(pool.map(lambda span: _hash_span(view, *span), spans))
    except (SafetensorError, OSError, ValueError) as exc:
        raise ModelError(f"{path} is not a sound safetensors file ({reason(exc)}): copy the model again") from exc
    return {name: (e["dtype"], e["shape"], h) for (name, e), h in zip(header.items(), hashes, strict=True)}


def _hash_span(view: memoryview, start: int, stop: int) -> str:
    with view[start:stop] as part:  # released at once: an open slice would keep the map from closing
        return hashlib.blake2b(part, digest_size=32).hexdigest()


def tokenizer_json_of(folder: Path) -> bytes:
    """Return the model's tokenizer in the format of the tokenizers library, its tokenizer.json.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    path = _tokenizer(folder)
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ModelError(f"cannot read {path} ({reason(exc)})") from exc


def _tokenizer(folder: Path) -> Path:
    if not (path := folder / "tokenizer.json").is_file():
        save = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise ModelError(f"expected tokenizer.json in {folder}, found none. To write it: {save}")
    return path


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and warnings of transformers while a model loads, and restore them afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves it without hints
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # likewise
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # likewise


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder.

    Raises:
        ModelError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as exc:  # transformers raises whatever its many tokenizers raise
        raise ModelError(f"cannot load the tokenizer in {folder} ({reason(exc)})") from exc


def load_failure(folder: Path, exc: Exception) -> str:
    """Return the message for a model that does not load."""
    config = read_json(folder / "config.json")
    if "auto_map" in config:
        return (
            f"the model in {folder} wants to run code of its own, which is refused: read that code, load it with "
            f"transformers if you trust it, and give the loaded model ({reason(exc)})"
        )
    return f"cannot load the model in {folder} ({reason(exc)})"
