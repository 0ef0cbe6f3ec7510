"""Neighbours of logs: a log is coded after an earlier one of its tenant that quotes the same, and reads as ever."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pltz import PutRequest
from pltz.archive.archive import Archive
from pltz.archive.catalog.chain import LAST
from pltz.archive.errors import FullError
from pltz.archive.writing import candidate_keeper, log_neighbours
from pltz.coding.log import passages
from pltz.coding.log.log_coder import LogCoder
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.identity import NONE
from tests.archive.peek import peek, records
from tests.archive.towers import inside

WORDS = ["".join(random.Random(n).choices("abcdefghilmnoprstuw", k=2 + n % 8)) for n in range(400)]


def manual(seed: int, lines: int = 80) -> str:
    dice = random.Random(seed)
    return "\n".join(" ".join(dice.choices(WORDS, k=10)) for _ in range(lines))


def log(number: int, *manuals: int, more: int = 0) -> Session:
    """Return a log with lines of its own and those of manuals, and lines that came later."""
    texts = [manual(1000 + number, 12), *map(manual, manuals)]
    texts += [manual(2000 + number + n, 4) for n in range(more)]
    lines = [{"uuid": f"{1000 * number + n:032x}", "text": text} for n, text in enumerate(texts)]
    return Session("text", b"".join(json.dumps(line).encode() + b"\n" for line in lines))


BUNDLE = cache(Bundle.load)


def opened(place: Path, **more: Any) -> Archive:
    return Archive.open(place, create=True, zstd_above=0, bundle=BUNDLE(), **more)  # zstd codes the text: fast


KEY = {"passphrase": "a phrase of many words"}


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the place of an archive and the options that open it."""
    return tmp_path / "cold", {}


def put(cold: Archive, *names: str, tenant: str = "default") -> list[int]:
    """Put logs named by their number and those of their manuals, as 3-1-2; return their sizes."""
    logs = [PutRequest(name, log(*map(int, name.split("-"))), tenant) for name in names]
    return [receipt.size for receipt in cold.put_many(logs)]


def neighbour(cold: Archive, name: str, tenant: str = "default") -> bytes:
    return peek(cold, name, tenant)[0].record.neighbour


def leaf(cold: Archive, name: str, tenant: str = "default") -> bytes:
    return inside(cold).version(name, tenant).leaf


def want(place: tuple[Path, dict[str, Any]], *names: str) -> None:
    """Check that another process reads logs, and finds the archive sound."""
    with opened(place[0], **place[1]) as cold:
        for name in names:
            assert cold.get(name).session == log(*map(int, name.split("-")))
        report = cold.verify(decode=True)
        assert report.sound and not report.undecoded, report.problems


