"""Time a coder in wall and processor time, and check that every session it coded comes back."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    import numpy as np


class Time(NamedTuple):
    """Seconds of a call: wall time, and processor time of all threads."""

    wall: float
    busy: float


def timed(call: Callable[[], Any]) -> tuple[Time, Any]:
    """Return time and result of a call."""
    wall, busy = time.perf_counter(), time.process_time()
    result = call()
    return Time(time.perf_counter() - wall, time.process_time() - busy), result


def frame_items(encoded: Sequence[Any], sessions: "Sequence[np.ndarray[Any, Any]]") -> list[Any]:
    """Return the items that the decoder takes, for sessions (T,): each frame with its tokens, lanes and steps."""
    from pltz.plt_codec.types import FrameItem

    return [FrameItem(e.data, len(s), e.layout) for e, s in zip(encoded, sessions, strict=True)]


def check(sessions: "Sequence[np.ndarray[Any, Any]]", decoded: Sequence[Any]) -> None:
    """Check that every session (T,) came back unchanged.

    Raises:
        ModelError: one did not.
    """
    import numpy as np

    if not all(np.array_equal(a, b) for a, b in zip(sessions, decoded, strict=True)):
        raise ModelError("a session came back changed from its frame: no speed of this run is valid")
