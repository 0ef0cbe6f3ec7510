"""Check that a session comes back to no other weights and adapter than its own."""

from __future__ import annotations

from pltz.archive import target_of
from pltz.kv.thaw.thawed import check_target
from pltz.plt_codec import TargetMismatch, UsageError


def check_served(frozen_for: bytes | None, target: bytes | None, adapter: str | bytes | None) -> None:
    """Refuse to thaw into other weights or another adapter than a session was frozen under.

    Args:
        frozen_for: `TokenSession.target`, 16 bytes; None if neither is known.
        target: fingerprint of the served weights, 16 bytes; None if unknown.
        adapter: the adapter in use; None for none.

    Raises TargetMismatch; UsageError where it cannot be decided, because ``target`` or ``frozen_for`` is not known.
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
