"""PPMd bytes: texts come back, after a past too; 7-zip has the same; what no writer makes is refused within bounds."""

import hashlib
import mmap
import random
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyppmd
import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec import _ppmd, ppmd
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint
from tests.second_reader import ppmd as second

SHIPPED = True
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "LICENSE").read_bytes()
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
    assert len(coded) <= len(text) and ppmd.decode(coded, len(text), past) == text


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=9), st.binary(max_size=300) | st.integers(0, 9000).map(lambda at: TEXT[at:][:2000])
        )
    )
)
def test_many_are_coded_as_each_alone(rows: list[tuple[bytes, bytes]]) -> None:
    coded = ppmd.encode_many(rows)
    assert coded == [ppmd.encode(text, past) for past, text in rows]
    told = [(past, data, len(text)) for (past, text), data in zip(rows, coded, strict=True)]
    assert ppmd.decode_many(told) == [text for _, text in rows]
    wrong = [(past, data[:-1] + bytes([data[-1] ^ 1 if data else 0]), count) for past, data, count in told]
    for row in wrong:
        read(row[1], row[2], row[0])
    with suppress(CorruptError):
        ppmd.decode_many(wrong)
    assert ppmd.decode_many(told) == [text for _, text in rows]


def test_a_past_saves_bytes_and_is_needed() -> None:
    text, past = TEXT[5000:8000], TEXT[4000:7000]
    coded = ppmd.encode(text, past)
    assert len(coded) < 0.6 * len(ppmd.encode(text)) and ppmd.decode(coded, len(text), past) == text
    for other in (b"", past[1:], past[:-1], past + b"!"):
        assert read(coded, len(text), other) != text


@pytest.mark.parametrize("order", [2, 3, 6, 16, 64])
def test_streams_are_those_of_the_library_without_its_first_byte_and_its_end(order: int) -> None:
    """`pyppmd` has the sources of 7-zip; it loses bytes of what is not handed to it in pieces."""
    memory, dice = mmap.mmap(-1, ppmd.MEMORY), random.Random(order)
    model = _ppmd.trained(memory, order, b"")
    noise = bytes(dice.choices(range(200), k=60_000))
    few = bytes(dice.choices(range(3), k=30_000))
    for text in (TEXT, TEXT[::-1] + TEXT, noise + noise[:9000], few, b"a" * 9000, b"!"):
        coder = pyppmd.Ppmd7Encoder(order, 1 << 27)
        known = b"".join(coder.encode(text[at : at + 1024]) for at in range(0, len(text), 1024)) + coder.flush()
        [stream] = _ppmd.encode(memory, model, [(b"", text)])
        assert stream is None or (stream[:-1] == known[1 : len(stream)] and len(stream) >= len(known) - 5)
        assert stream is None or _ppmd.decode(memory, model, [(b"", stream, len(text))]) == [text]
        assert stream or len(text) < 2


def test_a_long_text_is_slices_each_after_what_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ppmd.primer() == second.of_logs()
    for module in (ppmd, second):
        monkeypatch.setattr(module, "SLICE", 3000)
        monkeypatch.setattr(module, "PAST", 2000)
    noise = random.Random(3).randbytes(3000)
    text = TEXT[:6000] + noise + TEXT
    coded = ppmd.encode(text, TEXT[:99])
    assert ppmd.decode(coded, len(text), TEXT[:99]) == second.by_ppmd(coded, len(text), TEXT[:99]) == text
    size, at = read_varint(coded, 0)
    assert coded[at : at + size] == ppmd.encode(text[:3000], TEXT[:99])
    size, at = read_varint(coded, at + size)
    assert coded[at : at + size] == ppmd.encode(text[3000:6000], text[1000:3000])
    assert noise in coded and len(coded) < 3000 + len(text) // 2
    for wrong in (coded[:-1], coded + b"\0", coded[:at], b""):
        assert read(wrong, len(text), TEXT[:99]) is None
    rows = [(b"", noise), (TEXT[:99], text), (b"", b""), (noise, TEXT[:70])]
    many = ppmd.encode_many(rows)
    assert many == [ppmd.encode(text, past) for past, text in rows] and many[1] == coded
    told = [(past, one, len(text)) for one, (past, text) in zip(many, rows, strict=True)]
    assert ppmd.decode_many(told) == [text for _, text in rows]


