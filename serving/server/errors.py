"""Errors as OpenAI's API gives them: Refused, the error of a request, and the status and body of any error."""

from __future__ import annotations

from typing import Any

from pltz.archive import ArchiveError, Erased
from pltz.kv.errors import PoolFull
from pltz.plt_codec import ContentError, PltzError, TargetMismatch, UsageError

LEAVING = "this server ends: ask again when it is back"


class Refused(PltzError):
    """A request that is not served. ``status``: of HTTP. ``code``: that clients of OpenAI's API know."""

    def __init__(self, status: int, why: str, code: str = "") -> None:
        super().__init__(why)
        self.status, self.code = status, code


def status_of(exc: PltzError) -> int:
    """Return the status of an error: that of the client where its request is at fault, else 500 or 503."""
    if isinstance(exc, Refused):
        return exc.status
    if isinstance(exc, Erased):
        return 410
    if isinstance(exc, TargetMismatch):
        return 409
    if isinstance(exc, ArchiveError | PoolFull):
        return 503
    return 400 if isinstance(exc, ContentError | UsageError) else 500


def failure(exc: PltzError) -> dict[str, Any]:
    """Return an error as OpenAI's API does."""
    kind = "server_error" if status_of(exc) >= 500 else "invalid_request_error"
    code = exc.code if isinstance(exc, Refused) else ""
    return {"error": {"message": str(exc), "type": kind, "code": code or type(exc).__name__}}
