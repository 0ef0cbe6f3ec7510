"""Engine: the port of a serving engine, and the check that all of them share.

    finished work --evicted--> EvictionRequest --hook.on_evict--> journal, archive
    archive --ids--> thaw --> the engine's own way to be hot again

    LlamaServer          llama-server over HTTP          fills a slot
    VllmEngine           vLLM                            returns the prompt to send
    TransformersEngine   a transformers model            returns its cache
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from pltz.archive.format.ids import Tokens, target_of
from pltz.kv.thaw.thawed import check_target
from pltz.plt_codec.errors import TargetMismatch, UsageError
from pltz.serving.eviction.eviction import EvictionRequest

Finished_contra = TypeVar("Finished_contra", contravariant=True)
Hot_co = TypeVar("Hot_co", covariant=True)


class Engine(Protocol[Finished_contra, Hot_co]):
    """A serving engine whose sessions leave by their token ids and come back by one prefill of the same ids.

    ``Finished_contra``: a finished turn in the engine's own form. ``Hot_co``: a session that is hot again, likewise.
    """

    @property
    def target(self) -> bytes | None:
        """Return the fingerprint of the served weights, 16 bytes; None if it is not known here."""

    def evicted(self, finished: Finished_contra, session: str, *, tenant: str = "default") -> EvictionRequest | None:
        """Return the request that hands a session's tokens to the hook: all ids of the KV, and the one sampled last.

        Returns None for work that is no session, such as a request that failed.

        Args:
            finished: it has the ids, and names the adapter in use.
            session: its name in the archive.

        Raises UsageError for names that the archive does not take.
        """

    def thaw(self, ids: Tokens, *, frozen_for: bytes | None = None, any_target: bool = False) -> Hot_co:
        """Make a session hot again.

        Args:
            ids: (T,) of the session.
            frozen_for: weights and adapter it was frozen under (`ids.target_of`); None if unknown.
            any_target: take these ids whatever weights and adapters are in use.

        Raises TargetMismatch where other weights or adapters are in use, UsageError where that cannot be told,
        and ContentError for ids that the engine cannot take.
        """


def check_served(frozen_for: bytes | None, target: bytes | None, adapter: str | bytes | None) -> None:
    """Refuse to thaw into other weights or another adapter than a session was frozen under.

    Args:
        frozen_for: `TokenSession.target`, 16 bytes; None if neither is known.
        target: fingerprint of the served weights, 16 bytes; None if unknown.
        adapter: the adapter in use; None for none.

    Raises TargetMismatch; UsageError where it cannot be decided, because ``target`` or ``frozen_for`` is not
    known.
    """
    if frozen_for is None:
        if adapter is not None:
            raise TargetMismatch(
                f"expected no adapter, as when this session was frozen, found {adapter!r}: switch it off"
            )
        raise UsageError(
            "expected the fingerprint of the weights this session was frozen under, found none: they are not known. "
            "Say that any will do (--any-target, any_target=True), or freeze or import it again with --model"
        )
    if frozen_for != target_of(target, adapter):
        if target is None:
            raise UsageError(
                "cannot tell whether these weights are those of the session: name the model that is served"
            )
        with_ = f" with adapter {adapter!r}" if adapter is not None else " without an adapter"
        try:
            check_target(frozen_for, target_of(target, adapter))
        except TargetMismatch as exc:
            raise TargetMismatch(f"{exc} (served here: {target.hex()}{with_})") from exc
