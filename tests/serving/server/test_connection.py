"""Connections that bring no whole request, or take no answer, end; others are answered meanwhile."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from pltz.serving.server.connection import connection_class

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def empty(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Timer:
    def __init__(self, at: float, call: Any) -> None:
        self.at, self.call, self.over = at, call, False

    def cancel(self) -> None:
        self.over = True


class Loop:
    """A loop whose time the test sets, and whose tasks the test ends."""

    def __init__(self) -> None:
        self.now, self.timers = 0.0, list[Timer]()

    def call_later(self, seconds: float, call: Any) -> Timer:
        self.timers.append(Timer(self.now + seconds, call))
        return self.timers[-1]

    def create_task(self, work: Any, **_: Any) -> asyncio.Future[None]:
        work.close()
        return asyncio.Future(loop=asyncio.new_event_loop())

    def pass_to(self, now: float) -> None:
        self.now = now
        for timer in self.timers:
            if not timer.over and timer.at <= now:
                timer.over = True
                timer.call()


class Transport:
    """A transport that knows whether it was ended."""

    def __init__(self) -> None:
        self.ended, self.protocol = False, None

    def abort(self) -> None:
        self.ended = True

    close = abort

    def is_closing(self) -> bool:
        return self.ended

    def get_extra_info(self, name: str) -> Any:
        return None

    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@pytest.fixture
def loop() -> Loop:
    return Loop()


def opened(kind: Any, loop: Loop) -> tuple[Any, Transport]:
    connection = kind(config=uvicorn.Config(empty, timeout_keep_alive=90), server_state=ServerState(), app_state={},
                      _loop=loop)  # fmt: skip
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


def test_a_head_that_does_not_end_in_time_ends_its_connection(loop: Loop) -> None:
    """Bytes that come meanwhile give it no more time."""
    connection, transport = opened(connection_class(), loop)
    _, silent = opened(connection_class(), loop)
    connection.data_received(HEAD)
    for second in range(1, 30):
        loop.pass_to(second)
        connection.data_received(b"X-%d: 1\r\n" % second)
    assert not transport.ended and not silent.ended
    loop.pass_to(30)
    assert transport.ended and silent.ended


def test_a_request_under_way_has_all_the_time(loop: Loop) -> None:
    connection, transport = opened(connection_class(), loop)
    loop.pass_to(20)
    connection.data_received(HEAD + b"\r\n")
    loop.pass_to(1000)
    assert not transport.ended
    connection.cycle.response_complete = True
    connection.on_response_complete()
    for second in range(1001, 1030):  # of a body that nobody reads, or of a next head
        loop.pass_to(second)
        connection.data_received(b"G" if second == 1001 else b"")
    assert not transport.ended
    loop.pass_to(1030)
    assert transport.ended


def test_an_answer_that_is_not_taken_ends_its_connection(loop: Loop) -> None:
    connection, transport = opened(connection_class(), loop)
    connection.data_received(HEAD + b"\r\n")
    connection.pause_writing()
    loop.pass_to(29)
    connection.resume_writing()
    loop.pass_to(100)
    assert not transport.ended
    connection.pause_writing()
    loop.pass_to(130)
    assert transport.ended


def test_the_oldest_without_a_request_make_way(loop: Loop) -> None:
    kind = connection_class(most=2)
    made = [opened(kind, loop) for _ in range(3)]
    made[1][0].data_received(HEAD + b"\r\n")  # of no account from here on
    more = [opened(kind, loop)[1] for _ in range(2)]
    assert [transport.ended for _, transport in made] + [one.ended for one in more] == [True, False, True, False, False]


@pytest.fixture
def port() -> Iterator[int]:
    config = uvicorn.Config(empty, http=connection_class(most=20), limit_concurrency=30, port=0, log_level="warning")
    listening = config.bind_socket()
    listening.listen(200)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(300)


def test_a_request_is_answered_beside_many_half_open_connections(port: int) -> None:
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    try:
        for link in held[::2]:
            link.sendall(HEAD)
        whole = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        whole.request("GET", "/")
        assert whole.getresponse().status == 200
        whole.close()
    finally:
        for link in held:
            link.close()
