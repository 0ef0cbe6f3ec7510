"""Types of ans.c."""

from typing import Any

def encode(
    symbols: Any, classes: Any, freq: Any, mean: Any, level: Any,
    layers: int, width: int, point: int, tokens: int, per_lane: int, counts: Any, sums: Any, first: int, last: int, /,
) -> tuple[list[bytes], bytes]: ...
def decode(
    words: Any, states: Any, offsets: Any, freq: Any, mean: Any, level: Any,
    layers: int, width: int, point: int, tokens: int, per_lane: int, symbols: Any, classes: Any, sums: Any,
    first: int, last: int, wide: bool, /,
) -> bool: ...
