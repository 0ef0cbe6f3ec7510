"""Names of sessions by the files they come from."""

from pathlib import Path

import pytest

from pltz.datasets.file_names import FileOfName, below, heads_of, log_name
from pltz.plt_codec.errors import UsageError


def test_a_log_has_one_name_however_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "projects/-home-me/events.jsonl"
    file.parent.mkdir(parents=True)
    file.touch()
    for given in (file.parent.parent, file.parent, file):
        assert log_name(str(given), str(file)) == "./-home-me/events"
    (dashed := file.with_name("-a.jsonl")).touch()
    for given in (file.parent.parent, file.parent, dashed):
        assert log_name(str(given), str(dashed)) == "./-home-me/-a"
    assert below(str(file.parent), str(dashed)) == "./-home-me/-a" and heads_of([str(dashed)])[str(dashed)] == "./-a"
    below_it = file.parent / "0f3a/subagents/a1.jsonl"
    for given in (file.parent.parent, file.parent, file.parent / "0f3a", below_it):
        assert log_name(str(given), str(below_it)) == "./-home-me/0f3a/subagents/a1"
    monkeypatch.chdir(file.parent)
    assert log_name("events.jsonl", "events.jsonl") == log_name(".", "events.jsonl") == "./-home-me/events"


def test_files_of_one_stem_get_their_folders(tmp_path: Path) -> None:
    given = [str(tmp_path / name) for name in ("a/x/log.jsonl", "b/x/log.jsonl", "a/other.txt")]
    assert list(heads_of(given).values()) == ["a/x/log", "b/x/log", "other"]
    with pytest.raises(UsageError, match="named twice"):
        heads_of(["a/log.jsonl", "a/log.jsonl"])
    assert list(heads_of(["a/log.jsonl", "a/log.jsonl.gz"]).values()) == ["log", "log.jsonl.gz"]
    assert list(heads_of(["a/log.jsonl", "b/log.jsonl", "b/log.json"]).values()) == ["a/log", "log", "log.json"]
    folder = tmp_path / "folder"
    folder.mkdir()
    assert heads_of([str(folder)]) == {str(folder): ""}
    assert below(str(folder), str(folder / "en/monday.v2.jsonl")) == "en/monday.v2"


def test_two_files_never_give_one_name() -> None:
    names = FileOfName()
    names.want("sub/log", "one/sub/log.jsonl")
    names.want("sub/log", "one/sub/log.jsonl")
    with pytest.raises(UsageError, match=r"two/sub/log\.jsonl: .* named sub/log, as those of one/sub/log"):
        names.want("sub/log", "two/sub/log.jsonl")
