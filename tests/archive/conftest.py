"""Fixtures of the archive's tests: a small codec and a small archive.

The codec is zlib over 32-bit ids: exact, fast, without weights.
"""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.format.ids import Tokens
from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec
from pltz.plt_codec.container.frame import ALONE
from pltz.plt_codec.errors import CorruptError
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


class ZlibCodec(SegmentCodec):
    """A codec of tokens as little-endian u32, deflated. With mode TOWER the ancestors are the dictionary."""

    tokenizer = b"zlib tokenizer.."

    def __init__(self, mode: int = ALONE, bundle_id: bytes = b"zlib bundle....."):
        self.mode, self.bundle_id = mode, bundle_id
        self.fast = False
        self.reach = 8192 if mode else 0  # zlib looks 32 KiB back

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [self._encode(p) for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [self._decode(c) for c in batch]

    def _encode(self, plain: Plain) -> bytes:
        coder = zlib.compressobj(9, zdict=self._dictionary(plain.above))
        return coder.compress(np.asarray(plain.tokens, "<u4").tobytes()) + coder.flush()

    def _decode(self, coded: Coded) -> Tokens:
        try:
            data = zlib.decompressobj(zdict=self._dictionary(coded.above)).decompress(coded.data, 4 * coded.count + 1)
        except zlib.error as exc:
            raise CorruptError(f"not deflated: {exc}") from exc
        if len(data) != 4 * coded.count:
            raise CorruptError(f"expected {coded.count} tokens, found {len(data)} bytes")
        return np.frombuffer(data, "<u4").astype(np.int64)

    def _dictionary(self, above: Tokens) -> bytes:
        return np.asarray(above, "<u4").tobytes() if self.mode else b""


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
    return TowerArchive.create(DirectoryStore(disk), [codec])


@pytest.fixture
def sealed(disk: SimDisk, codec: ZlibCodec) -> TowerArchive:
    """Make an empty sealed archive on a simulated disk."""
    return TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)


class S3Server:
    """moto's S3 server on a free port, behind a proxy that can fail requests, lose answers, and ignore conditions.

    Requests pass the proxy one at a time: S3 decides a conditional PUT atomically, which moto alone does not promise.
    """

    bucket = "cold"

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._door, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.options = {
            "endpoint": self.endpoint,
            "access_key_id": "id",
            "secret_access_key": "key",
            "region": "us-east-1",
        }
        self.reset()
        urllib.request.urlopen(
            urllib.request.Request(
                f"{self.endpoint}/{self.bucket}", method="PUT", headers={"Authorization": AUTH}
            )
        ).close()

    def reset(self) -> None:
        """Stop all faults."""
        self.failing, self.failures, self.skip, self.late, self.ignoring = "", 1 << 30, 0, False, ""
        self.cut = False  # whether failing requests have half of their answer
        self.only = ""  # method
        self.requests: list[str] = []

    def place(self) -> BucketPlace:
        """Return an unused prefix."""
        return BucketPlace(self.bucket, os.urandom(4).hex(), self.options)

    def count(self, start: str) -> int:
        """Count the requests that begin with ``start``."""
        return sum(r.startswith(start) for r in self.requests)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _door(self, environ: dict[str, Any], start: Any) -> Any:
        with self._lock:
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            wanted = environ["REQUEST_METHOD"].startswith(self.only)
            fails = bool(self.failing) and self.failures > 0 and self.skip <= 0 and wanted
            self.skip -= 1
            if self.ignoring:
                environ.pop(self.ignoring, None)
            if fails:
                self.failures -= 1
            if fails and self.cut:
                heads: list[Any] = []
                body = b"".join(self._app(environ, lambda *args: heads.extend(args)))
                start(*heads[:2])
                return [body[: len(body) // 2]]
            if not fails or self.late:
                answer = list(self._app(environ, (lambda *args: None) if fails else start))
        if not fails:
            return answer
        start(self.failing, [("Content-Length", "0")])
        return [b""]


AUTH = "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Start one server for all tests, since it takes seconds."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = S3Server()
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


@pytest.fixture(scope="module", autouse=True)
def nano(request: pytest.FixtureRequest) -> Iterator[None]:
    """Code with nano, seven times as fast, where a test names no bundle. Not in a module with SHIPPED set."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "SHIPPED", False):
            patch.setattr("pltz.models.bundle.bundle.DEFAULT", "nano")
        yield
