"""An archive on a second S3 server, localbucket, which is independent of moto: faults, kills, stale listings.

It runs in a process of its own, which a test may kill. It honours ``If-None-Match: *`` on PUT. It ignores ``If-Match``
and does not know DeleteObjects, so init refuses it. The other tests reach it through a proxy that compares the ETag
itself, one request at a time, and deletes object by object.
"""

from __future__ import annotations

import http.client
import importlib.util
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError, StoreError
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.archive.storage.store import Store
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from tests.archive.conftest import S3Server
from tests.archive.towers import TowerArchive

pytestmark = [
    pytest.mark.localbucket,
    pytest.mark.skipif(not importlib.util.find_spec("localbucket"), reason="localbucket is not installed"),
]
OF_A_HOP = ("connection", "date", "server", "transfer-encoding")
PASSED_ON = ("Range", "If-None-Match", "Content-Type", "X-Amz-Content-Sha256")


class LocalBucket(S3Server):
    """localbucket on a free port, behind a proxy that compares ETags for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.begin()
        super().__init__()

    def begin(self) -> None:
        """Start the server, again after a kill."""
        command = [sys.executable, "-m", "localbucket", str(self._folder), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("localbucket does not start")

    def kill(self) -> None:
        """Kill the server, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    def direct(self) -> BucketPlace:
        """Return an unused prefix without the proxy."""
        place = self.place()
        return BucketPlace(place.bucket, place.prefix, {**place.options, "endpoint": f"http://127.0.0.1:{self.port}"})

    def close(self) -> None:
        super().close()
        self.kill()

    def _behind(self) -> Any:
        return self._forward

    def _forward(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        path = quote(environ["PATH_INFO"])
        query = environ.get("QUERY_STRING")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        names = {name: f"HTTP_{name.upper().replace('-', '_')}" for name in PASSED_ON}
        headers = {name: environ[key] for name, key in names.items() if key in environ}
        try:
            if query == "delete":
                return self._delete(body, start)
            if wanted := environ.get("HTTP_IF_MATCH"):
                there = self._ask("HEAD", path, b"", {})
                if there[0] != 200 or there[1].get("ETag") != wanted:
                    refused = "412 Precondition Failed" if there[0] == 200 else "404 Not Found"
                    start(refused, [("Content-Length", "0")])
                    return [b""]
            method = environ["REQUEST_METHOD"]
            status, found, data = self._ask(method, f"{path}?{query}" if query else path, body, headers)
        except (OSError, http.client.HTTPException):  # it was killed
            start("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        kept = [(name, value) for name, value in found.items() if name.lower() not in OF_A_HOP]
        start(f"{status} {http.client.responses[status]}", kept)
        return [data]

    def _delete(self, body: bytes, start: Any) -> list[bytes]:
        keys = [unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", body.decode())]
        for key in keys:
            self._ask("DELETE", quote(f"/{self.bucket}/{key}"), b"", {})
        rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        data = f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{rows}</DeleteResult>'.encode()
        start("200 OK", [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))])
        return [data]

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBucket]:
    server = LocalBucket(tmp_path_factory.mktemp("localbucket"))
    yield server
    server.close()


@pytest.fixture
def server(running: LocalBucket) -> LocalBucket:
    """Return the server without faults."""
    running.reset()
    return running


def session(name: str, *turns: int) -> NewSession:
    return NewSession(name, [np.arange(40), *(np.full(5, t) for t in turns)], shared=1)


def test_a_server_that_lacks_something_is_refused(server: LocalBucket, codec: SegmentCodec) -> None:
    with pytest.raises(StoreError, match=r"cannot delete .* 501 NotImplemented"):
        TowerArchive.create(ObjectStore(server.direct()), [codec])
    server.ignoring = "HTTP_IF_MATCH"
    with pytest.raises(StoreError, match="does not honour If-Match"):
        TowerArchive.create(ObjectStore(server.place()), [codec])
    store = ObjectStore(server.direct())
    assert store.put("packs/a", b"mine") and store.put("packs/a", b"mine") and not store.put("packs/a", b"theirs")


