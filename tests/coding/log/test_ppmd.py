"""PPMd bytes: texts come back, after a past too; 7-zip reads them; what no writer makes is refused within bounds."""

from __future__ import annotations

import random
import shutil
import subprocess
import zlib
from pathlib import Path

import pyppmd
import pytest
from hypothesis import given, strategies as st

from pltz.coding.log import ppmd
from pltz.plt_codec.errors import CorruptError

SHIPPED = True
TEXT = (Path(__file__).parents[3] / "LICENSE").read_bytes()
SEVEN_ZIP = next(filter(None, map(shutil.which, ("7zz", "7z", "7zr", "7za"))), None)


def read(coded: bytes, count: int, past: bytes = b"") -> bytes | None:
    """Return what is decoded, which the check of a frame compares; None where it is refused."""
    try:
        found = ppmd.decode(coded, count, past)
    except CorruptError:
        return None
    assert len(found) == count
    return found


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_text_comes_back_after_its_past(text: bytes, past: bytes) -> None:
    coded = ppmd.encode(text, past)
    assert len(coded) <= len(text) + 1 and ppmd.decode(coded, len(text), past) == text


def test_a_past_saves_bytes_and_is_needed() -> None:
    text, past = TEXT[5000:8000], TEXT[4000:7000]
    coded = ppmd.encode(text, past)
    assert len(coded) < 0.6 * len(ppmd.encode(text)) and ppmd.decode(coded, len(text), past) == text
    for other in (b"", past[1:], past[:-1], past + b"!"):
        assert read(coded, len(text), other) != text


@pytest.mark.parametrize("seed", range(6))
def test_more_than_a_block_of_the_library_comes_back(seed: int) -> None:
    """One call that puts out over 32 KiB loses bytes now and then, about one in ten of noise."""
    dice = random.Random(seed)
    noise = bytes(dice.choices(range(200), k=150_000))
    coded = ppmd.encode(noise)
    assert coded[0] and ppmd.decode(coded, len(noise)) == noise


def test_a_model_that_is_full_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(3)
    noise = bytes(dice.choices(range(90), k=200_000))
    monkeypatch.setattr(ppmd, "MOST_MEMORY", ppmd.MIN_MEMORY)
    coded = ppmd.encode(noise, TEXT)
    assert coded[1] == 20 and ppmd.decode(coded, len(noise), TEXT) == noise


def test_an_encoder_keeps_no_memory_of_what_it_coded() -> None:
    """The library never gives back a buffer that it was handed."""
    ppmd.encode(TEXT)
    fed = [buffer for buffer in vars(ppmd._buffers).values()]
    ppmd.encode(TEXT)
    assert [buffer for buffer in vars(ppmd._buffers).values()] == fed and sum(map(len, fed)) == sum(ppmd.SIZES)
    assert all(one is other for one, other in zip(fed, vars(ppmd._buffers).values(), strict=True))


@pytest.mark.parametrize("past", [b"", TEXT[:2000]], ids=["alone", "after"])
def test_what_is_cut_longer_or_damaged_is_refused(past: bytes) -> None:
    text = TEXT[3000:5000]
    coded = ppmd.encode(text, past)
    wrong = [coded[:end] for end in range(len(coded))]
    wrong += [coded + more for more in (b"\0", b"\1", b"\0\0\0\0\1", b"\xff" * 50)]
    wrong += [coded[:at] + bytes([coded[at] ^ 1 << at % 8]) + coded[at + 1 :] for at in range(2, len(coded))]
    assert not [data for data in wrong if read(data, len(text), past) == text]
    assert not [end for end in range(len(coded)) if read(coded[:end], len(text), past)]
    for count in (0, 1, len(text) // 2, 1 << 30):
        assert read(coded, count, past) is None


UNMADE = [b"", b"\1\x18ab", b"\x41\x18ab", b"\x10\x13ab", b"\x10\x1dab", b"\x10\xffab", b"\x10\x18"]
UNMADE += [b"\x10\x18\xff\xff\xff\xff\1", b"\x10\x18\0\0\0\0"]


@pytest.mark.parametrize("data", UNMADE)
def test_what_no_writer_makes_is_refused_before_the_work(data: bytes) -> None:
    with pytest.raises(CorruptError):
        ppmd.decode(data, 7)


def test_garbage_is_refused_within_bounds() -> None:
    """Nothing crashes or hangs, and no decoder is left waiting: there is input enough for whatever it decodes."""
    dice = random.Random(1)
    for number in range(300):
        size = dice.choice((8, 80, 800, 8000))
        data = bytes([dice.choice((2, 3, 16, 64)), dice.choice((20, 28))]) + dice.randbytes(size)
        if number % 2:
            coded = bytearray(ppmd.encode(TEXT[size : 2 * size + 99]))
            coded[dice.randrange(2, len(coded))] ^= 1 << dice.randrange(8)
            data = bytes(coded)
        read(data, dice.choice((size, 9 * size)), TEXT[: dice.choice((0, 900))])


def test_a_byte_of_text_takes_no_more_of_the_stream_than_is_said() -> None:
    """Noise after what a model is sure of escapes through all orders at once."""
    sure = b"abcdefghijklmnopqrstuvwxyz" * 400
    data = b"".join(sure[:at] + bytes([255 - at % 200]) for at in range(64, 164))
    for order in (2, 16, 64):
        coder = pyppmd.Ppmd7Encoder(order, 1 << 24)
        stream = b"".join(coder.encode(data[at : at + 1]) for at in range(len(data))) + coder.flush()
        assert len(stream) < ppmd.STEP * len(data)


def archive_of(stream: bytes, order: int, memory: int, content: bytes) -> bytes:
    """Return a 7z archive of one file, `text`, as 7zFormat.txt says."""

    def number(value: int) -> bytes:
        return b"\xff" + value.to_bytes(8, "little")

    coder = bytes([1, 0x23, 3, 4, 1, 5, order]) + (1 << memory).to_bytes(4, "little")
    checked = b"\x0a\1" + zlib.crc32(content).to_bytes(4, "little")
    packed = b"\6" + number(0) + b"\1\x09" + number(len(stream)) + b"\0"
    unpacked = b"\7\x0b\1\0" + coder + b"\x0c" + number(len(content)) + checked + b"\0"
    name = b"\0" + "text\0".encode("utf-16-le")
    header = b"\1\4" + packed + unpacked + b"\0\5\1\x11" + number(len(name)) + name + b"\0\0"
    start = len(stream).to_bytes(8, "little") + len(header).to_bytes(8, "little")
    start += zlib.crc32(header).to_bytes(4, "little")
    return b"7z\xbc\xaf\x27\x1c\0\4" + zlib.crc32(start).to_bytes(4, "little") + start + stream + header


@pytest.mark.skipif(SEVEN_ZIP is None, reason="needs 7-zip's own program (Debian: 7zip)")
@pytest.mark.parametrize("past", [b"", TEXT[:3000]], ids=["alone", "after"])
def test_seven_zip_reads_it(tmp_path: Path, past: bytes) -> None:
    text = TEXT[2500:]
    order, memory, *stream = ppmd.encode(text, past)
    coder = pyppmd.Ppmd7Encoder(order, 1 << memory)
    begun = b"".join(coder.encode(past[at : at + 1024]) for at in range(0, len(past), 1024)) or b"\0"
    file = tmp_path / "text.7z"
    file.write_bytes(archive_of(begun + bytes(stream), order, memory, past + text))
    done = subprocess.run([str(SEVEN_ZIP), "x", "-so", file], capture_output=True, check=False)
    assert done.stdout == past + text, done.stderr.decode()
    assert done.returncode == 0