def test_a_model_that_outgrows_its_memory_is_none() -> None:
    memory = mmap.mmap(-1, 1 << 18)
    model = _ppmd.trained(memory, ppmd.ORDER, b"")
    noise = random.Random(3).randbytes(20_000)
    assert _ppmd.encode(memory, model, [(b"", noise), (noise, b"!")]) == [None, None]
    with pytest.raises(ValueError, match="memory"):
        _ppmd.decode(memory, model, [(noise, b"", 1)])
    for order, size in ((1, 1 << 18), (65, 1 << 18), (16, 1 << 15)):
        with pytest.raises(ValueError, match=r"model has|model can have"):
            _ppmd.trained(mmap.mmap(-1, size), order, b"")


def test_the_primer_is_the_one_of_the_format() -> None:
    said = (ROOT / "plt_codec/FORMAT.md").read_text("utf8")
    assert f"{len(ppmd.primer()):,} bytes in `plt_codec/primer.ppmd`" in said
    assert hashlib.sha256(ppmd.primer()).hexdigest() in said


def test_threads_have_memory_of_their_own() -> None:
    texts = [TEXT[at : at + 3000] for at in range(0, 8000, 500)]
    with ThreadPoolExecutor(4) as pool:
        coded = list(pool.map(ppmd.encode, texts * 4))
        assert list(pool.map(ppmd.decode, coded, [3000] * len(coded))) == texts * 4
    assert coded == [ppmd.encode(text) for text in texts * 4]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_lost_of_memory() -> None:
    """Encode 1,000 texts and decode 10,000 damaged ones: no memory stays taken."""

    def size() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    dice = random.Random(2)

    def work(times: int) -> None:
        for number in range(times):
            coded = bytearray(ppmd.encode(TEXT[number % 5000 :][:2000]))
            for _ in range(10):
                coded[dice.randrange(len(coded))] ^= 1 << dice.randrange(8)
                read(bytes(coded), 2000, TEXT[:500])

    work(100)
    before = size()
    work(1000)
    assert size() - before < 1 << 20


@pytest.mark.parametrize("past", [b"", TEXT[:2000]], ids=["alone", "after"])
def test_what_is_cut_longer_or_damaged_is_refused(past: bytes) -> None:
    text = TEXT[3000:5000]
    coded = ppmd.encode(text, past)
    wrong = [coded[:end] for end in range(len(coded))]
    wrong += [coded + more for more in (b"\0", b"\1", b"\0\0\0\0\1", b"\xff" * 50)]
    wrong += [coded[:at] + bytes([coded[at] ^ 1 << at % 8]) + coded[at + 1 :] for at in range(len(coded))]
    assert not [data for data in wrong if read(data, len(text), past) == text]
    assert sum(read(coded[:end], len(text), past) is not None for end in range(len(coded) - 4)) < len(coded) // 50
    for count in (0, 1, len(text) // 2, 1 << 30):
        assert read(coded, count, past) is None


UNMADE = [b"\xff", b"\xff\xff\xff\xff\1", b"\0\0\0\0\0\0", b"longer than 7"]


@pytest.mark.parametrize("data", UNMADE)
def test_what_no_writer_makes_is_refused_before_the_work(data: bytes) -> None:
    with pytest.raises(CorruptError):
        ppmd.decode(data, 7)


def test_garbage_is_refused_within_bounds() -> None:
    dice = random.Random(1)
    for number in range(300):
        size = dice.choice((8, 80, 800, 8000))
        data = dice.randbytes(size)
        if number % 2:
            coded = bytearray(ppmd.encode(TEXT[size : 2 * size + 99]))
            coded[dice.randrange(len(coded))] ^= 1 << dice.randrange(8)
            data = bytes(coded)
        read(data, dice.choice((size, 9 * size)), TEXT[: dice.choice((0, 900))])


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
def test_seven_zip_reads_it(tmp_path: Path) -> None:
    stream = b"\0" + ppmd.encode(TEXT, primer=ppmd.NO_PRIMER) + bytes(ppmd.SPARE)
    file = tmp_path / "text.7z"
    file.write_bytes(archive_of(stream, ppmd.ORDER, 27, TEXT))
    done = subprocess.run([str(SEVEN_ZIP), "x", "-so", file], capture_output=True, check=False)
    assert done.stdout == TEXT, done.stderr.decode()
    assert done.returncode == 0
