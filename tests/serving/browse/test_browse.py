"""A browser of sessions answers those who have its address alone, and nothing that a session says runs there."""

import asyncio
import json
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import uvicorn
from starlette.applications import Starlette

from pltz.archive.archive import Archive
from pltz.archive.format.record import ContentFacts
from pltz.archive.writing.put_request import PutRequest
from pltz.datasets.secrets import Redactor
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.serving.browse.app import app_of
from pltz.serving.browse.page import LIST_POLICY, ROWS, TURNS, list_page, plot
from pltz.serving.browse.shelf import Listed, Row, Shelf
from pltz.serving.commands.serve import bound, listen
from tests.cli.commands import Run
from tests.datasets.test_conversation import claude
from tests.datasets.test_pages import HOSTILE, KNOWN, Tags

TOKEN, ONCE = "t" * 32, "o" * 32
EVENTS = [claude(0, "user", "where are the bells?", None), claude(1, "assistant", "Here.", 0)]
LOG = b"".join(json.dumps(event | {"cwd": "/home/me/shop"}).encode() + b" \r\n" for event in EVENTS)
OWN = KNOWN | {"form", "input", "select", "option", "datalist", "figure", "figcaption", "svg", "polyline"}
OWN |= {"table", "tr", "td", "span", "a", "small", "nav", "ol", "li", "br", "script"}
RUN = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def place(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("browsed") / "cold"
    with Archive.open(place, create=True, bundle=bundle) as cold:
        chats = {f"h/{n}": [{"role": "user", "content": text}, {"role": text, "content": text}]
                 for n, text in enumerate([*HOSTILE, RUN])}  # fmt: skip
        requests = [PutRequest(f"n/{n}", f"number {n}", time=1000 + n) for n in range(ROWS + 5)]
        requests += [
            PutRequest(name, chat, time=5000, content=ContentFacts(title=chat[0]["content"].replace("\ud800", "")[:80]))
            for name, chat in chats.items()
        ]
        requests.append(PutRequest("shop/log", Session("text", LOG), time=9000))
        requests.append(PutRequest("shop/log", Session("text", b"a sub-agent"), part="agents/a.txt", time=9000))
        requests.append(PutRequest('<b onclick="x">&', "odd", tenant="<i>", time=20))
        list(cold.put_many(requests))
        cold.put("many", [{"role": ("user", "assistant")[n % 2], "content": f"turn {n}"} for n in range(TURNS + 9)])
        cold.put("notes", "first")
        cold.put("notes", "first and second")
    return place


@pytest.fixture(scope="module")
def app(place: Path, bundle: Bundle) -> Iterator[Starlette]:
    shelf = Shelf(Archive.open(place, bundle=bundle), Archive.open(place, bundle=bundle))
    shelf.start()
    while shelf.indexing is not None:
        time.sleep(0.01)
    yield app_of(shelf, TOKEN, ONCE)
    shelf.close()


def ask(app: Starlette, path: str, host: str = "127.0.0.1:8000", **given: Any) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    words: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "root_path": "", "scheme": "http"}
    scope = words | {"headers": [(b"host", host.encode())], "query_string": urlencode(given).encode()}
    scope |= {"server": ("127.0.0.1", 8000), "asgi": {"spec_version": "2.4"}}
    asyncio.run(app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(one.get("body", b"") for one in sent[1:])


def get(app: Starlette, path: str = "", **given: Any) -> str:
    status, _, body = ask(app, f"/{TOKEN}/{path}", **given)
    assert status == 200, body
    return body.decode()


@pytest.mark.parametrize("path", ["/", "/x/", f"/{TOKEN[1:]}/", f"/{TOKEN}x/said", f"/{TOKEN}/else", "/x/read", "/é/"])
def test_without_the_token_there_is_nothing(app: Starlette, path: str) -> None:
    status, headers, body = ask(app, path)
    assert status == 404 and b"pltz browse printed" in body and headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", f"/{TOKEN}/", f"/{TOKEN}/read", f"/open/{ONCE}"])
def test_by_another_name_there_is_nothing(app: Starlette, path: str) -> None:
    assert ask(app, path, host="evil.example:8000")[0] == 421
    assert ask(app, path, host="127.0.0.1.evil.example")[0] == 421


def test_what_a_browser_is_started_with_opens_once(app: Starlette) -> None:
    assert ask(app, "/open/x")[0] == 404
    status, headers, _ = ask(app, f"/open/{ONCE}")
    assert status == 303 and headers["location"] == f"/{TOKEN}/" and ask(app, f"/open/{ONCE}")[0] == 404


def names_in(text: str) -> list[str]:
    return re.findall(r"<small>(?:[^<]*: )?([^<:]*)</small>", text.partition('<section id="list">')[2])


def test_the_list_has_pages_of_those_talked_in_last(app: Starlette) -> None:
    first, second = (names_in(get(app, q="number", page=n)) for n in (0, 1))
    assert not first  # words of a session are searched, and names and titles are filtered
    first, second, last = (names_in(get(app, q="n/", page=n)) for n in (0, 1, 99))
    assert first + second == [f"n/{n}" for n in reversed(range(ROWS + 5))] and last == second
    assert "page 2 of 2" in get(app, q="N/", page=1) and "newer" in get(app, q="n/", page=1)
    assert "<polyline" in get(app) and names_in(get(app, page="x"))[0] in ("many", "notes")


def test_agents_and_projects_filter(app: Starlette) -> None:
    assert names_in(get(app, agent="claude-code")) == ["shop/log"] == names_in(get(app, project="SHOP"))
    assert names_in(get(app, agent="codex")) == []
    assert '<option value="claude-code" selected>claude-code (1)' in get(app, agent="claude-code")


def test_what_was_said_is_found_while_it_is_typed(app: Starlette) -> None:
    found = get(app, "said", q="bel")
    assert "where are the bells?" in found and "read?tenant=default&amp;name=shop%2Flog&amp;turn=1#turn-1" in found
    assert "<li>" not in get(app, "said", q="bel", agent="chat") and "<li>" not in get(app, "said", q='"bel"')
    assert "<li>" not in get(app, "said", q="b") and "name the words" in get(app, "said", q="--")


def test_while_the_index_catches_up_the_page_says_so(place: Path, bundle: Bundle) -> None:
    shelf = Shelf(Archive.open(place, bundle=bundle), Archive.open(place, bundle=bundle))
    found = get(app_of(shelf, TOKEN), "said", q="bells")
    assert "0 of 0 parts" in found and "data-again" in found


def test_a_search_ends_for_a_newer_one(place: Path, bundle: Bundle) -> None:
    shelf = Shelf(Archive.open(place, bundle=bundle), Archive.open(place, bundle=bundle))
    shelf.indexing = None
    with shelf._search_lock:
        statuses, app = list[int](), app_of(shelf, TOKEN)
        older = threading.Thread(target=lambda: statuses.append(ask(app, f"/{TOKEN}/said", q="old")[0]))
        older.start()
        while shelf._newest < 1:
            time.sleep(0.01)
        shelf._newest = next(shelf._numbers)
    older.join()
    assert statuses == [409] and shelf.said("bells")[0]


def test_a_session_is_read_with_its_parts_and_versions_and_in_pages(app: Starlette) -> None:
    page = get(app, "read", name="shop/log")
    assert "where are the bells?" in page and "agents/a.txt" in page
    assert "a sub-agent" in get(app, "read", name="shop/log", part="agents/a.txt")
    assert ">first</" in get(app, "read", name="notes", version=1) and "second" in get(app, "read", name="notes")
    page = get(app, "read", name="many", turn=TURNS + 3)
    assert f">turn {TURNS + 2}<" in page and ">turn 7<" not in page and "earlier" in page and "later" not in page
    wrongs: list[dict[str, Any]] = [{"name": "none"}, {"name": "notes", "version": 7}]
    for wrong in wrongs:
        assert ask(app, f"/{TOKEN}/read", **wrong)[0] == 404
    assert ask(app, f"/{TOKEN}/read", name="notes", version="x")[0] == 400


def test_downloads(app: Starlette) -> None:
    def load(form: str, **given: Any) -> tuple[str, bytes]:
        status, headers, body = ask(app, f"/{TOKEN}/get/{form}", **given)
        assert status == 200 and headers["content-security-policy"] == "sandbox"
        return headers["content-disposition"], body

    assert load("original", name="shop/log") == ("attachment; filename*=UTF-8''log.jsonl", LOG)
    assert load("original", name="shop/log", part="agents/a.txt")[1] == b"a sub-agent"
    assert load("original", name="notes", version=1) == ("attachment; filename*=UTF-8''notes.txt", b"first")
    assert b"where are the bells?" in load("markdown", name="shop/log")[1]
    assert load("html", name="shop/log")[1].startswith(b"<!DOCTYPE html>")
    assert "%3Cb%20onclick" in load("original", name='<b onclick="x">&', tenant="<i>")[0]
    assert ask(app, f"/{TOKEN}/get/exe", name="notes")[0] == 404


def test_secrets_are_marked_in_pages_hits_and_downloads(tmp_path: Path, bundle: Bundle) -> None:
    pytest.importorskip("detect_secrets")
    key, place = "AKIA" + "ABCDEFGHIJKLMNOP", tmp_path / "cold"
    log = LOG.replace(b"where are", f"the bells of {key} and".encode())
    about = ContentFacts(title=f"the bells of {key} are AKIAABCDEFG", size=9)
    with Archive.open(place, create=True, bundle=bundle) as cold:
        cold.put("log", Session("text", log), content=about)
    shelf = Shelf(Archive.open(place, bundle=bundle), Archive.open(place, bundle=bundle), Redactor())
    shelf._catch_up()
    app = app_of(shelf, TOKEN)
    pages = [get(app), get(app, "said", q="bells of"), get(app, "read", name="log")]
    pages += [get(app, f"get/{form}", name="log") for form in ("original", "markdown", "html")]
    for page in pages:
        assert "AKIA" not in page and "[redacted: aws-key]" in page
    assert "<ol>" not in get(app, "said", q=key[:12])  # nobody finds out by typing


def test_nothing_hostile_becomes_markup(app: Starlette) -> None:
    pages = [get(app), get(app, q="<script>\"'"), get(app, q="h/", agent='"><b>', project='"><b>')]
    pages += [get(app, "said", q=words) for words in ("alert", "owned", "evil", "click", "<script>")]
    pages += [get(app, "read", name=f"h/{n}") for n in range(len(HOSTILE) + 1)]
    pages += [get(app, "read", name='<b onclick="x">&', tenant="<i>")]
    for page in pages:
        tags = Tags(page)
        assert {tag for tag, _ in tags.met} <= OWN
        assert sum(tag == "script" for tag, _ in tags.met) == page.count('"use strict"') <= 1
        for tag, attributes in tags.met:
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            assert re.match(r"(\./|read|get/\w+)\?", attributes.get("href") or "./?"), (tag, attributes)
    policy = ask(app, f"/{TOKEN}/")[1]["content-security-policy"]
    assert policy == LIST_POLICY and "unsafe" not in policy
    assert "script" not in ask(app, f"/{TOKEN}/read", name="h/0")[1]["content-security-policy"]


def test_a_list_of_100_000_is_quick() -> None:
    rows = [Row("default", f"n/{n}", "a title", "codex", f"/p{n % 9}", 3, 9, 10**9 - n, "a") for n in range(100_000)]
    begun, whole = time.process_time(), Listed(rows, Counter(), Counter(), 1)
    page = list_page(rows, whole, 1000, dict.fromkeys(("q", "agent", "project"), ""))
    assert time.process_time() - begun < 2 and page.count("<tr>") == ROWS and len(plot(rows)) < 20_000


def test_the_command_prints_the_address_and_wants_an_archive(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    assert "no archive at" in run("browse", "-r", tmp_path / "none").stderr
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: sockets[0].getsockname())
    opened = list[str]()

    def start(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", start)
    url = json.loads(run("browse", "-r", tmp_path / "cold", "--json").stdout)["url"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url) and url.rsplit("/", 2)[1] not in opened[0]
    assert not run("browse", "-r", tmp_path / "cold", "--no-open").stderr and len(opened) == 1


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed")
def test_in_chromium_the_page_searches_and_nothing_hostile_runs(place: Path, bundle: Bundle, tmp_path: Path) -> None:
    shelf = Shelf(Archive.open(place, bundle=bundle), Archive.open(place, bundle=bundle))
    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app_of(shelf, TOKEN), log_level="warning"))
        port = listen(listening, 9)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()

        def shown(path: str) -> str:
            words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'home'}"]
            words += ["--virtual-time-budget=9000", "--dump-dom", f"http://localhost:{port}/{TOKEN}/{path}"]
            return subprocess.run(words, capture_output=True, check=True, timeout=120).stdout.decode()

        try:
            assert "where are the bells?" in shown("?q=bell").partition('<section id="list">')[0]
            for path in ("", "?q=owned", f"read?name=h%2F{len(HOSTILE)}", "said?q=owned"):
                page = shown(path)
                assert "owned" in page and "<title>owned" not in page and "<img" not in page
        finally:
            server.should_exit = True
            thread.join()
