"""A pace tells how long the rest takes, once, in the first seconds, whatever the load."""

import pytest

from pltz.coding.expected_time import EARLY, PROOF, EarlyPace


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("rate", [500, 5000])
def test_a_pace_tells_once_what_is_left(monkeypatch: pytest.MonkeyPatch, rate: int, proved: bool) -> None:
    clock, told = [100.0], list[float]()
    monkeypatch.setattr("pltz.coding.expected_time.time.perf_counter", lambda: clock[0])
    pace = EarlyPace(told.append, proved=proved)
    pace.add(60_000, proved=50_000)
    clock[0] += 50  # other work before the first token
    pace.add(40_000)
    while not told:
        clock[0] += 500 / rate
        pace(500)
    done = (clock[0] - 150) * rate
    assert clock[0] - 150 <= EARLY + max(1, 2 * 500 / rate)
    assert told[0] == pytest.approx((100_000 - done + (PROOF * 90_000 if proved else 0)) / rate)
    for _ in range(20):
        clock[0] += 1
        pace(500)
    assert len(told) == 1


def test_little_work_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = [0.0], list[float]()
    monkeypatch.setattr("pltz.coding.expected_time.time.perf_counter", lambda: clock[0])
    pace = EarlyPace(told.append, proved=True)
    pace.add(500)
    clock[0] += EARLY / 2
    pace(500)
    assert not told
