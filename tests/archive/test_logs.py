"""Logs in an archive: they grow by their new lines, and an unchanged one is not coded."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz import PutReceipt, PutRequest
from pltz.archive.archive import Archive
from pltz.archive.errors import NotFound
from pltz.archive.retention import Policy
from pltz.archive.writing import commits, cut
from pltz.archive.writing.commits import Pace
from pltz.coding.codecs.codec import BytesCodec, Coded, Plain
from pltz.coding.codecs.logs import LOG_TOKENIZER, LogCodec, method_of
from pltz.coding.log import table
from pltz.coding.log.kept import Kept
from pltz.coding.log.log_coder import LogCoder
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.container.frame import ALONE
from pltz.plt_codec.errors import CorruptError
from tests.archive.kit import NewSession, Secret
from tests.archive.peek import peek
from tests.archive.towers import SessionArchive, inside
from tests.coding.log.sources import from_sources
from tests.files import flip


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


@pytest.mark.parametrize("count", [40, 44, 30])
def test_a_log_whose_stored_version_is_damaged_is_put_anew(place: Path, count: int) -> None:
    put(cold := SessionArchive.open(place), 40)
    [item] = peek(cold, "log")
    pack = place / "packs" / item.location.pack.hex()
    flip(pack, pack.read_bytes().index(item.record.bitstring))
    (place / "parity" / pack.name).unlink()
    cold = SessionArchive.open(place)
    assert (put(cold, count).version, cold.get("log")) == (2, Session("chat", lines(count)))


def test_a_log_grows_by_its_new_lines(place: Path, coded: list[int]) -> None:
    first = put(SessionArchive.open(place), 40)
    coded.clear()
    cold = SessionArchive.open(place)  # another process
    second = put(cold, 44)
    new = len(Session("chat", lines(44)).to_bytes()) - len(Session("chat", lines(40)).to_bytes())
    assert coded == [new, -new]  # coded and proved, and nothing else
    assert (second.version, second.segments, second.tower) == (2, 1, 2) and second.size < first.size / 4
    assert second.method in ("log + model", "log + ppmd") and second.opaque is not None and 60 <= second.opaque <= 64
    assert cold.get("log") == Session("chat", lines(44))
    assert SessionArchive.open(place).get("log", version=1) == Session("chat", lines(40))


def test_an_unchanged_log_is_not_coded(place: Path, coded: list[int]) -> None:
    put(SessionArchive.open(place), 40)
    coded.clear()
    receipt = put(SessionArchive.open(place), 40)
    assert receipt.unchanged and receipt.size == 0 and receipt.method == "log" and coded == []


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log be put in parts of few lines."""
    monkeypatch.setattr(cut, "LOG_PART", 4000)
    monkeypatch.setattr(commits, "LOG_PART", 4000)
    monkeypatch.setattr(cut, "PACKED_PART", 5000)
    monkeypatch.setattr(Pace, "limit", property(lambda _: 1))


def put_and_stop(cold: SessionArchive, count: int, coded: list[int], after: float) -> None:
    """Put a log, and stop the put once more than this share of its bytes is coded."""
    encode, whole = LogCoder.encode_begun, len(Session("chat", lines(count)).to_bytes())

    def stopped(self: LogCoder, batch: Any, *rest: Any, **options: Any) -> list[Any]:
        if batch and sum(size for size in coded if size > 0) > after * whole:
            raise KeyboardInterrupt
        return encode(self, batch, *rest, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LogCoder, "encode_begun", stopped)
        put(cold, count)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("more", "model_logs"), [(9, True), (0, False)], ids=["grown, model", "unchanged, PPMd"])
