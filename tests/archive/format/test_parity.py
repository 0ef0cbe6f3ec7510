"""Parity: restored bytes equal those of a slow, independent solver, and the parser accepts any bytes."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.format import parity as module
from pltz.archive.format.pack import Builder, name_in
from pltz.archive.format.parity import END, HEAD, SHARE, TAIL, Parity, ParityLayout, product
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import digest
from tests.examples import examples

NAME = b"n" * 16


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_the_rows_are_those_of_the_specification() -> None:
    """Return row p of a column: the sum over j of data[j] / ((255 - p) xor j), by the definition."""
    data = noise(5000)
    parity = Parity.decode(Parity.of(NAME, data).encode())
    assert parity.shape == ParityLayout(512, 10, 4, 1)
    padded = data.ljust(10 * 512, b"\0")
    for p in range(parity.shape.m):
        for at in range(0, 512, 97):
            total = 0
            for j in range(parity.shape.k):
                divisor = (255 - p) ^ j
                inverse = next(b for b in range(256) if product(divisor, b) == 1)
                total ^= product(inverse, padded[512 * j + at])
            assert parity.rows[p][at] == total


@pytest.mark.parametrize("size", [4097, 5000, 60_000, 300_000])
def test_a_cut_within_the_budget_comes_back(size: int) -> None:
    data = noise(size)
    parity = Parity.decode(Parity.of(NAME, data).encode())
    cut = min(size, parity.shape.m * parity.shape.row - parity.shape.block)
    assert parity.restore([data[: size - cut]]) == (data, 0) and parity.restore([bytes(cut) + data[cut:]]) == (data, 0)


def small_pack() -> bytes:
    return Builder(0, b"s" * 8).finish()


def test_the_parity_of_a_small_pack_is_a_copy_of_it() -> None:
    pack = small_pack()
    copy = Parity.of(name_in(pack), pack).encode()
    assert copy[: len(pack)] == pack and len(copy) == len(pack) + 4 * -(-len(pack) // 32)
    parity = Parity.decode(copy)
    parity.verify()
    assert parity.pack == name_in(pack) and parity.covers(pack)
    assert parity.restore([]) == parity.restore([bytes(9), pack[:50]]) == (pack, 0)
    hurt = bytes(1) * (len(pack) - 1) + pack[-1:]
    for bit in range(8 * len(copy)):
        flipped = bytearray(copy)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            Parity.decode(bytes(flipped), name_in(pack)).verify()
    # a block is read from wherever it is whole
    flipped = bytearray(copy)
    flipped[66] ^= 1
    parity = Parity.decode(bytes(flipped), name_in(pack))
    assert parity.restore([hurt[:60] + pack[60:]]) == (pack, 0) and parity.restore([hurt])[1] > 0


@pytest.mark.parametrize(("size", "most"), [(64 << 20, 0.053), (1 << 20, 0.07)])
def test_the_share_is_one(size: int, most: float) -> None:
    shape = ParityLayout.of(size)
    blocks = (shape.k + shape.m) * shape.columns
    assert SHARE / 1000 <= (shape.m * shape.row + 8 * blocks) / size <= most
    assert shape.k + shape.m <= 256 and shape.k * shape.row >= size


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(4097, 9000), st.integers(0, 2**32), st.data())
def test_any_blocks_up_to_m_a_column(size: int, seed: int, data: st.DataObject) -> None:
    pack = noise(size, seed)
    parity = Parity.decode(Parity.of(NAME, pack).encode())
    shape, hurt = parity.shape, bytearray(pack)
    for column in range(shape.columns):
        for row in data.draw(st.sets(st.integers(0, shape.k - 1), max_size=min(shape.m, shape.k))):
            at = (row * shape.columns + column) * shape.block
            hurt[at : at + shape.block] = bytes(b ^ 0x5A for b in hurt[at : at + shape.block])
    assert parity.restore([hurt]) == (pack, 0)


def test_beyond_the_budget_nothing_is_made_up() -> None:
    pack = noise(50_000)
    parity, hurt = Parity.of(NAME, pack), bytearray(10_000) + pack[10_000:]
    restored, lost = parity.restore([hurt])
    assert lost == -(-10_000 // 512) and restored[10_240:] == pack[10_240:] and restored[:9_728] == bytes(9_728)


def test_two_halves_of_a_pack_make_one() -> None:
    pack = noise(60_000)
    first, second = pack[:30_720] + bytes(29_280), bytes(30_720) + pack[30_720:]
    assert Parity.of(NAME, pack).restore([first, second]) == (pack, 0)


def test_every_flipped_bit_of_a_parity_file_is_noticed_and_does_no_harm() -> None:
    pack = noise(4200)
    data, hurt = Parity.of(NAME, pack).encode(), b"\0" * 100 + pack[100:]
    for bit in range(0, 8 * len(data), 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        parity = Parity.decode(bytes(flipped))  # one head is always whole
        with pytest.raises(CorruptError):
            parity.verify()
        assert parity.restore([hurt]) == (pack, 0)


@settings(max_examples=examples(300))
@given(st.binary(max_size=300))
def test_the_parser_takes_anything(data: bytes) -> None:
    with pytest.raises(FormatError):
        Parity.decode(data)


@settings(max_examples=examples(300))
@given(st.binary(max_size=120), st.tuples(*[st.integers(0, 70_000)] * 4), st.integers(0, 2**64 - 1))
def test_the_parser_takes_any_head_with_a_right_digest(body: bytes, layout: tuple[int, ...], size: int) -> None:
    block, k, m, columns = layout
    total = HEAD.size + len(body) + 16
    head = HEAD.pack(b"PLTr", 1, bytes(3), total, NAME, size, block, k % 65536, m % 65536, columns) + body
    head += digest(module.PERSON, head)
    try:
        parity = Parity.decode(head + TAIL.pack(total, END))
    except FormatError:
        return
    assert parity.shape.k * parity.shape.row < size + (parity.shape.k + 1) * 2 * 65536


def test_a_newer_file_is_refused_by_name() -> None:
    data = Parity.of(NAME, noise(5000)).encode()
    size = TAIL.unpack(data[-TAIL.size :])[0]
    head = bytearray(data[: size - 16])
    head[4] += 1
    newer = bytes(head) + digest(module.PERSON, bytes(head))
    with pytest.raises(VersionError, match="newer pltz"):
        Parity.decode(newer + data[size : -size - TAIL.size] + newer + data[-TAIL.size :])
