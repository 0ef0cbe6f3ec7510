"""Files below a source: each is read, or has what leaves it out."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from pltz.datasets.file_walk import walk
from pltz.plt_codec.errors import UsageError


def fates(source: Path, *exclude: str) -> dict[str, tuple[str, str]]:
    found = list(walk(source, exclude) if exclude else walk(source))
    assert [file.inside for file in found] == sorted(file.inside for file in found)
    return {file.inside: (file.fate, file.rule) for file in found}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("a.txt", "sub/b.txt", "../elsewhere/c.txt", "../elsewhere/deep/d.txt", "../alone.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "in"


def test_a_link_to_a_folder_is_followed_once_and_no_loop_is_entered(source: Path) -> None:
    (source / "deep").symlink_to("../elsewhere/deep")
    (source / "linked").symlink_to("../elsewhere")
    (source / "linked_again").symlink_to("../elsewhere")
    (source / "../elsewhere/back").symlink_to(source)
    (source / "../elsewhere/self").symlink_to(source / "../elsewhere")
    (source / "sub/up").symlink_to("..")
    (source / "sub/here").symlink_to("../sub")
    (source / "sub/root").symlink_to("/")
    left, told, read = ("left", "link"), ("told", ""), ("read", "")
    assert fates(source) == {
        "a.txt": read,
        "sub/b.txt": read,
        "deep": told,
        "deep/d.txt": read,
        "linked": told,
        "linked/c.txt": read,
        "linked/deep": left,  # met already
        "linked/back": left,
        "linked/self": left,
        "linked_again": left,
        "sub/up": left,
        "sub/here": left,
        "sub/root": left,
    }


def test_links_to_files_and_what_is_no_file_are_told(source: Path) -> None:
    for name, to in {"alone": "../alone.txt", "twice": "../alone.txt", "own": "a.txt", "gone": "x", "l": "l"}.items():
        (source / name).symlink_to(to)
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "sock"))
    found = {file.inside: file for file in walk(source)}
    why = {name: file.why for name, file in found.items() if file.fate == "left"}
    real = source.resolve()
    assert why == {
        "twice": f"a link to {real.parent}/alone.txt, which is taken there",
        "own": f"a link to {real}/a.txt, which is taken there", "gone": "a link that leads nowhere",
        "l": "a link that leads nowhere", "pipe": "a pipe", "sock": "a socket",
    }
    assert found["alone"].fate == "read" and found["alone"].size == len("../alone.txt")


def test_patterns_leave_out_files_and_not_folders(source: Path) -> None:
    files = "app.db", "app.db-wal", "app.db-shm", "app.db-journal", ".DS_Store", "x.lock", "-home-my-wal/log.jsonl"
    for name in files:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    left = {name: rule for name, (fate, rule) in fates(source).items() if fate == "left"}
    assert left == {
        "app.db-wal": "*-wal", "app.db-shm": "*-shm", "app.db-journal": "*-journal", ".DS_Store": ".DS_Store",
        "x.lock": "*.lock",
    }
    left = {name: rule for name, (fate, rule) in fates(source, "sub/*", "*.db").items() if fate == "left"}
    assert left == {"sub/b.txt": "sub/*", "app.db": "*.db"}
    assert {fate for fate, _ in fates(source, "").values()} == {"read"}
    [alone] = walk(source / "app.db-wal")  # the source itself
    assert alone.fate == "read"


def test_an_archive_is_left_out(source: Path) -> None:
    (source / "cold/packs").mkdir(parents=True)
    (source / "cold/archive.json").touch()
    assert fates(source)["cold"] == ("left", "archive") and not any("cold/" in name for name in fates(source))


def test_a_folder_that_cannot_be_read_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def failing(path: str) -> Any:
        if Path(path).name in closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    closed = ["sub"]
    assert fates(source) == {"a.txt": ("read", ""), "sub": ("refused", "")}
    closed = ["in"]
    with pytest.raises(UsageError, match=r"in: cannot be read: Permission denied"):
        fates(source)


def test_files_that_differ_in_their_suffix_alone_are_told_apart(source: Path) -> None:
    for name in ("c.json", "c.jsonl", "c.jsonl.zst", "c", "sub/c.json", "c.v2.json"):
        (source / name).touch()
    assert {file.inside for file in walk(source) if file.second} == {"c.json", "c.jsonl", "c.jsonl.zst"}
