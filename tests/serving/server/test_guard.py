"""The guard of a server: names, pages of other sites, and the key."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from pltz.serving.server.guard import Guard

NAMES, KEY = ("[fe80::1]", "Chat.example"), "0123456789abcdef"


def asked(guard: Guard, path: str = "/sessions", **headers: str) -> tuple[int, Any]:
    """Return the status and the body of a request with these headers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a guard reads no body")

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    asyncio.run(guard({"type": "http", "path": path, "method": "GET", "headers": pairs}, receive, send))
    return sent[0]["status"], sent[1]["body"]


async def behind(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]", "[::1]:80", "[FE80::1]:8000", "chat.example:443"]
)
def test_a_server_answers_by_its_names(host: str) -> None:
    guard = Guard(behind, NAMES)
    assert asked(guard, host=host)[0] == 200 and asked(guard, host=host, origin=f"https://{host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "localhost#x",
     "127.1", "localhost@evil.example", "evil.example/localhost", "[::1].evil.example", "[::2]", "127.0.0.1:8000:80",
     "localhost:", "caf\xe9"],
)  # fmt: skip
def test_another_name_is_refused(host: str) -> None:
    status, body = asked(Guard(behind, NAMES), host=host)
    assert status == 421 and "--allowed-host" in json.loads(body)["error"]["message"]
    assert asked(Guard(behind, NAMES), "/health", host=host)[0] == 421
    assert asked(Guard(behind, [*NAMES, "*"]), host="evil.example")[0] == 200


def test_a_request_without_a_host_is_refused() -> None:
    assert asked(Guard(behind))[0] == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "file://", "http://localhost.evil.example:8000"])
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    status, body = asked(Guard(behind), host="localhost:8000", origin=origin)
    assert status == 403 and json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_server_with_a_key_wants_it() -> None:
    guard = Guard(behind, key=KEY)
    assert asked(guard, host="localhost", authorization=f"Bearer {KEY}")[0] == 200
    for given in ({}, {"authorization": KEY}, {"authorization": f"Bearer {KEY}x"}, {"authorization": "Bearer \xe9"}):
        assert asked(guard, host="localhost", **given)[0] == 401
    assert asked(guard, "/health", host="localhost")[0] == 200
    assert asked(guard, host="evil.example", authorization=f"Bearer {KEY}")[0] == 421
