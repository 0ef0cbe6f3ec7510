"""TransformersEngine: sessions of a serving loop over a transformers model, to the archive and back.

    engine = TransformersEngine(target)
    hook.on_evict(engine.evicted(token_ids, "chat-7", tenant="acme"))       # the loop drops the cache
    hot = engine.thaw(found.ids, frozen_for=found.target)                   # continue with hot.cache, hot.logits
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pltz.archive.format.ids import Tokens
from pltz.kv.thaw.thawed import Thawed, thaw
from pltz.serving.engines.protocol import check_served
from pltz.serving.eviction.eviction import EvictionRequest

if TYPE_CHECKING:
    from pltz.models.target.target import Target


class TransformersEngine:
    """A target served in this process, as an `Engine`.

    One thread uses it at a time.

    ``adapter``: its name, where one was merged into the weights or is active on them.
    """

    def __init__(self, target: Target, *, adapter: str | None = None) -> None:
        self._target, self.adapter = target, adapter

    @property
    def target(self) -> bytes:
        """Return the fingerprint of the target, 16 bytes. The first call reads every weight."""
        return self._target.fingerprint

    def evicted(self, finished: Any, session: str, *, tenant: str = "default") -> EvictionRequest:
        """Return the request that hands a session's tokens to the hook.

        ``finished``: ids (T,) of the KV and the one sampled last, of any kind that `EvictionRequest` takes.
        """
        return EvictionRequest(session, finished, tenant=tenant, target=self.target, adapter=self.adapter)

    def thaw(self, ids: Tokens, *, frozen_for: bytes | None = None, any_target: bool = False) -> Thawed:
        """Fill a cache with a session's ids, (T,), in one prefill.

        Raises TargetMismatch where other weights or another adapter are in use, UsageError where that cannot be
        told, ContentError for ids outside the vocabulary, and ModelError where the prefill fails.
        """
        if not any_target:
            check_served(frozen_for, self.target, self.adapter)
        return thaw(ids, self._target, any_target=True)
