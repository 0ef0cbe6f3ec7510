"""Refused: the error of a request, with the status that HTTP has for it."""

from __future__ import annotations

from pltz.plt_codec.errors import PltzError


class Refused(PltzError):
    """A request that is not served. ``status``: of HTTP. ``code``: that clients of OpenAI's API know."""

    def __init__(self, status: int, why: str, code: str = "") -> None:
        super().__init__(why)
        self.status, self.code = status, code
