"""The parts of a vLLM request that go to the archive, and the request that brings a session back.

This module does not import vLLM.

A client, or better the gateway before it, names the session in the request, beside vLLM's own ``cache_salt``:

    {"prompt": [...], "cache_salt": "s3cret",
     "kv_transfer_params": {"pltz": {"session": "chat-7", "tenant": "acme"}}}

``prefixes`` and ``base`` may be added: the number of tokens in a shared beginning, and its name
(`hook.EvictionHook.on_evict`). Without a name, vLLM's own ``session_id`` is used. vLLM shares KV only among
requests of equal salt, and so does the archive. The salt goes to the hook, and nothing is found or shared
across salts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from pltz.archive.engines.target_check import check_served
from pltz.archive.eviction.journal.entry import MAX_PREFIXES
from pltz.archive.token_archive import SALTED
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from pltz.archive.format.ids import Tokens

KEY = "pltz"  # of our part of kv_transfer_params
FAILED = ("FINISHED_ERROR", "FINISHED_IGNORED")  # final states of requests that were not served


class Evicted(TypedDict, total=False):
    """The arguments of `hook.EvictionHook.on_evict`."""

    session: str
    token_ids: Sequence[int]
    tenant: str
    salt: str | None
    adapter: str | None
    multimodal: bool
    has_embeds: bool
    prefixes: Sequence[int]
    base: str | None


class Prompt(TypedDict, total=False):
    """A prompt for ``LLM.generate`` and ``POST /v1/completions`` (the latter calls the ids ``prompt``)."""

    prompt_token_ids: list[int]
    cache_salt: str


def evicted(request: Request, *, tenant: str = "default", unnamed: bool = False) -> Evicted | None:
    """Return the hook's arguments for a finished request.

    Returns None for a request without a name or a generation, and for one that was not served.

    Args:
        tenant: of requests that name none.
        unnamed: take requests without a session name under their own id.

    Raises UsageError where it names a tenant that contains the separator of a salt.
    """
    own = (request.kv_transfer_params or {}).get(KEY)
    own = own if isinstance(own, Mapping) else {}
    name = (
        own.get("session")
        or getattr(request, "session_id", None)
        or (request.request_id if unnamed else None)
    )
    if not name or request.sampling_params is None or request.status.name in FAILED:
        return None
    who = str(own.get("tenant") or tenant)
    if SALTED in who:
        raise UsageError(f"request {request.request_id} names a tenant with {SALTED}: give the salt itself")
    lora, prefixes = request.lora_request, own.get("prefixes")
    return Evicted(
        session=str(name),
        token_ids=request.all_token_ids[:],
        tenant=who,
        salt=request.cache_salt,
        adapter=None if lora is None else lora.lora_name,
        multimodal=bool(request.mm_features),
        has_embeds=request.prompt_embeds is not None,
        prefixes=prefixes[:MAX_PREFIXES] if isinstance(prefixes, list) else (),  # a client wrote it
        base=None if request.cache_salt else own.get("base"),  # a base is shared with all, a salt with none
    )


def named(request: Any, tenant: str = "default") -> tuple[Any, Any]:
    """Return session and tenant of a request that cannot be archived, as its client wrote them.

    Never raises.
    """
    try:
        own = request.kv_transfer_params[KEY]
        return own.get("session") or request.request_id, own.get("tenant") or tenant
    except Exception:  # noqa: BLE001  # a client may write anything
        return getattr(request, "request_id", None), tenant


def vllm_prompt(
    ids: Tokens,
    *,
    salt: str | None = None,
    frozen_for: bytes | None = None,
    target: bytes | None = None,
    lora: str | None = None,
    any_target: bool = False,
) -> Prompt:
    """Return the prompt that makes a session hot again.

    Send it with ``max_tokens=1``, or with the ids of its next turn appended, as that turn.

    Args:
        ids: (T,) of the session, `TokenSession.ids`.
        salt: with which it was frozen and found.
        frozen_for: `TokenSession.target`: weights and adapter it was frozen under; None if unknown.
        target: fingerprint of the served weights, 16 bytes; None if unknown.
        lora: name of the LoRA adapter that the request will have.
        any_target: accept any weights and adapters.

    Raises TargetMismatch where it was frozen for others, and UsageError where ``target`` or ``frozen_for`` is
    needed to tell.
    """
    if not any_target:
        check_served(frozen_for, target, lora)
    tokens = [int(i) for i in ids]
    return (
        Prompt(prompt_token_ids=tokens) if salt is None else Prompt(prompt_token_ids=tokens, cache_salt=salt)
    )
