"""Every session has a row of neighbours and a column far apart, and the two have nothing else in common."""

import numpy as np
import numpy.typing as npt
import pytest

from pltz.plt_codec.container.lines import Grid, line_check


@pytest.mark.parametrize("sessions", [*range(120), 255, 256, 257, 2357, 10_000])
def test_a_row_and_a_column_share_one_session(sessions: int) -> None:
    grid = Grid(sessions)
    assert grid.checks <= (sessions if sessions < 16 else 8 + 5 * sessions // 8)
    for number in range(0, sessions, 1 + sessions // 50):
        row, column = grid.row(number), grid.column(number)
        assert len(row) <= grid.width <= 16 and len(column) <= grid.width
        assert set(row) & set(column) == {number}


def refused(sessions: int, hurt: npt.NDArray[np.int64], rng: np.random.Generator) -> int:
    """Count the sound sessions that are refused besides the damaged ones, all of which are found."""
    grid, crcs = Grid(sessions), rng.integers(0, 1 << 32, sessions, dtype=np.uint32)
    checks = grid.encode(crcs)
    assert grid.damaged(crcs, checks) == []
    now = crcs.copy()
    now[hurt] ^= rng.integers(1, 1 << 32, len(hurt), dtype=np.uint32)
    found = set(grid.damaged(now, checks))
    assert found >= set(hurt.tolist())
    return len(found) - len(hurt)


@pytest.mark.parametrize("sessions", [1, 8, 9, 50, 2357])
def test_the_checks_are_those_of_their_sessions(sessions: int) -> None:
    grid, crcs = Grid(sessions), np.random.default_rng(3).integers(0, 1 << 32, sessions, dtype=np.uint32)
    checks = grid.encode(crcs).tolist()
    for number in range(0, sessions, 1 + sessions // 50):
        assert checks[number // grid.width] == line_check(crcs[list(grid.row(number))].tolist())
        if grid.width > 1:
            assert checks[grid.lines + number % grid.lines] == line_check(crcs[list(grid.column(number))].tolist())


@pytest.mark.parametrize("neighbours", [1, 2, 16, 100, 132])
def test_damage_to_neighbours_leaves_all_others_sound(neighbours: int) -> None:
    rng = np.random.default_rng(4)
    for start in range(0, 2357 - neighbours, 297):
        assert refused(2357, np.arange(start, start + neighbours), rng) == 0


@pytest.mark.parametrize(("damaged", "most"), [(2, 0), (10, 0.3), (30, 5), (100, 260)])
def test_scattered_damage_refuses_few_others(damaged: int, most: float) -> None:
    rng = np.random.default_rng(5)
    found = [refused(2357, rng.choice(2357, damaged, replace=False), rng) for _ in range(100)]
    assert np.mean(found) <= most


def test_swapped_frames_are_found() -> None:
    grid, crcs = Grid(100), np.arange(1, 101, dtype=np.uint32) * np.uint32(0x9E3779B1)
    swapped = crcs.copy()
    swapped[[41, 47]] = crcs[[47, 41]]
    assert grid.damaged(swapped, grid.encode(crcs)) == [41, 47]
