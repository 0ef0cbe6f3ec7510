"""Compile for tests once, and again where anything of it changed."""

import os
import time
from pathlib import Path

import pytest

from tests import compiled


def test_a_file_is_made_once_and_any_change_makes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiled, "version", lambda compiler: f"version of {compiler}")
    made: list[Path] = []

    def make(part: Path) -> None:
        made.append(part)
        part.write_text(str(len(made)))

    def found(ending: str = ".so", compiler: str = "cc", flag: str = "-O1", text: str = "one") -> str:
        return compiled.compiled(ending, [compiler, flag], text, make).read_text()

    assert [found() for _ in range(3)] == ["1"] * 3
    assert [found(text="two"), found(flag="-O2"), found(compiler="gcc"), found()] == ["2", "3", "4", "1"]
    monkeypatch.setattr(compiled, "version", lambda compiler: "a newer version")
    assert found() == "5"


def test_what_a_killed_run_left_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)

    def killed(part: Path) -> None:
        part.write_text("half")
        raise KeyboardInterrupt

    def whole(part: Path) -> None:
        part.write_text("whole")

    words = ".so", ["cc"], "text"
    monkeypatch.setattr(compiled, "version", str)
    with pytest.raises(KeyboardInterrupt):
        compiled.compiled(*words, killed)
    assert compiled.compiled(*words, whole).read_text() == "whole"


def test_files_that_no_run_used_for_a_month_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = compiled.folder.__wrapped__()
    assert folder.is_relative_to(tmp_path)
    for name, age in (("old", compiled.MONTH + 9), ("new", compiled.MONTH - 99)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    assert {file.name for file in compiled.folder.__wrapped__().iterdir()} == {"used", "new"}


def test_sources_are_told_apart_by_what_they_include(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('#include "a.h"\nint a(void) { return A; }\n')
    texts = set()
    for value in "12":
        (tmp_path / "a.h").write_text(f"#define A {value}\n")
        texts.add(compiled.preprocessed(["gcc"], [tmp_path / "a.c"]))
    assert len(texts) == 2
