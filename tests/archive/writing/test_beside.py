"""Processes beside the model prepare what is put: the archive has the same records, and errors come as without them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import ArchiveError
from pltz.archive.writing.cut import SessionCutter
from pltz.archive.writing.put_request import PutReceipt, PutRequest
from pltz.coding import workers
from pltz.coding.codecs.codec import PpmdCodec
from pltz.models.session.session import Session
from pltz.plt_codec import ppmd
from pltz.plt_codec.errors import OpaqueContentError, PltzError, UsageError
from tests.watch import noted

IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]}


def log(number: int) -> bytes:
    rows = [{"type": "user", "id": f"{number}-{n}", "note": f"line {n} of a file read again"} for n in range(60)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def chat(number: int, turns: int) -> Session:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"Turn {n} of talk {number}."} for n in range(turns)]
    return Session("chat", {"messages": said})


def requests() -> Iterator[PutRequest]:
    """Yield chats that are new and that grow, logs, texts, and bytes that are no text."""
    for turns in (3, 5):
        yield from (PutRequest(f"chat {n}", chat(n, turns), time=1) for n in range(9))
        yield from (PutRequest(f"log {n}", Session("text", log(n) * turns), time=1) for n in range(4))
        yield from (PutRequest(f"text {n}", Session("text", b"no UTF-8 \xff, prose " * n), time=1) for n in range(5))
        yield from (PutRequest(f"code {n}", Session("text", b"\x7fELF\0" * (n + turns)), time=1) for n in range(2))


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let two processes work beside the model from the first byte; returns the calls that they get."""
    calls = noted(
        monkeypatch, workers.Workers, "submit", lambda self, method: method if self.on and self.count else "here"
    )
    monkeypatch.setattr("pltz.archive.archive.helpers", lambda _: 2)
    monkeypatch.setattr("pltz.archive.writing.commits.START_BYTES", 1)
    monkeypatch.setattr("pltz.archive.writing.commits.AT_ONCE", 7)
    monkeypatch.setattr("pltz.archive.writing.commits.GROUP", 2)
    monkeypatch.setattr("pltz.coding.codecs.codec.WORTH_SENDING", 1)
    return calls


def put(place: Path, by_model: bool) -> list[PutReceipt]:
    with Archive.open(place, create=True, bundle="nano", model_logs=by_model, model_ids=by_model) as cold:
        receipts = list(cold.put_many(requests()))
        assert [cold.get(one.name, version=one.version).session for one in receipts] == [r.session for r in requests()]
        return receipts


@pytest.mark.parametrize("by_model", [True, False])
def test_records_are_the_same_beside_processes(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, by_model: bool
) -> None:
    plain = put(tmp_path / "plain", by_model)
    calls: list[str] = request.getfixturevalue("beside")
    in_threads = noted(monkeypatch, PpmdCodec, "coded_alone", lambda _, rows: len(rows))
    beside = put(tmp_path / "beside", by_model)
    assert [replace(one, id=b"") for one in beside] == [replace(one, id=b"") for one in plain]
    wanted = {"tokens", "draft", "joined", "packed"} if by_model else {"tokens"}
    assert wanted <= set(calls) and set(in_threads) == (set() if by_model else {2})


@pytest.mark.usefixtures("beside")
def test_what_threads_code_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppmd, "decode_many", lambda rows, primer: [bytes(count) for *_, count in rows])
    with Archive.open(tmp_path / "a", create=True, bundle="nano", model_ids=False) as cold:
        with pytest.raises(ArchiveError, match="does not decode"):
            list(cold.put_many(PutRequest(f"chat {n}", chat(n, 3)) for n in range(20)))
        assert not [*cold.list()]


@pytest.mark.usefixtures("beside")
def test_what_is_before_an_error_is_put(tmp_path: Path) -> None:
    def broken() -> Iterator[PutRequest]:
        yield from (PutRequest(f"chat {n}", chat(n, 3)) for n in range(20))
        raise UsageError("no more")

    with Archive.open(tmp_path / "a", create=True, bundle="nano") as cold:
        put = list[str]()
        with pytest.raises(UsageError, match="no more"):
            put.extend(one.name for one in cold.put_many(broken()))
        assert put == [f"chat {n}" for n in range(20)]
        given = [PutRequest("good", chat(1, 2)), PutRequest("image", Session("chat", IMAGE))]
        refused = list[PltzError]()
        assert [one.name for one in cold.put_many(given, refused=lambda _, exc: refused.append(exc))] == ["good"]
        assert [type(one) for one in refused] == [OpaqueContentError]
        with pytest.raises(OpaqueContentError):
            list(cold.put_many(given))


@pytest.mark.usefixtures("beside")
def test_requests_are_read_ahead_once_processes_are_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin within the second part; from then on several parts are read before one is put."""
    monkeypatch.setattr("pltz.archive.writing.commits.START_BYTES", 7 * 200)
    read = 0

    def counted() -> Iterator[PutRequest]:
        nonlocal read
        for read in range(1, 101):
            yield PutRequest(f"chat {read}", chat(read, 5))

    behind = list[int]()
    with Archive.open(tmp_path / "a", create=True, bundle="nano") as cold:
        for number, _ in enumerate(cold.put_many(counted(), commit_bytes=1), 1):
            behind.append(read - number)
    assert behind[0] < 14 and max(behind) > 35 and len(behind) == 100


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("apart", [1, 3, 9, 30])
def test_session_that_comes_again_builds_on_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: int) -> None:
    """New sessions are told from stored ones by one look-up per part, before those of the same put are stored."""
    asked = noted(monkeypatch, SessionCutter, "last_version", lambda _, __, name: name)
    monkeypatch.setattr("pltz.archive.writing.commits.COMMIT_SESSIONS", 4)
    others = [[PutRequest(f"{n}-{k}", chat(k, 2)) for k in range(apart)] for n in range(3)]
    same = [PutRequest("same", chat(*of), continues=True) for of in ((1, 2), (1, 4), (2, 4))]
    refused = list[PutRequest]()
    given = [one for pair in zip(others, same, strict=True) for one in (*pair[0], pair[1])]
    with Archive.open(tmp_path / "a", create=True, bundle="nano") as cold:
        receipts = list(cold.put_many(given, refused=lambda request, _: refused.append(request)))
        assert [one.version for one in receipts if one.name == "same"] == [1, 2]
        assert refused == same[2:] and len(receipts) == 3 * apart + 2
    assert set(asked) <= {"same"}
