"""Target: the served model whose KV cache a thaw brings back.

A target is any Hugging Face causal language model: a local folder, the name of a target that ships with
pltz (``mini-llama``), or a hub name. Three things are asked of it:

* ``fingerprint``: 16 bytes that name config, weights and tokenizer, so that a KV is never served to other
  weights. Computed from the files, not from the loaded objects: it does not depend on the version of a library,
  on the dtype or device the model was loaded with, nor on how the weights are cut into shards.
* ``prefill``: one forward pass that fills a ``DynamicCache`` and returns the logits of the last position.
* ``generate``: greedy continuation from such a cache.

What the cache covers. ``prefill(ids)`` leaves a cache of *all* ids, and the next token needs the logits of the
last id, which are not in the cache: so prefill returns them, and ``generate`` takes them. With them the
continuation does exactly the operations ``model.generate`` does after its own prefill of the same ids. Without
them (a cache that came from elsewhere) the last id is cut off and run again: right, but within float noise.

Weights are read from safetensors only: a pickle can run code when it is opened, so a folder without safetensors is
refused. Code that comes with a model is refused too, unless ``trust_remote_code`` is given.

    >>> from pltz.models.target import kv_bytes_of, KNOWN_SHAPES
    >>> kv_bytes_of(KNOWN_SHAPES["Llama-3.1-8B"])  # bytes a token in bf16: 2 x 32 layers x 8 heads x 128 x 2 bytes
    131072

torch and transformers are imported inside the functions that use them: fingerprints and sizes need neither.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.plt_codec.errors import ContentError, ModelError, OpaqueContentError, PltzError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

FINGERPRINT_BYTES = 16  # bytes
TARGETS = Path(__file__).parent / "targets"  # the targets that ship with pltz, one folder each

# Keys of config.json that say how it was written or how it is to be run, not what the model computes. The dtype is
# among them because the weights' own dtype is hashed with every tensor.
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

# What is fetched from the hub: the root folder's safetensors, config and tokenizer; never a pickle.
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "chat_template*",
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

# Configurations of well-known models, as far as the size of their KV goes (dtype bf16).
KNOWN_SHAPES: dict[str, dict[str, int]] = {
    "Qwen3-8B": {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128},
    "Llama-3.1-8B": {"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128},
    "Llama-3.1-70B": {"num_hidden_layers": 80, "num_key_value_heads": 8, "head_dim": 128},
}

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}

# ShareGPT's names for the three parties; a role that is not here goes to the chat template as it is.
SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}

# A hub name: one or two parts of letters, digits, dots, dashes and underscores.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


# ---------------------------------------------------------------------------------------------------------------
# Finding the folder


def resolve(
    name: str | os.PathLike[str], *, revision: str | None = None, trust_remote_code: bool = False
) -> Path:
    """The local folder of a target: a folder as given, a target that ships with pltz, or a hub name (fetched).

    Raises ModelError if there is no such folder or the hub does not give it.
    """
    folder = Path(name)
    if os.fspath(name) and folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelError(
            f"expected a model folder, found the file {name}: give the folder that holds config.json"
        )
    if (TARGETS / str(name) / "config.json").is_file() and _HUB_NAME.fullmatch(str(name)):
        return TARGETS / str(name)
    if isinstance(name, os.PathLike) or not _HUB_NAME.fullmatch(name):
        raise ModelError(f"expected a model folder or a hub name, found {os.fspath(name)!r}: no such folder")
    return _fetch(name, revision, trust_remote_code)


def _fetch(name: str, revision: str | None, trust_remote_code: bool) -> Path:
    """Download (or find in the hub's cache) what HUB_FILES lists of a hub model."""
    import huggingface_hub

    wanted = [*HUB_FILES, "*.py"] if trust_remote_code else list(HUB_FILES)
    try:
        # "*/*": a file in a subfolder (an export for another runtime) is never part of the model proper.
        return Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=wanted, ignore_patterns=["*/*"]
            )
        )
    except Exception as exc:  # the hub client raises errors of its own, of its HTTP client and of the system
        raise ModelError(
            f"cannot fetch {name!r} from the hub ({_reason(exc)}): check the name and the network, "
            "or download the model yourself and give its folder"
        ) from exc


def _reason(exc: BaseException) -> str:
    """The first line of a foreign error, for the brackets of one of ours."""
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0][:300]}" if lines else type(exc).__name__


