"""Log coder: content bytes come back, after other bytes above too, and damage is refused."""

from __future__ import annotations

import json
import random

import pytest

from pltz.coding import look
from pltz.coding.log import log_coder
from pltz.coding.log.log_coder import LogCoder, holds, parse, usable
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError


@pytest.fixture(scope="module")
def coder() -> LogCoder:
    bundle = Bundle.load()
    return LogCoder(bundle, bundle.coder())


def log(lines: int, seed: int = 0) -> bytes:
    """Return a log of a coding agent, made up."""
    dice = random.Random(seed)
    words = ("open", "the file", "read", "error", "in line", "of a", "list", "that we", "want", "to see", "before")
    parent = None
    rows = []
    for number in range(lines):
        uuid = "-".join(f"{dice.getrandbits(4 * n):0{n}x}" for n in (8, 4, 4, 4, 12))
        text = " ".join(dice.choices(words, k=20))
        message = {"role": ("user", "assistant")[number % 2], "content": f"{text}\nand {dice.random()}"}
        time = f"2026-01-02T03:{number // 60 % 60:02d}:{number % 60:02d}.123Z"
        rows.append({"parentUuid": parent, "uuid": uuid, "timestamp": time, "message": message})
        parent = uuid
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


NOISE = random.Random(1).randbytes(3000)
ODD = [b"no JSON at all, " * 30, b"\xff\xfe{}\n", b'{"a":"\\ud800"}\n']
CONTENTS = [b"", b"x", b"\n", NOISE, log(1), log(12), *ODD]


def test_a_batch_comes_back_and_equals_single_frames(coder: LogCoder) -> None:
    batch = [(content, b"") for content in CONTENTS]
    frames = coder.encode(batch)
    assert frames[4:6] == [coder.encode([one])[0] for one in batch[4:6]]
    assert coder.decode([(f, len(c), b"") for f, c in zip(frames, CONTENTS, strict=True)]) == CONTENTS
    assert all(map(holds, frames, CONTENTS))
    assert not holds(frames[4], CONTENTS[5])


def test_methods_follow_the_content(coder: LogCoder) -> None:
    noise, short = coder.encode([(NOISE, b""), (log(12), b"")])
    assert parse(noise).name == "zstd"
    assert len(noise) <= len(NOISE) + 9
    assert parse(short).name == "log + model"
    assert parse(short).opaque
    table = coder.encode([(log(12), b"")], by_model=False)[0]
    assert parse(table).name == "log + zstd"
    assert len(short) < len(table)
    assert coder.decode([(table, len(log(12)), b"")]) == [log(12)]


def test_lines_after_those_above_take_fewer_bytes_and_need_them(coder: LogCoder) -> None:
    whole = log(24)
    cut = whole.index(b"\n", len(whole) // 2) + 1
    above, new = whole[:cut], whole[cut:]
    alone, after = coder.encode([(new, b""), (new, above)])
    assert len(after) < len(alone)
    assert coder.decode([(after, len(new), above)]) == [new]
    for other in (b"", above[:-40], log(12, seed=9)):
        with pytest.raises(FormatError):
            coder.decode([(after, len(new), other)])


@pytest.mark.parametrize("by_model", [True, False])
def test_every_damaged_byte_is_refused(coder: LogCoder, by_model: bool) -> None:
    content = log(3)
    frame = coder.encode([(content, b"")], by_model=by_model)[0]
    for place in range(0, len(frame), 7):
        damaged = bytearray(frame)
        damaged[place] ^= 0x55
        with pytest.raises(FormatError):
            coder.decode([(bytes(damaged), len(content), b"")])
    for end in range(0, len(frame), 23):
        with pytest.raises(FormatError):
            coder.decode([(frame[:end], len(content), b"")])


def test_counts_that_lie_are_refused_before_the_work(coder: LogCoder) -> None:
    frame = coder.encode([(log(3), b"")])[0]
    with pytest.raises(CorruptError, match="cannot be in a frame"):
        coder.decode([(frame, 1 << 26, b"")])
    with pytest.raises(VersionError):
        parse(b"\x03" + frame[1:])
    with pytest.raises(VersionError):
        parse(b"\x12" + frame[1:])
    with pytest.raises(CorruptError, match="has no text of"):
        coder.decode([(coder.encode([(log(40), b"")])[0], 2, b"")])
    huge = frame[:9] + b"\x00\x00\xff\xff\x7f" + frame[12:]
    with pytest.raises(CorruptError, match="tokens cannot be in"):
        coder.decode([(huge, len(log(3)), b"")])


def test_a_text_that_the_model_cannot_win_is_not_coded_by_it(
    coder: LogCoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = look.Samples(2, 32, 32, 64)
    monkeypatch.setattr(look, "doubtful", lambda *_: samples)
    dice = random.Random(2)
    noise = json.dumps({"a": [" ".join(str(dice.getrandbits(40)) for _ in range(60)) for _ in range(4)]}).encode()
    counted: list[int] = []
    plain = coder.coder.encode

    def counting(sequences, **keywords):  # type: ignore[no-untyped-def]
        counted.append(sum(map(len, sequences)))
        return plain(sequences, **keywords)

    monkeypatch.setattr(coder.coder, "encode", counting)
    monkeypatch.setattr(log_coder, "LEVELS", 0.05)  # as if zstd were far better
    frame = coder.encode([(noise, b"")])[0]
    assert parse(frame).name != "log + model"
    assert sum(counted) == 2 * 32


def test_bytes_above_count_in_proportion_to_the_content() -> None:
    assert len(usable(bytes(1 << 23), 1 << 20)) == 1 << 22
    assert len(usable(bytes(1 << 23), 9000)) == 144_000


def test_a_frame_tells_its_layout(coder: LogCoder) -> None:
    """A text in the fast layout comes back beside one that is not, and says so in its head alone."""
    content, short = log(12), log(2)
    [plain], [fast] = coder.encode([(content, b"")]), coder.encode([(content, b"")], fast=True)
    assert not parse(plain).fast and parse(fast).fast and fast[0] == plain[0] | log_coder.FAST
    frames = coder.encode([(short, b""), (content, b"")])
    assert frames[1] == plain
    assert coder.decode([(frames[0], len(short), b""), (fast, len(content), b"")]) == [short, content]
    with pytest.raises(CorruptError):  # the layout is read from the head
        coder.decode([(plain[:1] + fast[1:], len(content), b"")])


def test_a_layout_of_a_text_that_the_model_did_not_code_are_refused(coder: LogCoder) -> None:
    for by_model, content in ((False, log(12)), (True, NOISE)):
        [frame] = coder.encode([(content, b"")], by_model=by_model)
        with pytest.raises(CorruptError, match="a layout of a text without tokens"):
            parse(bytes([frame[0] | log_coder.FAST]) + frame[1:])
