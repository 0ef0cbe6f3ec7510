"""Logs of any length: put, grown and read a slice at a time, with no more than that in memory."""

import base64
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pltz.archive.archive import Archive
from pltz.archive.catalog import chain, reader, sources
from pltz.archive.copy import copy
from pltz.archive.errors import LostError, Outdated
from pltz.archive.format.ids import Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.pack import Damage
from pltz.archive.writing import commits, cut, segments
from pltz.archive.writing.commits import StoredPart, put_parts
from pltz.archive.writing.segments import Beginning
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.log import above, recall
from pltz.coding.log.log_coder import parse
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.container.frame import Method
from pltz.plt_codec.errors import ContentError, LimitError, UsageError
from tests.archive.maintenance.test_shrink import PROSE
from tests.archive.test_logs import lines
from tests.datasets.test_conversation import chain as talk

SLICE, REACH, AT_ONCE = 1 << 13, 1 << 14, 1 << 15


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make slices, what they are coded after, commits and what is decoded at once a hundredth of what they are."""
    for module in (above, cut, segments):
        monkeypatch.setattr(module, "REACH", REACH)
    for module in (cut, commits):
        monkeypatch.setattr(module, "LOG_PART", SLICE)
    monkeypatch.setattr(commits, "FIRST", 3 * SLICE)
    for module in (chain, reader):
        monkeypatch.setattr(module, "MAX_TOKENS", AT_ONCE)
    monkeypatch.setattr(reader, "PARTED", AT_ONCE)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_bytes(written(0, 300))
    return path


@pytest.fixture(params=["open", "sealed"])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    key = {"passphrase": "correct horse"} if request.param == "sealed" else {}
    with Archive.open(tmp_path / "cold", create=True, bundle="nano", **key) as found:  # type: ignore[arg-type]
        yield found


def written(first: int, last: int) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines(last)[first:])


def put(cold: Archive, path: Path) -> Any:
    return cold.put("log", Session("text", LongText.of(path)))


def test_a_long_log_comes_back_and_grows_by_its_new_lines(cold: Archive, log: Path, coded: list[int]) -> None:
    size = log.stat().st_size
    assert size > 2 * AT_ONCE
    first = put(cold, log)
    assert (first.tokens, first.tower) == (size, first.segments) and first.segments > 5
    assert sum([n for n in coded if n > 0]) == size
    coded.clear()
    again = put(cold, log)
    assert again.unchanged and again.tokens == size and coded == []
    with log.open("ab") as file:
        file.write(written(300, 305))
    grown = put(cold, log)
    assert (grown.version, grown.segments, grown.tower) == (2, 1, first.tower + 1)
    assert sum([n for n in coded if n > 0]) == len(written(300, 305))
    for version, content in ((1, written(0, 300)), (2, log.read_bytes())):
        value = cold.get("log", version=version).value
        assert isinstance(value, LongText) and value == content and b"".join(value.pieces()) == content
    assert cold.verify(decode=True).sound


def test_only_what_the_next_slice_is_after_is_kept(cold: Archive, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    and_then = Beginning.and_then

    def counted(self: Beginning, *more: Any) -> Beginning:
        found = and_then(self, *more)
        kept.append(sum(len(segment.tokens) for segment in found.chain))
        assert found.chain[0].up is None
        return found

    monkeypatch.setattr(Beginning, "and_then", counted)
    parts = list[StoredPart]()

    def watched(*about: Any, **options: Any) -> Any:
        left, done, size = put_parts(*about, **options)
        parts.extend(done)
        return left, done, size

    monkeypatch.setattr("pltz.archive.archive.put_parts", watched)
    put(cold, log)
    assert len(parts) > 2 and not any(part.receipt.after for part in parts)
    put(cold, log)
    assert len(kept) > 10 and max(kept) <= REACH + 2 * SLICE < log.stat().st_size


def test_a_reader_keeps_what_the_next_slice_is_after(cold: Archive, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cold, log)
    monkeypatch.setattr(chain, "BATCH_TOKENS", REACH)
    [version] = cold.directory.ls()
    chains, most = chain.Chains(cold.parts.catalog, cold.codecs.registry), 0
    for _ in chains.walk(chains.path(version.leaf)):
        most = max(most, sum([len(cast("Tokens", tokens)) for tokens in chains._answers.values()]))
    assert 0 < most <= REACH + 2 * SLICE


@pytest.mark.parametrize("size", [1, SLICE, REACH, 1 << 30])
def test_a_slice_decodes_its_segments_and_what_they_stand_on(
    cold: Archive, log: Path, coded: list[int], size: int
) -> None:
    put(cold, log)
    [version] = cold.directory.ls()
    coded.clear()
    content, found = log.read_bytes(), cold.sessions.parted(version).value
    assert len(found) == len(content) and not coded
    for _ in range(2):
        assert found[-size:] == content[-size:] and found[: SLICE // 2] == content[: SLICE // 2]
        decoded = -sum(coded)
        assert decoded == len(content) if size > len(content) else decoded < size + REACH + 3 * SLICE < len(content)
    assert found == content and b"".join(found.pieces()) == content


def test_a_put_that_is_cut_off_goes_on(cold: Archive, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in = ArchiveWriter.put
    done: list[int] = []

    def fails(self: ArchiveWriter, sessions: Any, **options: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return put_in(self, sessions, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveWriter, "put", fails)
        with pytest.raises(KeyboardInterrupt):
            put(cold, log)
    assert not list(cold.list())
    after = put(cold, log)
    assert 0 < after.segments < after.tower and cold.get("log").value == log.read_bytes()


def test_what_a_collector_takes_is_put_again(cold: Archive, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in, calls = ArchiveWriter.put, 0

    def goes(self: ArchiveWriter, sessions: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Outdated("a collector took it")
        return put_in(self, sessions, **options)

    monkeypatch.setattr(ArchiveWriter, "put", goes)
    assert put(cold, log).tower and cold.get("log").value == log.read_bytes()
    cold.collect(), cold.collect()
    monkeypatch.undo()


def test_packs_that_are_going_are_not_stood_on(cold: Archive, log: Path) -> None:
    put(cold, log)
    listing = cold.parts.catalog.listing
    cold.collect(dead_share=0.0)
    assert listing.condemned
    log.write_bytes(log.read_bytes() + written(300, 301))
    put(cold, log)
    assert cold.get("log").value == log.read_bytes()
    cold.collect(), cold.collect()
    assert cold.get("log").value == log.read_bytes() and cold.verify(decode=True).sound


def test_another_log_of_the_name_is_another_version(cold: Archive, log: Path) -> None:
    put(cold, log)
    before = log.read_bytes()
    log.write_bytes(before[:40_000] + b"x" + before[40_000:])
    receipt = put(cold, log)
    assert receipt.version == 2 and 0 < receipt.segments < receipt.tower
    assert cold.get("log").value == log.read_bytes() and cold.get("log", version=1).value == before


def pictured(count: int) -> bytes:
    """Return a log with one picture in every tenth line, and a copy of its first lines under other ids at its end."""
    picture = base64.b64encode(random.Random(5).randbytes(3000)).decode()
    found = lines(count)
    for line in found[::10]:
        line["image"] = {"data": picture}
    again = [{**line, "uuid": f"{number:032x}"} for number, line in enumerate(found[:80])]
    return b"".join(json.dumps(line).encode() + b"\n" for line in found + again)


def recalling(cold: Archive) -> int:
    """Return how many records recall something."""
    catalog = cold.parts.catalog
    items = [item for pack in catalog.listing.packs for item in catalog.listing.scan(pack)]
    logs = [i for i in items if not isinstance(i, Damage) and i.record.tokens and i.context.method == Method.LOG]
    return sum(parse(catalog.keys.bits(i.context, i.record)).own is not None for i in logs)


def test_what_comes_again_is_stored_once_at_any_distance(cold: Archive, log: Path) -> None:
    log.write_bytes(pictured(200))
    size = put(cold, log).size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "LEAST", 1 << 20)
        whole = cold.put("whole", Session("text", LongText.of(log)), tenant="other").size
    assert size < 0.6 * whole
    with log.open("ab") as file:
        file.write(pictured(300)[-20_000:])
    before = recalling(cold)
    assert put(cold, log).version == 2 and recalling(cold) > before > 3
    assert cold.get("log").value == log.read_bytes() and cold.get("log", version=1).value == pictured(200)
    assert cold.verify(decode=True).sound


def test_a_search_decodes_the_parts_that_have_the_words(
    cold: Archive, log: Path, coded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEAR", "FAR"):
        monkeypatch.setattr(f"pltz.datasets.conversation.{name}", SLICE)
    rows = talk([None, *range(2399)])
    rows[3]["message"]["content"] = rows[2377]["message"]["content"] = "zebra at last"
    rows[500] = {"type": "progress", "sessionId": "s", "text": "x" * 3 * SLICE}  # a part that says nothing
    log.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    put(cold, log)
    every = [hit.turn for hit in cold.search("turn", scan=True)]
    assert [hit.turn for hit in cold.search("turn")] == every and len(set(every)) == 2397
    coded.clear()
    hits = sorted((hit.turn, hit.line) for hit in cold.search("zebra"))
    assert hits == [(4, "zebra at last"), (2377, "zebra at last")]
    assert 0 < -sum(coded) < log.stat().st_size // 3


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_the_end_decodes_what_it_recalls_of_others(
    cold: Archive, log: Path, coded: list[int], monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(sources, "WAITING", waiting)
    content = pictured(300)
    log.write_bytes(content)
    put(cold, log)
    [version] = cold.directory.ls()
    coded.clear()
    assert cold.sessions.parted(version).value[-SLICE:] == content[-SLICE:]
    assert -sum(coded) < (0.5 if waiting else 1) * len(content)


def test_what_recalls_is_shrunk_copied_and_collected(
    cold: Archive, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = pictured(200).splitlines(keepends=True)
    rows = [json.dumps({"text": text}).encode() + b"\n" for text in PROSE]
    log.write_bytes(b"".join(row + line for row, line in zip(rows, said, strict=False)))
    put(cold, log)
    before, done = recalling(cold), cold.shrink()
    assert done.shrunk > 3 and not done.problems and recalling(cold) > before > 3
    cold.collect(grace=0, dead_share=0.0), cold.collect(grace=0)
    assert recalling(cold) == before and cold.get("log").value == log.read_bytes() and cold.verify(decode=True).sound
    for module in (chain, reader):
        monkeypatch.setattr(module, "MAX_TOKENS", 1 << 20)
    with Archive.open(tmp_path / "copy", create=True, bundle="nano") as other:
        other.put("another", "loads its codecs")
        [copied] = copy(cold.parts, cold.directory.ls(), other.parts)
        assert copied.receipt and other.get("log").value == log.read_bytes() and recalling(other) == before


def test_a_damaged_slice_is_told_by_what_recalls_it(cold: Archive, log: Path) -> None:
    log.write_bytes(pictured(200))
    put(cold, log)
    catalog = cold.parts.catalog
    [version] = cold.directory.ls()
    first = chain.Chains(catalog, cold.codecs.registry).path(version.leaf)[0].record.id
    found = catalog.lookup.find(SEGMENTS, first or b"")

    def gone(section: int, name: bytes) -> list[Any]:
        return [] if name == first else type(catalog.lookup).find(catalog.lookup, section, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog.lookup, "find", gone)
        with pytest.raises(LostError):
            cold.get("log")
    assert found and cold.get("log").value == log.read_bytes()


def test_a_log_that_becomes_shorter_is_refused(cold: Archive, log: Path) -> None:
    text = LongText.of(log)
    os.truncate(log, 5000)
    with pytest.raises(ContentError, match="became shorter while it was read"):
        cold.put("log", Session("text", text))


def test_long_texts_are_like_bytes(log: Path, tmp_path: Path) -> None:
    text, data = LongText.of(log), log.read_bytes()
    assert len(text) == len(data) and text[7:90] == data[7:90] and text[-9:] == data[-9:]
    assert text.find(b"\n", 70_000, 99_000) == data.find(b"\n", 70_000)
    assert text.find(b"\n", 1, 9) == -1 == text.find(b"\0", 0, 1 << 40)
    assert text == data and text != data[:-1] and text != data[:-1] + b"x"
    session = Session("text", text)
    assert session.to_bytes() == data and b"".join(session.pieces()) == data
    with pytest.raises(UsageError, match="cannot be read"):
        LongText.of(tmp_path / "none")
    with pytest.raises(LimitError):
        Session("text", LongText(log.open("rb"), "log", 1 << 27)).to_bytes()
