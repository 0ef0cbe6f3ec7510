"""Log coder: content bytes come back, after other bytes above too, and damage is refused."""

import json
import random
from pathlib import Path

import pytest

from pltz.coding import look
from pltz.coding.log import log_coder, table
from pltz.coding.log.above import Above
from pltz.coding.log.kept import Kept
from pltz.coding.log.log_coder import holds, parse
from pltz.coding.log.splitter import Splitter
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from tests.coding.log.frame_coder import FrameCoder
from tests.watch import noted


@pytest.fixture(scope="module")
def coder() -> FrameCoder:
    bundle = Bundle.load()
    return FrameCoder(bundle, bundle.coder)


WORDS = (Path(__file__).parents[3] / "LICENSE").read_text().split()


def log(lines: int, seed: int = 0) -> bytes:
    """Return a log of a coding agent, made up."""
    dice = random.Random(seed)
    parent = None
    rows = []
    for number in range(lines):
        uuid = "-".join(f"{dice.getrandbits(4 * n):0{n}x}" for n in (8, 4, 4, 4, 12))
        start = dice.randrange(len(WORDS))
        text = " ".join(WORDS[start : start + 20])
        message = {"role": ("user", "assistant")[number % 2], "content": f"{text}\nand {dice.random()}"}
        time = f"2026-01-02T03:{number // 60 % 60:02d}:{number % 60:02d}.123Z"
        rows.append({"parentUuid": parent, "uuid": uuid, "timestamp": time, "message": message})
        parent = uuid
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


NOISE = random.Random(1).randbytes(3000)
ODD = [b"no JSON at all, " * 30, b"\xff\xfe{}\n", b'{"a":"\\ud800"}\n']
CONTENTS = [b"", b"x", b"\n", NOISE, log(1), log(12), *ODD]


def test_a_batch_comes_back_and_equals_single_frames(coder: FrameCoder) -> None:
    batch = [(content, None) for content in CONTENTS]
    frames = coder.encode(batch)
    assert frames[4:6] == [coder.encode([one])[0] for one in batch[4:6]]
    assert coder.decode([(f, len(c), None) for f, c in zip(frames, CONTENTS, strict=True)]) == CONTENTS
    assert all(map(holds, frames, CONTENTS)) and not holds(frames[4], CONTENTS[5])


def test_methods_follow_the_content(coder: FrameCoder) -> None:
    noise, short = coder.encode([(NOISE, None), (log(12), None)])
    assert len(noise) <= len(NOISE) + 30 and parse(short).name == "log + model" and parse(short).opaque
    table = coder.encode([(log(12), None)], by_model=False)[0]
    assert parse(table).name == "log + ppmd" and len(short) < len(table)
    assert coder.decode([(table, len(log(12)), None)]) == [log(12)]


def test_opaque_bytes_that_zstd_shrinks_are_stored_so(coder: FrameCoder) -> None:
    content = b"caf\xe9 at the corner\n" * 300
    [frame] = coder.encode([(content, None)])
    parsed = parse(frame)
    assert len(frame) < 200 and parsed.unpacked == len(content) - 300
    assert coder.decode([(frame, len(content), None)]) == [content]
    assert parse(coder.encode([(NOISE, None)])[0]).unpacked is None


def parts(count: int) -> list[bytes]:
    """Return a log cut into parts of whole lines."""
    lines = log(count * 6).splitlines(keepends=True)
    return [b"".join(lines[n : n + 6]) for n in range(0, len(lines), 6)]


def grown(coder: FrameCoder, contents: list[bytes], *by_model: bool) -> list[bytes]:
    """Return the frame of each part, coded after the one above it."""
    frames, up = [], None
    for content, one in zip(contents, by_model, strict=True):
        frames += coder.encode([(content, up)], by_model=one)
        up = Above.of(content, up)
    return frames


def thawed(coder: FrameCoder, contents: list[bytes], frames: list[bytes]) -> list[bytes]:
    """Return the content of each frame, decoded after what the one above it left."""
    found, up = [], None
    for content, frame in zip(contents, frames, strict=True):
        [decoded] = coder.decode_begun([(frame, len(content), up)])
        found.append(decoded.content())
        up = decoded.part
    return found


def test_parts_after_those_above_take_fewer_bytes_and_need_them(coder: FrameCoder) -> None:
    contents = parts(4)
    frames = grown(coder, contents, *(ways := (True, False, True, True)))
    alone = [coder.encode([(content, None)], by_model=one)[0] for content, one in zip(contents, ways, strict=True)]
    assert all(len(a) < len(b) for a, b in zip(frames[1:], alone[1:], strict=True))
    assert thawed(coder, contents, frames) == contents
    other = Above.of(contents[0][:-40] + b"\n")
    for up in (None, other, Above.of(log(12, seed=9)), Above.of(contents[1])):
        with pytest.raises(FormatError):
            coder.decode([(frames[1], len(contents[1]), up)])


