"""Types of ids.c."""

from typing import Any

from pltz.archive.format.ids import Tokens

def copy_ids(ids: list[Any] | Tokens, rooms: list[bytearray], /) -> bool: ...
def copy_memory(address: int, width: int, count: int, rooms: list[bytearray], /) -> bool: ...
