"""Pages of engines in a folder: what is read is what was written, or nothing, within one budget of many processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pltz.kv.store import page_folder
from pltz.kv.store.page_folder import HEADER, PageFolder
from pltz.plt_codec.errors import UsageError

SPACE, OTHER = b"s" * 16, b"o" * 16


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def put(folder: PageFolder, number: int, data: bytes) -> bool:
    return folder.write(name(number), [memoryview(data)])


def got(folder: PageFolder, number: int, size: int) -> bytes | None:
    data = bytearray(size)
    return bytes(data) if folder.read(name(number), [memoryview(data)]) else None


def test_a_page_comes_back_in_pieces_of_any_cut(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, SPACE, 1 << 20)
    data = os.urandom(1000)
    assert folder.write(name(1), [memoryview(data)[:7], memoryview(data)[7:]])
    first, rest = bytearray(300), bytearray(700)
    assert folder.read(name(1), [memoryview(first), memoryview(rest)])
    assert bytes(first + rest) == data
    assert folder.has(name(1)) and not folder.has(name(2)) and got(folder, 2, 1000) is None
    assert (folder.damaged, folder.failed, folder.written) == (0, 0, 1)


def test_spaces_share_nothing_but_the_budget(tmp_path: Path) -> None:
    mine, other = PageFolder(tmp_path, SPACE, 1 << 20), PageFolder(tmp_path, OTHER, 1 << 20)
    assert put(mine, 1, b"a" * 100)
    assert got(other, 1, 100) is None
    assert put(other, 1, b"b" * 100)
    other.clear()
    assert got(mine, 1, 100) == b"a" * 100 and got(other, 1, 100) is None
    assert mine.usage() == (HEADER + 100, 1)


@given(st.data())
def test_no_changed_byte_is_served(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = PageFolder(tmp_path_factory.mktemp("pages"), SPACE, 1 << 20)
    assert put(folder, 1, bytes(range(200)))
    [path] = folder.folder.rglob("*.page")
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = data.draw(
        st.sampled_from([whole[:at], whole + b"x", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]])
    )
    path.write_bytes(changed)
    assert got(folder, 1, 200) is None
    assert folder.damaged == 1 and not path.exists()
    assert put(folder, 1, bytes(range(200))) and got(folder, 1, 200) == bytes(range(200))


def test_a_page_of_another_name_or_size_is_a_miss(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, SPACE, 1 << 20)
    assert put(folder, 1, b"a" * 100)
    [path] = tmp_path.rglob("*.page")
    path.rename(path.with_name(f"{name(2).hex()}.page"))
    assert got(folder, 2, 100) is None and folder.damaged == 1
    assert put(folder, 3, b"a" * 100)
    assert got(folder, 3, 99) is None and folder.damaged == 2


def test_the_least_recently_used_pages_leave(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, SPACE, 8 * (HEADER + 100))
    for number in range(8):
        assert put(folder, number, b"x" * 100)
        os.utime(folder._path(name(number)), (number, number))
    assert got(folder, 0, 100)  # used now
    assert put(folder, 8, b"x" * 100)
    assert folder.usage()[0] <= folder.budget
    assert folder.has(name(0)) and folder.has(name(8)) and not folder.has(name(1))
    assert folder.evicted == 2  # to 7/8, with the new one
    assert not put(folder, 9, b"x" * 10_000)  # larger than the budget: nothing leaves for it
    assert folder.evicted == 2


def test_processes_keep_one_budget_and_a_kill_costs_none_of_it(tmp_path: Path) -> None:
    budget = 40 * (HEADER + 1000)
    code = (
        "import os, sys; from pltz.kv.store.page_folder import PageFolder\n"
        "folder = PageFolder(sys.argv[1], sys.argv[2].encode() * 16, int(sys.argv[3]))\n"
        "for n in range(200): folder.write(os.urandom(32), [memoryview(bytes(1000))])\n"
        "print(folder.failed, folder.written, flush=True); os.kill(os.getpid(), 9)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    running = [
        subprocess.Popen([*run, letter, str(budget)], stdout=subprocess.PIPE, text=True) for letter in ("a", "b")
    ]
    folder = PageFolder(tmp_path, SPACE, budget)
    while any(one.poll() is None for one in running):
        # A count sees a page twice that is renamed meanwhile, and pages that came while it ran beside those that left.
        assert min(folder.usage()[0] for _ in range(3)) <= budget + 2 * (HEADER + 1000)
        time.sleep(0.01)
    assert [one.communicate()[0].split() for one in running] == [["0", "200"]] * 2
    assert put(folder, 1, b"x" * 1000) and got(folder, 1, 1000) == b"x" * 1000
    assert folder.usage()[0] == page_folder._total(os.open(tmp_path / "ledger", os.O_RDONLY))


def test_a_damaged_ledger_is_counted_anew(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, SPACE, 4 * (HEADER + 100))
    for number in range(4):
        assert put(folder, number, b"x" * 100)
    (tmp_path / "ledger").write_bytes(bytes(16))
    assert put(folder, 9, b"x" * 100) and folder.usage()[0] <= folder.budget


def test_what_a_kill_left_leaves_after_an_hour(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, SPACE, 2 * (HEADER + 100))
    assert put(folder, 1, b"x" * 100)
    shelf = folder._path(name(1)).parent
    old, new = (shelf / f"{name(n).hex()}.0123456{n}.part" for n in (2, 3))
    for part in (old, new):
        part.write_bytes(b"x" * 90)
    os.utime(old, (1, 1))
    (tmp_path / "ledger").unlink()
    folder = PageFolder(tmp_path, SPACE, 2 * (HEADER + 100))
    assert put(folder, 4, b"x" * 100)
    assert not old.exists() and new.exists() and folder.usage()[0] <= folder.budget


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path / "pages", SPACE, 1 << 20)
    assert put(folder, 1, b"x" * 100)
    path = folder._path(name(1))
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert not folder.has(name(1)) and got(folder, 1, 100) is None and folder.failed == 1
    assert not put(folder, 1, b"y" * 100) and elsewhere.read_bytes()[HEADER:] == b"x" * 100


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="name another folder"):
        PageFolder(tmp_path / "file", SPACE, 1)
    with pytest.raises(UsageError, match="16 bytes"):
        PageFolder(tmp_path, b"short", 1)
    with pytest.raises(UsageError, match="32 bytes"):
        PageFolder(tmp_path, SPACE, 1).has(b"short")


def test_a_disk_that_fails_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PageFolder(tmp_path, SPACE, 1 << 20)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert not put(folder, 1, b"x" * 100)
    assert folder.failed == 1 and folder.usage() == (0, 0)
    assert put(folder, 1, b"x" * 100)


def test_a_folder_of_another_user_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PageFolder(tmp_path, SPACE, 1 << 20)

    def forbidden(*args: object, **kwargs: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", forbidden)
        patch.setattr(os, "lstat", forbidden)
        found = folder.has(name(1))
    assert not found


def test_a_page_that_the_disk_cannot_read_is_not_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PageFolder(tmp_path, SPACE, 1 << 20)
    assert put(folder, 1, b"x" * 100)

    def broken(*args: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        assert got(folder, 1, 100) is None
    assert folder.failed == 1 and not folder.has(name(1))
    assert put(folder, 1, b"x" * 100) and got(folder, 1, 100) == b"x" * 100


@pytest.mark.parametrize(("number", "kept"), [(13, True), (24, False)])
def test_the_budget_holds_where_a_space_cannot_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kept: bool
) -> None:
    """A space of another user costs its own count alone. Without handles nothing is counted, and nothing written."""
    budget = 8 * (HEADER + 100)
    before, mine, behind = (PageFolder(tmp_path, one * 16, budget) for one in (b"a", b"s", b"z"))  # in any order
    others = (before, behind)
    for n in range(8):
        assert put(mine, n, b"x" * 100)
    scan = os.scandir

    def scandir(path: os.PathLike[str] | str) -> object:
        if any(str(path).startswith(str(one.folder / one.space.hex())) for one in others):
            raise OSError(number, os.strerror(number))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for n in range(8, 16):
        assert put(mine, n, b"x" * 100) == kept
    monkeypatch.undo()
    assert 0 < mine.usage()[0] <= budget