def _read_json(path: Path) -> dict[str, Any]:
    """Parse one of the model's JSON files, or say which one is missing or broken."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise ModelError(
            f"expected {path.name} in {path.parent}, found none: is this a model folder?"
        ) from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelError(f"cannot read {path} ({_reason(exc)}): copy the model again") from exc
    if not isinstance(value, dict):
        raise ModelError(
            f"expected a JSON object in {path}, found a {type(value).__name__}: copy the model again"
        )
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files transformers loads from a folder: one, or the shards its index names.

    Raises ModelError if there are none (and says so if there are pickles instead), or if the index names a file
    that is missing, not safetensors, or outside the folder.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(_no_safetensors(folder))
    shards = _read_json(index).get("weight_map")
    if (
        not isinstance(shards, dict)
        or not shards
        or not all(isinstance(name, str) for name in shards.values())
    ):
        raise ModelError(f"expected a weight_map of file names in {index}, found none: copy the model again")
    names = sorted(set(shards.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"expected safetensors file names in {index}, found {name!r}: refused")
        if not (folder / name).is_file():
            raise ModelError(
                f"expected {name} in {folder} (its index names it), found none: copy the model again"
            )
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


# ---------------------------------------------------------------------------------------------------------------
# Fingerprint


def fingerprint_of(name: str | os.PathLike[str], *, revision: str | None = None) -> bytes:
    """The fingerprint (16 bytes) of a target's files, without loading the model.

    blake2b over config.json without VOLATILE_KEYS, every tensor of the safetensors files in the order of their
    names (name, dtype, shape, bytes) and tokenizer.json in canonical form. Reads every weight once, through mmap;
    the result is kept for the life of the process, as long as size and time of change of the files stay the same.

    Raises ModelError if a file is missing or damaged.
    """
    folder = resolve(name, revision=revision)
    return _fingerprint(folder, _signature(folder))


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells that the files a fingerprint covers are still the same: name, size, time of change (ns)."""
    files = [folder / "config.json", *_tokenizer_files(folder), *weight_files(folder)]
    try:
        return tuple((path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files)
    except OSError as exc:
        raise ModelError(
            f"cannot read the model in {folder} ({_reason(exc)}): is this a model folder?"
        ) from exc


def _tokenizer_files(folder: Path) -> list[Path]:
    """tokenizer.json, or, in a model too old to have one, the files its conversion reads."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return [path]
    names = (
        "tokenizer.model",
        "spiece.model",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "tokenizer_config.json",
    )
    return [folder / name for name in names if (folder / name).is_file()]


@functools.lru_cache(maxsize=64)
def _fingerprint(folder: Path, signature: tuple[tuple[str, int, int], ...]) -> bytes:
    tensors = _tensor_digests(weight_files(folder))
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES, person=b"pltz target 1")
    parts = [_canonical(_stable(_read_json(folder / "config.json")))]
    parts += [_canonical([name, *tensors[name]]) for name in sorted(tensors)]
    parts.append(_canonical_tokenizer(tokenizer_json_of(folder)))
    for part in parts:  # length before content: no two lists of parts give the same bytes
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _canonical(value: Any) -> bytes:
    """A JSON value as bytes that do not depend on key order, spaces or escapes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _stable(value: Any) -> Any:
    """A config without its volatile keys, at every depth (composite models nest configs)."""
    if isinstance(value, dict):
        return {key: _stable(item) for key, item in value.items() if key not in VOLATILE_KEYS}
    return [_stable(item) for item in value] if isinstance(value, list) else value


def _canonical_tokenizer(data: bytes) -> bytes:
    """tokenizer.json without what a mere use of it changes (padding, truncation), merges in one spelling."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"tokenizer.json is not JSON ({_reason(exc)}): copy the model again") from exc
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
    """name -> (dtype, shape, blake2b-32 of the bytes in hex) of every tensor in some safetensors files."""
    found: dict[str, tuple[str, list[int], str]] = {}
    for path in files:
        for name, entry in _hash_file(path).items():
            if name in found:
                raise ModelError(
                    f"tensor {name!r} stands twice in the shards of {path.parent}: copy the model again"
                )
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
            with (
                memoryview(mapped) as view,
                ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool,
            ):
                spans = [[start + offset for offset in entry["data_offsets"]] for entry in header.values()]
                hashes = list(pool.map(lambda span: _hash_span(view, *span), spans))
    except (SafetensorError, OSError, ValueError) as exc:
        raise ModelError(
            f"{path} is not a sound safetensors file ({_reason(exc)}): copy the model again"
        ) from exc
    return {name: (e["dtype"], e["shape"], h) for (name, e), h in zip(header.items(), hashes, strict=True)}


def _hash_span(view: memoryview, start: int, stop: int) -> str:
    with view[start:stop] as part:  # released at once: an open slice would keep the map from closing
        return hashlib.blake2b(part, digest_size=32).hexdigest()


def tokenizer_json_of(folder: Path) -> bytes:
    """The model's tokenizer in the format of the tokenizers library: its tokenizer.json, or a conversion to it."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        backend = getattr(_load_tokenizer(folder, trust_remote_code=False), "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                f"expected tokenizer.json in {folder}, found none: save the fast form of its tokenizer"
            )
        return str(backend.to_str()).encode()
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ModelError(f"cannot read {path} ({_reason(exc)})") from exc


