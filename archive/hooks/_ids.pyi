"""Types of ids.c."""

from typing import Any

from pltz.archive.identity import Tokens

def copy_ids(ids: list[Any] | Tokens, room: bytearray | memoryview, /) -> bool: ...
def copy_memory(address: int, width: int, count: int, room: bytearray | memoryview, /) -> bool: ...
