"""Reading and putting many sessions: decoded side by side within a budget, in order, with the errors of one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pltz import PutRequest
from pltz.archive.archive import Archive
from pltz.archive.catalog import chain
from pltz.archive.catalog.reader import TowerReader
from pltz.archive.errors import NotFound
from pltz.archive.format.ids import Tokens
from pltz.archive.writing import commits
from pltz.coding.codecs.codec import BundleCodec
from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.transcript import to_tokens_many
from tests.watch import noted


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """Load the bundle that ships, which codes its language in fewer bytes than zstd."""
    return Bundle.load()


@pytest.fixture(scope="module")
def stream(bundle: Bundle) -> Tokens:
    return np.concatenate(to_tokens_many(list(sample_sessions())[:40], bundle.tokenizer))


def turns(stream: Tokens, number: int, count: int) -> Tokens:
    """Return the first tokens of one of eight sessions."""
    return stream[300 * number : 300 * number + count]


@pytest.fixture
def grown(tmp_path: Path, bundle: Bundle, stream: Tokens) -> Archive:
    """Return an archive, just opened, of eight sessions that grew in three puts."""
    place = tmp_path / "cold"
    cold = Archive.open(place, create=True, bundle=bundle, model_ids=True)
    for size in (40, 80, 120):
        list(cold.put_many([PutRequest(str(n), turns(stream, n, size)) for n in range(8)]))
    return Archive.open(place, bundle=bundle, model_ids=True)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of segments in each call of the decoder from now on."""
    return noted(monkeypatch, BundleCodec, "decode", lambda _, batch: len(batch))


def test_many_sessions_are_decoded_side_by_side(grown: Archive, batches: list[int], stream: Tokens) -> None:
    names = ["7", "0", "3", "3"]
    found = list(grown.get_many(names))
    assert [v.name for v in found] == names
    for name, one in zip(names, found, strict=True):
        assert np.array_equal(np.asarray(one.session.value), turns(stream, int(name), 120))
    assert batches == [3] * 3  # a call for each turn, not for each turn of each session


def test_a_group_has_tokens_of_the_budget(grown: Archive, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BATCH_TOKENS", 300)
    seen = noted(monkeypatch, TowerReader, "_begin", lambda _, group: len(group))
    assert len(list(grown.get_many([str(n) for n in range(8)]))) == 8 and seen == [2] * 4 and sum(batches) == 24
    monkeypatch.setattr(chain, "BATCH_TOKENS", 1)  # a session larger than the budget is read alone
    assert len(list(grown.get_many(["1", "2"]))) == 2 and seen[4:] == [1, 1]


def test_a_name_that_is_not_there_is_said_before_anything_is_decoded(grown: Archive, batches: list[int]) -> None:
    with pytest.raises(NotFound, match="nobody"):
        list(grown.get_many(["1", "nobody"]))
    assert batches == []


def test_what_a_stream_extends_is_decoded_side_by_side(grown: Archive, batches: list[int], stream: Tokens) -> None:
    requests = (PutRequest(str(n), turns(stream, n, 150)) for n in range(8))
    assert [r.version for r in grown.put_many(requests)] == [4] * 8
    assert batches[:3] == [8] * 3  # of the turns stored; the new ones are decoded back after that
    assert len(batches) <= 5


def test_what_was_read_before_an_error_of_the_stream_is_put(grown: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMMIT_SESSIONS", 2)

    def requests() -> Iterator[PutRequest]:
        for n in range(5):
            yield PutRequest(f"new {n}", f"text {n}")
        raise OSError("the pipe broke")

    done = []
    with pytest.raises(OSError, match="the pipe broke"):
        for receipt in grown.put_many(requests()):
            done.append(receipt.name)
    assert done == [f"new {n}" for n in range(5)]


def test_a_stream_is_read_ahead_within_a_budget(grown: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "READ_BYTES", 3000)
    monkeypatch.setattr(commits, "COMMIT_SESSIONS", 1)
    read: list[int] = []

    def requests() -> Iterator[PutRequest]:
        for n in range(9):
            read.append(n)
            yield PutRequest(f"new {n}", bytes([97 + n]) * 1000)

    receipts = grown.put_many(requests())
    assert next(receipts).name == "new 0" and read == [0, 1, 2] and len(list(receipts)) == 8
