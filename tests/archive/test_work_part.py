"""Each name is in one part, whatever else there is."""

import pytest

from pltz.archive.work_part import WorkPart
from pltz.plt_codec.errors import UsageError


def test_each_name_is_in_one_part_and_parts_are_alike() -> None:
    names = [f"acme/{n}" for n in range(2000)]
    for of in (1, 2, 7):
        parts = [WorkPart(number, of) for number in range(1, of + 1)]
        counts = [sum(part.has_session("acme", name) for name in names) for part in parts]
        assert all(sum(part.has(name.encode()) for part in parts) == 1 for name in names)
        assert sum(counts) == len(names) and min(counts) > 0.7 * len(names) / of


def test_what_is_no_part_is_refused() -> None:
    assert (str(WorkPart.parse("2/4")), WorkPart.parse("1/1")) == ("2/4", WorkPart())
    for text in ("", "2", "0/4", "5/4", "-1/4", "1/4/2", "1 /4", "1/99999999", "\u0661/4"):
        with pytest.raises(UsageError, match="N/M"):
            WorkPart.parse(text)
