"""Receipts are exact or refused, the last run counts, and look-ups equal those of a dict."""

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.errors import FormatError, VersionError
from pltz.serving.nightly.receipt import ReceiptFile, ReceiptLedger, encode, merged

IDS = st.binary(min_size=16, max_size=16) | st.sampled_from(
    [bytes(16), bytes(15) + b"\1", b"\xff" * 16, bytes(8) + b"\xff" * 8]
)
ROWS = st.dictionaries(IDS, IDS, max_size=30)


def opened(run: int, rows: Mapping[bytes, bytes]) -> tuple[str, ReceiptFile]:
    name, data = encode(run, rows)
    return name, ReceiptFile.decode(data, name)


@given(st.lists(ROWS, min_size=1, max_size=5), st.lists(IDS, max_size=20))
def test_a_ledger_is_a_dict_that_later_runs_update(nights: list[dict[bytes, bytes]], others: list[bytes]) -> None:
    oracle: dict[bytes, bytes] = {}
    ledger = ReceiptLedger()
    for run, rows in enumerate(nights, 1):
        oracle |= rows
        ledger.add(*opened(run, rows))
    halves = [key[:8] for key in oracle]
    keys = [key for key in (*oracle, *others) if halves.count(key[:8]) < 2]
    assert ledger.last(keys) == [oracle.get(key) for key in keys] and ledger.run == len(nights)
    one = ReceiptLedger()
    name, data = merged(ledger.receipts)
    one.add(name, ReceiptFile.decode(data, name))
    assert one.last(keys) == [oracle.get(key) for key in keys] and len(one.receipts[0]) == len(oracle)


def test_keys_that_share_half_are_never_mistaken() -> None:
    rows = {bytes(8) + bytes([n] * 8): bytes([n] * 16) for n in range(1, 20)}
    ledger = ReceiptLedger()
    ledger.add(*opened(1, rows))
    for key, value in zip(rows, ledger.last(list(rows)), strict=True):
        assert value in (None, rows[key])
    assert ledger.last([bytes(8) + b"\x99" * 8]) == [None]


def test_a_newer_version_is_named() -> None:
    name, whole = encode(3, {bytes(16): bytes(16)})
    with pytest.raises(VersionError, match="newer pltz"):
        ReceiptFile.decode(whole[:4] + b"\3" + whole[5:], name)
    with pytest.raises(FormatError):
        ReceiptFile.decode(whole, "00" * 16)


def test_bytes_of_version_one() -> None:
    """What is on people's disks: a change is a new version."""
    name, data = encode(7, {bytes(range(16)): bytes(range(16, 32))})
    assert data[:-16].hex() == (
        "504c546e" "01" "000000" "0700000000000000" "0100000000000000" "0001020304050607" "08090a0b0c0d0e0f"
        "1011121314151617" "18191a1b1c1d1e1f"
    )  # fmt: skip
    assert name == data[-16:].hex() == "56d230d219c8ff9a27080371ee1d878f"
