"""Token ids of llama-server's slot files (serving/engines/llama_slots.py).

A real file is read, and anything else is refused by name.
"""

import os
import struct
from pathlib import Path

import pytest

from pltz.plt_codec.errors import (
    ContentError,
    CorruptError,
    FormatError,
    OpaqueContentError,
    PltzError,
    UsageError,
    VersionError,
)
from pltz.serving.engines.llama_slots import HEAD, read_slot_ids

RECORDED = Path(__file__).parent / "recorded"
HELLO = [
    2, 10476, 3126, 3164, 3135, 3149, 3182, 3, 3178, 3731, 3651, 3126, 3122, 6392, 7494,
]  # without the last of 8 sampled


def slot(words: list[int], version: int = 3, magic: bytes = b"qsgg", count: int | None = None) -> bytes:
    return HEAD.pack(magic, version, len(words) if count is None else count) + struct.pack(f"<{len(words)}i", *words)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "slot.bin"
    path.write_bytes(data)
    return path


def test_a_real_slot_file_gives_its_ids() -> None:
    before = (RECORDED / "slot.bin").read_bytes()
    assert read_slot_ids(RECORDED / "slot.bin").tolist() == HELLO
    assert read_slot_ids(RECORDED / "slot.bin", vocab_size=16384).tolist() == HELLO
    assert (RECORDED / "slot.bin").read_bytes() == before


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", FormatError),
        (b"qsgg", FormatError),
        (slot([5], magic=b"nsgg"), FormatError),  # a session file of the command line
        (slot([5], version=2), VersionError),
        (slot([5], version=4), VersionError),
        (slot([5, 6], count=3), CorruptError),  # cut short
        (slot([5], count=0xFFFFFFFF), CorruptError),
        (slot([]), ContentError),
        (slot([-1, 1, 0, 0]), ContentError),  # an empty slot
        (slot([-1]), CorruptError),
        (slot([-1, 2, 1, 5, 0]), VersionError),
        (slot([-1, 1, 3, 5, 6, 0]), CorruptError),  # more tokens than there are
        (slot([-1, 1, -3, 5, 6, 0]), CorruptError),
        (slot([-1, 1, 2, 5, 6]), CorruptError),
        (slot([-1, 1, 1, 5, 0, 9]), CorruptError),  # more than there should be
        (slot([-1, 1, 2, 5, -1, 1, 1, 8, 99, 99]), OpaqueContentError),  # an image
        (slot([-1, 1, 2, 5, -1, 0]), CorruptError),  # what stands for an image, and none
        (slot([5, -7]), CorruptError),
        (slot([5, 16384]), CorruptError),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, data: bytes, error: type[PltzError]) -> None:
    with pytest.raises(PltzError) as caught:
        read_slot_ids(write(tmp_path, data), vocab_size=16384)
    assert type(caught.value) is error


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError):
            read_slot_ids(path)
