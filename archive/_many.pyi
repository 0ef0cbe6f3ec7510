"""Types of many.c."""

from pltz.archive.identity import Tokens

lanes: int  # messages that the processor hashes abreast; 0: none

def digests(
    person: bytes,
    size: int,
    key: int,
    heads: tuple[bytes, ...],
    rows: list[Tokens] | list[bytes],
    abreast: int = ...,
    /,
) -> bytes: ...
def same(rows: list[Tokens] | list[bytes], wanted: list[Tokens] | list[bytes], /) -> int: ...
