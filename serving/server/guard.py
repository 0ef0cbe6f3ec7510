"""Guard: who may talk to a server: requests that name it rightly, from no foreign page, with its key where it has one.
`bytes_of` bounds how much they say, and how slowly.

A page whose name is bound anew to 127.0.0.1 is of the same origin to a browser, which then lets it read and send
anything. Only the name in Host tells. starlette's TrustedHostMiddleware looks at Host alone, and answers 400 in text.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pltz.serving.server.errors import Refused, failure

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(:\d+)?", re.IGNORECASE)


class Guard:
    """An application behind the guard.

    ``names``: of this server beside those of the loopback; "*" stands for all. ``key``: that all requests but those
    of /health must have, as `Authorization: Bearer KEY`; None for a server without one.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), key: str | None = None) -> None:
        self._app, self._key = app, None if key is None else key.encode()
        self._names = {name.lower() for name in (*LOOPBACK, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        if refused is None:
            return await self._app(scope, receive, send)
        headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
        await JSONResponse(failure(refused), refused.status, headers)(scope, receive, send)

    def _refused(self, headers: Headers, path: str) -> Refused | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_mine(host):
            why = f"this server is not {host[:128]!r}: call it by its name (pltz serve: or allow --allowed-host)"
            return Refused(421, why)
        if origin is not None and not self._is_mine(origin.partition("://")[2]):
            why = f"pages of {origin[:128]!r} may not use this server (pltz serve: allow it by --allowed-host)"
            return Refused(403, why)
        given = headers.get("authorization", "").encode("latin-1")
        if self._key is None or path == "/health" or hmac.compare_digest(given, b"Bearer " + self._key):
            return None
        return Refused(401, "expected the server's key: Authorization: Bearer KEY", "invalid_api_key")

    def _is_mine(self, host: str) -> bool:
        found = HOST.fullmatch(host)
        return found is not None and bool({found[1].lower(), "*"} & self._names)


async def bytes_of(request: Request, most: int, seconds: float) -> bytes:
    """Return the body of a request. Raises Refused for one of more than ``most`` bytes, or that takes too long."""
    held = bytearray()

    async def read() -> None:
        async for piece in request.stream():
            held.extend(piece)
            if len(held) > most:
                raise Refused(413, f"expected a body of at most {most} bytes")

    try:
        await asyncio.wait_for(read(), seconds)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {seconds:g} s") from None
    return bytes(held)
