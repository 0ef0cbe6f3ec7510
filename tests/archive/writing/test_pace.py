"""The size of commits: by bytes, and by the time that the last ones took."""

import time

from pltz.archive.writing.commits import FIRST, Pace


def test_the_first_commit_is_small_and_later_ones_follow_the_slowest() -> None:
    pace = Pace(4 << 20, 30.0)
    assert pace.limit == FIRST
    pace.took(FIRST, 10.0)
    assert pace.limit == int(0.7 * 30 * FIRST / 10)
    for _ in range(3):  # zstd was quick, and the model may come again
        pace.took(4 << 20, 0.5)
        assert pace.limit == int(0.7 * 30 * FIRST / 10)
    pace.took(4 << 20, 0.5)
    assert pace.limit == 4 << 20
    pace.took(1000, 1.0)  # too small to tell
    assert pace.limit == 4 << 20


def test_a_commit_is_full_by_bytes_or_by_time() -> None:
    pace, now = Pace(1000, 5.0), time.monotonic()
    assert not pace.is_full(999, now) and pace.is_full(1000, now) and pace.is_full(1, now - 5.0)
