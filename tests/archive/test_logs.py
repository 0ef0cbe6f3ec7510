"""Logs in an archive: they grow by their new lines, and an unchanged one is not coded."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz import PutReceipt, PutRequest
from pltz.archive.archive import Archive
from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import ArchiveError, NotFound
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.writing import log_parts
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BytesCodec, Coded, Plain
from pltz.coding.codecs.logs import LogCodec, method_of
from pltz.coding.log.log_coder import LogCoder
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.errors import CorruptError, PltzError
from tests.archive.peek import peek
from tests.archive.towers import SessionArchive, cut, inside


def lines(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return the events of a log."""
    dice = random.Random(seed)
    words = ("open", "the file", "read", "error", "in line", "of a", "list", "that we", "want", "to see", "before")
    found = []
    for number in range(count):
        text = " ".join(dice.choices(words, k=30)) + f" {dice.random()}"
        event = {"uuid": f"{dice.getrandbits(128):032x}", "n": number, "message": {"role": "user", "content": text}}
        found.append(event)
    return found


def request(count: int, name: str = "log") -> PutRequest:
    return PutRequest(name, Session("chat", lines(count)))


def put(cold: SessionArchive, count: int, **options: Any) -> PutReceipt:
    return next(iter(cold.put([request(count)], **options)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    SessionArchive.open(tmp_path / "cold", create=True)
    return tmp_path / "cold"


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the bytes of the contents that the log coder encodes (above 0) and decodes (below 0)."""
    found: list[int] = []
    encode, decode = LogCoder.encode, LogCoder.decode

    def encoding(self: LogCoder, batch: Any, **options: Any) -> list[bytes]:
        found.extend(len(content) for content, _ in batch)
        return encode(self, batch, **options)

    def decoding(self: LogCoder, batch: Any, **options: Any) -> list[bytes]:
        found.extend(-count for _, count, _ in batch)
        return decode(self, batch, **options)

    monkeypatch.setattr(LogCoder, "encode", encoding)
    monkeypatch.setattr(LogCoder, "decode", decoding)
    return found


def test_a_log_grows_by_its_new_lines(place: Path, coded: list[int]) -> None:
    first = put(SessionArchive.open(place), 40)
    coded.clear()
    cold = SessionArchive.open(place)  # another process
    second = put(cold, 44)
    new = len(Session("chat", lines(44)).to_bytes()) - len(Session("chat", lines(40)).to_bytes())
    assert coded == [new, -new]  # coded and proved, and nothing else
    assert (second.version, second.segments, second.tower) == (2, 1, 2)
    assert second.size < first.size / 4
    assert second.method in ("log + model", "log + zstd")
    assert second.opaque is not None and 60 <= second.opaque <= 64
    assert cold.get("log") == Session("chat", lines(44))
    assert SessionArchive.open(place).get("log", version=1) == Session("chat", lines(40))


def test_an_unchanged_log_is_not_coded(place: Path, coded: list[int]) -> None:
    put(SessionArchive.open(place), 40)
    coded.clear()
    receipt = put(SessionArchive.open(place), 40)
    assert receipt.unchanged and receipt.size == 0 and receipt.method == "log"
    assert coded == []


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log be put in parts of few lines."""
    monkeypatch.setattr(log_parts, "LOG_PART", 2000)
    monkeypatch.setattr(log_parts, "LEAST_PART", 1000)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("more", [0, 9], ids=["unchanged", "grown"])
def test_a_large_log_that_is_cut_off_goes_on_and_is_never_half(
    place: Path, coded: list[int], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    whole = len(Session("chat", lines(60)).to_bytes())
    with monkeypatch.context() as patch:
        encode = LogCoder.encode

        def stopped(self: LogCoder, batch: Any, **options: Any) -> list[bytes]:
            if batch and sum(size for size in coded if size > 0) > whole / 2:
                raise KeyboardInterrupt
            return encode(self, batch, **options)

        patch.setattr(LogCoder, "encode", stopped)
        with pytest.raises(KeyboardInterrupt):
            put(SessionArchive.open(place, zstd_above=None), 60)
    kept = sum(size for size in coded if size > 0)
    cold = SessionArchive.open(place, zstd_above=None)
    assert whole / 2 < kept < whole
    with pytest.raises(NotFound):
        cold.get("log")
    assert not list(cold.archive.ls()) and cold.archive.verify().sound
    coded.clear()
    receipt = put(cold, 60 + more)  # goes on
    new = len(Session("chat", lines(60 + more)).to_bytes()) - kept
    assert sum(size for size in coded if size > 0) == new
    assert (receipt.version, receipt.segments) == (1, sum(size > 0 for size in coded))
    assert SessionArchive.open(place).get("log") == Session("chat", lines(60 + more))
    assert put(SessionArchive.open(place, zstd_above=None), 60 + more).unchanged


@pytest.mark.usefixtures("in_parts")
def test_the_receipt_of_a_log_put_in_parts_is_of_all_of_it(place: Path) -> None:
    told = list[tuple[int, int]]()
    cold = SessionArchive.open(place, zstd_above=None)
    [receipt] = cold.put([request(60)], coding=lambda count, size: told.append((count, size)))
    assert sum(size for _, size in told) == len(Session("chat", lines(60)).to_bytes())
    assert receipt.segments == receipt.tower == len(told) > 3
    assert receipt.opaque is not None and receipt.opaque >= 60 * 15
    assert receipt.size == sum(len(item.record.bitstring) for item in peek(cold, "log"))
    assert next(iter(SessionArchive.open(place, zstd_above=1000).put([request(60, "by zstd")]))).tower == 1


@pytest.mark.usefixtures("in_parts")
def test_parts_that_nobody_goes_on_with_are_collected(place: Path) -> None:
    cold = SessionArchive.open(place, zstd_above=None)
    new = cut(cold, request(60))
    cold.archive.put([replace(new, segments=new.segments[:2], unfinished=True)])
    assert cold.archive.stat().segments == 2
    for _ in range(3):
        cold.archive.collect(grace=0, dead_share=0.01)
    assert cold.archive.stat().segments == 0 and cold.archive.verify().sound


def test_a_log_that_changed_within_is_stored_from_there(place: Path) -> None:
    cold = SessionArchive.open(place)
    put(cold, 40)
    put(cold, 60)
    changed = lines(60)
    changed[50] = {"changed": True}
    receipt = next(iter(cold.put([PutRequest("log", Session("chat", changed))])))
    assert (receipt.segments, receipt.tower) == (1, 2)
    assert SessionArchive.open(place).get("log").value == changed


def test_segments_of_plain_bytes_and_of_the_log_coder_have_one_id(place: Path) -> None:
    """A log that zstd coded before keeps its segments."""
    cold = SessionArchive.open(place)
    content = Session("chat", lines(40)).to_bytes()
    tokens = np.frombuffer(content, np.uint8)
    cold.archive.put([NewSession("log", [tokens], kind="chat", codec=cold.archive.codecs[1])])
    assert put(SessionArchive.open(place), 40).unchanged
    grown = put(SessionArchive.open(place), 50)
    assert (grown.segments, grown.tower) == (1, 2)
    assert SessionArchive.open(place).get("log") == Session("chat", lines(50))


def test_texts_are_logs_too_and_chats_are_none(place: Path) -> None:
    cold = SessionArchive.open(place)
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines(40))
    talk = [{"role": "user", "content": line["message"]["content"]} for line in lines(60)]
    chat = {"messages": talk}
    requests = [PutRequest("t", Session("text", text)), PutRequest("c", Session("chat", chat))]
    receipts = list(cold.put([*requests, PutRequest("l", Session("chat", talk))]))
    assert receipts[0].method.startswith("log")
    assert all(receipt.method in ("model", "zstd") for receipt in receipts[1:])
    assert cold.get("t") == Session("text", text)
    assert cold.get("l") == Session("chat", talk)


def test_maintenance_keeps_logs(place: Path) -> None:
    for count in (40, 44, 48):
        put(SessionArchive.open(place), count)
    put(SessionArchive.open(place), 48)
    with Archive.open(place) as archive:
        archive.parts.use_neighbours()
        assert inside(archive).verify(decode=True).sound
        inside(archive).cluster()
        merged = inside(archive).merge(cold=0)
        assert merged.sessions == 1
        inside(archive).collect(small=1 << 20)
        inside(archive).collect(small=1 << 20)
        assert inside(archive).verify(decode=True).sound
    for version, count in enumerate((40, 44, 48), 1):
        assert SessionArchive.open(place).get("log", version=version) == Session("chat", lines(count))
    grown = put(SessionArchive.open(place), 56)
    assert grown.segments == 1
    assert SessionArchive.open(place).get("log") == Session("chat", lines(56))


def test_a_damaged_pack_is_told_and_repaired(place: Path) -> None:
    put(SessionArchive.open(place), 40)
    pack = next((place / "packs").rglob("*.pack"), None) or max((place / "packs").rglob("*"), key=lambda p: p.is_file())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.chmod(0o600)
    pack.write_bytes(data)
    with pytest.raises((PltzError, ArchiveError)):
        SessionArchive.open(place).get("log")
    archive = SessionArchive.open(place).archive
    Repairer(archive.store).run()
    assert SessionArchive.open(place).get("log") == Session("chat", lines(40))


def test_a_sealed_log_grows_and_can_be_erased(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 40)

    def opened() -> SessionArchive:
        return SessionArchive.open(tmp_path / "sealed", key=Secret.file(key), create=True)

    put(opened(), 40)
    grown = put(opened(), 44)
    assert (grown.segments, grown.tower) == (1, 2)
    assert put(opened(), 44).unchanged
    cold = opened()
    assert cold.get("log") == Session("chat", lines(44))
    assert cold.archive.erase("default", "log").segments == 2
    with pytest.raises(PltzError):
        opened().get("log")


def test_the_codec_checks_its_bytes_and_reads_other_bundles() -> None:
    codec = LogCodec(Bundle.load("mini"))
    content = np.frombuffer(Session("chat", lines(12)).to_bytes(), np.uint8)
    none = content[:0]
    data = codec.encode([Plain(content, none), Plain(none, none)])
    assert method_of(data[0])[0].startswith("log")
    assert method_of(data[1]) == ("zstd", 0)
    assert codec.vouches(data[0], content) and not codec.vouches(data[0], content[1:])
    found = codec.decode([Coded(data[0], len(content), none), Coded(data[1], 0, none)])
    assert [one.dtype for one in found] == [np.uint8, np.uint8]
    assert np.array_equal(found[0], content)
    with pytest.raises(CorruptError):
        codec.decode([Coded(data[0][:-3], len(content), none)])
    assert codec.tokenizer == BytesCodec.tokenizer
    other = codec.with_bundle(Bundle.load("base").id)
    assert other is not None and other.bundle_id == Bundle.load("base").id
    assert codec.with_bundle(b"no bundle here.!") is None
