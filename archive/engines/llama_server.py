"""llama.cpp's ``llama-server``: its sessions to the archive and back, by token ids, over its HTTP API.

    server = LlamaServer("http://127.0.0.1:8080")
    done = server.complete(server.render(messages), slot=0, n_predict=200)       # ids in, ids out
    hook.on_evict("chat-7", done.ids, tenant="acme", target=server.target, adapter=done.adapter)
    ...
    found = cold.get("chat-7", tenant="acme")
    server.thaw(found.ids, slot=0, frozen_for=found.target)                      # one prefill, nothing sampled

Why ids and not the text: what the model sampled is often not what the tokenizer makes of the text, and then the KV of the text is not the
KV of the session. Why not the server's own slot files: they are 100 to 1000 times larger and are taken by any model of the same shape,
whatever its weights. They are read, though (`slot_ids`, `slot_file`): that is how a session gets out whose requests went past this client.

What ids cannot bring back is refused: a slot with images, adapters other than those it was frozen with. So is a slot number that the
server does not have: the server itself would take it modulo its slots, and fill or empty the slot of another session.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from pltz.archive.engines.llama_slots import read_slot_ids
from pltz.archive.engines.target_check import check_served
from pltz.archive.format.ids import Tokens
from pltz.plt_codec.errors import ContentError, ModelError, UsageError

MAX_REPLY = 1 << 28  # bytes of a reply that are read at most
TIMEOUT = 600.0  # seconds: a long prefill on a slow machine
Ids = Sequence[int] | Tokens


@dataclass(frozen=True)
class Completion:
    """A reply. ``ids``: (T,) prompt and answer, to the last sampled token; ``new``: how many of them are the answer; ``slot``: where its
    KV lies; ``cached``: prompt tokens that were hot; ``truncated``: it filled the context, so a thaw wants a longer one; ``adapter``: the LoRA
    adapters at work, as `LlamaServer.adapter`."""

    ids: Tokens
    new: int
    text: str
    slot: int
    cached: int
    truncated: bool
    adapter: str | None


@dataclass(frozen=True)
class Hot:
    """A session hot again. ``slot``: where; ``tokens``: its length; ``cached``: what was hot before; ``prefill_ms``: the server's own
    clock; ``total_ms``: with HTTP."""

    slot: int
    tokens: int
    cached: int
    prefill_ms: float
    total_ms: float


class LlamaServer:
    """A running llama-server.

    Args:
        url: "http://127.0.0.1:8080".
        api_key: what it was started with (``--api-key``).
        model: its GGUF file, where the path it gives itself is not one of this machine; for `target`.
        timeout: seconds, for one request.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | Path | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        if not re.match(r"https?://", url):
            raise UsageError(f"expected a URL such as http://127.0.0.1:8080, found {url!r}")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    # ---- what it serves

    @cached_property
    def properties(self) -> dict[str, Any]:
        """What ``GET /props`` says. Raises ModelError."""
        return _object(self._call("/props"), "/props")

    @cached_property
    def vocab_size(self) -> int:
        """Ids are below it. Raises ModelError."""
        models = _object(self._call("/v1/models"), "/v1/models").get("data")
        first = models[0] if isinstance(models, list) and models else None
        return _integer(first.get("meta") if isinstance(first, dict) else None, "n_vocab")

    @cached_property
    def target(self) -> bytes | None:
        """16 bytes that name the GGUF file it serves (weights, config, tokenizer); None where that is not on this machine. Reads the file once."""
        path = Path(self._model or str(self.properties.get("model_path", "")))
        if self._model is None and not (path.is_absolute() and path.is_file()):
            return None
        return fingerprint_gguf(path)

    @property
    def adapter(self) -> str | None:
        """The LoRA adapters at work, "style.gguf:0.5" by file and scale; None where there are none. Raises ModelError."""
        return self._adapters({})

    # ---- text to ids

    def tokenize(self, text: str) -> Tokens:
        """(T,) ids of a prompt, with the special tokens the server itself would add. Raises ContentError, ModelError."""
        body = {"content": text, "add_special": True, "parse_special": True}
        return self._ids(_object(self._call("/tokenize", body), "/tokenize").get("tokens"), "/tokenize")

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Tokens:
        """(T,) ids of a chat by the model's own template, ready for its answer. Raises ContentError, ModelError."""
        reply = _object(
            self._call("/apply-template", {"messages": list(messages), **options}), "/apply-template"
        )
        return self.tokenize(str(reply.get("prompt", "")))

    # ---- serving

    def complete(self, prompt: Ids | str, *, slot: int = -1, **options: Any) -> Completion:
        """An answer, with all ids of the session so far.

        Args:
            prompt: ids, or a text, which is `tokenize`\\ d first.
            slot: where to run; -1 is the server's choice.
            options: of ``POST /completion``: n_predict, temperature, stop, ...

        Raises ContentError: the prompt does not fit the context; UsageError: no such slot; ModelError: the server fails.
        """
        self._check_choice(slot)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self._ids(prompt, "the prompt")
        body = {
            **options,
            "prompt": ids.tolist(),
            "id_slot": slot,
            "cache_prompt": True,
            "return_tokens": True,
            "stream": False,
        }
        reply = _object(self._call("/completion", body), "/completion")
        new = self._ids(reply.get("tokens"), "/completion")
        if len(new) != reply.get("tokens_predicted"):
            raise ModelError(
                f"expected {reply.get('tokens_predicted')} tokens of the answer, found {len(new)}: their ids are not known"
            )
        return Completion(
            np.concatenate([ids, new]),
            len(new),
            str(reply.get("content", "")),
            _slot_of(reply, slot),
            _integer(reply.get("timings"), "cache_n"),
            bool(reply.get("truncated")),
            self._adapters(reply.get("generation_settings")),
        )

    def thaw(
        self,
        ids: Ids,
        *,
        slot: int = -1,
        frozen_for: bytes | None = None,
        any_target: bool = False,
    ) -> Hot:
        """Bring a session's KV back: one prefill of its ids, nothing sampled. The next request that begins with them finds them hot.

        Args:
            slot: which to fill; -1 is the server's choice.
            frozen_for: `TokenSession.target`: weights and adapter it was frozen under; None: they are not known.
            any_target: prefill these ids whatever weights and adapters are at work.

        Raises:
            TargetMismatch: other weights or adapters are at work.
            UsageError: no such slot; the weights served here (``model``) or those of the session are not known.
            ContentError: ids outside the vocabulary, or too many for a slot.
            ModelError: the server fails.
        """
        start = time.perf_counter()
        self._check_choice(slot)
        if not any_target:
            check_served(frozen_for, self.target if frozen_for else None, self.adapter)
        array = self._ids(ids, "the session")
        body = {"prompt": array.tolist(), "id_slot": slot, "n_predict": 0, "cache_prompt": True}
        reply = _object(self._call("/completion", body), "/completion")
        if reply.get("truncated") or reply.get("tokens_evaluated") != len(array):
            raise ContentError(
                f"expected {len(array)} tokens in the slot, found {reply.get('tokens_evaluated')}: its context (-c) is too short"
            )
        timings = reply.get("timings")
        prefill = timings.get("prompt_ms") if isinstance(timings, dict) else None
        return Hot(
            _slot_of(reply, slot),
            len(array),
            _integer(timings, "cache_n"),
            float(prefill) if isinstance(prefill, int | float) and prefill < 1e12 else 0.0,
            1e3 * (time.perf_counter() - start),
        )

    # ---- slots

    def slot_ids(self, slot: int, folder: str | Path) -> Tokens:
        """(T,) ids of what a slot holds, by a slot file that is written, read and removed. Its last sampled token is not in a slot yet.

        Args:
            folder: what the server was started with (``--slot-save-path``), as this machine sees it.

        Raises what `read_slot_ids` raises; UsageError: no such slot or folder; ModelError: the server fails.
        """
        self._check_slot(slot)
        if not Path(folder).is_dir():
            raise UsageError(f"expected the folder of --slot-save-path, found none at {folder}")
        name = f"pltz-{secrets.token_hex(8)}"
        path = Path(folder) / name
        try:
            saved = _integer(self._call(f"/slots/{slot}?action=save", {"filename": name}), "n_saved")
            ids = read_slot_ids(path, self.vocab_size)
        finally:
            with suppress(OSError):
                path.unlink()
        if len(ids) != saved:
            raise ModelError(
                f"expected the {saved} tokens that the server saved, found {len(ids)} in its slot file"
            )
        return ids

    def erase(self, slot: int) -> int:
        """Empty a slot; how many tokens it held. Raises UsageError: no such slot; ModelError."""
        self._check_slot(slot)
        return _integer(self._call(f"/slots/{slot}?action=erase", {}), "n_erased")

    # ---- below

    def _check_choice(self, slot: int) -> None:
        """Check a slot to run in, where -1 leaves the choice to the server. Raises UsageError, ModelError."""
        if slot != -1:
            self._check_slot(slot)

    def _check_slot(self, slot: int) -> None:
        """Ask for the server's slots now, as it may have been started anew with fewer. Raises UsageError, ModelError."""
        slots = _integer(self._call("/props"), "total_slots")
        if not 0 <= slot < slots:
            raise UsageError(f"expected a slot from 0 to {slots - 1}, found {slot}")

    def _adapters(self, settings: object) -> str | None:
        """Names and scales of the adapters at work; those of a request where ``settings`` has them. Raises ModelError."""
        listed = self._call("/lora-adapters")
        rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        own = settings.get("lora") if isinstance(settings, dict) else None
        try:
            scales = {row.get("id"): float(row.get("scale") or 0) for row in own or rows}
            used = [(Path(str(row.get("path"))).name, scales.get(row.get("id"), 0.0)) for row in rows]
        except (AttributeError, TypeError, ValueError, OverflowError) as exc:
            raise ModelError(
                "expected adapters with numbers from /lora-adapters: is this llama-server?"
            ) from exc
        return ",".join(f"{name}:{scale:g}" for name, scale in used if scale) or None

    def _ids(self, value: object, where: str) -> Tokens:
        """Checked ids. Raises ContentError."""
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, OverflowError):
            array = np.zeros((), np.int64)
        if array.ndim == 1 and not array.size:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ContentError(
                f"expected token ids from {where}, found {type(value).__name__} of {array.dtype}"
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.vocab_size:
            raise ContentError(
                f"expected ids from 0 to {self.vocab_size - 1} in {where}, found {low if low < 0 else high}: of another tokenizer"
            )
        return array.astype(np.int64)

    def _call(self, path: str, body: object = None) -> object:
        """The JSON of a reply: GET where there is no body, else POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return _parse(reply.read(MAX_REPLY + 1), path)
        except urllib.error.HTTPError as exc:
            said = _message(exc)
            if exc.code == 400:
                raise ContentError(f"llama-server refuses {path}: {said}") from exc
            raise ModelError(f"llama-server answers {exc.code} to {path}: {said}") from exc
        except (OSError, ValueError, HTTPException) as exc:  # no connection, a timeout, no HTTP
            raise ModelError(
                f"no answer from llama-server at {self.url}: {getattr(exc, 'reason', exc)}"
            ) from exc


def fingerprint_gguf(path: str | Path) -> bytes:
    """16 bytes that name a GGUF file, all parts of a split one. Reads every byte. Raises UsageError."""
    path = Path(path)
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    parts = [path]
    if split:
        parts = [path.with_name(f"{split[1]}-{i + 1:05}-of-{split[2]}.gguf") for i in range(int(split[2]))]
    state = hashlib.blake2b(b"pltz gguf", digest_size=16)
    for part in parts:
        try:
            with open(part, "rb") as file:
                state.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as exc:
            raise UsageError(f"cannot read {part}: {exc.strerror or exc}") from exc
    return state.digest()


def _parse(data: bytes, path: str) -> object:
    if len(data) > MAX_REPLY:
        raise ModelError(f"expected at most {MAX_REPLY} bytes from {path}, found more")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"expected JSON from {path}: is this llama-server?") from exc


def _message(error: urllib.error.HTTPError) -> str:
    """What the server says about an error."""
    try:
        return str(json.loads(error.read(1 << 16))["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, HTTPException):
        return str(error.reason)


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelError(
            f"expected an object from {path}, found {type(value).__name__}: is this llama-server?"
        )
    return value


def _slot_of(reply: Mapping[str, Any], wanted: int) -> int:
    """Return the slot that a reply names. Raises ModelError where another was asked for: the server was started anew meanwhile."""
    found = _integer(reply, "id_slot")
    if wanted not in (-1, found):
        raise ModelError(f"expected the session in slot {wanted}, found it in slot {found}: ask for that one")
    return found


def _integer(value: object, key: str) -> int:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise ModelError(f"expected a number as {key!r} of the reply, found {found!r}: is this llama-server?")
    return found