def test_a_large_log_that_is_cut_off_goes_on(place: Path, coded: list[int], more: int, model_logs: bool) -> None:
    whole = len(Session("chat", lines(60)).to_bytes())
    put_and_stop(SessionArchive.open(place, model_logs=model_logs), 60, coded, 0.5)
    kept = sum(size for size in coded if size > 0)
    cold = SessionArchive.open(place, model_logs=model_logs)
    assert whole / 2 < kept < whole
    with pytest.raises(NotFound):
        cold.get("log")
    assert not list(cold.archive.ls(forgotten=True, history=True)) and cold.archive.verify(decode=True).sound
    coded.clear()
    receipt = put(cold, 60 + more)  # goes on
    new = len(Session("chat", lines(60 + more)).to_bytes()) - kept
    assert sum(size for size in coded if size > 0) == new
    assert (receipt.version, receipt.segments) == (1, sum(size > 0 for size in coded))
    cold = SessionArchive.open(place, model_logs=model_logs)
    assert cold.get("log") == Session("chat", lines(60 + more))
    assert len(list(cold.archive.ls(forgotten=True, history=True))) == 1 and put(cold, 60 + more).unchanged
    for _ in range(2):
        cold.archive.collect(grace=0, dead_share=0.01)
    assert SessionArchive.open(place).get("log") == Session("chat", lines(60 + more))


