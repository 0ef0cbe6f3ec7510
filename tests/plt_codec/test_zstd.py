"""Fallback bytes come back exactly; damaged ones are refused before they take memory."""

import random

import pytest
import zstandard
from hypothesis import given, strategies as st

from pltz.datasets import sample_sessions
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.zstd import PIECE, Fallback, _digested, _parameters, may_reach, window_log
from tests.watch import memory_below

WORDS = b"the quick brown fox jumps over the lazy dog and thaws a session from the archive of towers".split()
DICTIONARY = b'{"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"'
EACH = [Fallback(), Fallback(DICTIONARY)]
contents = st.binary(max_size=300) | st.lists(st.sampled_from(WORDS), max_size=400).map(b" ".join)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def run(value: bytes, count: int, *, last: bool) -> bytes:
    """A Zstandard block of one byte repeated (RFC 8878, 3.1.1.2.2)."""
    return (count << 3 | 2 | last).to_bytes(3, "little") + value


@given(contents, st.sampled_from(EACH))
def test_content_comes_back_and_never_grows(content: bytes, fallback: Fallback) -> None:
    packed = fallback.compress(content)
    assert len(packed) <= len(content) and fallback.decompress(packed, len(content)) == content


@pytest.mark.parametrize("fallback", EACH)
def test_long_and_distant_repeats_are_within_reach(fallback: Fallback) -> None:
    """Check that the fast level sees what the slow one does: else zstd would not be tried where it wins."""
    for block, times in ((1000, 50), (100_000, 8), (700_000, 4)):
        content = noise(block) * times
        fast = fallback.fast_size(content)
        assert may_reach(fast, len(fallback.compress(content))) and not may_reach(fast, block // 8)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 131_071, 131_072, 131_073, 3_000_000])
@pytest.mark.parametrize("fallback", EACH)
def test_sizes_around_windows_and_blocks(size: int, fallback: Fallback) -> None:
    for content in (bytes(size), noise(size), (b" ".join(WORDS) * (size // 80 + 1))[:size]):
        assert fallback.decompress(fallback.compress(content), size) == content


def test_a_large_content_takes_the_long_window() -> None:
    content = noise(1 << 20) + bytes(17 << 20) + noise(1 << 20)
    packed = EACH[0].compress(content)
    assert len(packed) < 1.01 * (1 << 20) and EACH[0].decompress(packed, len(content)) == content


def test_a_digested_dictionary_gives_the_bytes_of_one_that_is_not(trained_dictionary: bytes) -> None:
    """Coders of one dictionary share what the library makes of it. No byte depends on that."""
    text = b" ".join(message["content"].encode() for s in sample_sessions()[:40] for message in s.value["messages"])
    fallback = Fallback(trained_dictionary)
    for log in (10, 13, 16):
        content = text[: 1 << log]
        plain = zstandard.ZstdCompressor(
            dict_data=zstandard.ZstdCompressionDict(trained_dictionary),
            compression_params=_parameters(log, len(trained_dictionary)),
        )
        assert window_log(len(content)) == log and fallback.compress(content) == plain.compress(content)[2:]
        assert _digested(trained_dictionary, log) is _digested(bytes(bytearray(trained_dictionary)), log)


def test_a_dictionary_never_costs(trained_dictionary: bytes) -> None:
    """Statistics of chats mislead on other content: then the dictionary is not used, and its reader does not mind."""
    with_it, without = Fallback(trained_dictionary), Fallback()
    gained = 0
    for content in (noise(9000).hex().encode(), bytes(9000), noise(40), b" ".join(WORDS) * 9, bytes(range(256)) * 40):
        packed = with_it.compress(content)
        assert with_it.decompress(packed, len(content)) == content and len(packed) <= len(without.compress(content))
        gained += len(packed) < len(without.compress(content))
    assert gained  # it is used where it pays


@pytest.fixture(scope="module")
def trained_dictionary() -> bytes:
    """Of the bundle that ships: with statistics of its own, not content alone."""
    from pltz.models.bundle.bundle import Bundle

    return Bundle.load("mini").zstd_dict


def test_output_does_not_depend_on_what_was_coded_before() -> None:
    used = Fallback(DICTIONARY)
    contents = [b" ".join(random.Random(i).choices(WORDS, k=60)) for i in range(20)]
    assert [used.compress(c) for c in contents] == [Fallback(DICTIONARY).compress(c) for c in contents]


@given(st.binary(max_size=60), st.integers(0, 1 << 29))
def test_any_bytes_are_the_content_of_that_size_or_refused(packed: bytes, count: int) -> None:
    try:
        assert len(EACH[1].decompress(packed, count)) == count
    except CorruptError:
        pass


def test_every_changed_byte_and_every_cut_is_refused_or_keeps_the_size() -> None:
    content = b" ".join(random.Random(1).choices(WORDS, k=60))
    packed = EACH[1].compress(content)
    changed = [packed[:i] + bytes([packed[i] ^ flip]) + packed[i + 1 :] for i in range(len(packed)) for flip in (1, 64)]
    for bad in changed:
        try:
            assert len(EACH[1].decompress(bad, len(content))) == len(content)
        except CorruptError:
            pass
    for bad in [packed[:i] for i in range(len(packed))] + [packed + b"\0"]:
        with pytest.raises(CorruptError):
            EACH[1].decompress(bad, len(content))


@pytest.mark.parametrize(("packed", "count", "says"), [
    (b"ab", 1, "at most 1"), (b"", 5, "block header"), (b"\x01", 5, "block header"),
    (b"\x07\x00\x00", 5, "block header"), (run(b"x", 4, last=False), 100, "block header"),
    (run(b"x", 100, last=True) + b"!", 100, "blocks"), (run(b"x", 99, last=True), 100, "at most 99"),
    (run(b"x", 101, last=True), 100, "found more"), (run(b"x", 1025, last=True), 1000, "block header"),
    (run(b"x", 1000, last=True), (1 << 29) - 1, "at most"),
], ids=["longer", "empty", "short", "reserved", "endless", "trailing", "small", "large", "over-block", "huge-count"])
def test_broken_blocks_are_named(packed: bytes, count: int, says: str) -> None:
    with pytest.raises(CorruptError, match=says):
        EACH[0].decompress(packed, count)


def test_a_bomb_is_stopped_at_the_declared_size() -> None:
    count = 1 << 20
    bomb = run(b"x", 1 << 17, last=False) * 2000 + run(b"x", 1 << 17, last=True)  # 250 MiB in 8 kB
    with memory_below(count + 2 * PIECE), pytest.raises(CorruptError, match="found more"):
        EACH[0].decompress(bomb, count)


def test_a_lying_count_takes_no_memory() -> None:
    garbage = b"\xfc\xff\x07" + noise((1 << 17) - 1)  # one block that claims to be compressed
    lie = garbage * 3 + run(b"x", 5, last=True)
    with memory_below(len(lie) + 2 * PIECE), pytest.raises(CorruptError):
        EACH[0].decompress(lie, 390_000 + 5)


def test_windows() -> None:
    assert [window_log(n) for n in (0, 1, 1024, 1025, 1 << 20, 1 << 27, 1 << 29)] == [10, 10, 10, 11, 20, 27, 27]
