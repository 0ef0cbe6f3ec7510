"""The live store over HTTP: what is answered is durable, and nothing is answered without the token."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.applications import Starlette

from pltz.archive import Archive, OsDisk, StoreError
from pltz.models.bundle.bundle import Bundle
from pltz.serving.live import app as live_app
from pltz.serving.live.store import LiveStore
from tests.cli.commands import Run
from tests.failing import raising

TOKEN = "t" * 32
KEY = {"project": "-home-me/shop", "session": "s1"}


@pytest.fixture
def store(tmp_path: Path, bundle: Bundle) -> Iterator[LiveStore]:
    with LiveStore.open(tmp_path / "live", tmp_path / "cold", idle=1e6, bundle=bundle) as store:
        yield store


@pytest.fixture
def app(store: LiveStore) -> Starlette:
    return live_app.app_of(store, TOKEN)


def ask(
    app: Starlette, method: str, path: str, body: bytes = b"", host: str = "[::1]:1", token: str = TOKEN, **more: str
) -> tuple[int, Any]:
    """Return the status and the body of an answer; of JSON what it says."""
    sent: list[Any] = []
    pieces = [{"type": "http.request", "body": body[:9], "more_body": True}, {"type": "http.request", "body": body[9:]}]

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return pieces.pop(0)

    head = [(b"host", host.encode()), (b"authorization", f"Bearer {token}".encode())]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "root_path": "", "scheme": "http"}
    scope |= {"headers": head, "query_string": urlencode(KEY | more).encode(), "server": ("127.0.0.1", 1)}
    asyncio.run(app(scope, receive, send))
    found = b"".join(one.get("body", b"") for one in sent[1:])
    is_json = (b"content-type", b"application/json") in sent[0]["headers"]
    return sent[0]["status"], json.loads(found) if is_json else found


def test_entries_are_appended_loaded_listed_and_deleted(app: Starlette, store: LiveStore) -> None:
    first, second = b'{"uuid":"u1","text":"\\ud800 \xc3\xa9"}\n', b'{"uuid":"u2"}'
    assert ask(app, "GET", "/entries")[0] == 404 and ask(app, "POST", "/entries", first) == (204, b"")
    assert ask(app, "POST", "/entries", first + second) == (204, b"")  # sent again: kept once
    assert ask(app, "POST", "/entries", second, subpath="agents/1")[0] == 204
    for freeze in (False, True):
        assert not freeze or store.freeze() == 2
        status, found = ask(app, "GET", "/entries")
        assert status == 200 and [*map(json.loads, found.splitlines())] == [json.loads(first), json.loads(second)]
        assert ask(app, "GET", "/subkeys") == (200, ["agents/1"])
        [session] = ask(app, "GET", "/sessions")[1]
        assert session["session_id"] == "s1" and session["mtime"] > 1e12
    assert ask(app, "GET", "/health", token="") == (200, {"failure": None}) and ask(app, "DELETE", "/entries")[0] == 204
    assert ask(app, "GET", "/entries")[0] == 404 and ask(app, "GET", "/sessions") == (200, [])


def test_an_erased_session_is_gone_and_one_without_its_keys_is_named(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)
    sealed: dict[str, Any] = {"key_file": tmp_path / "key", "bundle": bundle}
    with LiveStore.open(tmp_path / "live", tmp_path / "cold", idle=1e6, **sealed) as store:
        app = live_app.app_of(store, TOKEN)
        for session in ("s1", "s2"):
            assert ask(app, "POST", "/entries", b'{"uuid":"u1"}', session=session)[0] == 204
        store.freeze()
        assert ask(app, "POST", "/entries", b'{"uuid":"u2"}')[0] == 204  # it waits in the journal
        with Archive.open(tmp_path / "cold", **sealed) as cold:
            cold.erase("s1", tenant=KEY["project"])
        assert ask(app, "GET", "/entries")[0] == 404
        assert [one["session_id"] for one in ask(app, "GET", "/sessions")[1]] == ["s2"]
        archive = json.loads((tmp_path / "cold/archive.json").read_bytes())["archive"]
        for path in (tmp_path / "cold/keys").iterdir():
            if not path.name.startswith(archive):
                path.unlink()
        status, found = ask(app, "GET", "/entries", session="s2")
        assert (status, found["error"]["code"]) == (500, "MissingKeys")


def test_what_cannot_be_kept_is_refused_whole(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_app, "BODY", 100)
    first = b'{"uuid":"u1"}\n'
    for body, status in (
        (first + b"{", 400), (first + b"7", 400), (first + b'{"n":NaN}', 400), (first + b'{"n":1e999}', 400),
        (b'"' + b"x" * 100 + b'"', 413),
    ):
        assert ask(app, "POST", "/entries", body)[0] == status
    assert ask(app, "POST", "/entries", b"{}", session="")[0] == 400 and ask(app, "GET", "/entries")[0] == 404
    assert ask(app, "PUT", "/entries", b"{}")[0] == 405


def test_what_fails_is_named_and_what_is_not_durable_is_not_acknowledged(
    app: Starlette, store: LiveStore, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "sync_file", raising(StoreError("stopped")))
        status, found = ask(app, "POST", "/entries", b'{"uuid":"u1"}')
    assert status == 503 and found["error"]["code"] == "StoreError"
    assert ask(app, "POST", "/entries", b'{"uuid":"u1"}')[0] == 204
    store.freeze()
    for pack in [path for path in (tmp_path / "cold" / "packs").rglob("*") if path.is_file()]:
        pack.unlink()
    with LiveStore.open(tmp_path / "other", tmp_path / "cold", idle=1e6, bundle=bundle) as other:
        status, found = ask(live_app.app_of(other, TOKEN), "GET", "/entries")
    assert (status, found["error"]["code"]) == (500, "MissingPack")


def test_without_the_token_or_by_another_name_there_is_nothing(app: Starlette) -> None:
    for method, path in (("GET", "/entries"), ("POST", "/entries"), ("DELETE", "/entries"), ("GET", "/sessions")):
        assert ask(app, method, path, b"{}", token=TOKEN[1:])[0] == 401
        assert ask(app, method, path, b"{}", host="evil.example")[0] == 421
    assert ask(app, "GET", "/sessions") == (200, [])


def test_command_keeps_its_token_and_wants_archive(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    words = ["live", tmp_path / "live", "-r", tmp_path / "cold", "--port", 0, "--json"]
    assert "no archive at" in run(*words).stderr and run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    tokens = []
    for _ in range(2):
        place = Path(json.loads(run(*words).stdout)["token"])
        assert place.stat().st_mode & 0o777 == 0o600
        tokens.append(place.read_text())
    assert tokens[0] == tokens[1] and len(tokens[0]) == 32