@pytest.mark.parametrize("fault", ["500 Internal Server Error", "503 Slow Down", "time-out"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_fault_at_any_request_loses_nothing(
    server: LocalBucket, codec: SegmentCodec, tmp_path: Path, fault: str, late: bool
) -> None:
    """Once per put, before or after the server has done its work, with no second try of the client's own."""
    place = server.place()
    timeout = 1.5 if fault == "time-out" else 30.0  # on a busy machine a sound answer may take a second
    place = BucketPlace(place.bucket, place.prefix, place.options, timeout, 0)
    TowerArchive.create(ObjectStore(place, tmp_path), [codec]).put([session("a", 1)])
    refused = 0
    for turn in range(5):
        archive = TowerArchive.open(ObjectStore(place, tmp_path), [codec])
        archive.get("a")
        server.failures, server.skip, server.late = 1, turn, late
        server.failing, server.slow = ("500 Late", 2 * timeout) if fault == "time-out" else (fault, 0.0)
        try:
            archive.put([session("b", turn)])
            kept = True
        except ArchiveError:
            kept = False
        refused += not kept
        server.reset()
        found = TowerArchive.open(ObjectStore(place, tmp_path), [codec])
        assert found.verify(decode=True).sound
        assert not kept or turn in [int(found.tower(v).tokens[-1]) for v in found.history("b")]
    assert refused  # no second try of the client's own, so some were


def test_a_server_that_is_killed_keeps_what_was_acknowledged(
    server: LocalBucket, codec: SegmentCodec, tmp_path: Path
) -> None:
    place = server.place()
    place = BucketPlace(place.bucket, place.prefix, place.options, 5.0, 1)
    archive = TowerArchive.create(ObjectStore(place, tmp_path), [codec])
    ended, kept = threading.Event(), list[str]()

    def write() -> None:
        for number in range(1000):
            if ended.is_set():
                return
            try:
                archive.put([session(f"s{number}", number)])
                kept.append(f"s{number}")
            except ArchiveError:
                continue

    writer = threading.Thread(target=write)
    writer.start()
    dice = np.random.default_rng(1)
    for _ in range(4):
        time.sleep(float(dice.uniform(0.2, 0.6)))
        server.kill()
        server.begin()
    ended.set()
    writer.join()
    found = TowerArchive.open(ObjectStore(place, tmp_path), [codec])
    assert len(kept) > 4 and found.verify(decode=True).sound
    assert all(found.get(name).tokens[-1] == int(name[1:]) for name in kept)


class StaleListings:
    """A store whose listings leave out what was put since they were frozen, and still have what was deleted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frozen: dict[str, dict[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, folder: str) -> dict[str, int]:
        return dict(self._frozen.setdefault(folder, self._store.list(folder)))


def test_puts_and_gets_do_not_need_listings(server: LocalBucket, codec: SegmentCodec, tmp_path: Path) -> None:
    """With a manifest. A collector with such listings may refuse to work, and takes nothing that is needed."""
    store = ObjectStore(server.place(), tmp_path)
    stale = cast(Store, StaleListings(store))
    TowerArchive.create(store, [codec]).put([session("first", 1)])
    for folder in ("packs", "index", "parity", "manifest", "keys"):
        stale.list(folder)
    for number in range(40):  # one of them puts an index
        TowerArchive.open(stale, [codec]).put([session(f"s{number}", number)])
    reader = TowerArchive.open(stale, [codec])
    assert all(reader.get(f"s{number}").tokens[-1] == number for number in range(40))
    for turn in range(3):
        try:
            TowerArchive.open(stale if turn < 2 else store, [codec]).collect()
        except ArchiveError:
            assert turn < 2
    last = TowerArchive.open(store, [codec])
    assert len(list(last.ls())) == 41 and last.verify(decode=True).sound
