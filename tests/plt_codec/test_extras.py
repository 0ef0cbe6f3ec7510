"""The plain install, which has neither torch nor transformers: what it does, and what it says where it lacks them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pltz
from pltz.datasets.loaders import sample_path
from pltz.plt_codec.engines.native.coder import available
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.extras import need

# An import of a name that stands in sys.modules as None fails as that of a package that is not installed.
PLAIN = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["constriction"] = None
sys.argv = ["pltz", *sys.argv[1:]]
from pltz.cli.main import main
main()
"""


def plain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of pltz without torch, transformers and constriction."""
    command = [sys.executable, "-c", PLAIN, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)


def test_an_absent_package_names_its_extra() -> None:
    with pytest.raises(UsageError, match=r"a thaw needs no_such_package, .*pip install 'pltz\[thaw\]'"):
        need("thaw", "a thaw", "sys", "no_such_package")


@pytest.mark.skipif(not available(), reason="the plain install codes with the compiled engine")
def test_the_plain_install_archives_and_reads(tmp_path: Path) -> None:
    lines = sample_path().read_bytes().splitlines(keepends=True)
    (tmp_path / "chats.jsonl").write_bytes(b"".join(lines[:2]))
    for words in (
        "archive -r cold init", "archive -r cold put chats.jsonl", "archive -r cold ls --long",
        "archive -r cold get chats/0 -o one.json", "archive -r cold verify --decode",
        "compress chats.jsonl -o chats.pltz --exact", "decompress chats.pltz -o back.jsonl",
    ):
        done = plain(tmp_path, *words.split())
        assert done.returncode == 0, f"{words}: {done.stderr}"
    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "chats.jsonl").read_bytes()


@pytest.mark.parametrize(("words", "extra"), [
    ("thaw chats.pltz --session 0", "thaw"),
    ("target calibrate mini-llama --data chats.jsonl --output own", "thaw"),
    ("bundle train --config own.toml --output own", "train"),
    ("bundle distill --target mini-llama --data chats.jsonl --output own", "train"),
])
def test_commands_without_torch_name_the_extra(tmp_path: Path, words: str, extra: str) -> None:
    (tmp_path / "chats.jsonl").write_bytes(sample_path().read_bytes())
    (tmp_path / "chats.pltz").write_bytes(pltz.compress([pltz.Session("text", b"hello")], verify=False))
    (tmp_path / "own.toml").write_text('name = "own"\n[data]\nfiles = ["chats.jsonl"]\n[student]\nsteps = 1\n')
    done = plain(tmp_path, *words.split())
    assert done.returncode == 2 and f"pip install 'pltz[{extra}]'" in done.stderr, done.stderr