def test_what_a_part_leaves_does_not_hang_on_the_method_of_its_text(coder: FrameCoder) -> None:
    """A part above can be coded anew by another method, and a writer needs the content of it alone."""
    contents = parts(3)
    frames = grown(coder, contents, True, True, True)
    assert grown(coder, contents, False, False, True)[2] == frames[2]
    anew = grown(coder, contents, False, True, False)
    assert thawed(coder, contents, [anew[0], frames[1], anew[2]]) == contents


def test_nothing_is_split_to_read(coder: FrameCoder, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = parts(4)
    frames = grown(coder, contents, True, True, False, True)
    monkeypatch.setattr(table, "PASTS", Kept(1 << 22, lambda kept: kept[1]))
    monkeypatch.setattr(Splitter, "__init__", lambda *_: pytest.fail("a reader split a log"))
    assert thawed(coder, contents, frames) == contents


def test_parts_are_joined_again_where_nothing_is_kept(coder: FrameCoder, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = parts(4)
    frames = grown(coder, contents, True, True, True, True)
    monkeypatch.setattr(table, "PASTS", Kept(0, lambda kept: kept[1]))
    assert thawed(coder, contents, frames) == contents
    one = Above.of(contents[0])
    [first] = coder.decode_begun([(frames[1], len(contents[1]), one)])  # beside each other
    [second] = coder.decode_begun([(frames[2], len(contents[2]), first.part)])
    assert [second.content(), first.content(), second.content()] == [contents[2], contents[1], contents[2]]


@pytest.mark.parametrize("by_model", [True, False])
def test_every_damaged_byte_is_refused(coder: FrameCoder, by_model: bool) -> None:
    content = log(3)
    frame = coder.encode([(content, None)], by_model=by_model)[0]
    for place in range(0, len(frame), 7):
        damaged = bytearray(frame)
        damaged[place] ^= 0x55
        with pytest.raises(FormatError):
            coder.decode([(bytes(damaged), len(content), None)])
    for end in range(0, len(frame), 23):
        with pytest.raises(FormatError):
            coder.decode([(frame[:end], len(content), None)])


def test_counts_that_lie_are_refused_before_the_work(coder: FrameCoder) -> None:
    frame = coder.encode([(log(3), None)])[0]
    with pytest.raises(CorruptError, match="cannot be in a frame"):
        coder.decode([(frame, 1 << 26, None)])
    with pytest.raises(VersionError):
        parse(b"\x21" + frame[1:])
    with pytest.raises(VersionError):
        parse(b"\x80" + frame[1:])
    with pytest.raises(CorruptError, match="has no text of"):
        coder.decode([(coder.encode([(log(40), None)])[0], 2, None)])
    huge = frame[:9] + b"\x00\x00\xff\xff\x7f" + frame[12:]
    with pytest.raises(CorruptError, match="tokens cannot be in"):
        coder.decode([(huge, len(log(3)), None)])


def test_a_text_that_the_model_loses_is_not_coded_by_it(coder: FrameCoder, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, sizes = look.Samples(2, 32, 32, 64), look.expected_sizes
    monkeypatch.setattr(look, "doubtful", lambda *_: samples)
    monkeypatch.setattr(look, "expected_sizes", lambda coder, texts: [size + 1e9 for size in sizes(coder, texts)])
    dice = random.Random(2)
    noise = json.dumps({"a": [" ".join(str(dice.getrandbits(40)) for _ in range(60)) for _ in range(4)]}).encode()
    counted = noted(monkeypatch, coder.coder, "encode", lambda sequences: sum(map(len, sequences)))
    frame = coder.encode([(noise, None)])[0]
    assert parse(frame).name != "log + model" and sum(counted) == 2 * 32


def test_a_frame_tells_its_layout(coder: FrameCoder) -> None:
    """A text in the fast layout comes back beside one that is not, and says so in its head alone."""
    content, short = log(12), log(2)
    [plain], [fast] = coder.encode([(content, None)]), coder.encode([(content, None)], fast=True)
    assert not parse(plain).fast and parse(fast).fast and fast[0] == plain[0] | log_coder.FAST
    frames = coder.encode([(short, None), (content, None)])
    assert frames[1] == plain
    assert coder.decode([(frames[0], len(short), None), (fast, len(content), None)]) == [short, content]
    with pytest.raises(CorruptError):  # the layout is read from the head
        coder.decode([(plain[:1] + fast[1:], len(content), None)])


def test_a_layout_of_a_text_that_the_model_did_not_code_is_refused(coder: FrameCoder) -> None:
    [frame] = coder.encode([(log(12), None)], by_model=False)
    with pytest.raises(CorruptError, match="a layout of a text without tokens"):
        parse(bytes([frame[0] | log_coder.FAST]) + frame[1:])
