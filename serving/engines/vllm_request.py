"""The parts of a vLLM request that go to the archive, and the request that brings a session back.

This module does not import vLLM.

A client, or better the gateway before it, names the session in the request, beside vLLM's own ``cache_salt``:

    {"prompt": [...], "cache_salt": "s3cret",
     "kv_transfer_params": {"pltz": {"session": "chat-7", "tenant": "acme"}}}

``prefixes`` and ``base`` may be added: the number of tokens in a shared beginning, and its name
(`eviction.EvictionRequest`). Without a name, vLLM's own ``session_id`` is used. vLLM shares KV only among requests of
equal salt, and so does the archive. The salt goes to the hook, and nothing is found or shared across salts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from pltz.archive import SALTED
from pltz.plt_codec import UsageError
from pltz.serving.engines.served import check_served
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.journal.entry import MAX_PREFIXES

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from pltz.archive import Tokens

KEY = "pltz"  # of our part of kv_transfer_params
FAILED = ("FINISHED_ERROR", "FINISHED_IGNORED")  # final states of requests that were not served


class Prompt(TypedDict, total=False):
    """A prompt for ``LLM.generate`` and ``POST /v1/completions`` (the latter calls the ids ``prompt``)."""

    prompt_token_ids: list[int]
    cache_salt: str


@dataclass(frozen=True)
class VllmEngine:
    """vLLM as an `Engine`: finished requests in, prompts out. It does not import vLLM.

    Immutable: any thread may use it.

    ``target``: fingerprint of the served weights, 16 bytes; None if unknown. ``unnamed``: take requests without
    a session name under their own id.
    """

    target: bytes | None = None
    unnamed: bool = False

    def evicted(self, finished: Request, session: str = "", *, tenant: str = "default") -> EvictionRequest | None:
        """Return the request that hands a finished vLLM request to the hook.

        Returns None for a request without a name or a generation, and for one that was not served.

        Args:
            session: its name; by default the one that the client gave.
            tenant: of requests that name none.

        Raises UsageError where it names a tenant that contains the separator of a salt.
        """
        own = (finished.kv_transfer_params or {}).get(KEY)
        own = own if isinstance(own, Mapping) else {}
        name = (
            session
            or own.get("session")
            or getattr(finished, "session_id", None)
            or (finished.request_id if self.unnamed else None)
        )
        if not name or finished.sampling_params is None or finished.status.name in FAILED:
            return None
        owner = str(own.get("tenant") or tenant)
        if SALTED in owner:
            raise UsageError(f"request {finished.request_id} names a tenant with {SALTED}: give the salt itself")
        lora, prefixes = finished.lora_request, own.get("prefixes")
        return EvictionRequest(
            str(name),
            finished.all_token_ids[:],
            tenant=owner,
            salt=finished.cache_salt,
            adapter=None if lora is None else lora.lora_name,
            multimodal=bool(finished.mm_features),
            has_embeds=finished.prompt_embeds is not None,
            prefixes=prefixes[:MAX_PREFIXES] if isinstance(prefixes, list) else (),  # a client wrote it
            # a base is shared with all, a salt with none
            base=None if finished.cache_salt else own.get("base"),
            target=self.target,
        )

    def thaw(
        self,
        ids: Tokens,
        *,
        frozen_for: bytes | None = None,
        any_target: bool = False,
        salt: str | None = None,
        lora: str | None = None,
    ) -> Prompt:
        """Return the prompt that makes a session hot again.

        Send it with ``max_tokens=1``, or with the ids of its next turn appended, as that turn.

        Args:
            ids: (T,) of the session, `TokenSession.ids`.
            frozen_for: `TokenSession.target`: weights and adapter it was frozen under; None if unknown.
            any_target: accept any weights and adapters.
            salt: with which it was frozen and found.
            lora: name of the LoRA adapter that the request will have.

        Raises TargetMismatch where it was frozen for others, and UsageError where ``target`` or ``frozen_for``
        is needed to tell.
        """
        if not any_target:
            check_served(frozen_for, self.target, lora)
        tokens = [int(i) for i in ids]
        prompt = Prompt(prompt_token_ids=tokens)
        return prompt if salt is None else Prompt(**prompt, cache_salt=salt)


def named(request: Any, tenant: str = "default") -> tuple[Any, Any]:
    """Return session and tenant of a request that cannot be archived, as its client wrote them.

    Never raises.
    """
    try:
        own = request.kv_transfer_params[KEY]
        return own.get("session") or request.request_id, own.get("tenant") or tenant
    except Exception:  # noqa: BLE001  # a client may write anything
        return getattr(request, "request_id", None), tenant
