"""Target: the served model whose KV cache a thaw brings back.

A target is any Hugging Face causal language model: a local folder, the name of a target that ships with pltz
(``mini-llama``), or a hub name. It provides three things:

- ``fingerprint``: 16 bytes that name config, weights, tokenizer, chat template and special tokens, so that a KV is
  never served to other weights, and no prompt is prefilled that the target would not make. It is computed from the
  files, not from the loaded objects. So it does not depend on a library's version, on the dtype or device of the loaded
  model, nor on how the weights are cut into shards.
- ``prefill``: one forward pass that fills a ``DynamicCache`` and returns the logits of the last position.
- ``generate``: greedy continuation from such a cache.

``prefill(ids)`` leaves a cache of *all* ids. The next token needs the logits of the last id, which are not in
the cache. So prefill returns them, and ``generate`` takes them. With them the continuation does exactly the
operations that ``model.generate`` does after its own prefill of the same ids. Without them (a cache from
elsewhere) the last id is cut off and run again: right, but within float noise.

Weights are read from safetensors only: a pickle can run code when it is opened, so a folder without safetensors is
refused. Code that comes with a model is refused too; who trusts it loads the model, and gives it to `Target.of`.

torch and transformers are imported inside the functions that use them: fingerprints and sizes need neither.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.models.session.session import Session
from pltz.models.session.transcript import ALIASES, ROLES
from pltz.models.target.batch import PrefillBatch
from pltz.models.target.cache import cache_argument, cache_bytes, is_plain, share
from pltz.models.target.checkpoint import (
    SHIPPED,
    TARGETS,
    check_weights,
    file_signature,
    fingerprint_folder,
    load_failure,
    load_tokenizer,
    quiet,
    read_json,
    reason,
    resolve,
    templates_of,
    tokenizer_json_of,
)
from pltz.plt_codec.errors import ContentError, ModelError, OpaqueContentError, PltzError, UsageError
from pltz.plt_codec.extras import need

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase


def _load_model(folder: Path, dtype: Any) -> Any:
    """Load the model of a folder, in evaluation mode; every weight from safetensors, none left at random."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # its hints do not know that output_loading_info returns a pair
    try:
        with quiet():
            model, info = auto.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as exc:  # transformers raises whatever its many models raise
        raise ModelError(load_failure(folder, exc)) from exc
    # transformers would fill a hole with random numbers and only warn.
    holes = sorted(map(str, [*info.get("missing_keys", ()), *info.get("mismatched_keys", ())]))
    if holes:
        raise ModelError(f"expected all weights of the model in {folder}, found none for {holes[0]}: copy it again")
    return model.eval()


