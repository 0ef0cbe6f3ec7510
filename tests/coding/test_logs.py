"""Logs in a .pltz file: by the log coder, after earlier logs, beside chats that do not change by it."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pltz.coding.codec import Codec
from pltz.coding.decode_limits import DecodeLimits
from pltz.coding.log.log_coder import LogCoder, parse
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader, pack
from pltz.plt_codec.container.frame import Kind
from pltz.plt_codec.errors import CorruptError, LimitError, ModelError

WORDS = ("open", "the file", "read", "error", "in line", "of a", "list", "that we", "want", "to see", "before")


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load()


def events(count: int, seed: int) -> list[dict[str, Any]]:
    """Return the events of a log that begins with a prompt, the same in each."""
    dice, same = random.Random(seed), random.Random(0)
    prompt = " ".join(same.choices(WORDS, k=900))
    found: list[dict[str, Any]] = [{"type": "system", "text": prompt}]
    for number in range(count):
        text = " ".join(dice.choices(WORDS, k=30)) + f" {dice.random()}"
        found.append({"uuid": f"{dice.getrandbits(128):032x}", "n": number, "text": text})
    return found


def as_text(value: list[dict[str, Any]]) -> Session:
    return Session("text", b"".join(json.dumps(event).encode() + b"\n" for event in value))


CHAT = Session("chat", {"messages": [{"role": "user", "content": "Where is my bicycle? " * 3}]})
LOGS = [Session("chat", events(12, 1)), Session("chat", events(12, 2)), as_text(events(9, 3))]


def test_logs_come_back_from_a_file_with_chats(codec: Codec) -> None:
    sessions = [CHAT, LOGS[0], LOGS[1], CHAT, LOGS[2]]
    data = codec.compress(sessions)
    reader = Reader(data)
    assert [frame.log for frame in reader] == [False, True, True, False, True]
    assert [reader.info(n).content for n in (1, 4)] == [Kind.CHAT, Kind.TEXT] and codec.decompress(data) == sessions
    assert [codec.decompress(data, [n])[0] for n in (4, 2, 0)] == [sessions[n] for n in (4, 2, 0)]


def test_what_logs_say_alike_is_stored_once(codec: Codec) -> None:
    data, alone = codec.compress(LOGS), codec.compress(LOGS, independent=True)
    frames = list(Reader(data))
    assert [frame.context for frame in frames][:2] == [None, 0] and frames[2].context in (0, 1)
    assert len(frames[1].data) < 0.7 * Reader(alone).info(1).size and codec.decompress(data) == LOGS


def test_logs_that_fall_back_to_bytes_are_no_contexts(codec: Codec) -> None:
    """After an earlier log, one with a long run of NUL takes fewer bytes than a log of its size may have."""
    padded = Session("text", LOGS[2].value + bytes(1 << 18) + b"\n")
    grown = Session("text", padded.value + as_text(events(99, 7)).value)  # has padded as its context
    sessions = [LOGS[2], padded, grown]
    data = codec.compress(sessions)
    reader = Reader(data)
    assert [reader.info(n).log for n in range(len(reader))] == [True, False, False]
    assert codec.decompress(data) == sessions


def test_a_wrong_frame_is_not_kept(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = LogCoder.encode_begun
    monkeypatch.setattr(LogCoder, "encode_begun", lambda *a, **k: [data[:-2] + b"zz" for data in encode(*a, **k)])
    with pytest.raises(ModelError, match="session 0 does not come back"):
        codec.compress([LOGS[0]])


def test_frames_of_another_kind_as_context_are_refused(codec: Codec) -> None:
    frames = list(Reader(codec.compress([CHAT, CHAT, *LOGS[:2]], independent=True)))
    header = Reader(codec.compress([CHAT])).header
    for wrong in ([*frames[:2], replace(frames[2], context=0)], [frames[2], replace(frames[0], context=0)]):
        data = pack(header, wrong)
        with pytest.raises(CorruptError, match="after one of another kind"):
            codec.decompress(data)


def test_limits_count_the_tokens_of_a_log(codec: Codec) -> None:
    prose = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("\n\n")
    log = Session("chat", [{"n": number, "text": text} for number, text in enumerate(prose[:40])])
    data = codec.compress([log])
    assert parse(Reader(data).frame(0).data).name == "log + model"
    with pytest.raises(LimitError, match="tokens to decode"):
        codec.decompress(data, limits=DecodeLimits(max_tokens=20))
    with pytest.raises(LimitError, match="bytes of content"):
        codec.decompress(data, limits=DecodeLimits(max_bytes=200))
    assert codec.decompress(data) == [log]


def test_json_with_escapes_that_is_kept_as_bytes_is_a_log(codec: Codec) -> None:
    dice = random.Random(7)
    said = ["".join(chr(dice.randrange(0x4E00, 0x4F00)) for _ in range(60)) for _ in range(3)]
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}).encode() + b"\n" for text in said]
    data = codec.compress([Session("text", line) for line in lines], exact=True)
    reader = Reader(data)
    assert [reader.info(n).log for n in range(3)] == [True] * 3
    assert [session.value for session in codec.decompress(data)] == lines
    english = json.dumps({"messages": [{"role": "user", "content": "Where is my bicycle? " * 30}]}).encode()
    assert not Reader(codec.compress([Session("text", english)])).info(0).log