# ---------------------------------------------------------------------------------------------------------------
# The size of a KV


def kv_bytes_of(config: Any, tokens: int = 1, *, element_bytes: int | None = None) -> int:
    """Bytes of KV that ``tokens`` tokens of one session take in a DynamicCache.

    ``config`` is a mapping with the keys of config.json, or a transformers config object. Layers that keep a window
    count up to the window less one (the current token brings itself), latent attention counts its latents, layers
    that keep a state of constant size (linear attention) and layers that share another's KV count nothing.
    ``element_bytes``: bytes an element; by default what the config's dtype says, and 2 (bf16) if it says nothing.

    Raises ModelError if the config does not say how many layers and heads there are.
    """
    get = _getter(config)
    if element_bytes is None:
        dtype = str(get("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
        element_bytes = DTYPE_BYTES.get(dtype, 2)
    try:
        width = _kv_width(get)
        positions = sum(min(tokens, window) for window in _windows(get))
    except (TypeError, ValueError, ZeroDivisionError) as exc:
        raise ModelError(
            "the config does not say how many layers and heads the model has: its KV has no size"
        ) from exc
    return positions * width * element_bytes


def _getter(config: Any) -> Any:
    """get(*names): the first of some keys the config (of the text part, if there are several) has, or None."""
    if isinstance(config, Mapping):
        config = config.get("text_config") or config
        return lambda *names: next((config[n] for n in names if config.get(n) is not None), None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return lambda *names: next((v for n in names if (v := getattr(config, n, None)) is not None), None)


def _kv_width(get: Any) -> int:
    """Elements of K and V that one token takes in one layer."""
    if latent := get("kv_lora_rank"):  # multi-head latent attention: the compressed KV and one rotary key
        return int(latent) + int(get("qk_rope_head_dim") or 0)
    heads = int(get("num_attention_heads", "n_head") or 0)
    kv_heads = int(get("num_key_value_heads", "num_kv_heads") or heads)
    head_dim = int(get("head_dim") or get("hidden_size", "n_embd") // heads)
    if min(kv_heads, head_dim) < 1:
        raise ValueError("no heads")
    return 2 * kv_heads * head_dim


def _windows(get: Any) -> list[int]:
    """For each layer that keeps a KV of its own, the most tokens it keeps."""
    unbounded = 1 << 62
    layers = int(get("num_hidden_layers", "n_layer"))
    window = get("sliding_window") if get("use_sliding_window") is not False else None
    sliding = int(window) - 1 if window else unbounded
    chunk = get("attention_chunk_size")
    kept = {"full_attention": unbounded, "sliding_attention": sliding}
    kept["chunked_attention"] = int(chunk) - 1 if chunk else unbounded
    types = get("layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    own = layers - int(get("num_kv_shared_layers") or 0)
    return [kept[kind] for kind in types[:own] if kind in kept]


def cache_bytes(cache: Any) -> int:
    """Bytes the K and V tensors of a filled cache take, counted on the tensors themselves."""
    tensors = [
        t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))
    ]
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


# ---------------------------------------------------------------------------------------------------------------
# Loading through transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, no warnings from transformers while a model loads; as it was afterwards."""
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


def _load_tokenizer(folder: Path, *, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=trust_remote_code
            )
    except Exception as exc:  # transformers raises whatever its many tokenizers raise
        raise ModelError(f"cannot load the tokenizer in {folder} ({_reason(exc)})") from exc


def _load_model(folder: Path, dtype: Any, *, trust_remote_code: bool) -> Any:
    """The model of a folder, in evaluation mode; every weight from safetensors, none left at random."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # its hints do not know that output_loading_info returns a pair
    try:
        with _quiet():
            model, info = auto.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except Exception as exc:  # transformers raises whatever its many models raise
        raise ModelError(_load_failure(folder, exc, trust_remote_code)) from exc
    # transformers would fill a hole with random numbers and only warn.
    holes = sorted(map(str, [*info.get("missing_keys", ()), *info.get("mismatched_keys", ())]))
    if holes:
        raise ModelError(
            f"expected all weights of the model in {folder}, found none for {holes[0]}: copy it again"
        )
    return model.eval()


def _load_failure(folder: Path, exc: Exception, trust_remote_code: bool) -> str:
    config = _read_json(folder / "config.json")
    if "auto_map" in config and not trust_remote_code:
        return (
            f"the model in {folder} wants to run code of its own, which is refused: read that code, then pass "
            f"trust_remote_code=True if you trust it ({_reason(exc)})"
        )
    return f"cannot load the model in {folder} ({_reason(exc)})"


def _check_folder(folder: Path) -> None:
    """Refuse a folder whose settings would bring in weights that the fingerprint does not see."""
    config = _read_json(folder / "config.json")
    if "transformers_weights" in config:
        raise ModelError(
            f"{folder}/config.json names its weights by transformers_weights, which is refused: remove it"
        )
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds an adapter: merge it into the model first (PEFT's merge_and_unload)"
        )


def _torch_dtype(dtype: str | torch.dtype | None) -> Any:
    import torch

    if dtype is None:
        return "auto"
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"expected a float dtype (float32, bfloat16, float16), found {dtype!r}")
    return found


def _torch_device(device: str | torch.device) -> torch.device:
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as exc:
        raise UsageError(f"expected a device (cpu, cuda, cuda:1, mps), found {device!r}") from exc
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"expected a device of this machine, found {device!r} and {torch.cuda.device_count()} GPUs"
        )
    return found


# ---------------------------------------------------------------------------------------------------------------
# The target


class Target:
    """A loaded causal language model with its tokenizer.

    ``model``: the transformers model; ``tokenizer``: its tokenizer; ``tokenizer_json``: that in the format of the
    tokenizers library (bytes); ``vocab_size``: rows of the embedding, every id is below it; ``max_positions``: the
    most tokens the config allows, None if it sets no bound; ``eos_ids``: ids that end a generation.
    """

    def __init__(self, model: Any, tokenizer: Any, folder: Path) -> None:
        """Use ``Target.load``. The files must be those the model was loaded from."""
        self.model = model
        self.tokenizer = tokenizer
        self.folder = folder
        self.tokenizer_json = tokenizer_json_of(folder)
        self._signature = _signature(folder)
        text_config = model.config.get_text_config()
        self.vocab_size = int(model.get_input_embeddings().num_embeddings)
        limit = getattr(text_config, "max_position_embeddings", None)
        self.max_positions = int(limit) if isinstance(limit, int) and limit > 0 else None
        self.eos_ids = _eos_ids(model, tokenizer)
        self._last_only = _last_only(model)

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | None = None,
        trust_remote_code: bool = False,
        *,
        revision: str | None = None,
    ) -> Target:
        """Load a target from a folder, by the name of one that ships with pltz, or from the hub.

        ``dtype`` None keeps the dtype of the weights, so that the KV is what a server of this model holds.

        Raises ModelError if the target cannot be loaded, has no safetensors or wants to run code of its own and
        ``trust_remote_code`` is not given; UsageError if device or dtype make no sense here.
        """
        torch_device, torch_dtype = _torch_device(device), _torch_dtype(dtype)
        folder = resolve(name, revision=revision, trust_remote_code=trust_remote_code)
        _check_folder(folder)
        before = _signature(folder)
        tokenizer = _load_tokenizer(folder, trust_remote_code=trust_remote_code)
        model = _load_model(folder, torch_dtype, trust_remote_code=trust_remote_code)
        try:
            model = model.to(torch_device)
        except RuntimeError as exc:
            raise ModelError(f"cannot put the model on {torch_device} ({_reason(exc)})") from exc
        target = cls(model, tokenizer, folder)
        if target._signature != before:
            raise ModelError(f"the files in {folder} changed while they were loaded: load it again")
        return target

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that name config, weights and tokenizer: see ``fingerprint_of``. Hashed once a process.

        Raises ModelError if the files are no longer those the model was loaded from.
        """
        if _signature(self.folder) != self._signature:
            raise ModelError(f"the files in {self.folder} changed since the model was loaded: load it again")
        return _fingerprint(self.folder, self._signature)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device: torch.device = self.model.device
        return device

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of KV that ``tokens`` tokens take on this target, in the dtype it was loaded with."""
        return kv_bytes_of(self.model.config, tokens, element_bytes=self.model.dtype.itemsize)

    def check_ids(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """The ids as an int64 array, if this target can take them: 0 <= id < vocab_size, no more than max_positions.

        Raises ContentError otherwise.
        """
        try:
            array = np.asarray(ids)
        except (TypeError, ValueError, OverflowError) as exc:
            raise ContentError(f"expected a sequence of token ids, found {type(ids).__name__}") from exc
        if array.ndim != 1 or array.size == 0:
            raise ContentError(
                f"expected at least one token id in a flat sequence, found shape {array.shape}"
            )
        if array.dtype.kind not in "iu":
            raise ContentError(f"expected integers as token ids, found {array.dtype}")
        if self.max_positions is not None and array.size > self.max_positions:
            raise ContentError(
                f"expected at most {self.max_positions} tokens (the target's positions), found {array.size}: "
                "thaw into a target with a longer context"
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise ContentError(
                f"expected token ids from 0 to {self.vocab_size - 1}, found {bad}: these ids belong to another tokenizer"
            )
        return array.astype(np.int64)

    def prefill(
        self,
        ids: Sequence[int] | NDArray[Any],
        *,
        cache: DynamicCache | None = None,
        chunk: int | None = None,
    ) -> tuple[DynamicCache, torch.Tensor]:
        """Run the model over the ids and keep its KV.

        ``cache`` may already hold the KV of the first ids (a shared prefix); it is extended in place. If it holds
        all of them, the last is cut off and run again, for its logits. ``chunk``: run at most so many tokens at a
        time, which bounds memory and changes the KV by float noise; None runs them in one pass.

        Returns the cache, which covers all ids, and the logits of the last position, shape (vocab_size,).

        Raises ContentError for ids the target cannot take, UsageError for a cache longer than the ids, ModelError
        if the model fails or keeps no DynamicCache.
        """
        array = self.check_ids(ids)
        if chunk is not None and chunk < 1:
            raise UsageError(f"expected a chunk of at least 1 token, found {chunk}")
        cache = self._new_cache() if cache is None else cache
        done = int(cache.get_seq_length())
        if done > array.size:
            raise UsageError(f"expected a cache of at most {array.size} tokens (the ids given), found {done}")
        if done == array.size:
            self._drop_last(cache)
            done -= 1
        for start in range(done, array.size, chunk or array.size):
            logits = self._forward(array[start : start + (chunk or array.size)], cache)
        if int(cache.get_seq_length()) != array.size:
            raise ModelError(f"{type(self.model).__name__} keeps no DynamicCache: its KV cannot be thawed")
        return cache, logits

    def generate(
        self,
        cache: DynamicCache,
        ids: Sequence[int] | NDArray[Any],
        n: int,
        *,
        logits: torch.Tensor | None = None,
    ) -> list[int]:
        """Continue greedily: at most ``n`` new ids, ending with the first of ``eos_ids`` or at ``max_positions``.

        ``cache`` covers ``ids``, or the first of them; ``logits`` are those of the last id as ``prefill`` returned
        them. Given both, the result equals ``model.generate(ids, do_sample=False, max_new_tokens=n)``. Without
        logits the rest of the ids (or the last, if the cache covers all) is run first. Errors are those of ``prefill``.

        The cache grows: afterwards it covers ids and all new ids but the last.
        """
        if logits is None or int(cache.get_seq_length()) != len(ids):
            cache, logits = self.prefill(ids, cache=cache)
        if self.max_positions is not None:
            n = min(n, self.max_positions - len(ids) + 1)
        new: list[int] = []
        while len(new) < n:
            if new:
                logits = self._forward(np.array(new[-1:]), cache)
            new.append(int(logits.float().argmax()))
            if new[-1] in self.eos_ids:
                break
        return new

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text by the target's tokenizer, special tokens in it recognised, none added."""
        try:
            ids = self.tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, ValueError) as exc:  # lone surrogates have no UTF-8
            raise ContentError(f"the target's tokenizer cannot take this text ({_reason(exc)})") from exc
        return [int(i) for i in ids]

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The text of some ids, special tokens included, nothing tidied up."""
        flat = [int(i) for i in ids]
        return str(self.tokenizer.decode(flat, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render(self, chat: Any, *, add_generation_prompt: bool = False) -> list[int]:
        """Token ids of a chat by the target's chat template: what a server of this model would prefill.

        ``chat``: {"messages": [...]}, a list of messages, or {"conversations": [...]} (ShareGPT).
        A "tools" key beside "messages" goes to the template. As on every server, the text of a special token inside
        a message becomes that token.

        Raises OpaqueContentError for a part that is not text, ContentError if this is no chat or the template
        refuses it, ModelError if the target has no chat template.
        """
        messages, tools = _messages(chat)
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(
                f"the target in {self.folder} has no chat template: give token ids or text instead"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as exc:  # a template raises what its author and jinja please
            raise ContentError(f"the target's chat template refuses this chat ({_reason(exc)})") from exc
        return self.tokenize(str(text))

    def _new_cache(self) -> DynamicCache:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def _drop_last(self, cache: DynamicCache) -> None:
        try:
            cache.crop(-1)
        except (
            RuntimeError,
            ValueError,
            NotImplementedError,
        ) as exc:  # a full sliding window forgot what was before
            raise UsageError(
                f"this cache cannot go back one token ({_reason(exc)}): pass the logits too"
            ) from exc

    def _forward(self, ids: NDArray[np.int64], cache: DynamicCache) -> torch.Tensor:
        """Run ids (T,) after what the cache holds; the logits of the last position, (vocab_size,)."""
        import torch

        try:
            with torch.inference_mode():
                batch = torch.from_numpy(np.ascontiguousarray(ids))[None].to(self.device)  # (1, T)
                out = self.model(input_ids=batch, past_key_values=cache, use_cache=True, **self._last_only)
                logits: torch.Tensor = out.logits[0, -1]
                return logits
        except torch.OutOfMemoryError as exc:
            raise ModelError(f"out of memory on {self.device}: prefill in smaller chunks") from exc
        except PltzError:
            raise
        except Exception as exc:  # the model's own code: anything
            raise ModelError(
                f"{type(self.model).__name__} failed on {len(ids)} tokens ({_reason(exc)})"
            ) from exc


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a generation: of the generation config, else of the config, else of the tokenizer."""
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        found = getattr(holder, "eos_token_id", None)
        if found is not None:
            return frozenset(int(i) for i in (found if isinstance(found, list | tuple) else [found]))
    return frozenset()


def _last_only(model: Any) -> dict[str, int]:
    """The argument that asks a model's head for the last position alone, under the name this model has for it."""
    parameters = inspect.signature(model.forward).parameters
    return {name: 1 for name in ("logits_to_keep", "num_logits_to_keep") if name in parameters}


def _messages(chat: Any) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The messages of a chat in the form chat templates take, and its tools."""
    tools = None
    if isinstance(chat, Mapping):
        tools = chat.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise ContentError(f"expected a list under 'tools', found a {type(tools).__name__}")
        chat = _from_sharegpt(chat["conversations"]) if "conversations" in chat else chat.get("messages")
    if not isinstance(chat, list) or not all(isinstance(m, Mapping) for m in chat):
        raise ContentError('expected {"messages": [...]} or a list of messages, each a JSON object')
    for number, message in enumerate(chat, 1):
        _check_parts(number, message.get("content"))
    return [dict(m) for m in chat], tools


def _from_sharegpt(turns: Any) -> list[dict[str, Any]]:
    if not isinstance(turns, list) or not all(
        isinstance(t, Mapping) and {"from", "value"} <= t.keys() for t in turns
    ):
        raise ContentError('expected a list of {"from": ..., "value": ...} under "conversations"')
    return [
        {"role": SHAREGPT_ROLES.get(turn["from"], turn["from"]), "content": turn["value"]} for turn in turns
    ]


def _check_parts(number: int, content: Any) -> None:
    """Refuse a part that is not text: many templates would drop it without a word."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind != "text":
            raise OpaqueContentError(
                f"message {number} holds a part of type {kind!r}: only text can be prefilled"
            )
