"""The limits of one session in the commands: exit code 5, and a message with size, limit and what to do."""

from pathlib import Path

import pytest

from pltz.plt_codec import limits
from pltz.plt_codec.limits import MAX_BYTES
from tests.cli.commands import Run, lines


def test_a_text_over_the_limit_has_a_place_in_an_archive(tiny: Path, run: Run, cold: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    with big.open("wb") as file:
        file.truncate(MAX_BYTES + 9)
    done = run("compress", big, "-o", tmp_path / "big.pltz")
    assert done.exit_code == 5 and f"at most {MAX_BYTES} bytes, found more: split it" in done.stderr
    assert not (tmp_path / "big.pltz").exists() and run("archive", "put", "-r", cold, big).exit_code == 0
    assert run("archive", "get", "-r", cold, "big/0", "-o", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back").read_bytes() == bytes(MAX_BYTES + 9)


def test_what_is_too_long_for_the_model_is_told(
    tiny: Path, run: Run, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_bytes(b"large " * 100)
    (tmp_path / "b.txt").write_bytes(b"")
    inputs, out = [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out.pltz"
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 500)
    [line] = lines(run("compress", *inputs, "-o", out, "--level", 5, "--json"))
    assert line["methods"] == {"model": 1, "zstd": 1, "log": 0}
    stored = lines(run("archive", "put", "-r", cold, *inputs, "--level", 5, "--json"))
    assert [one["method"] for one in stored] == ["log + ppmd", "model"]
