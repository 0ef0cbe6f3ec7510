"""Bytes come in order and whole, whatever the size of the reads, and no further than the limit."""

import gzip
import io
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, strategies as st

from pltz.datasets.byte_input import CHUNK, ByteInput, TooLong
from pltz.plt_codec.errors import CorruptError, UsageError
from pltz.plt_codec.limits import MAX_BYTES

LIMIT = 1 << 20  # bytes


class Dribble(io.RawIOBase):
    """A stream that gives a few bytes per read, as a pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    def read(self, size: int = -1, /) -> bytes:
        block, self.data = self.data[: self.size], self.data[self.size :]
        return block


def source(data: bytes, limit: int = LIMIT, packed: bool = False) -> ByteInput:
    opened = ByteInput(io.BytesIO(data), "here", limit)
    if packed:
        opened.unpack()
    return opened


@given(lines=st.lists(st.binary(max_size=9)), size=st.integers(1, 9), look=st.integers(0, 20))
def test_lines_are_those_of_the_bytes(lines: list[bytes], size: int, look: int) -> None:
    data = b"\n".join(lines)
    opened = ByteInput(Dribble(data, size), "here", LIMIT)
    found: list[bytes] = []
    while True:
        at = sum(map(len, found))
        assert opened.peek(look) == data[at : at + look]
        line = opened.line()
        if line is None:
            break
        found.append(line)
    assert found == io.BytesIO(data).readlines() and opened.rest() == b"" and opened.peek(1) == b""


PACKINGS = {"zstd": (ByteInput.unpack, zstandard.ZstdCompressor(write_checksum=True).compress),
            "gzip": (ByteInput.gunzip, gzip.compress)}  # fmt: skip
EACH = pytest.mark.parametrize(("unpack", "pack"), PACKINGS.values(), ids=PACKINGS)
Unpack = Callable[[ByteInput], None]
Pack = Callable[[bytes], bytes]


@EACH
@given(parts=st.lists(st.binary(max_size=2000), min_size=1, max_size=4), size=st.integers(1, 700), pad=st.integers(0))
def test_frames_and_members_follow_each_other(
    unpack: Unpack, pack: Pack, parts: list[bytes], size: int, pad: int
) -> None:
    packed = b"".join(map(pack, parts)) + bytes(pad % 9 if pack is gzip.compress else 0)
    opened = ByteInput(Dribble(packed, size), "here", LIMIT)
    opened.peek(4)
    unpack(opened)
    assert opened.rest() == b"".join(parts)


def test_gzip_that_unpacks_to_much_comes_in_pieces_and_is_whole() -> None:
    data = bytes(3 * CHUNK) + b"end" + bytes(CHUNK - 258)
    opened = ByteInput(Dribble(gzip.compress(data), 5), "here", 1 << 30)
    opened.gunzip()
    assert opened.rest() == data
    bomb = ByteInput(io.BytesIO(gzip.compress(bytes(1 << 26))), "here", LIMIT)
    bomb.gunzip()
    with pytest.raises(UsageError, match="expected a file of at most"):
        bomb.rest()
    with pytest.raises(TooLong, match="unpack the file first"):
        source(zstandard.compress(bytes(MAX_BYTES)) * 2, MAX_BYTES, packed=True).text(long=True)


@EACH
def test_every_cut_is_damage(unpack: Unpack, pack: Pack) -> None:
    packed = pack(bytes(range(256)) * 20)
    for cut in range(len(packed)):
        opened = source(packed[:cut])
        with pytest.raises(CorruptError, match="here"):
            unpack(opened)
            opened.rest()


def test_a_line_that_is_too_long_can_be_skipped() -> None:
    opened = ByteInput(Dribble(b"a\n" + b"b" * 4000 + b"\nc\n" + b"d" * 2000, 7), "here", 1000)
    assert opened.line() == b"a\n"
    with pytest.raises(UsageError):
        opened.line()
    opened.skip()
    assert opened.line() == b"c\n"
    with pytest.raises(UsageError):
        opened.line()
    opened.skip()
    assert opened.line() is None


@pytest.mark.parametrize("data", [b"hello world", zstandard.compress(b"a") + b"junk", b""])
def test_other_bytes_are_not_zstd(data: bytes) -> None:
    with pytest.raises(CorruptError, match="zstd"):
        source(data, packed=True).rest()


def test_a_wide_window_is_read() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed = packer.compress(b"abc\n" * 100) + packer.flush()
    assert source(packed, packed=True).rest() == b"abc\n" * 100


def test_a_bomb_stops_at_the_limit() -> None:
    packed = zstandard.compress(bytes(1 << 26)) * 100  # 6.4 GiB
    with pytest.raises(UsageError, match="a line of at most 1048576 bytes"):
        source(packed, packed=True).line()
    with pytest.raises(UsageError, match="a file of at most 1048576 bytes"):
        source(packed, packed=True).rest()


def test_the_limit_is_the_last_size_that_passes() -> None:
    assert source(b"12345\n12345", limit=6).line() == b"12345\n" and source(b"12345", limit=5).rest() == b"12345"
    for read in (ByteInput.line, ByteInput.rest):
        with pytest.raises(UsageError, match="raise the limit"):
            read(source(b"123456\n", limit=5))


class Broken(io.RawIOBase):
    def read(self, size: int = -1, /) -> bytes:
        raise OSError(5, "Input/output error")


def test_a_stream_that_fails_or_gives_text_is_named() -> None:
    with pytest.raises(UsageError, match=r"tape: cannot be read: Input/output error"):
        ByteInput(Broken(), "tape", LIMIT).rest()
    with pytest.raises(UsageError, match="binary mode, found str"):
        ByteInput(io.StringIO("text"), "tape", LIMIT).rest()  # type: ignore[arg-type]  # the point of the test
