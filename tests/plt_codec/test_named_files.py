"""Files that a user names are read whole, and those that are larger than any of their kind are refused."""

import os
import threading
from pathlib import Path

import pytest

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.named_files import named_file


def test_a_file_up_to_the_bound_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert named_file(path, 8) == b"12345678"
    with pytest.raises(UsageError, match="more than 7 bytes"):
        named_file(path, 7)
    os.truncate(path, 1 << 40)
    with pytest.raises(UsageError, match="name another file"):
        named_file(path, 8)
    with pytest.raises(FileNotFoundError):
        named_file(tmp_path / "none", 8)


def test_a_pipe_is_read_and_one_without_end_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"key",))
    writer.start()
    assert named_file(pipe, 8) == b"key"
    writer.join()
    with pytest.raises(UsageError):
        named_file("/dev/zero", 1000)
