"""Parts of the measurement of a split are kept, and belong to one case."""

from pathlib import Path
from typing import Any

import pytest

from pltz.benchmarks.sizes.measure_split import _Kept
from pltz.plt_codec.errors import UsageError

CASE: dict[str, Any] = {"bundle": "05", "data": "c", "limit_bytes": 9, "sessions": 2, "layout": "default", "machine": 1}


def never() -> int:
    raise AssertionError("measured again")


def test_a_part_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    _Kept(path, CASE).measure("file, independent True", lambda: 7)
    again = _Kept(path, CASE | {"machine": 2})
    again.measure("file, independent True", never)
    again.measure("zstd_dictionary", lambda: 8)
    assert _Kept(path, CASE).result() == CASE | {"zstd_dictionary": 8, "file": [7]}


@pytest.mark.parametrize("other", [{"bundle": "06"}, {"limit_bytes": 10}, {"layout": "fast"}])
def test_parts_of_another_case_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "split.json"
    _Kept(path, CASE).measure("file", lambda: 7)
    with pytest.raises(UsageError, match="another case"):
        _Kept(path, CASE | other)
