"""Levels: each differs from the one below, and one whose bundle is missing is refused with what brings it."""

from pathlib import Path

import pytest

from pltz.coding.level import LEVELS, level
from pltz.models.bundle import locations
from pltz.plt_codec.errors import UsageError


def test_levels_are_0_to_7_and_no_two_choose_the_same() -> None:
    assert list(LEVELS) == list(range(8)) and len(set(LEVELS.values())) == 8


def test_the_bundles_of_the_wheel_are_at_hand() -> None:
    assert [level(number).bundle for number in range(1, 7)] == ["nano"] * 3 + ["mini"] * 3


def test_a_level_without_its_bundle_says_what_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locations, "EMBEDDED", tmp_path)
    monkeypatch.setattr(locations, "GROUP", "pltz.bundles.of.the.tests")
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path))
    with pytest.raises(UsageError, match=r"level 7 needs the bundle base.*pip install pltz-base"):
        level(7)


@pytest.mark.parametrize("number", [8, -1])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(UsageError, match="from 0 to 7"):
        level(number)
