"""The limits of one session in the commands: exit code 5, and a message with size, limit and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pltz.plt_codec import limits
from pltz.plt_codec.limits import MAX_BYTES
from tests.cli.commands import Run, lines


def test_compress_and_put_refuse_a_session_over_the_limit(
    tiny: Path, run: Run, cold: Path, tmp_path: Path
) -> None:
    big = tmp_path / "big.txt"
    with big.open("wb") as file:
        file.truncate(MAX_BYTES + 9)
    for words in (["compress", big, "-o", tmp_path / "big.pltz"], ["archive", "put", "-r", cold, big]):
        done = run(*words)
        assert done.exit_code == 5
        assert f"at most {MAX_BYTES} bytes, found more: split it" in done.stderr
    assert not (tmp_path / "big.pltz").exists()


def test_what_is_left_to_zstd_is_told(
    tiny: Path, run: Run, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_bytes(b"large " * 100)
    (tmp_path / "b.txt").write_bytes(b"")
    inputs, out = [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out.pltz"
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 500)
    [line] = lines(run("compress", *inputs, "-o", out, "--level", 5, "--json"))
    assert line["methods"] == {"model": 1, "zstd": 1, "log": 0}
    stored = lines(run("archive", "put", "-r", cold, *inputs, "--level", 5, "--json"))
    assert [one["method"] for one in stored] == ["zstd", "model"]
