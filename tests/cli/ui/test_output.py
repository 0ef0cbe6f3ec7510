"""A file that a command writes appears whole or not at all, and replaces nothing without --force."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pltz.cli.ui.output import Output
from pltz.plt_codec.errors import UsageError
from tests.failing import raising


def test_writes_all_chunks(tmp_path: Path) -> None:
    Output(str(tmp_path / "a")).write([b"one", b"", b"two"])
    assert (tmp_path / "a").read_bytes() == b"onetwo" and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("letter", ["n", "\u00e9", "\u8a71", "\U0001f600"])
def test_a_name_as_long_as_names_may_be(tmp_path: Path, letter: str) -> None:
    name = letter * (255 // len(letter.encode()))
    Output(str(tmp_path / name)).write([b"one"])
    assert os.listdir(tmp_path) == [name]


def test_stdout_gets_all_or_nothing_where_asked(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def chunks(fails: bool) -> Iterator[bytes]:
        yield b"one"
        yield b"two"
        if fails:
            raise RuntimeError("the work failed")

    with pytest.raises(RuntimeError):
        Output("-", binary=False).write(chunks(True), whole=True)
    assert capfdbinary.readouterr().out == b""
    output = Output("-", binary=False)
    output.write(chunks(False), whole=True)
    assert (capfdbinary.readouterr().out, output.written) == (b"onetwo", 6)


def test_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o640)
    Output(str(path), force=True).write([b"new"])
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_nothing_new(tmp_path: Path, force: bool) -> None:
    path = tmp_path / "a"
    if force:
        path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the work failed")

    with pytest.raises(RuntimeError):
        Output(str(path), force=force).write(chunks())
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({"a": b"old"} if force else {})


def test_file_is_synced_before_its_name_and_the_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, link = os.fsync, os.link

    def fsync(handle: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        sync(handle)

    def name(source: str, target: Path) -> None:
        steps.append("name")
        link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", name)
    Output(str(tmp_path / "a")).write([b"x"])
    assert steps == ["sync file", "name", "sync folder"]


def test_an_existing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(UsageError, match="--force"):
        Output(str(tmp_path / "a"))


def test_a_file_that_comes_into_being_meanwhile_is_kept(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "a"))
    (tmp_path / "a").write_bytes(b"theirs")
    with pytest.raises(UsageError, match="meanwhile"):
        output.write([b"ours"])
    assert (tmp_path / "a").read_bytes() == b"theirs" and os.listdir(tmp_path) == ["a"]


def test_a_file_system_without_links_is_written_by_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", raising(PermissionError(1, "Operation not permitted")))
    Output(str(tmp_path / "a")).write([b"x"])
    assert os.listdir(tmp_path) == ["a"]


def test_inputs_are_never_modified(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"input")
    (tmp_path / "link").symlink_to(path)
    for inputs in ([str(path)], [str(tmp_path / "link")], [str(tmp_path)]):
        with pytest.raises(UsageError, match="input"):
            Output(str(path), force=True, inputs=["-", "missing", *inputs])
    with pytest.raises(UsageError, match="input"):
        Output(str(tmp_path / "link"), force=True, inputs=[str(path)])


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    Output(str(tmp_path / "link"), force=True).write([b"new"])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


def test_a_device_is_written_through(tmp_path: Path) -> None:
    Output(os.devnull, force=True).write([b"x"])
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
