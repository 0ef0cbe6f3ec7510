"""Sessions of llama.cpp's ``llama-server``, to the archive and back, by token ids, over its HTTP API.

    server = LlamaServer("http://127.0.0.1:8080")
    done = server.complete(server.render(messages), slot=0, n_predict=200)       # ids in, ids out
    hook.on_evict(server.evicted(done, "chat-7", tenant="acme"))
    ...
    found = cold.get("chat-7", tenant="acme")
    server.thaw(found.ids, slot=0, frozen_for=found.target)                      # one prefill, no sampling

Ids are used, and not the text. The sampled tokens often differ from the tokenizer's tokens of their text, and
then the KV of the text is not the KV of the session. The server's own slot files are not used either. They
are 100 to 1000 times larger and are accepted by any model of the same shape, whatever its weights. They can
be read, though (`slot_ids`, `slot_file`), to export a session whose requests bypassed this client.

Content that ids cannot bring back is refused: a slot with images, and other adapters than it was frozen with.
A slot number that the server lacks is refused, too. The server itself would take it modulo its slots, and
fill or empty the slot of another session.
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

from pltz.archive import Tokens
from pltz.plt_codec import ContentError, ModelError, UsageError
from pltz.serving.engines.llama_slots import read_slot_ids
from pltz.serving.engines.served import check_served
from pltz.serving.eviction.eviction import EvictionRequest

MAX_REPLY = 1 << 28  # most bytes of a reply that are read
TIMEOUT = 600.0  # seconds: a long prefill on a slow machine
Ids = Sequence[int] | Tokens


@dataclass(frozen=True)
class Completion:
    """A reply.

    ``ids``: (T,) int64, prompt and answer, to the last sampled token. ``new``: how many of them are the answer.
    ``slot``: the slot of its KV. ``cached``: prompt tokens that were hot. ``truncated``: it filled the context, so a
    thaw needs a longer one. ``adapter``: the LoRA adapters in use, as `LlamaServer.adapter`.
    """

    ids: Tokens
    new: int
    text: str
    slot: int
    cached: int
    truncated: bool
    adapter: str | None


@dataclass(frozen=True)
class Hot:
    """A session that is hot again.

    ``slot``: its slot. ``tokens``: its length. ``cached``: tokens that were hot before. ``prefill_ms``: by
    the server's own clock. ``total_ms``: including HTTP.
    """

    slot: int
    tokens: int
    cached: int
    prefill_ms: float
    total_ms: float


@dataclass(frozen=True)
class SlotState:
    """A slot as the server shows it.

    ``task``: number of the request that used it last, -1 for none. ``tokens``: in the slot. ``room``: for tokens.
    ``busy``: a request runs. ``adapter``: the LoRA adapters of that request, as `LlamaServer.adapter`.
    """

    slot: int
    task: int
    tokens: int
    room: int
    busy: bool
    adapter: str | None


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: the next server would get the key and the tokens."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request, so that the answer is an error."""


