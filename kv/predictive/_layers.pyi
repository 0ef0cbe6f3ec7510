"""Types of layers.c."""

from typing import Any

def restore(
    matrices: tuple[Any, ...], hidden: int, heads: int, dim: int, embedded: Any, step: Any, cos: Any, sin: Any,
    q: Any, kv: Any, size: int, first: int, last: int, widest: int, /,
) -> int: ...
def quantise(
    matrices: tuple[Any, ...], hidden: int, heads: int, dim: int, embedded: Any, step: Any, cos: Any, sin: Any,
    q: Any, kv: Any, size: int, first: int, last: int, widest: int, /,
) -> int: ...
