"""A lock is of the file that has its name now."""

import fcntl
from pathlib import Path

import pytest

from pltz.serving.eviction.journal.lock import FileLocks


def test_a_lock_of_a_file_that_its_holder_unlinked_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may happen between open and lock. Another process would lock the file that has the name then."""
    flock = fcntl.flock

    def late(handle: int, how: int) -> None:
        monkeypatch.undo()
        (tmp_path / "a.lock").unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    held = FileLocks(tmp_path).take("a.lock")
    assert held is not None and FileLocks(tmp_path).take("a.lock") is None
    held.free()
    assert FileLocks(tmp_path).take("a.lock") is not None
