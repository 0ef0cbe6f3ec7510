"""Bytes of one tenant's sessions in a real file and in real archives, each without and with neighbours.

    file      one .pltz file
    together  an archive, all in one put
    apart     an archive, one put per session, by one process
    grown     an archive, one put per answer of a chat; then `merge`
    sealed    as together, in an archive with encryption

The products choose the neighbours, and nothing of their rules is repeated here. All sessions are read back at the end
and compared. Of an archive all files count but those of parity; names are numbers. It is counted as it was put, and
again once `collect` has joined its packs. Sessions from elsewhere are put first and are not counted.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.encryption.keys import Secret
from pltz.archive.format.object_names import PARITY
from pltz.archive.writing.put_request import PutRequest
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    from pltz.coding.codec import Codec
    from pltz.experiments.neighbours.nearest import TenantSessions

FILE, TOGETHER, APART, GROWN, SEALED = WAYS = "file", "together", "apart", "grown", "sealed"
BEGIN = 1_800_000_000  # time of the first session, in seconds since 1970


def measure(
    codec: Codec, tenant: TenantSessions, way: str, device: str = "cpu", threads: int | None = None
) -> dict[str, dict[str, float]]:
    """Return the figures of one of `WAYS` without neighbours and with them ("without", "with").

    "bytes": as it was put; "collected": of an archive after `collect`; "cpu_s": processor time of coding.

    Raises ModelError where a session came back changed.
    """
    if way == FILE:
        return {name: by_file(codec, tenant, name == "with") for name in ("without", "with")}
    return {
        name: by_archive(codec, tenant, way, name == "with", device, threads) for name in ("without", "with")
    }


def by_file(codec: Codec, tenant: TenantSessions, neighbours: bool) -> dict[str, float]:
    """Return the bytes of a .pltz file of the measured sessions. Raises ModelError."""
    sessions = [tenant.sessions[n] for n in tenant.measured]
    start = time.process_time()
    data = codec.compress(sessions, independent=not neighbours)
    spent = time.process_time() - start
    _compare(sessions, list(codec.decompress(data)))
    return {"bytes": len(data), "cpu_s": round(spent, 3)}


def by_archive(
    codec: Codec, tenant: TenantSessions, way: str, neighbours: bool, device: str, threads: int | None
) -> dict[str, float]:
    """Return the bytes that the measured sessions add to an archive. Raises ModelError."""
    sessions = [tenant.sessions[n] for n in tenant.measured]
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        place = Path(folder)
        key = Secret(os.urandom(32), 0) if way == SEALED else None
        opened = opener.create(place, key=key)
        bundle: Any = codec.bundle
        cold = Archive(opened, bundle=bundle, device=device, threads=threads, neighbours=neighbours)
        others = tenant.sessions[: tenant.first]
        list(cold.put_many(PutRequest(f"other {n}", one, tenant.source) for n, one in enumerate(others)))
        before = _collected(cold, place)
        start = time.process_time()
        for requests in puts(tenant.source, sessions, way):
            list(cold.put_many(requests))
        spent = time.process_time() - start
        size = _bytes(cold, place)
        if way == GROWN:
            cold.merge(cold=0)
        collected = _collected(cold, place)
        _compare(sessions, _read(cold, tenant.source, len(sessions)))
    return {"bytes": size - before, "collected": collected - before, "cpu_s": round(spent, 3)}


def puts(source: str, sessions: Sequence[Session], way: str) -> Iterator[list[PutRequest]]:
    """Yield the requests of each put, a second apart."""
    clock = itertools.count(BEGIN)

    def request(number: int, session: Session) -> PutRequest:
        return PutRequest(str(number), session, source, time=next(clock))

    if way in (TOGETHER, SEALED):
        yield [request(number, session) for number, session in enumerate(sessions)]
        return
    for number, session in enumerate(sessions):
        for one in turns(session) if way == GROWN else (session,):
            yield [request(number, one)]


def turns(session: Session) -> Iterator[Session]:
    """Yield a chat up to each answer, and whole. Other sessions have one turn.

    >>> chat = {"messages": [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]}
    >>> [len(one.value["messages"]) for one in turns(Session("chat", chat))]
    [2, 4]
    """
    messages = session.value["messages"] if session.kind == "chat" else []
    for end in range(1, len(messages)):
        if messages[end - 1]["role"] == "assistant" and messages[end]["role"] != "assistant":
            yield Session("chat", {**session.value, "messages": messages[:end]})
    yield session


def _read(cold: Archive, tenant: str, count: int) -> list[Session]:
    return [found.session for found in cold.get_many(map(str, range(count)), tenant=tenant)]


def _compare(before: Sequence[Session], after: Sequence[Session]) -> None:
    if len(before) != len(after) or any(map(Session.difference, before, after)):
        raise ModelError("a session came back changed: no figure of this run is valid")


def _collected(cold: Archive, place: Path) -> int:
    """Return the bytes of an archive once it was collected: packs are condemned, then deleted."""
    for _ in range(2):
        cold.collect()
    return _bytes(cold, place)


def _bytes(cold: Archive, place: Path) -> int:
    cold.parts.indexes.write()
    files = (path for path in place.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if PARITY not in path.relative_to(place).parts)
