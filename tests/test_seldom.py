"""Tests that run seldom run where one of their files changed."""

from pathlib import Path

import pytest

from tests import seldom


def test_a_changed_file_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seldom, "ROOT", tmp_path)
    monkeypatch.setattr(seldom, "PASSED", tmp_path / "tests/seldom.json")
    for name in ("tests/test_a.py", "tests/helper.py", "tests/test_b.py", "code/a.c", "code/a.so", "tests/seldom.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")

    def digest() -> str:
        seldom.digest.cache_clear()
        return seldom.digest("tests/test_a.py", frozenset(["code/*"]))

    before = digest()
    same = dict.fromkeys(("tests/test_b.py", "code/a.so", "tests/seldom.json"), False)
    for name, changes in {**same, "tests/helper.py": True, "code/a.c": True}.items():
        (tmp_path / name).write_text("two")
        assert (digest() != before) is changes, name
        before = digest()
    (tmp_path / "code/b.c").write_text("one")
    assert digest() != before, "a new file"
    seldom.digest.cache_clear()


def test_what_is_recorded_is_marked() -> None:
    for file in seldom.passed():
        assert "seldom" in (seldom.ROOT / file).read_text("utf8"), file
