"""The live store over HTTP, for agents in any language, over starlette. Entries are JSON, a line each.

    POST GET DELETE /entries?project=P&session=S[&subpath=X]     append, load, delete
    GET /sessions?project=P    /subkeys?project=P&session=S      as JSON
    GET /health                                                  503, and why, while nothing freezes

    curl -H "Authorization: Bearer $(cat live/token)" --data-binary @new.jsonl "$url/entries?project=p&session=s"

An append is answered when it is durable in the journal. Who has no answer sends it again: an entry with a ``uuid`` is
kept once. All requests but /health have the token, and name this machine in Host (`guard.py`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pltz.plt_codec import PltzError, UsageError
from pltz.serving.live.store import LiveStore
from pltz.serving.server.errors import Refused, failure, status_of
from pltz.serving.server.guard import Guard, bytes_of

BODY, SECONDS = 64 << 20, 60.0  # bytes of a request, and until it has arrived

Handler = Callable[[LiveStore, dict[str, str], Request], Awaitable[Response]]


def app_of(store: LiveStore, token: str) -> Starlette:
    """Return the application of a store, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        store.close()

    def route(path: str, handler: Handler, *methods: str) -> Route:
        async def answer(request: Request) -> Response:
            given = request.query_params
            key = {"project_key": given.get("project", ""), "session_id": given.get("session", "")}
            try:
                return await handler(store, key | {"subpath": given.get("subpath", "")}, request)
            except PltzError as exc:
                return JSONResponse(failure(exc), status_of(exc))

        return Route(path, answer, methods=methods or ("GET",))

    return Starlette(
        routes=[
            route("/entries", append, "POST"),
            route("/entries", load),
            route("/entries", delete, "DELETE"),
            route("/sessions", sessions),
            route("/subkeys", subkeys),
            route("/health", health),
        ],
        middleware=[Middleware(Guard, key=token)],
        lifespan=lifespan,
    )


async def append(store: LiveStore, key: dict[str, str], request: Request) -> Response:
    """Answer when the lines of the body are durable. Raises Refused and UsageError for a body that cannot be kept."""
    entries: list[Any] = []
    for number, line in enumerate((await bytes_of(request, BODY, SECONDS)).splitlines(), 1):
        try:
            entries += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"expected JSON in each line, found in line {number}: {exc}") from exc
    await store.append(key, entries)
    return Response(status_code=204)


async def load(store: LiveStore, key: dict[str, str], request: Request) -> Response:
    """Answer with all entries, in order. Raises Refused where there are none."""
    found = await store.load(key)
    if found is None:
        raise Refused(404, "no entries of this session")
    lines = (json.dumps(entry, separators=(",", ":")) + "\n" for entry in found)
    return Response("".join(lines), media_type="application/x-ndjson")


async def delete(store: LiveStore, key: dict[str, str], request: Request) -> Response:
    """Answer when a session, or the transcript of a sub-agent, is deleted."""
    await store.delete(key)
    return Response(status_code=204)


async def sessions(store: LiveStore, key: dict[str, str], request: Request) -> Response:
    """Answer with the sessions of a project."""
    return JSONResponse(await store.list_sessions(key["project_key"]))


async def subkeys(store: LiveStore, key: dict[str, str], request: Request) -> Response:
    """Answer with the subpaths of a session's sub-agents."""
    return JSONResponse(await store.list_subkeys(key))


async def health(store: LiveStore, key: dict[str, str], request: Request) -> Response:
    """Answer whether what is idle freezes."""
    return JSONResponse({"failure": store.failure or None}, 503 if store.failure else 200)