def _check_folder(folder: Path) -> None:
    """Refuse a folder whose settings would bring in weights that the fingerprint does not see."""
    config = read_json(folder / "config.json")
    if "transformers_weights" in config:
        raise ModelError(f"{folder}/config.json names its weights by transformers_weights, which is refused: remove it")
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{folder} holds an adapter: merge it into the model first (PEFT's merge_and_unload)")


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
        raise UsageError(f"expected a device of this machine, found {device!r} and {torch.cuda.device_count()} GPUs")
    return found


class ControlTokenWarning(UserWarning):
    """A remark about a text that a target reads otherwise than it was meant: it spells a control token."""


class Target:
    """A loaded causal language model with its tokenizer.

    One thread uses it at a time.

    ``model``: the transformers model. ``tokenizer``: its tokenizer. ``tokenizer_json``: the tokenizer in the format of
    the tokenizers library (bytes). ``vocab_size``: rows of the embedding; every id is below it. ``max_positions``: the
    most tokens the config allows, None if it sets no bound. ``eos_ids``: ids that end a generation.
    """

    def __init__(self, model: Any, tokenizer: Any, folder: Path) -> None:
        """Use ``Target.load``. The files must be those the model was loaded from."""
        self.model = model
        self.tokenizer = tokenizer
        self.folder = folder
        self.tokenizer_json = tokenizer_json_of(folder)
        self._signature = file_signature(folder)
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
        *,
        revision: str | None = None,
    ) -> Target:
        """Load a target from a folder, by the name of one that ships with pltz, or from the hub.

        ``dtype`` None keeps the dtype of the weights, so that the KV equals the one in a server of this model.

        Raises:
            ModelError: the target cannot be loaded, has no safetensors, or wants to run code of its own.
            UsageError: device or dtype make no sense here, or torch or transformers are not installed.
        """
        need("thaw", "a target model", "torch", "transformers")
        torch_device, torch_dtype = _torch_device(device), _torch_dtype(dtype)
        folder = resolve(name, revision=revision)
        _check_folder(folder)
        before = file_signature(folder)
        tokenizer = load_tokenizer(folder)
        model = _load_model(folder, torch_dtype)
        try:
            model = model.to(torch_device)
        except RuntimeError as exc:
            raise ModelError(f"cannot put the model on {torch_device} ({reason(exc)})") from exc
        target = cls(model, tokenizer, folder)
        if target._signature != before:
            raise ModelError(f"the files in {folder} changed while they were loaded: load it again")
        return target

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> Target:
        """Return the target of a model that transformers loaded, with its tokenizer or the one in its folder.

        The fingerprint is that of the files it was loaded from. So each of its weights is compared with its file,
        once, which takes about as long as loading them.

        Raises:
            UsageError: it is no such model, or does not say where it was loaded from.
            ModelError: its weights or its tokenizer are not those of the files.
        """
        name = getattr(model, "name_or_path", None)
        if not isinstance(name, str) or not hasattr(model, "state_dict"):
            raise UsageError(f"expected a model of transformers, found {type(model).__name__}")
        if not name:
            raise UsageError("this model does not say where it was loaded from: save it, and name its folder")
        folder = resolve(name)
        _check_folder(folder)
        before = file_signature(folder)
        own = load_tokenizer(folder)
        for what in ("vocabulary", "chat template") if tokenizer is not None else ():
            if _facet(tokenizer, what) != _facet(own, what):
                raise ModelError(f"expected the tokenizer of {folder}, found one with another {what}: save it there")
        check_weights(model, folder)
        served: Any = model  # its hints leave eval without types
        target = cls(served.eval(), tokenizer or own, folder)
        if target._signature != before:
            raise ModelError(f"the files in {folder} changed while they were compared: load the model again")
        return target

    @property
    def fingerprint(self) -> bytes:
        """Return 16 bytes that name config, weights and tokenizer: see ``fingerprint_of``. Hashed once per process.

        Raises:
            ModelError: the files are no longer those the model was loaded from.
        """
        if file_signature(self.folder) != self._signature:
            raise ModelError(f"the files in {self.folder} changed since the model was loaded: load it again")
        return fingerprint_folder(self.folder, self._signature)

    @property
    def device(self) -> torch.device:
        """Return the device on which the model computes."""
        device: torch.device = self.model.device
        return device

    @cached_property
    def token_bytes(self) -> int:
        """Return the bytes of KV that one token takes, in the dtype it was loaded with. Raises ModelError."""
        return cache_bytes(self.prefill([0])[0])

    def check_ids(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return the ids (T,) as int64, if this target can take them.

        Each must be at least 0 and below vocab_size, and there must be no more than max_positions.

        Raises:
            ContentError: the target cannot take them.
        """
        try:
            array = np.asarray(ids)
        except (TypeError, ValueError, OverflowError) as exc:
            raise ContentError(f"expected a sequence of token ids, found {type(ids).__name__}") from exc
        if array.ndim != 1 or array.size == 0:
            raise ContentError(f"expected at least one token id in a flat sequence, found shape {array.shape}")
        if array.dtype.kind not in "iu":
            raise ContentError(f"expected integers as token ids, found {array.dtype}")
        if self.max_positions is not None and array.size > self.max_positions:
            raise ContentError(
                f"expected at most {self.max_positions} tokens (the target's positions), found {array.size}: "
                "take a target with a longer context"
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise ContentError(
                f"expected token ids from 0 to {self.vocab_size - 1}, found {bad}: these ids belong to "
                "another tokenizer"
            )
        return array.astype(np.int64)

    def prefill(
        self, ids: Sequence[int] | NDArray[Any], *, cache: DynamicCache | None = None, chunk: int | None = None
    ) -> tuple[DynamicCache, torch.Tensor]:
        """Run the model over the ids (T,) and keep its KV.

        Args:
            ids: token ids of this target.
            cache: may already hold the KV of the first ids (a shared prefix); it is extended in place. If it
                holds all of them, the last is cut off and run again, for its logits.
            chunk: run at most so many tokens at a time, which bounds memory and changes the KV by float noise;
                None runs them in one pass.

        Returns:
            The cache, which covers all ids, and the logits of the last position, (vocab_size,).

        Raises:
            ContentError: the target cannot take the ids.
            UsageError: the cache is longer than the ids, or the chunk is below 1.
            ModelError: the model fails or keeps no DynamicCache.
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

    def prefill_many(
        self, rows: Sequence[tuple[Sequence[int] | NDArray[Any], DynamicCache | None]]
    ) -> list[tuple[DynamicCache, torch.Tensor]]:
        """Run `prefill` for many sessions in one pass, and return the answers in their order.

        Each row is (ids (T,), cache of the first of them or None). The caches given are not changed. Rows are
        padded to the longest and masked, so a KV differs from that of a single prefill by float noise. A
        target that keeps windows or states runs them one by one.

        Raises:
            PltzError: as `prefill`.
        """
        import torch

        arrays = [self.check_ids(ids) for ids, _ in rows]
        caches = [None if cache is None else share(cache) for _, cache in rows]
        over = [c is not None and int(c.get_seq_length()) >= len(a) for c, a in zip(caches, arrays, strict=True)]
        if len(rows) < 2 or any(over) or not is_plain(self._new_cache()):
            return [self.prefill(a, cache=c) for a, c in zip(arrays, caches, strict=True)]
        batch = PrefillBatch(arrays, caches)
        columns, own = batch.last()
        with torch.inference_mode():
            past = batch.past(self.model.config)
            keep = {name: torch.tensor(columns, device=self.device) for name in self._last_only}
            logits = self._run(past, **batch.inputs(self.device), **keep)
            ends = logits if keep else logits[:, columns]  # (B, columns, vocab_size)
            last = ends[range(len(own)), own]
            return list(zip(batch.split(past, self.model.config), last.unbind(), strict=True))

    def generate(
        self, cache: DynamicCache, ids: Sequence[int] | NDArray[Any], n: int, *, logits: torch.Tensor | None = None
    ) -> list[int]:
        """Continue greedily by at most ``n`` new ids, ending with the first of ``eos_ids`` or at ``max_positions``.

        ``cache`` covers ``ids`` (T,), or the first of them. ``logits`` (vocab_size,) are those of the last id as
        ``prefill`` returned them. Given both, the result equals ``model.generate(ids, do_sample=False,
        max_new_tokens=n)``. Without logits the rest of the ids (or the last, if the cache covers all) is run first.

        The cache grows: afterwards it covers ids and all new ids but the last.

        Raises:
            PltzError: as ``prefill``.
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
        """Return the token ids of a text by the target's tokenizer, special tokens in it recognised, none added.

        Raises:
            ContentError: the tokenizer cannot take the text.
        """
        try:
            ids = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)  # silent about a long one
        except (TypeError, ValueError) as exc:  # lone surrogates have no UTF-8
            raise ContentError(f"the target's tokenizer cannot take this text ({reason(exc)})") from exc
        return [int(i) for i in ids]

    @cached_property
    def _control(self) -> re.Pattern[str] | None:
        words = {str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True)))) if words else None

    @cached_property
    def writes_as_shipped(self) -> bool:
        """Return whether it renders chats as the target that ships with pltz: with its template, or with none."""
        found = templates_of(self.folder)
        return not found or found == templates_of(TARGETS / SHIPPED)

    def warn_of_control(self, texts: Iterable[tuple[str, Any]]) -> None:
        """Warn of texts, each with the words for its place, that spell a control token: the target reads it as one."""
        for place, value in texts:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if self._control and (found := self._control.search(text)):
                why = f"{place} spells {found[0]}, a control token of this target: a server of it reads it as one"
                warnings.warn(why, ControlTokenWarning, stacklevel=3)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of some ids (T,), special tokens included, nothing tidied up."""
        flat = [int(i) for i in ids]
        return str(self.tokenizer.decode(flat, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render(self, chat: Any, *, add_generation_prompt: bool = False) -> list[int]:
        """Return the token ids of a chat by the target's chat template, as a server of this model would prefill them.

        ``chat``: {"messages": [...]}, a list of messages, or {"conversations": [...]} (ShareGPT). A "tools"
        key beside "messages" goes to the template. As on every server, the text of a special token inside a
        message becomes that token, and a ControlTokenWarning says so.

        Raises:
            OpaqueContentError: a part is not text.
            ContentError: this is no chat, or the template refuses it.
            ModelError: the target has no chat template.
        """
        messages, tools = _messages(chat)
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(f"the target in {self.folder} has no chat template: give token ids or text instead")
        self.warn_of_control((f"message {n}", message) for n, message in enumerate(messages, 1))
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as exc:  # a template can raise any error of its author or of jinja
            raise ContentError(f"the target's chat template refuses this chat ({reason(exc)})") from exc
        return self.tokenize(str(text))

    @cached_property
    def takes_tools(self) -> bool:
        """Return whether the chat template writes calls of tools and their results. Many drop them without a word."""
        call = {"type": "function", "function": {"name": "pltz_name", "arguments": {"key": "pltz_value"}}}
        chat = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "pltz_result"},
        ]
        try:
            text = str(self.tokenizer.apply_chat_template(chat, tokenize=False))
        except Exception:  # noqa: BLE001  # a template can raise any error of its author or of jinja
            return False
        return all(word in text for word in ("pltz_name", "pltz_value", "pltz_result"))

    def _new_cache(self) -> DynamicCache:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def _drop_last(self, cache: DynamicCache) -> None:
        try:
            cache.crop(-1)
        except (RuntimeError, ValueError, NotImplementedError) as exc:  # a full window has dropped the tokens before
            raise UsageError(f"this cache cannot go back one token ({reason(exc)}): pass the logits too") from exc

    def _forward(self, ids: NDArray[np.int64], cache: DynamicCache) -> torch.Tensor:
        """Run ids (T,) after the tokens in the cache; return the logits of the last position, (vocab_size,)."""
        import torch

        batch = torch.from_numpy(np.ascontiguousarray(ids))[None].to(self.device)  # (1, T)
        return self._run(cache, input_ids=batch, **self._last_only)[0, -1]

    def _run(self, cache: DynamicCache, **inputs: Any) -> torch.Tensor:
        """Run one pass of the model after the tokens in the cache; return logits (B, positions kept, vocab_size)."""
        import torch

        tokens = inputs["input_ids"].numel()
        try:
            with torch.inference_mode():
                logits: torch.Tensor = self.model(**cache_argument(self.model, cache), use_cache=True, **inputs).logits
                return logits
        except torch.OutOfMemoryError as exc:
            raise ModelError(f"out of memory on {self.device}: prefill in smaller chunks") from exc
        except PltzError:
            raise
        except Exception as exc:  # the model's own code: anything
            raise ModelError(f"{type(self.model).__name__} failed on {tokens} tokens ({reason(exc)})") from exc


def as_seen_by(model: Target, session: Session) -> Session:
    """Return the session as the ids that ``model`` would prefill.

    Raises:
        ContentError: a text is not UTF-8, or the template refuses a chat.
        ModelError: the target has no chat template.
    """
    if session.kind == "ids":
        return session
    if session.kind == "chat":
        return Session("ids", model.render(session.value))
    try:
        text = session.value.decode()
        model.warn_of_control([("the text", text)])
        return Session("ids", model.tokenize(text))
    except UnicodeDecodeError as exc:
        raise ContentError("a text that is not UTF-8 has no token ids: leave the target out") from exc


def _facet(tokenizer: Any, what: str) -> Any:
    return tokenizer.get_vocab() if what == "vocabulary" else getattr(tokenizer, "chat_template", None)


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a generation: of the generation config, else of the config, else of the tokenizer."""
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        found = getattr(holder, "eos_token_id", None)
        if found is not None:
            return frozenset(int(i) for i in (found if isinstance(found, list | tuple) else [found]))
    return frozenset()


def _last_only(model: Any) -> dict[str, int]:
    """Return the argument that asks a model's head for the last position alone, under this model's name for it."""
    parameters = inspect.signature(model.forward).parameters
    return {name: 1 for name in ("logits_to_keep", "num_logits_to_keep") if name in parameters}


def _messages(chat: Any) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """Return the messages of a chat in the form chat templates take, and its tools."""
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
        isinstance(t, Mapping) and isinstance(t.get("from"), str) and "value" in t for t in turns
    ):
        raise ContentError('expected a list of {"from": ..., "value": ...} under "conversations"')
    role = {name: ROLES[special] for name, special in ALIASES.items()}
    return [{"role": role.get(turn["from"], turn["from"]), "content": turn["value"]} for turn in turns]


def _check_parts(number: int, content: Any) -> None:
    """Refuse a part that is not text: many templates would drop it without a word."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind != "text":
            raise OpaqueContentError(f"message {number} holds a part of type {kind!r}: only text can be prefilled")
