"""Parity: restored bytes equal those of a slow, independent solver, and the parser accepts any bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.format import parity as module
from pltz.archive.format.parity import END, FLOOR, GROUP, HEAD, TAIL, GroupLayout, Parity, Range, product
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import digest
from tests.examples import examples

NAME = b"n" * 16


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_the_rows_are_those_of_the_specification() -> None:
    """Return row p of a column: the sum over j of data[j] / ((255 - p) xor j), by the definition."""
    data = noise(700)
    parity = Parity.decode(Parity.of(NAME, data).encode())
    group = parity.groups[0]
    assert group.shape == GroupLayout(64, 11, 11, 1)
    padded = data.ljust(11 * 64, b"\0")
    for p in range(group.shape.m):
        for at in range(0, 64, 7):
            total = 0
            for j in range(group.shape.k):
                divisor = (255 - p) ^ j
                inverse = next(b for b in range(256) if product(divisor, b) == 1)
                total ^= product(inverse, padded[64 * j + at])
            assert group.rows[p][at] == total


@pytest.mark.parametrize("size", [1, 63, 64, 65, 300, FLOOR, 5000, 60_000, 300_000])
def test_a_cut_within_the_budget_comes_back(size: int) -> None:
    data = noise(size)
    parity = Parity.decode(Parity.of(NAME, data).encode())
    budget = min(g.shape.m * g.shape.row for g in parity.groups)
    cut = min(size, budget - parity.groups[0].shape.block)
    assert parity.restore([data[: size - cut]]) == (data, 0)
    assert parity.restore([bytes(cut) + data[cut:]]) == (data, 0)
    if size <= FLOOR:
        assert parity.restore([]) == (data, 0)


def test_the_share_is_what_was_asked_for() -> None:
    for size, share, most in (
        (64 << 20, 50, 0.053),
        (1 << 20, 50, 0.07),
        (64 << 20, 100, 0.104),
        (1 << 20, 200, 0.23),
    ):
        shape = GroupLayout.of(size, share)
        blocks = (shape.k + shape.m) * shape.columns
        assert share / 1000 <= (shape.m * shape.row + 8 * blocks) / size <= most
        assert shape.k + shape.m <= 256 and shape.k * shape.row >= size


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 9000), st.integers(1, 1000), st.integers(0, 2**32), st.data())
def test_any_blocks_up_to_m_a_column(size: int, share: int, seed: int, data: st.DataObject) -> None:
    pack = noise(size, seed)
    parity = Parity.decode(Parity.of(NAME, pack, shares=(share, 0)).encode())
    shape = parity.groups[0].shape
    hurt = bytearray(pack)
    for column in range(shape.columns):
        rows = data.draw(st.sets(st.integers(0, shape.k - 1), max_size=min(shape.m, shape.k)))
        for row in rows:
            at = (row * shape.columns + column) * shape.block
            hurt[at : at + shape.block] = bytes(b ^ 0x5A for b in hurt[at : at + shape.block])
    assert parity.restore([hurt]) == (pack, 0)


def test_beyond_the_budget_nothing_is_made_up() -> None:
    pack = noise(50_000)
    parity = Parity.of(NAME, pack)
    hurt = bytearray(10_000) + pack[10_000:]
    restored, lost = parity.restore([hurt])
    assert (
        lost == -(-10_000 // 512) and restored[10_240:] == pack[10_240:] and restored[:9_728] == bytes(9_728)
    )


def test_damage_in_parity_costs_parity_only() -> None:
    pack = noise(40_000)
    data = bytearray(Parity.of(NAME, pack).encode())
    for at in range(2000, 2500):
        data[at] ^= 0xFF
    parity = Parity.decode(bytes(data))
    with pytest.raises(CorruptError):
        parity.verify()
    hurt = bytearray(pack)
    hurt[5] ^= 1
    assert parity.restore([hurt]) == (pack, 0)


def test_shared_ranges_survive_the_whole_pack() -> None:
    pack = noise(50_000)
    parity = Parity.decode(
        Parity.of(NAME, pack, [Range(100, 200), Range(300, 50), Range(40_000, 900)]).encode()
    )
    assert list(parity.groups[1].ranges) == [Range(100, 250), Range(40_000, 900)]
    restored, lost = parity.restore([])
    assert lost and restored[100:350] == pack[100:350] and restored[40_000:40_900] == pack[40_000:40_900]


def test_groups_help_each_other() -> None:
    """Restore group 0 with the help of the second group, which restores enough blocks."""
    pack = noise(60_000)
    parity = Parity.of(NAME, pack, [Range(0, 4096)])
    shape = parity.groups[0].shape
    hurt = bytes(512 * 8) + pack[512 * 8 : -512 * shape.m // 2] if shape.m < 8 else b""
    hurt = bytes(512 * 8) + pack[512 * 8 :]
    hurt = hurt[:30_000] + bytes(512) + hurt[30_512:]
    assert Parity.of(NAME, pack).restore([hurt])[1] > 0
    assert parity.restore([hurt]) == (pack, 0)


def test_two_halves_of_a_pack_make_one() -> None:
    pack = noise(60_000)
    first, second = pack[:30_720] + bytes(29_280), bytes(30_720) + pack[30_720:]
    assert Parity.of(NAME, pack).restore([first, second]) == (pack, 0)


def test_every_flipped_bit_of_a_parity_file_is_noticed_and_does_no_harm() -> None:
    pack = noise(200)
    data = Parity.of(NAME, pack).encode()
    hurt = b"\0" * 100 + pack[100:]
    for bit in range(8 * len(data)):
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
@given(st.binary(max_size=120), st.integers(0, 5), st.integers(0, 2**64 - 1))
def test_the_parser_takes_any_head_with_a_right_digest(body: bytes, count: int, size: int) -> None:
    total = HEAD.size + len(body) + 16
    head = HEAD.pack(b"PLTr", 1, bytes(3), total, NAME, size, count) + body
    head += digest(module.PERSON, head)
    try:
        parity = Parity.decode(head + TAIL.pack(total, END))
    except FormatError:
        return
    assert all(g.shape.k * g.shape.row < size + (g.shape.k + 1) * 2 * 65536 for g in parity.groups)


def test_a_crafted_head_claims_no_memory() -> None:
    group = GROUP.pack(1, 65536, 200, 50, 1) + module.RANGE.pack(0, 1 << 30) + np.zeros(250, "<u4").tobytes()
    total = HEAD.size + len(group) + 16
    head = HEAD.pack(b"PLTr", 1, bytes(3), total, NAME, 1 << 30, 1) + group
    with pytest.raises(CorruptError, match="do not hold"):
        Parity.decode(head + digest(module.PERSON, head) + TAIL.pack(total, END))


def test_a_newer_file_is_refused_by_name() -> None:
    data = Parity.of(NAME, b"x").encode()
    size = TAIL.unpack(data[-TAIL.size :])[0]
    head = bytearray(data[: size - 16])
    head[4] = 2
    newer = bytes(head) + digest(module.PERSON, bytes(head))
    with pytest.raises(VersionError, match="newer pltz"):
        Parity.decode(newer + data[size : -size - TAIL.size] + newer + data[-TAIL.size :])