KILLED = """
import os, signal, sys
from unittest import mock
from pltz.archive.writing import commits, cut
from pltz.archive.writing.commits import Pace
from pltz.coding.log.log_coder import LogCoder
from pltz.models.bundle import bundle
from tests.archive.test_logs import put
from tests.archive.towers import SessionArchive

bundle.DEFAULT = "nano"
commits.LOG_PART = cut.LOG_PART = 4000
encode, left = LogCoder.encode_begun, [3]

def killed(self, batch, *rest, **options):
    left[0] -= bool(batch)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(self, batch, *rest, **options)

with mock.patch.object(Pace, "limit", property(lambda _: 1)), mock.patch.object(LogCoder, "encode_begun", killed):
    put(SessionArchive.open(sys.argv[1], model_logs=True), 60)
"""


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("grace", [86400, 0])
def test_parts_of_a_put_that_was_killed_stay_for_the_grace(place: Path, coded: list[int], grace: int) -> None:
    """Collectors that ran meanwhile have condemned their packs. Without a grace they have deleted them."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(place)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    cold = SessionArchive.open(place, model_logs=True)
    assert cold.archive.stat().segments == 2 and not list(cold.archive.ls())
    for _ in range(3):
        cold.archive.collect(grace=grace, dead_share=0.01)
    assert put(SessionArchive.open(place, model_logs=True), 60).version == 1
    whole, new = len(Session("chat", lines(60)).to_bytes()), sum(size for size in coded if size > 0)
    assert new < whole - 2 * 4000 if grace else new == whole
    for _ in range(3):
        cold.archive.collect(grace=0, dead_share=0.01)
    again = SessionArchive.open(place)
    assert again.get("log") == Session("chat", lines(60)) and again.archive.verify(decode=True).sound


@pytest.mark.usefixtures("in_parts")
def test_parts_of_a_sealed_log_are_erased_with_any_session_of_its_tenant(tmp_path: Path, coded: list[int]) -> None:
    (tmp_path / "key").write_bytes(b"k" * 40)
    (tmp_path / "key").chmod(0o600)
    key = Secret.file(tmp_path / "key")
    cold = SessionArchive.open(tmp_path / "sealed", key=key, create=True, model_logs=True)
    next(iter(cold.put([request(3, "other")])))
    coded.clear()
    put_and_stop(cold, 60, coded, 0.5)
    done = cold.archive.erase("default", "other")
    assert (done.segments, done.shared) == (1 + sum(size > 0 for size in coded), 0)
    again = SessionArchive.open(tmp_path / "sealed", key=key, model_logs=True)
    assert again.archive.verify().sound and put(again, 60).version == 1


@pytest.mark.usefixtures("in_parts")
def test_the_receipt_of_a_log_put_in_parts_is_of_all_of_it(place: Path) -> None:
    told = list[tuple[int, int]]()
    cold = SessionArchive.open(place, model_logs=True)
    [receipt] = cold.put([request(60)], coding=lambda count, size: told.append((count, size)))
    assert sum(size for _, size in told) == len(Session("chat", lines(60)).to_bytes())
    assert receipt.segments == receipt.tower == len(told) > 3
    assert receipt.opaque is not None and receipt.opaque >= 60 * 15
    assert receipt.size == sum(len(item.record.bitstring) for item in peek(cold, "log"))
    [again] = SessionArchive.open(place).put([request(60, "by PPMd")])
    assert (again.segments, again.tower, again.method) == (0, receipt.tower, "log")  # whatever coded its text
    [grown] = SessionArchive.open(place).put([request(90, "by PPMd")])
    assert grown.segments and grown.tower == again.tower + grown.segments and grown.method == "log + ppmd"


def test_a_log_that_changed_within_is_stored_from_there(place: Path) -> None:
    cold = SessionArchive.open(place)
    put(cold, 40)
    put(cold, 60)
    changed = lines(60)
    changed[50] = {"changed": True}
    receipt = next(iter(cold.put([PutRequest("log", Session("chat", changed))])))
    assert (receipt.segments, receipt.tower) == (1, 2) and SessionArchive.open(place).get("log").value == changed


def test_a_log_whose_table_is_made_otherwise_grows_alone(place: Path) -> None:
    """A splitter that makes other tables under the same number is a fault, and costs bytes alone."""
    put(SessionArchive.open(place), 40)
    with pytest.MonkeyPatch.context() as patch:
        with from_sources():
            from pltz.coding.log import splitter, table as other
        patch.setattr(splitter, "SHORTEST_OPAQUE", 90)
        patch.setattr(table, "split", other.split)
        patch.setattr(table, "PASTS", Kept(1 << 22, lambda kept: kept[1]))
        put(SessionArchive.open(place), 44)
    cold = SessionArchive.open(place)
    assert cold.get("log") == Session("chat", lines(44))
    assert [item.record.mode for item in peek(cold, "log")] == [ALONE, ALONE]
    put(cold, 48)
    assert [item.record.mode for item in peek(cold, "log")][2:] == [ALONE] and cold.archive.verify(decode=True).sound


def test_a_log_has_other_ids_than_plain_bytes(place: Path) -> None:
    cold = SessionArchive.open(place)
    tokens = np.frombuffer(Session("chat", lines(40)).to_bytes(), np.uint8)
    cold.archive.put([NewSession("log", [tokens], kind="chat", codec=cold.archive.codecs[1])])
    grown = put(SessionArchive.open(place), 50)
    assert (grown.version, grown.segments, grown.tower) == (2, 1, 1)
    for version, count in ((1, 40), (2, 50)):
        assert SessionArchive.open(place).get("log", version=version) == Session("chat", lines(count))


def test_texts_are_logs_too_and_chats_are_none(place: Path) -> None:
    cold = SessionArchive.open(place)
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines(40))
    talk = [{"role": "user", "content": line["message"]["content"]} for line in lines(60)]
    chat = {"messages": talk}
    requests = [PutRequest("t", Session("text", text)), PutRequest("c", Session("chat", chat))]
    receipts = list(cold.put([*requests, PutRequest("l", Session("chat", talk))]))
    assert receipts[0].method.startswith("log") and all(receipt.method in ("model", "zstd") for receipt in receipts[1:])
    assert cold.get("t") == Session("text", text) and cold.get("l") == Session("chat", talk)


def test_maintenance_keeps_logs(place: Path) -> None:
    for count in (40, 44, 48):
        put(SessionArchive.open(place), count)
    put(SessionArchive.open(place), 48)
    with Archive.open(place) as archive:
        assert inside(archive).verify(decode=True).sound
        assert inside(archive).join() == 0  # a log stays as it is
        inside(archive).collect(small=1 << 20)
        inside(archive).collect(small=1 << 20)
        assert inside(archive).verify(decode=True).sound
    for version, count in enumerate((40, 44, 48), 1):
        assert SessionArchive.open(place).get("log", version=version) == Session("chat", lines(count))
    grown = put(SessionArchive.open(place), 56)
    assert grown.segments == 1 and SessionArchive.open(place).get("log") == Session("chat", lines(56))


def test_the_codec_checks_its_bytes() -> None:
    codec = LogCodec(Bundle.load("mini"))
    content = np.frombuffer(Session("chat", lines(12)).to_bytes(), np.uint8)
    none = content[:0]
    data = codec.encode([Plain(content, none), Plain(none, none)])
    assert method_of(data[0])[0].startswith("log") and method_of(data[1]) == ("log + ppmd", 0)
    assert codec.vouches(data[0], content) and not codec.vouches(data[0], content[1:])
    found = codec.decode([Coded(data[0], len(content), none), Coded(data[1], 0, none)])
    assert [one.dtype for one in found] == [np.uint8, np.uint8] and np.array_equal(found[0], content)
    with pytest.raises(CorruptError):
        codec.decode([Coded(data[0][:-3], len(content), none)])
    assert codec.tokenizer == LOG_TOKENIZER != BytesCodec.tokenizer


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("more", [0, 4])
def test_a_log_in_a_condemned_pack_grows_by_lines(tmp_path: Path, coded: list[int], sealed: bool, more: int) -> None:
    """After each night the log of the day before lay in a pack that `collect` had condemned, and was coded again."""
    key = Secret(b"k" * 32, 0) if sealed else None
    place = tmp_path / "cold"
    cold = SessionArchive.open(place, create=True, key=key)
    first = put(cold, 40)
    put_other = PutRequest("other", Session("chat", lines(9, seed=5)))
    list(cold.put([put_other]))
    cold.archive.collect(small=1 << 20, grace=86_400)
    cold = SessionArchive.open(place, key=key)
    assert cold.archive.stat().condemned == 2
    coded.clear()
    second = put(cold, 40 + more)
    [other] = cold.put([put_other])
    assert other.unchanged and other.version == 1
    old, new = (len(Session("chat", lines(count)).to_bytes()) for count in (40, 40 + more))
    assert [count for count in coded if count > 0] == ([new - old] if more else [])
    assert (-old in coded) == bool(more), "what is put again is proved again"
    assert second.unchanged == (not more) and second.version == 1 + bool(more)
    assert second.size <= 1.3 * first.size and cold.get("log") == Session("chat", lines(40 + more))
    cold.archive.collect(small=1 << 20, grace=0)
    cold.archive.collect(small=1 << 20, grace=0)
    again = SessionArchive.open(place, key=key)
    assert again.get("log") == Session("chat", lines(40 + more)) and again.archive.verify(decode=True).sound


def text(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@pytest.mark.parametrize("reopened", [False, True])
def test_an_older_state_of_a_log_adds_no_version_and_a_rewritten_one_does(place: Path, reopened: bool) -> None:
    events = lines(60)
    whole, rewritten = text(events), text(events[:9] + lines(40, seed=1))
    grown, cut_off = rewritten + text(lines(3, seed=2)), rewritten[: len(rewritten) // 2]
    cold = Archive.open(place)
    found = []
    states = whole, rewritten, grown, whole, rewritten, cut_off, grown[:-9], grown[:99], text(events[:20])
    for state in (*states, grown + whole):
        if reopened:
            cold.close()
            cold = Archive.open(place)
        put = cold.put("log", Session("text", state), continues=True)
        found.append((put.version, put.unchanged))
        assert cold.get("log", version=put.version).session.value.startswith(state) and put.kind == "log"
    new, old = False, True
    assert found == [(1, new), (2, new), (3, new), (1, old), (2, old), (3, old), (3, old), (3, old), (4, new), (5, new)]
    assert cold.put("log", Session("text", whole), tags={"host": "b"}).version == 6  # a user's word is kept
    cold.close()


def test_the_fuller_version_of_a_rewritten_log_outlives_a_policy(place: Path) -> None:
    events = lines(60)
    before, emptied = text(events), text([{**event, "message": {"role": "user", "content": ""}} for event in events])
    states = [before[: len(before) // 2], before, emptied, emptied + text(lines(3, 1)), emptied + text(lines(5, 1))]
    with Archive.open(place) as cold:
        for state in states:
            cold.put("log", Session("text", state))
        assert [v.version for v in cold.expire(Policy(keep_last=1), dry_run=True)] == [1, 3, 4]
        cold.expire(Policy(keep_last=2))
        assert cold.get("log", version=2).session.value == before and cold.get("log").session.value == states[-1]
