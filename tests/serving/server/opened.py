"""A server for tests: a service on a small archive, over HTTP, and a client of the standard library."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from pltz.archive.archive import Archive
from pltz.archive.encryption.keys import Secret
from pltz.kv.store.store import KVStore
from pltz.models.target.target import Target
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.server.app import app_of
from pltz.serving.server.connection import connection_class
from pltz.serving.server.service import Service
from tests.serving.eviction.opened import worker_in_thread


class Client:
    """A client of one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and body, parsed where it is JSON."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        link.request(method, path, data, {"Content-Type": "application/json"} | headers)
        answer = link.getresponse()
        raw = answer.read()
        link.close()
        plain = "json" not in answer.headers.get("content-type", "")
        return answer.status, raw.decode() if plain else json.loads(raw)

    def post(self, path: str, **body: Any) -> Any:
        """Return the answer of a request that succeeds."""
        status, found = self.ask("POST", path, body)
        assert status == 200, found
        return found

    def stream(self, path: str, **body: Any) -> Iterator[Any]:
        """Yield the events of a stream. To close the iterator closes the connection."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            data = json.dumps({**body, "stream": True}).encode()
            link.request("POST", path, data, {"Content-Type": "application/json"})
            answer = link.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    text = line[6:].strip().decode()
                    yield text if text == "[DONE]" else json.loads(text)
        finally:
            link.close()


@contextmanager
def served(target: Target, folder: Path, **options: Any) -> Iterator[tuple[Client, Service]]:
    """Serve a target over an archive, made where there is none: by default in a folder.

    ``place``: another place of the archive. ``passphrase``: of a sealed one.
    """
    place, journal = options.pop("place", folder / "cold"), folder / "journal"
    passphrase = options.pop("passphrase", None)
    archive = Archive.open(place, create=not journal.exists(), bundle="nano", passphrase=passphrase)
    with worker_in_thread():
        hook = EvictionHook.open(
            journal, place, tokenizer=target.tokenizer_json, target=target.fingerprint, bundle="nano",
            key=Secret.chosen(passphrase=passphrase),
            settings=HookSettings(flush_seconds=0.005),
        )  # fmt: skip
    room: dict[str, Any] = {"kind": options.pop("kind", "raw"), "tokens": options.pop("tokens", 8192)}
    room |= options.pop("store", {})
    service = Service(target, KVStore.open(target, **room), hook, archive, name="mini", **options)
    config = uvicorn.Config(app_of(service), http=connection_class(), port=0, log_level="warning")
    listening, server = config.bind_socket(), uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    end = time.monotonic() + 300
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield Client(listening.getsockname()[1]), service
    finally:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()
