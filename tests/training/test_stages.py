"""Stages of a training run: built once for each key, and whole (training/stages.py)."""

from pathlib import Path

import pytest

from pltz.training import stages


def no_say(line: str) -> None:
    """Drop a line of the log."""


def test_a_stage_is_built_once_for_each_key_and_appears_whole(tmp_path: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "x").write_text("1")

    with stages.WorkFolder(tmp_path, no_say) as work:
        first = work.stage("a", {"k": 1}, build)
        assert work.stage("a", {"k": 1}, build) == first and len(built) == 1
        assert work.stage("a", {"k": 2}, build) != first and len(built) == 2
    assert sorted(p.name for p in first.iterdir()) == ["x"] and not list(tmp_path.glob("*.part"))
    assert "done before" in (tmp_path / "log.txt").read_text()


def test_a_stage_cut_off_begins_anew_unless_it_resumes(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise KeyboardInterrupt

    def build(folder: Path) -> None:
        (folder / "found").write_text(str((folder / "half").exists()))

    for resumes in (False, True):
        with stages.WorkFolder(tmp_path, no_say) as work:
            with pytest.raises(KeyboardInterrupt):
                work.stage("s", resumes, fail, resumes=resumes)
            folder = work.stage("s", resumes, build, resumes=resumes)
        assert (folder / "found").read_text() == str(resumes)
