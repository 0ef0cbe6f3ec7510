"""The HTTP side of a browser of sessions, over starlette. All addresses begin with a token that nobody can guess.

    GET /TOKEN/  /TOKEN/said                     the list; what a search found
    GET /TOKEN/read  /TOKEN/get/original         a session; its file, Markdown or HTML

Other programs of this machine can connect, too, and cookies are shared by all ports: so the token is in each address.
A page that another site shows has neither it nor a Host that is ours (`guard`). What starts a browser has an address
that works once, since the words of a process are seen by all users.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from pltz.archive import NotFound, VersionName
from pltz.cli import content_of, files_of
from pltz.datasets import as_html, as_markdown, suffix_in, suffix_of
from pltz.plt_codec import PltzError, UsageError
from pltz.serving.browse import page
from pltz.serving.browse.shelf import Reading, Shelf
from pltz.serving.server.errors import status_of
from pltz.serving.server.guard import Guard

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # nothing of a sealed archive stays on this disk
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

Handler = Callable[[Shelf, Mapping[str, str]], Response]  # of the arguments of a request


def app_of(shelf: Shelf, token: str, once: str = "") -> Starlette:
    """Return the application of a shelf, which it starts and closes. ``once``: opens the list one time."""
    left = [once] if once else []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        shelf.start()
        yield
        shelf.close()

    async def first(request: Request) -> Response:
        if left and _same(request.path_params["once"], left[0]):
            left.clear()
            return RedirectResponse(f"/{token}/", 303, HEADERS)
        return await _elsewhere(request)

    def route(path: str, handler: Handler) -> Route:
        async def answer(request: Request) -> Response:
            if not _same(request.path_params["token"], token):
                return await _elsewhere(request)
            try:
                return await asyncio.to_thread(handler, shelf, {**request.query_params, **request.path_params})
            except PltzError as exc:
                status = 404 if isinstance(exc, NotFound) else status_of(exc)
                found = f"<!doctype html>{page.said_part((), str(exc))}"
                return _html(found, page.READ_POLICY, status)

        return Route(f"/{{token}}/{path}", answer)

    return Starlette(
        routes=[
            Route("/open/{once}", first),
            route("", listed),
            route("said", said),
            route("read", read),
            route("get/{form}", download),
        ],
        middleware=[Middleware(Guard)],
        lifespan=lifespan,
        exception_handlers={404: _elsewhere},
    )


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


async def _elsewhere(request: Request, exc: Exception | None = None) -> Response:
    return PlainTextResponse("take the address that pltz browse printed\n", 404, HEADERS)


def _html(text: str, policy: str, status: int = 200, **more: str) -> Response:
    return HTMLResponse(text, status, HEADERS | {"Content-Security-Policy": policy} | more)


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default


def listed(shelf: Shelf, given: Mapping[str, str]) -> Response:
    """Answer with a page of the sessions that were asked for."""
    asked = {name: given.get(name, "") for name in ("q", "agent", "project")}
    rows = shelf.chosen(*asked.values())
    return _html(page.list_page(rows, shelf.listed(), _number(given, "page", 0), asked), page.LIST_POLICY)


def said(shelf: Shelf, given: Mapping[str, str]) -> Response:
    """Answer with what a search found; while the index of words catches up, with how far it is."""
    words, again = given.get("q", "").strip(), shelf.indexing
    if again:
        found = page.said_part((), f"the index of words has {again[0]:,} of {again[1]:,} parts of sessions", again=True)
    elif len(words) < 2 and words.isascii():
        found = page.said_part((), "")
    else:
        try:
            found = page.said_part(*shelf.said(words, given.get("agent", ""), given.get("project", "")))
        except UsageError as exc:
            found = page.said_part((), str(exc))
    return _html(f"<!doctype html>{found}", page.READ_POLICY)


def _read(shelf: Shelf, given: Mapping[str, str]) -> Reading:
    return shelf.read(given.get("tenant", "default"), given.get("name", ""), _version(given), given.get("part", ""))


def _version(given: Mapping[str, str]) -> VersionName | None:
    text = given.get("version", "")
    try:
        return int(text) if len(text) < 8 and text else bytes.fromhex(text) or None
    except ValueError:
        raise UsageError(f"expected a version as its number or its id, found {text!r}") from None


def read(shelf: Shelf, given: Mapping[str, str]) -> Response:
    """Answer with a session, from the page on that has the turn that was asked for."""
    reading = _read(shelf, given)
    turn = _number(given, "turn", 1)
    place = next((n for n, one in enumerate(reading.turns) if one.number == turn), 0)
    parts, versions = shelf.about(reading.version.tenant, reading.version.name, _version(given))
    return _html(page.read_page(reading, parts, versions, place // page.TURNS * page.TURNS), page.READ_POLICY)


def download(shelf: Shelf, given: Mapping[str, str]) -> Response:
    """Answer with the file that a session was put from, byte for byte, or with its conversation as a file."""
    reading, form = _read(shelf, given), given["form"]
    [file] = files_of([reading.version])
    title, note = page.title_of(reading), reading.talk.note
    body: Iterable[str | bytes]
    if form == "original":
        suffix = file.suffix
        if suffix is None:
            suffix = suffix_in(file.stem.name, suffix_of(reading.session, numbered=file.numbered))
        body, kind = content_of([reading.session], numbered=file.numbered), "application/octet-stream"
    elif form in page.DOWNLOADS:
        write, suffix, kind = {
            "markdown": (as_markdown, ".md", "text/markdown"),
            "html": (as_html, ".html", "text/html"),
        }[form]
        body = (f"{line}\n" for line in write(title, note, reading.turns))
    else:
        raise NotFound(f"no form {form!r}: {', '.join(page.DOWNLOADS)}")
    name = quote(f"{file.stem.name}{suffix}", safe="", errors="replace")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}", "Content-Security-Policy": "sandbox"}
    return StreamingResponse(body, headers=HEADERS | headers, media_type=kind)
