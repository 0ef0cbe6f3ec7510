"""Types of block_columns.c."""

def read(
    data: bytes, begin: int, end: int, count: int, there: int, /
) -> tuple[int, list[tuple[int, int, int, int, list[int] | None]]]: ...
