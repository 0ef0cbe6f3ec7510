"""The curve of erases: both ways run, check what they did, and stay flat."""

from pathlib import Path

from pltz.benchmarks.archive import measure_erases


def test_an_archive_of_erases_stays_small_and_is_checked(tmp_path: Path) -> None:
    rows = list(measure_erases.measure(tmp_path / "archive", 40, 20))
    assert [row.erases for row in rows] == [20, 40] and all(row.key_file < 20_000 for row in rows)


def test_keys_alone_stay_small_where_any_session_is_erased() -> None:
    rows = list(measure_erases.measure_keys(100, 50))
    assert [row.erases for row in rows] == [50, 100] and all(row.key_file < 170_000 for row in rows)
    assert rows[-1].moved > 0