@pytest.mark.parametrize("at_once", [True, False])
def test_a_log_is_coded_once_after_an_earlier_one_that_quotes_the_same(
    place: tuple[Path, dict[str, Any]], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded, encode = list[int](), LogCoder.encode_begun

    def counted(self: LogCoder, batch: Any, *rest: Any, **options: Any) -> list[Any]:
        coded.extend(len(content) for content, _ in batch)
        return encode(self, batch, *rest, **options)

    monkeypatch.setattr(LogCoder, "encode_begun", counted)
    cold, names = opened(place[0], **place[1]), ["1-1-2", "2-3", "3-1"]
    sizes = put(cold, *names) if at_once else [size for name in names for size in put(cold, name)]
    assert coded == [len(log(*map(int, name.split("-"))).value) for name in names]
    assert sizes[2] < sizes[1] / 2
    assert [neighbour(cold, name) for name in names] == [NONE, NONE, leaf(cold, "1-1-2")]
    want(place, *names)


def test_a_grown_log_keeps_its_neighbour_and_is_none_for_its_first_part(place: tuple[Path, dict[str, Any]]) -> None:
    cold = opened(place[0], **place[1])
    put(cold, "1-1", "2-1")
    cold.put("2-1", log(2, 1, more=9))
    again = opened(place[0], **place[1])
    receipt = again.put("2-1", log(2, 1, more=12))
    assert receipt.segments == 1 and receipt.tower == 3
    assert [item.record.neighbour for item in peek(again, "2-1")] == [leaf(again, "1-1"), NONE, NONE]
    assert opened(place[0], **place[1]).get("2-1").session == log(2, 1, more=12)
    assert opened(place[0], **place[1]).get("2-1", version=1).session == log(2, 1)
    want(place, "1-1")


def test_no_log_of_another_tenant_is_a_neighbour(place: tuple[Path, dict[str, Any]]) -> None:
    cold = opened(place[0], **place[1])
    alone = put(opened(place[0].parent / "other", **place[1]), "2-1")
    put(cold, "1-1", tenant="acme")
    assert put(cold, "2-1", tenant="other") == alone
    both = [PutRequest("3-1", log(3, 1), "acme"), PutRequest("3-1", log(3, 1), "third")]
    list(cold.put_many(both))
    assert neighbour(cold, "3-1", "acme") != NONE == neighbour(cold, "3-1", "third")


@pytest.mark.parametrize("at_once", [True, False])
def test_at_most_three_logs_in_a_row(place: tuple[Path, dict[str, Any]], at_once: bool) -> None:
    """Each log quotes the manual of the one before it and a new one."""
    cold, names = opened(place[0], **place[1]), [f"{n}-{n}-{n + 1}" for n in range(1, 8)]
    for part in [names] if at_once else [[name] for name in names]:
        put(cold, *part)
    rows = []
    for name in names:
        at, count = leaf(cold, name), 0
        while (at := records(cold, at)[0].record.neighbour) != NONE:
            count += 1
        rows.append(count)
    assert rows == [0, 1, 2, LAST, 0, 1, 2]
    want(place, *names)


def test_what_is_read_before_a_log_is_bounded(
    place: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "ALWAYS", 0)
    monkeypatch.setattr(passages, "LONGER", 2)
    cold = opened(place[0], **place[1])
    put(cold, "1-1-2-3-4", "2-1", "3-1-2", "4-2-3-4")
    found = [neighbour(cold, name) for name in ("2-1", "3-1-2", "4-2-3-4")]
    assert found == [NONE, leaf(cold, "1-1-2-3-4"), leaf(cold, "1-1-2-3-4")]


def test_a_log_of_another_process_is_read_where_time_allows(
    place: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = opened(place[0], **place[1])
    put(cold, "1-1")
    made = inside(cold).parts.writer.logs.candidates
    other = opened(place[0], **place[1])
    monkeypatch.setattr(inside(other).parts.writer.logs, "candidates", made)
    monkeypatch.setattr(log_neighbours, "SPARE", 0)
    put(other, "2-1")  # as long as what it would read: too long for it alone
    assert neighbour(other, "2-1") == NONE
    put(other, "3-1-2-3", "4-1-5-6")
    assert neighbour(other, "3-1-2-3") != NONE
    want(place, "1-1", "2-1", "3-1-2-3", "4-1-5-6")


@pytest.mark.parametrize("key", [{}, KEY], ids=["plain", "sealed"])
def test_a_process_finds_the_logs_of_those_before_it(
    tmp_path: Path, key: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_neighbours, "LEAST_LOG", 0)
    monkeypatch.setattr(candidate_keeper, "MANY", 4)
    place = tmp_path / "cold"
    for name in ("1-1-2", "2-3", "5-5", "6-6"):
        put(opened(place, **key), name)
    files = place / "index"
    assert len(list(files.glob("candidates-*"))) == 4
    cold = opened(place, **key)
    put(cold, "3-1")
    assert neighbour(cold, "3-1") == leaf(cold, "1-1-2")
    assert len(list(files.glob("candidates-*"))) == 1  # merged
    last = opened(place, **key)
    spare = inside(last).parts.writer.logs
    put(last, "4-3")
    assert neighbour(last, "4-3") == leaf(last, "2-3") and spare._spare
    put(last, "7-1", tenant="other")
    assert neighbour(last, "7-1", "other") == NONE
    for _ in range(2):
        last.cluster()
    again = opened(place, **key)
    put(again, "8-5")
    assert neighbour(again, "8-5") == leaf(again, "5-5")
    want((place, key), "3-1", "4-3", "8-5")


def test_a_sketch_that_cannot_be_written_costs_no_put(
    place: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_neighbours, "LEAST_LOG", 0)
    cold = opened(place[0], **place[1])
    store, seen = cold.parts.store, list[str]()
    write = type(store).put

    def full(self: Any, name: str, data: bytes) -> bool:
        if "candidates" in name:
            seen.append(name)
            raise FullError("no room")
        return write(self, name, data)

    monkeypatch.setattr(type(store), "put", full)
    put(cold, "1-1")
    assert seen
    want(place, "1-1")


def test_a_lost_neighbour_loses_the_logs_coded_after_it(place: tuple[Path, dict[str, Any]]) -> None:
    cold = opened(place[0], **place[1])
    put(cold, "1-1")
    [pack] = [path for path in (place[0] / "packs").iterdir()]
    put(cold, "2-1", "3-7")
    for path in (pack, place[0] / "parity" / pack.name):
        path.unlink()
    reader = opened(place[0], **place[1])
    report = reader.verify()
    assert not report.sound and {v.name for v in report.lost} == {"2-1"}
    with pytest.raises(PltzError):
        reader.get("2-1")
    assert reader.get("3-7").session == log(3, 7)


@pytest.mark.parametrize("key", [{}, KEY], ids=["plain", "sealed"])
def test_a_forgotten_neighbour_is_freed_in_the_end(tmp_path: Path, key: dict[str, Any]) -> None:
    place = tmp_path / "cold", key
    cold = opened(place[0], **place[1])
    put(cold, "1-1", "5-5")
    put(cold, "2-1")
    gone = leaf(cold, "1-1")
    cold.forget("1-1")
    inside(cold).collect(grace=0, dead_share=0.01)
    assert neighbour(cold, "2-1") == gone  # it can be undeleted
    for _ in range(4):
        inside(cold).collect(grace=0, dead_share=0.01)
    assert neighbour(cold, "2-1") == NONE and not records(cold, gone)
    want(place, "2-1", "5-5")


def test_an_erased_neighbour_is_gone_and_the_log_after_it_stays(tmp_path: Path) -> None:
    place = tmp_path / "cold", KEY
    cold = opened(place[0], **place[1])
    put(cold, "1-1")
    put(cold, "2-1")
    gone = leaf(cold, "1-1")
    assert neighbour(cold, "2-1") == gone
    cold.erase(tenant="default", name="1-1")
    assert neighbour(cold, "2-1") == NONE
    assert not inside(cold).parts.writer.logs.candidates._known
    put(cold, "3-1")
    assert neighbour(cold, "3-1") != gone
    want(place, "2-1", "3-1")
    with pytest.raises(PltzError):
        opened(place[0], **place[1]).get("1-1")


def test_a_collector_that_condemns_the_neighbour_is_noticed(
    place: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, collector = opened(place[0], **place[1]), opened(place[0], **place[1])
    put(cold, "1-1")
    put(cold, "5-5")
    publisher = inside(cold).parts.writer._publisher
    publish = publisher.put

    def late(rows: Any, new: Any = None) -> None:
        if inside(collector).catalog.listing.epoch == 0:
            collector.forget("1-1")
            inside(collector).collect(grace=0, dead_share=0.01)
        publish(rows, new)

    monkeypatch.setattr(publisher, "put", late)
    put(cold, "2-1")
    for _ in range(3):
        inside(collector).collect(grace=0, dead_share=0.01)
    want(place, "2-1", "5-5")


def test_a_put_that_fails_leaves_no_candidate(
    place: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = opened(place[0], **place[1])
    with monkeypatch.context() as patch:
        patch.setattr(inside(cold).parts.writer._publisher, "put", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
        with pytest.raises(OSError, match="no disk"):
            put(cold, "1-1")
    put(cold, "2-1")
    assert neighbour(cold, "2-1") == NONE
    want(place, "2-1")


def test_a_merged_log_with_a_neighbour_reads_as_before(place: tuple[Path, dict[str, Any]]) -> None:
    cold = opened(place[0], **place[1])
    put(cold, "1-1", "2-1")
    cold.put("2-1", log(2, 1, more=9))
    inside(cold).merge(cold=0)
    for _ in range(3):
        inside(cold).collect(grace=0, dead_share=0.01)
    assert opened(place[0], **place[1]).get("2-1").session == log(2, 1, more=9)
    assert opened(place[0], **place[1]).get("2-1", version=1).session == log(2, 1)
    want(place, "1-1")


def test_the_same_log_twice_in_a_put_is_one(place: tuple[Path, dict[str, Any]]) -> None:
    cold = opened(place[0], **place[1])
    logs = [PutRequest(name, log(1, 1)) for name in ("1-1", "other")]
    receipts = list(cold.put_many([*logs, PutRequest("2-1", log(2, 1))]))
    assert [receipt.segments for receipt in receipts] == [1, 0, 1]
    want(place, "1-1", "2-1")


@pytest.mark.parametrize("key", [{}, KEY], ids=["plain", "sealed"])
def test_another_process_knows_the_logs_that_cluster_chose(
    tmp_path: Path, key: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, decode = list[int](), LogCoder.decode_begun

    def counted(self: LogCoder, batch: Any, *rest: Any, **options: Any) -> list[Any]:
        decoded.extend(count for _, count, _ in batch)
        return decode(self, batch, *rest, **options)

    place = tmp_path / "cold", key
    put(opened(place[0], **key), "1-1", "5-5", "6-6")
    monkeypatch.setattr(LogCoder, "decode_begun", counted)
    cold = opened(place[0], **key)
    assert cold.cluster().medoids == 3 and len(decoded) == 3
    other = opened(place[0], **key)
    put(other, "2-1-2-3", "3-4", tenant="acme")
    put(other, "2-1-2-3", "3-4")
    assert neighbour(other, "2-1-2-3") == leaf(other, "1-1")
    assert neighbour(other, "2-1-2-3", "acme") == NONE
    decoded.clear()
    assert opened(place[0], **key).cluster().medoids == 7
    assert len(decoded) == 5  # four new ones, and the neighbour of one: the others are not read again
    if key:
        gone = leaf(other, "1-1")
        other.erase(tenant="default", name="1-1")
        last = opened(place[0], **key)
        put(last, "8-1-8-9")
        assert neighbour(last, "8-1-8-9") != gone
    want(place, "2-1-2-3", "3-4")


def test_cluster_reads_the_newest_logs_within_bounds(
    place: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.archive.maintenance.cluster.LOG_BYTES", len(log(1, 1).value) + 50)
    cold = opened(place[0], **place[1])
    put(cold, "1-1", "5-5", "6-6")
    assert cold.cluster().medoids == 1
    assert cold.cluster(medoids=2).medoids == 1  # the tenant has not changed
    put(cold, "7-7")
    assert cold.cluster().medoids == 2
