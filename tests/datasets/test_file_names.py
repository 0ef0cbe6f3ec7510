"""Names of sessions by the files they come from."""

from pathlib import Path

import pytest

from pltz.datasets.file_names import FileOfName, below, heads_of
from pltz.plt_codec.errors import UsageError


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
