"""Sessions go cold only where the archive gives exactly their ids, and nobody used them meanwhile."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from pltz.archive.errors import Erased, LostError, NotFound, StoreError
from pltz.plt_codec.errors import PltzError
from pltz.serving.server.errors import Refused
from pltz.serving.server.sessions import ServedSession, Sessions, digest

IDS = np.arange(5, dtype=np.int32)


def sessions_of(read: Callable[[str], Any], **options: Any) -> Sessions:
    """Return sessions over an archive that gives what ``read`` returns."""

    def call(work: Callable[[], object]) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(work())
        return future

    drop, erase = options.pop("drop", lambda name: None), options.pop("erase", None)
    scheduler: Any = SimpleNamespace(
        target=SimpleNamespace(fingerprint=bytes(16)), call=call, let_go=lambda name, ids: drop(name),
        blocks=lambda name, ids: (b"", b""),
        store=SimpleNamespace(tier=lambda block: "", admit=lambda *_: None, erase=erase),
    )  # fmt: skip
    aside = {"worker": {"rejected": options.pop("aside", 0)}}
    hook: Any = SimpleNamespace(settle=options.pop("settle", lambda seconds: True), status=lambda: aside)
    archive: Any = None
    with patch("pltz.serving.server.sessions.Thawer"):
        made = Sessions(scheduler, hook, archive, **options)
    made._ids = read  # type: ignore[method-assign, assignment]
    return made


def record_of(sessions: Sessions, name: str, ids: np.ndarray | None = IDS) -> ServedSession:
    record = sessions._records[name] = ServedSession(name, ids, len(IDS))
    return record


@pytest.mark.parametrize("how", ["late", "broken"])
def test_kv_stays_where_the_archive_does_not_take_the_journal(how: str) -> None:
    """And what a disk says is told as an error of the server's own."""
    dropped: list[str] = []

    def settle(seconds: float) -> bool:
        if how == "broken":
            raise OSError(5, "Input/output error")
        return False

    sessions = sessions_of(lambda name: IDS, settle=settle, drop=dropped.append)
    record = record_of(sessions, "a")
    with pytest.raises(Refused) as refused:
        asyncio.run(sessions.freeze([record]))
    assert refused.value.status == 503 and not dropped and record.ids is IDS
    asyncio.run(sessions.sweep())  # logged
    hook: Any = sessions.hook
    hook.settle = lambda timeout: True
    asyncio.run(sessions.freeze([record]))
    assert dropped == ["a"] and record.ids is None
    sessions.close()


def test_a_known_session_is_shown_without_the_archive() -> None:
    """Others wait for its reader."""
    read: list[str] = []

    def reads(name: str) -> np.ndarray:
        read.append(name)
        return IDS.copy()

    async def shown() -> None:
        record = await sessions.claim("a")
        sessions.free(record)
        await sessions.freeze([record])
        read.clear()
        wanted = {"tier": "cold", "tokens": 5, "digest": digest(IDS)}
        assert await sessions.look("a") == {"session": "a"} | wanted and not read
        for _ in range(2):
            assert await sessions.look("b") == {"session": "b"} | wanted and read == ["b"]

    sessions = sessions_of(reads)
    asyncio.run(shown())
    sessions.close()


@pytest.mark.parametrize("found", [IDS[:4], IDS + 1, np.zeros(0, np.int32)])
def test_ids_that_the_archive_does_not_give_stay_in_memory(found: np.ndarray) -> None:
    sessions = sessions_of(lambda name: found)
    record = record_of(sessions, "a")
    asyncio.run(sessions.freeze([record]))
    assert record.ids is IDS and record.stuck and sessions.freezes == 0
    sessions.close()


def test_a_session_that_cannot_be_read_keeps_no_other_from_going_cold() -> None:
    failure: PltzError = StoreError("the disk does not answer")

    def read(name: str) -> np.ndarray:
        if name == "lost":
            raise failure
        return IDS.copy()

    sessions = sessions_of(read)
    lost, other = record_of(sessions, "lost"), record_of(sessions, "other")
    with pytest.raises(StoreError):
        asyncio.run(sessions.freeze([lost, other]))
    assert not lost.stuck and other.ids is IDS, "all are tried again"
    failure = LostError("a pack is damaged")
    asyncio.run(sessions.freeze([lost, other]))
    assert lost.stuck and lost.ids is IDS and other.ids is None
    with pytest.raises(LostError):
        asyncio.run(sessions.freeze([lost]))
    sessions.close()


@pytest.mark.parametrize("how", ["erased", "in the journal", "laid aside", "another turn"])
def test_what_the_archive_has_no_more_leaves_memory(how: str) -> None:
    """Drop a session, cold or not, unless the archive may not have had it yet."""
    erased: list[bytes] = []
    sessions = sessions_of(
        lambda name: IDS, settle=lambda seconds: how != "in the journal", aside=how == "laid aside", erase=erased.append
    )

    def absent(names: Sequence[str]) -> set[str]:
        if how == "another turn":
            hot.ids = IDS.copy()
        sessions._records.pop("left", None)  # to make room for another
        return set(names) - {"there"}

    sessions._absent = absent  # type: ignore[method-assign]
    hot, cold, there = (record_of(sessions, name, ids) for name, ids in (("hot", IDS), ("cold", None), ("there", IDS)))
    for record in (hot, cold, there, record_of(sessions, "left", None)):
        record.block = record.name.encode()
    asyncio.run(sessions.audit())
    assert list(sessions._records) == (["there"] if how == "erased" else ["hot", "there"])
    assert erased == ([b"hot", b"cold"] if how == "erased" else [b"cold"])
    sessions.close()


@pytest.mark.parametrize("how", ["a turn ended", "a turn began"])
def test_a_session_that_is_used_while_it_goes_cold_stays(how: str) -> None:
    """The archive has the ids of before, which were compared."""
    longer = np.arange(9, dtype=np.int32)

    def read(name: str) -> np.ndarray:
        if how == "a turn ended":
            record.ids = longer
        else:
            record.busy = True
        return IDS.copy()

    sessions = sessions_of(read)
    record = record_of(sessions, "a")
    asyncio.run(sessions.freeze([record]))
    assert record.ids is (longer if how == "a turn ended" else IDS) and sessions.freezes == 0
    sessions.close()


def test_room_for_a_session_is_made_of_cold_ones_alone() -> None:
    """The ids of others may be nowhere else."""
    sessions = sessions_of(lambda name: np.zeros(0, np.int32), known=2)
    first, second = record_of(sessions, "a"), record_of(sessions, "b")
    with pytest.raises(Refused, match="2 sessions that are not cold"):
        asyncio.run(sessions.claim("c"))
    assert list(sessions._records) == ["a", "b"]
    second.ids = None
    asyncio.run(sessions.claim("c"))
    assert list(sessions._records) == ["a", "c"] and first.ids is IDS
    sessions.close()


def test_an_erased_session_is_not_begun_anew() -> None:
    """Its name would come back, with other content, beside what was asked to go."""
    sessions = sessions_of(lambda name: IDS)

    def token_ids(name: str, tenant: str) -> np.ndarray:
        raise Erased("its key was destroyed") if name == "erased" else NotFound("no such session")

    thawer: Any = SimpleNamespace(token_ids=token_ids)
    sessions._thawer = thawer
    assert not len(Sessions._ids(sessions, "new"))
    with pytest.raises(Erased):
        Sessions._ids(sessions, "erased")
    sessions.close()
