"""Concurrency: work in a second thread gives the same result, and several threads name segments as one does."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pltz.archive.concurrency import run_alongside
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import Head, digests, segment_digest, segment_head
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BytesCodec
from pltz.plt_codec.container import block_columns
from pltz.plt_codec.identity import NONE
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive

DICE = np.random.default_rng(4)


def test_a_result_and_an_error() -> None:
    with run_alongside(threading.get_ident) as result:
        pass
    assert result() != threading.get_ident()
    with run_alongside(lambda: 1 // 0) as result:
        pass
    with pytest.raises(ZeroDivisionError):
        result()


def test_where_no_thread_can_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*about: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    with run_alongside(threading.get_ident) as result:
        pass
    assert result() == threading.get_ident()


@pytest.mark.parametrize("cores", [1, 2, 3, 16])
@pytest.mark.parametrize(
    "sizes", [[], [0], [0] * 90, [0, 700, 0] * 80, [5] * 500, [100_000, *[1] * 99], [700] * 65]
)
@pytest.mark.parametrize("abreast", [True, False])
def test_digests_are_those_of_each(
    monkeypatch: pytest.MonkeyPatch, cores: int, sizes: list[int], abreast: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(identity, "LEAST_ABREAST", 1 << 10)
    if not abreast:
        monkeypatch.setattr(identity, "many", None)
    rows = [DICE.integers(0, 99, n, np.uint32) for n in sizes]
    parents = [bytes([n % 3]) * 16 for n in range(len(rows))]
    heads = [segment_head(NONE, NONE, parent) for parent in parents]
    assert digests(heads, rows) == [
        segment_digest(NONE, NONE, parent, row) for parent, row in zip(parents, rows, strict=True)
    ]
    for keys in ([b"k" * 32], [b"k" * 32, b"l" * 32], [b"", b"m" * 16]):
        heads = [Head(parent, keys[n % len(keys)]) for n, parent in enumerate(parents)]
        assert digests(heads, rows) == [head.digest(row) for head, row in zip(heads, rows, strict=True)]


def test_a_compiled_hash_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        """Right but for the last message of several."""

        lanes = 8

        def digests(
            self, person: bytes, size: int, key: int, heads: tuple[bytes, ...], rows: list[np.ndarray]
        ) -> bytes:
            found = b"".join(
                Head(head[128:] if key else head, head[:key]).digest(row)
                for head, row in zip(heads, rows, strict=True)
            )
            return found[:-1] + bytes([found[-1] ^ 1])

    monkeypatch.setattr(identity, "many", Wrong())
    heads = [segment_head(NONE, NONE, NONE)] * 9
    rows = [np.arange(n, dtype=np.uint32) for n in range(9)]
    assert digests(heads, rows) == [head.digest(row) for head, row in zip(heads, rows, strict=True)]


def test_a_pack_over_a_megabyte_is_the_same_with_and_without_threads_and_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Name towers whose levels come in mixed order: a name depends on the parent's."""
    prompts = [DICE.integers(0, 256, 900) for _ in range(3)]
    sessions = []
    for n in range(700):
        turns = [DICE.integers(0, 256, 900) for _ in range(1 + n % 3)]
        sessions.append(NewSession(f"s{n}", [prompts[n % 3], *turns], shared=n % 2, time=5))
    files = []
    for cores, compiled in ((1, True), (4, True), (4, False)):
        if not compiled:
            monkeypatch.setattr("pltz.archive.format.ids.many", None)
            monkeypatch.setattr(block_columns, "read", block_columns.read_here)
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr("pltz.archive.writing.publisher.WORTH", 1 << 20 if cores > 1 else 1 << 60)
        disk = SimDisk()
        archive = TowerArchive.create(DirectoryStore(disk), [BytesCodec()])
        archive.put(sessions)
        assert [len(archive.tower(v).segments) for v in archive.history("s5")] == [4]
        files.append(disk.seen.files())
        del files[-1]["manifest/before"]  # it has random bytes
    assert files[0] == files[1] == files[2] and max(map(len, files[0].values())) > 1 << 20
