"""The HTTP side of a server: OpenAI's completions and chat completions, and what pltz adds, over starlette.

    POST /v1/completions  /v1/chat/completions  /v1/responses
    GET  /v1/models  /v1/models/NAME  /version  /health
    POST /freeze  /thaw   {"session": "chat/7"}     GET /sessions  /sessions/NAME  /metrics  /

The last piece of a stream, and the answer of a request without one, are sent when the turn is durable. Bodies are JSON,
limited in size and time, and are taken with JSON's media type only. So no page of another site can post them, nor by a
name of its own for this machine (guard.py).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pltz.plt_codec import PltzError
from pltz.serving.server.answer import Answer
from pltz.serving.server.ask import Ask, name_of
from pltz.serving.server.errors import Refused, failure, status_of
from pltz.serving.server.guard import Guard, bytes_of
from pltz.serving.server.responses import ResponseAnswer, ask_of
from pltz.serving.server.serve_metrics import ServeCollector
from pltz.serving.server.service import Service

BODY = 1 << 20  # bytes
BODY_SECONDS = 30.0
LOOK = 0.2  # seconds between looks whether a client without a stream is still there
PAGE = Path(__file__).with_name("page.html")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
STREAM = HEADERS | {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy holds it back

Handler = Callable[[Service, Request], Awaitable[Response]]


def app_of(service: Service, names: Sequence[str] = (), key: str | None = None) -> Starlette:
    """Return the application of a service, which it starts and closes. ``names``, ``key``: of `Guard`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.close()

    def route(path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, partial(_answer, service, handler), methods=list(methods) or ["GET"])

    return Starlette(
        routes=[
            route("/v1/completions", partial(complete, False), "POST"),
            route("/v1/chat/completions", partial(complete, True), "POST"),
            route("/v1/responses", respond, "POST"),
            route("/v1/models", partial(models, int(time.time()))),
            route("/v1/models/{name:path}", partial(models, int(time.time()))),
            route("/freeze", freeze, "POST"),
            route("/thaw", thaw, "POST"),
            route("/sessions", sessions),
            route("/sessions/{name:path}", session),
            route("/metrics", metrics),
            route("/health", health),
            route("/version", version),
            route("/", page),
        ],
        middleware=[Middleware(Guard, names, key)],
        lifespan=lifespan,
        exception_handlers={HTTPException: _elsewhere, Exception: _broken},
    )


async def _answer(service: Service, handler: Handler, request: Request) -> Response:
    """Answer a request, errors in OpenAI's form."""
    try:
        return await handler(service, request)
    except PltzError as exc:
        return JSONResponse(failure(exc), status_of(exc))
    except ClientDisconnect:
        return Response(status_code=499)


async def _elsewhere(request: Request, exc: Exception) -> Response:
    """Answer a request to an address or by a method that this server does not have."""
    assert isinstance(exc, HTTPException)
    why = f"no {request.method} {request.url.path} here: /v1/chat/completions and /v1/completions take a POST"
    return JSONResponse(failure(Refused(exc.status_code, why)), exc.status_code, exc.headers)


async def _broken(request: Request, exc: Exception) -> Response:
    """Answer a request that failed by no error of ours, which is logged."""
    return JSONResponse(failure(Refused(500, "this request failed: the server's log says why")), 500)


async def body_of(request: Request) -> Any:
    """Return the JSON of a request. Raises Refused for one that is too large, too slow, or no JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "expected Content-Type: application/json")
    held = await bytes_of(request, BODY, BODY_SECONDS)
    try:
        return json.loads(held)
    except (ValueError, RecursionError) as exc:
        raise Refused(400, f"the body is no JSON: {type(exc).__name__}") from None


async def complete(chat: bool, service: Service, request: Request) -> Response:
    """Answer a completion or a chat completion."""
    header = request.headers.get("x-session-id")
    named = None if header is None else name_of(header)
    ask = Ask.of(await body_of(request), chat=chat, model=service.name, session=named)
    replies = await service.open(ask)
    return await _answered(request, ask, Answer(chat, service.name, service.target, replies, ask.tool_names))


async def respond(service: Service, request: Request) -> Response:
    """Answer with a response, which may go on from another."""
    body = await body_of(request)
    ask = ask_of(body, service.name)
    answer = ResponseAnswer(ask, body, service.name, service.target, await service.open(ask))
    return await _answered(request, ask, answer)


async def _answered(request: Request, ask: Ask, answer: Answer) -> Response:
    if ask.stream:
        return EventStream(answer, ask.usage)
    looked = time.monotonic()
    try:
        async for _ in answer.pieces():
            if time.monotonic() - looked < LOOK:
                continue
            looked = time.monotonic()
            if await request.is_disconnected():
                return Response(status_code=499)
    finally:
        answer.close()
    return JSONResponse(answer.whole())


class EventStream(StreamingResponse):
    """The events of an answer, which is closed at the end, also where its client has left before the first."""

    def __init__(self, answer: Answer, usage: bool) -> None:
        super().__init__(answer.stream(usage), media_type="text/event-stream", headers=STREAM)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def models(since: int, service: Service, request: Request) -> Response:
    """Name the model, in a list or by its name. ``since``: second from which it is served."""
    model = {"id": service.name, "object": "model", "created": since, "owned_by": "pltz"}
    model["max_model_len"] = service.longest
    name = request.path_params.get("name")
    if name not in (None, service.name):
        raise Refused(404, f"this server has the model {service.name!r}, not {name!r}")
    return JSONResponse({"object": "list", "data": [model]} if name is None else model)


async def freeze(service: Service, request: Request) -> Response:
    """Let a session go cold."""
    return JSONResponse(await service.freeze(await _named(request)))


async def thaw(service: Service, request: Request) -> Response:
    """Make a session hot."""
    return JSONResponse(await service.thaw(await _named(request)))


async def _named(request: Request) -> str:
    body = await body_of(request)
    return name_of(body.get("session") if isinstance(body, dict) else None)


async def sessions(service: Service, request: Request) -> Response:
    """List the sessions used last, and count those of each tier."""
    return JSONResponse({"sessions": service.sessions.table(), "tiers": service.sessions.tiers()})


async def session(service: Service, request: Request) -> Response:
    """Show one session as it was acknowledged."""
    return JSONResponse(await service.sessions.look(name_of(request.path_params["name"])))


async def metrics(service: Service, request: Request) -> Response:
    """Return metrics as Prometheus reads them."""
    text = await asyncio.to_thread(ServeCollector(service).text)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


async def health(service: Service, request: Request) -> Response:
    """Say whether turns can be acknowledged and archived: 503 where they cannot."""
    status = await asyncio.to_thread(service.hook.status)
    trouble = [str(one) for one in (status["failure"], status["worker"].get("failure")) if one]
    return JSONResponse({"ok": not trouble, "trouble": trouble}, 503 if trouble else 200)


async def version(service: Service, request: Request) -> Response:
    """Name the version of pltz."""
    return JSONResponse({"version": installed("pltz")})


async def page(service: Service, request: Request) -> Response:
    """Return the page that shows sessions moving between tiers."""
    return HTMLResponse(PAGE.read_text("utf8"), headers=HEADERS)