class LlamaServer:
    """A running llama-server. It is asked directly, whatever proxies the environment names, and follows no redirect.

    Any thread may use it.

    Args:
        url: for example "http://127.0.0.1:8080".
        api_key: the key it was started with (``--api-key``).
        model: its GGUF file, needed for `target` where the path it reports is not one of this machine.
        timeout: seconds per request.

    Raises UsageError for a malformed URL.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, model: str | Path | None = None, timeout: float = TIMEOUT
    ) -> None:
        if not re.match(r"https?://", url):
            raise UsageError(f"expected a URL such as http://127.0.0.1:8080, found {url!r}")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._model = model
        self._seen: tuple[str, str, int, int] | None = None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects())
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    # ---- the served model

    @cached_property
    def properties(self) -> dict[str, Any]:
        """Return the reply to ``GET /props``. Raises ModelError."""
        return _object(self._call("/props"), "/props")

    @cached_property
    def vocab_size(self) -> int:
        """Return the size of the vocabulary; ids are below it. Raises ModelError."""
        models = _object(self._call("/v1/models"), "/v1/models").get("data")
        first = models[0] if isinstance(models, list) and models else None
        return _integer(first.get("meta") if isinstance(first, dict) else None, "n_vocab")

    @cached_property
    def target(self) -> bytes | None:
        """Return 16 bytes that name the served GGUF file, or None if it is not on this machine.

        They cover weights, config and tokenizer. Reads the file once. Raises UsageError and ModelError.
        """
        path = Path(self._model or str(self.properties.get("model_path", "")))
        if self._model is None and not (path.is_absolute() and path.is_file()):
            return None
        return fingerprint_gguf(path)

    def refresh(self) -> None:
        """Forget what is known of the served model where the server was started with another one since.

        Raises ModelError.
        """
        now = _object(self._call("/props"), "/props")
        path = Path(self._model or str(now.get("model_path", "")))
        try:
            stat = path.stat()
            file = (stat.st_size, stat.st_mtime_ns)
        except OSError:
            file = (0, 0)
        seen = (str(now.get("model_path")), str(now.get("build_info")), *file)
        if seen != self._seen:
            for name in ("properties", "vocab_size", "target"):
                self.__dict__.pop(name, None)
        self._seen = seen

    @property
    def adapter(self) -> str | None:
        """Return the LoRA adapters in use by file and scale ("style.gguf:0.5"), or None for none.

        Raises ModelError.
        """
        return _adapter(self._call("/lora-adapters"), None)

    # ---- text to ids

    def tokenize(self, text: str) -> Tokens:
        """Return the ids of a prompt, (T,) int64, with the special tokens the server itself would add.

        Raises ContentError and ModelError.
        """
        body = {"content": text, "add_special": True, "parse_special": True}
        return self._ids(_object(self._call("/tokenize", body), "/tokenize").get("tokens"), "/tokenize")

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Tokens:
        """Return the ids of a chat by the model's own template, (T,) int64, ready for its answer.

        Raises ContentError and ModelError.
        """
        reply = _object(self._call("/apply-template", {"messages": list(messages), **options}), "/apply-template")
        return self.tokenize(str(reply.get("prompt", "")))

    # ---- serving

    def complete(self, prompt: Ids | str, *, slot: int = -1, **options: Any) -> Completion:
        """Return an answer with all ids of the session so far.

        Args:
            prompt: ids (T,), or a text, which is first passed to `tokenize`.
            slot: where to run; -1 lets the server choose.
            options: of ``POST /completion``: n_predict, temperature, stop, ...

        Raises ContentError where the prompt does not fit the context, UsageError where there is no such slot,
        and ModelError where the server fails.
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
                f"expected {reply.get('tokens_predicted')} tokens of the answer, found {len(new)}: "
                "their ids are not known"
            )
        return Completion(
            np.concatenate([ids, new]),
            len(new),
            str(reply.get("content", "")),
            _slot_of(reply, slot),
            _integer(reply.get("timings"), "cache_n"),
            bool(reply.get("truncated")),
            _adapter(self._call("/lora-adapters"), reply.get("generation_settings")),
        )

    def evicted(self, finished: Completion, session: str, *, tenant: str = "default") -> EvictionRequest:
        """Return the request that hands a session's tokens to the hook.

        ``finished``: its last reply. Raises UsageError and ModelError, as `target` does.
        """
        return EvictionRequest(session, finished.ids, tenant=tenant, target=self.target, adapter=finished.adapter)

    def thaw(self, ids: Ids, *, slot: int = -1, frozen_for: bytes | None = None, any_target: bool = False) -> Hot:
        """Bring a session's KV back by one prefill of its ids, without sampling.

        The next request that begins with these ids finds them hot.

        Args:
            ids: (T,) of the session.
            slot: the slot to fill; -1 lets the server choose.
            frozen_for: `TokenSession.target`: weights and adapter it was frozen under; None if unknown.
            any_target: prefill these ids whatever weights and adapters are in use.

        Raises:
            TargetMismatch: other weights or adapters are in use.
            UsageError: no such slot; the weights served here (``model``) or those of the session are not known.
            ContentError: ids outside the vocabulary, or too many for a slot.
            ModelError: the server fails.
        """
        start = time.perf_counter()
        self._check_choice(slot)
        self.check_thaw(frozen_for, any_target=any_target)
        array = self._ids(ids, "the session")
        body = {"prompt": array.tolist(), "id_slot": slot, "n_predict": 0, "cache_prompt": True}
        reply = _object(self._call("/completion", body), "/completion")
        if reply.get("truncated") or reply.get("tokens_evaluated") != len(array):
            raise ContentError(
                f"expected {len(array)} tokens in the slot, found {reply.get('tokens_evaluated')}: "
                "its context (-c) is too short"
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

    def check_thaw(self, frozen_for: bytes | None, *, any_target: bool = False) -> None:
        """Check that sessions of these weights and adapters may be thawed here.

        Raises TargetMismatch, UsageError and ModelError, as `thaw` does.
        """
        if not any_target:
            check_served(frozen_for, self.target if frozen_for else None, self.adapter)

    # ---- slots

    def slot_states(self) -> list[SlotState]:
        """Return all slots as they are now.

        Raises UsageError where the server does not show them (``--no-slots``), and ModelError.
        """
        rows = self._call("/slots")
        if not isinstance(rows, list):
            raise ModelError("expected a list from /slots: is this llama-server?")
        adapters, found = self._call("/lora-adapters"), []
        for row in rows:
            busy = row.get("is_processing") if isinstance(row, dict) else None
            if not isinstance(busy, bool):
                raise ModelError("expected slots that say if they are processing from /slots: is this llama-server?")
            task = _integer(row, "id_task") if "id_task" in row else -1
            tokens = _integer(row, "n_prompt_tokens") if "n_prompt_tokens" in row else 0
            adapter = _adapter(adapters, row.get("params"))
            found.append(SlotState(_integer(row, "id"), task, tokens, _integer(row, "n_ctx"), busy, adapter))
        return found

    def slot_state(self, slot: int) -> SlotState:
        """Return a slot as it is now. Raises UsageError where there is no such slot; ModelError."""
        states = {state.slot: state for state in self.slot_states()}
        if slot not in states:
            raise UsageError(f"expected a slot from 0 to {len(states) - 1}, found {slot}")
        return states[slot]

    def save_slot(self, slot: int, name: str) -> int:
        """Let the server save a slot to a file in its folder, and return the number of tokens.

        Raises UsageError where there is no such slot, ContentError where the server refuses, and ModelError.
        """
        self._check_slot(slot)
        return _integer(self._call(f"/slots/{slot}?action=save", {"filename": name}), "n_saved")

    def restore_slot(self, slot: int, name: str) -> int:
        """Let the server restore a slot from a file in its folder, and return the number of tokens.

        The server checks neither model nor bytes: `slot_keeper.SlotKeeper` does. Raises as `save_slot`.
        """
        self._check_slot(slot)
        return _integer(self._call(f"/slots/{slot}?action=restore", {"filename": name}), "n_restored")

    def slot_ids(self, slot: int, folder: str | Path) -> Tokens:
        """Return the ids in a slot, (T,) int64, by a slot file that is written, read and removed.

        The last sampled token is not in a slot yet.

        Args:
            folder: the folder the server was started with (``--slot-save-path``), as this machine sees it.

        Raises the errors of `read_slot_ids`, UsageError where there is no such slot or folder, and ModelError
        where the server fails.
        """
        if not Path(folder).is_dir():
            raise UsageError(f"expected the folder of --slot-save-path, found none at {folder}")
        name = f"pltz-{secrets.token_hex(8)}"
        path = Path(folder) / name
        try:
            saved = self.save_slot(slot, name)
            ids = read_slot_ids(path, self.vocab_size)
        finally:
            with suppress(OSError):
                path.unlink()
        if len(ids) != saved:
            raise ModelError(f"expected the {saved} tokens that the server saved, found {len(ids)} in its slot file")
        return ids

    def erase(self, slot: int) -> int:
        """Empty a slot and return the number of tokens it held.

        Raises UsageError where there is no such slot; ModelError.
        """
        self._check_slot(slot)
        return _integer(self._call(f"/slots/{slot}?action=erase", {}), "n_erased")

    # ---- below

    def _check_choice(self, slot: int) -> None:
        """Check a slot to run in, where -1 leaves the choice to the server.

        Raises UsageError and ModelError.
        """
        if slot != -1:
            self._check_slot(slot)

    def _check_slot(self, slot: int) -> None:
        """Check a slot against the server's slots now, as it may have restarted with fewer.

        Raises UsageError and ModelError.
        """
        slots = _integer(self._call("/props"), "total_slots")
        if not 0 <= slot < slots:
            raise UsageError(f"expected a slot from 0 to {slots - 1}, found {slot}")

    def _ids(self, value: object, where: str) -> Tokens:
        """Return checked ids, (T,) int64. Raises ContentError."""
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, OverflowError):
            array = np.zeros((), np.int64)
        if array.ndim == 1 and not array.size:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ContentError(f"expected token ids from {where}, found {type(value).__name__} of {array.dtype}")
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.vocab_size:
            raise ContentError(
                f"expected ids from 0 to {self.vocab_size - 1} in {where}, found {low if low < 0 else high}: "
                "of another tokenizer"
            )
        return array.astype(np.int64)

    def _call(self, path: str, body: object = None) -> object:
        """Return the JSON of a reply: to GET without a body, else to POST.

        Raises ContentError and ModelError.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers)
        try:
            with self._opener.open(request, timeout=self.timeout) as reply:
                return _parse(reply.read(MAX_REPLY + 1), path)
        except urllib.error.HTTPError as exc:
            said = _message(exc)
            if exc.code == 400:
                raise ContentError(f"llama-server refuses {path}: {said}") from exc
            raise ModelError(f"llama-server answers {exc.code} to {path}: {said}") from exc
        except (OSError, ValueError, HTTPException) as exc:  # no connection, a timeout, no HTTP
            raise ModelError(f"no answer from llama-server at {self.url}: {getattr(exc, 'reason', exc)}") from exc


def fingerprint_gguf(path: str | Path) -> bytes:
    """Return 16 bytes that name a GGUF file with all parts of a split one.

    Reads every byte. Raises UsageError.
    """
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


def _adapter(listed: object, settings: object) -> str | None:
    """Return names and scales of the adapters in use, by ``settings`` where these have them.

    ``listed``: the reply to ``GET /lora-adapters``. Raises ModelError.
    """
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    own = settings.get("lora") if isinstance(settings, dict) else None
    try:
        scales = {row.get("id"): float(row.get("scale") or 0) for row in own or rows}
        used = [(Path(str(row.get("path"))).name, scales.get(row.get("id"), 0.0)) for row in rows]
    except (AttributeError, TypeError, ValueError, OverflowError) as exc:
        raise ModelError("expected adapters with numbers from /lora-adapters: is this llama-server?") from exc
    return ",".join(f"{name}:{scale:g}" for name, scale in used if scale) or None


def _parse(data: bytes, path: str) -> object:
    if len(data) > MAX_REPLY:
        raise ModelError(f"expected at most {MAX_REPLY} bytes from {path}, found more")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"expected JSON from {path}: is this llama-server?") from exc


def _message(error: urllib.error.HTTPError) -> str:
    """Return the server's message of an error."""
    try:
        return str(json.loads(error.read(1 << 16))["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, HTTPException):
        return str(error.reason)


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelError(f"expected an object from {path}, found {type(value).__name__}: is this llama-server?")
    return value


def _slot_of(reply: Mapping[str, Any], wanted: int) -> int:
    """Return the slot that a reply names.

    Raises ModelError for another one than requested: the server has restarted.
    """
    found = _integer(reply, "id_slot")
    if wanted not in (-1, found):
        raise ModelError(f"expected the session in slot {wanted}, found it in slot {found}: ask for that one")
    return found


def _integer(value: object, key: str) -> int:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise ModelError(f"expected a number as {key!r} of the reply, found {found!r}: is this llama-server?")
    return found
