"""The limits of one session in the commands: exit code 5, and a message with size, limit and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pltz
from pltz.archive.maintenance import join
from pltz.archive.writing import writer
from pltz.coding.codecs.codec import BytesCodec
from pltz.plt_codec.limits import MAX_BYTES
from tests.archive.peek import peek
from tests.cli.commands import Run, lines


def test_compress_and_put_refuse_a_session_over_the_limit(
    tiny: Path, run: Run, cold: Path, tmp_path: Path
) -> None:
    big = tmp_path / "big.txt"
    with big.open("wb") as file:
        file.truncate(MAX_BYTES + 9)
    for words in (["compress", big, "-o", tmp_path / "big.pltz"], ["archive", "put", cold, big]):
        done = run(*words)
        assert done.exit_code == 5
        assert f"at most {MAX_BYTES} bytes, found {MAX_BYTES + 9}: split it" in done.stderr
    assert not (tmp_path / "big.pltz").exists()


@pytest.mark.parametrize("option", ["--merge-turns", "--no-merge-turns"])
def test_a_put_joins_turns_unless_it_is_told_not_to(
    tiny: Path, run: Run, cold: Path, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "new_bytes", lambda way, coded: isinstance(way.codec, BytesCodec))
    monkeypatch.setattr(join, "FEW", 0)
    chat = tmp_path / "chat.json"
    for count in range(1, 6):
        messages = [{"role": "user", "content": f"turn {n}"} for n in range(count)]
        chat.write_text(json.dumps({"messages": messages}))
        assert run("archive", "put", cold, chat, "--name", "a", option).exit_code == 0
    assert len(peek(pltz.Archive.open(cold), "a")) == (2 if option == "--merge-turns" else 5)


def test_zstd_above_and_what_it_chose_is_told(tiny: Path, run: Run, cold: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"large " * 100)
    (tmp_path / "b.txt").write_bytes(b"")
    inputs, out = [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out.pltz"
    [line] = lines(run("compress", *inputs, "-o", out, "--zstd-above", "0.5 kB", "--json"))
    assert line["methods"] == {"model": 1, "zstd": 1, "log": 0} and line["zstd_above"] == 500
    stored = lines(run("archive", "put", cold, *inputs, "--zstd-above", "500", "--json"))
    assert [one["method"] for one in stored] == ["zstd", "model"]
    assert run("compress", *inputs, "-o", out, "--zstd-above", "much").exit_code == 2
