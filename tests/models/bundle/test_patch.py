"""Patches carry what a text cannot, and a damaged one is refused by name or harmless (models/bundle/patch.py)."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pltz.models.bundle import patch as patch_module
from pltz.models.bundle.patch import (
    Edit,
    PatchReader,
    Vocabulary,
    apply_patch,
    diff,
    encode_edits,
    encode_literal,
    gamma,
    pack_bits,
)
from pltz.plt_codec.errors import CorruptError
from tests.models.target_tokenizers import KINDS, PAGE, bridge, encode, plain, quick, unfolded, x

FORMAT = (Path(patch_module.__file__).resolve().parents[1] / "FORMAT.md").read_text(encoding="utf-8")


def test_format_page_s_example() -> None:
    pieces = {f"no {i}": i for i in range(300)}
    for i, piece in ((10, "a"), (20, "hello"), (30, "b"), (21, "hel"), (22, "lo")):
        del pieces[f"no {i}"]
        pieces[piece] = i
    vocabulary = Vocabulary(pieces)
    canonical, real = [10, 20, 30], [10, 21, 22, 30]
    edits = list(diff(canonical, real, vocabulary))
    assert edits == [Edit(1, 1, [21, 22])]
    patch = pack_bits(encode_edits(edits, canonical, vocabulary))
    literal = pack_bits(encode_literal(real, vocabulary))
    assert f"Bytes {patch.hex(' ').upper()}." in FORMAT and f"Bytes {literal.hex(' ').upper()}." in FORMAT
    for stored in (patch, bytes.fromhex("02 48")):
        assert apply_patch(canonical, stored, vocabulary) == apply_patch([], literal, vocabulary) == real


@quick
@given(st.integers(1, 1 << 32), st.integers(1, 70_000), st.data())
def test_codes_are_read_back(n: int, size: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, size - 1))
    vocabulary = Vocabulary({"top": size - 1})
    reader = PatchReader(pack_bits(gamma(n) + vocabulary.raw(i)))
    assert (reader.gamma(), reader.raw(vocabulary)) == (n, i)
    assert reader.at_end() and len(vocabulary.raw(i)) <= max(1, (size - 1).bit_length())


def test_a_vocabulary_of_one_id() -> None:
    one = Vocabulary({"a": 0})
    assert apply_patch([], pack_bits(encode_literal([0] * 9, one)), one) == [0] * 9
    with pytest.raises(CorruptError, match="ids below 1"):
        apply_patch([], bits("1 1 1"), one)


@quick
@given(st.lists(st.integers(0, 7), max_size=60), st.lists(st.integers(0, 7), max_size=60))
def test_edits_turn_any_ids_into_any_others(canonical: list[int], real: list[int]) -> None:
    vocabulary = Vocabulary({piece: i for i, piece in enumerate(["a", "b", "ab", "ba", "aa", "bb", "aba"])} | {"": 7})
    edits = list(diff(canonical, real, vocabulary))
    patch = pack_bits(encode_edits(edits, canonical, vocabulary))
    assert apply_patch(canonical, patch, vocabulary) == real
    assert all(one.start + one.drop <= two.start for one, two in pairwise(edits))


# ---- damage


@KINDS
@quick
@given(data=st.data())
def test_a_flipped_bit_is_corrupt_or_harmless(kind: str, data: st.DataObject) -> None:
    ids, _ = unfolded(kind, encode(kind, PAGE), data.draw(st.integers(0, 5)), 0.2)
    tokens, patch = bridge(kind).to_bundle(ids)
    bit = data.draw(st.integers(0, 8 * len(patch) - 1))
    damaged = (int.from_bytes(patch, "big") ^ 1 << bit).to_bytes(len(patch), "big")
    try:
        bridge(kind).from_bundle(tokens, damaged)
    except CorruptError as exc:
        assert str(exc)


def bits(text: str) -> bytes:
    return pack_bits(text.replace(" ", ""))


EDITS = "0 0000"
DAMAGED = {
    "no_edit": bits(EDITS),
    "no_head": bits("0"),
    "gap_beyond_the_ids": bits(EDITS + gamma(1000)),
    "drop_beyond_the_ids": bits(EDITS + "1 1" + gamma(1000) + "1"),
    "count_beyond_the_patch": bits(EDITS + "1 1 1" + gamma(1 << 30)),
    "number_without_end": bytes(40),
    "literal_of_many": bits("1" + gamma((1 << 32) - 1)) + bytes(9),
    "literal_of_none": bits("1"),
    "literal_beside_tokens": bits("1 1") + bytes(2),
    "piece_of_no_token": bits(EDITS + "1 0" + gamma(3) + "1" + "0" * 40),
    "bits_after_the_end": bits(EDITS + "1 1 1 1") + b"\x01",
    "long_padding": bits(EDITS + "1 1 1" + gamma(2) + "0" * 10) + bytes(3),
}


@pytest.mark.parametrize("defect", DAMAGED)
def test_damaged_patch(defect: str) -> None:
    with pytest.raises(CorruptError):
        bridge("byte-level").from_bundle(plain("Hello world"), DAMAGED[defect])


STREAMS: dict[str, list[int | str]] = {
    "a_bundle_special_in_text": [3], "an_id_beyond_the_bundle": [1024], "a_negative_id": [-1], "an_empty_slot": ["x9"],
    "a_number_without_numbers": ["x15", 40],
}


@pytest.mark.parametrize("defect", STREAMS)
def test_damaged_stream(defect: str) -> None:
    tokens = [x(int(i[1:])) if isinstance(i, str) else i for i in STREAMS[defect]]
    with pytest.raises(CorruptError):
        bridge("byte-level").from_bundle(tokens, b"")
