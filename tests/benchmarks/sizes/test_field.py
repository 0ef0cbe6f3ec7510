"""benchmarks field: coders are exact, figures count bytes, absent peers are named, the fallback keeps its promise."""

import json
import random
import shutil
from itertools import islice
from pathlib import Path

import pytest

from pltz.benchmarks.peers import compressors as peers, llama_model
from pltz.benchmarks.sizes import field
from pltz.datasets import sample_sessions
from pltz.plt_codec.errors import UsageError
from tests.cli.commands import Run, ok

TEXTS = [b"", b"a", b"\x02hi\x03hello", b"common words and phrases " * 300, bytes(7000)]
TEXTS += [random.Random(n).randbytes(n) for n in (3, 255, 5000)]


def records(path: Path, count: int) -> Path:
    sessions = [session.value | {"id": f"a-{i}"} for i, session in enumerate(islice(sample_sessions(), count))]
    path.write_text("\n".join(map(json.dumps, sessions)))
    return path


def test_the_table_and_the_line_say_the_same(run: Run, tiny: Path, tmp_path: Path) -> None:
    data, text = records(tmp_path / "r.jsonl", 3), tmp_path / "noise.bin"
    text.write_bytes(random.Random(1).randbytes(3000))
    words = ("--limit-bytes", 9999, "--peers", "zstd,ppmd", "--file", text, "--file-bytes", 2000)
    *table, last = ok(run("field", "--data", data, *words)).stdout.splitlines()
    found = json.loads(last)
    assert [coder["name"] for coder in found["coders"]] == ["pltz", "zstd", "ppmd"] and not found["missing"]
    assert found["sessions"] == 3
    for coder in found["coders"]:
        assert coder["bits_per_byte"] == pytest.approx(8 * coder["bytes"] / found["content_bytes"], abs=1e-5)
        assert coder["encode_bytes_per_s"] > 0 and coder["decode_bytes_per_s"] > 0
        assert any(line.startswith(coder["name"]) and f"{coder['bytes']:,}" in line for line in table)
    assert found["files"][0]["bytes"] == 2000 and found["files"][0]["within_rule"] and not found["files"][0]["by_model"]


def test_what_is_absent_is_left_out(run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_model, "PACKAGES", {"no_such_module": "no-such-package"})
    monkeypatch.setattr(shutil, "which", lambda _: None)
    data = records(tmp_path / "r.jsonl", 1)
    done = ok(run("field", "--data", data, "--limit-bytes", 9999, "--peers", "zstd,paq8px,llama-zip", "--json"))
    found = json.loads(done.stdout)
    assert [coder["name"] for coder in found["coders"]] == ["pltz", "zstd"]
    assert set(found["missing"]) == {"paq8px", "llama-zip"} and "no-such-package" in found["missing"]["llama-zip"]
    assert "paq8px" in done.stderr


def test_calls_that_measure_nothing(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = records(tmp_path / "r.jsonl", 1)
    for arguments, said in (
        (["--peers", "lz4"], "lz4"),
        (["--limit-bytes", "1"], "--limit-bytes"),
        (["--limit-bytes", "9999", "--file", tmp_path / "none"], "none"),
    ):
        done = run("field", "--data", data, *arguments)
        assert done.exit_code == 2 and said in done.stderr
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="empty"):
        field.read_file(str(tmp_path / "empty"), 10)


@pytest.mark.parametrize("name", peers.NAMES)
def test_peers_give_back_what_they_got(name: str) -> None:
    [peer], missing = peers.build([name], b"a dictionary of common words and phrases " * 40)
    assert not missing
    for data in (*TEXTS, bytes(70_000)):
        coded = peer.encode(data)
        assert peer.decode(coded, len(data)) == data and peer.size(data) == len(coded)
