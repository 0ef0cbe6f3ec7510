"""Ways to one end, measured in turns, so that a slow minute of the machine falls on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def nothing(*_: object) -> None:
    """Do nothing."""


class Way(NamedTuple):
    """A way that is measured.

    Attributes:
        stored: bytes that it reads.
        before: called before each round, untimed.
        call: what is timed.
    """

    name: str
    stored: int
    before: Callable[[], object]
    call: Callable[[], Any]


def take_turns(
    ways: Sequence[Way],
    rounds: int,
    look: Callable[[str, Any, float | None], object] = nothing,
    *,
    warm_up: int = 1,
    wait: Callable[[], object] = nothing,
) -> dict[str, list[float]]:
    """Return the seconds of each way in each round.

    ``look``: called with name, result and seconds of each call, None for the seconds of a round that warms up.
    ``wait``: waits for the device.
    """
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(-warm_up, rounds):
        for way in ways:
            way.before()
            wait()
            start = time.perf_counter()
            result = way.call()
            wait()
            seconds = time.perf_counter() - start
            look(way.name, result, seconds if number >= 0 else None)
            del result  # a mapped file would stay in the page cache
            if number >= 0:
                times[way.name].append(seconds)
    return times
