"""Patches carry what a text cannot, and a damaged one is refused by name or harmless (models/bundle/patch.py)."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pltz.models.bundle import patch as patch_module
from pltz.models.bundle.patch import Edit, apply_patch, diff, encode_edits
from pltz.plt_codec.errors import CorruptError
from tests.models.target_tokenizers import KINDS, PAGE, bridge, encode, plain, quick, unfolded, x

FORMAT = (Path(patch_module.__file__).resolve().parents[1] / "FORMAT.md").read_text(encoding="utf-8")


def test_format_page_s_example() -> None:
    canonical, real = [10, 20, 30], [10, 21, 22, 30]
    patch, alone = encode_edits([*diff(canonical, real)]), encode_edits([Edit(0, 0, real)])
    for stored, before in ((patch, canonical), (alone, [])):
        assert f"ytes {stored.hex(' ').upper()}." in FORMAT and apply_patch(before, stored, 31) == real


@quick
@given(st.lists(st.integers(0, 7), max_size=60), st.lists(st.integers(0, 7), max_size=60))
def test_edits_turn_any_ids_into_any_others(canonical: list[int], real: list[int]) -> None:
    edits = list(diff(canonical, real))
    assert apply_patch(canonical, encode_edits(edits), 8) == real
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


DAMAGED = {
    "no_drop": b"\0", "no_count": b"\0\0", "gap_beyond_the_ids": b"\x7f\0\0", "drop_beyond_the_ids": b"\0\x7f\0",
    "count_beyond_the_patch": b"\0\0\x02\x05", "count_of_gigabytes": bytes.fromhex("0000ffffffff0f"),
    "number_without_end": b"\xff" * 40, "id_beyond_the_vocabulary": bytes.fromhex("000001ff7f"),
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
