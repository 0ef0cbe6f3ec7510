"""Types of attend.c."""

from typing import Any

def attend(
    kind: int, type: int, sizes: tuple[int, int, int, int, int], rows: tuple[int, int, int, int, int, int], tiles: int,
    q: Any, out: Any, pages: Any, scale: Any, table: Any, packed: Any, keys: Any, values: Any, real: Any, centre: Any,
    tile_cos: Any, tile_sin: Any, cos: Any, sin: Any, /, *rest: int,
) -> None: ...
