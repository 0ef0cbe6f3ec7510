"""Processes that pltz starts import nothing from the current directory, but find pltz and the operator's modules."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pltz.plt_codec.child_python import search_path
from tests.archive.towers import SessionArchive

ROOT = Path(__file__).parents[2]
POISONED = ("zstandard", "numpy", "json", "pickle", "socket", "select", "base64", "signal", "pltz", "tokenizers")

HOOK = """
import sys
sys.path[:] = [p for p in sys.path if p != ""]  # this process itself, to have pltz at all
import pltz, json, pickle, socket, select, base64, signal, zstandard, numpy, tokenizers
sys.path.insert(0, {here})
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook, HookSettings
if __name__ == "__main__":
    hook = EvictionHook.open("journal", "cold", settings=HookSettings(flush_seconds=0.005))
    hook.on_evict(EvictionRequest("chat", [1, 2, 3]))
    print(json.dumps([hook.settle(60), hook.status()["worker"].get("restarts")]))
    hook.close()
"""


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """Make a folder with modules that write a file when they are imported."""
    folder = tmp_path / "poisoned"
    folder.mkdir()
    for name in POISONED:
        lines = f"import os\nos.close(os.open({str(tmp_path / 'executed')!r}, os.O_CREAT | os.O_WRONLY))\n"
        (folder / f"{name}.py").write_text(lines + "raise ImportError('poisoned')\n")
    return folder


def run(folder: Path, code: str, *arguments: object, path: str = "") -> Any:
    """Run code in a process started in a folder, with pltz on its PYTHONPATH, and return the JSON that it prints."""
    (folder.parent / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, folder.parent / "program.py", *map(str, arguments)], cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *([path] if path else [])])}, capture_output=True,
        text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("here", [
    "__import__('os').getcwd()",
    pytest.param('""', marks=pytest.mark.slow),
    pytest.param('"."', marks=pytest.mark.slow),
])
def test_the_worker_imports_nothing_from_the_current_directory(poisoned: Path, tmp_path: Path, here: str) -> None:
    """Ignore the folder however the serving process's path spells it: its modules ran before the worker's own."""
    SessionArchive.open(poisoned / "cold", create=True)
    settled, restarts = run(poisoned, HOOK.format(here=here))
    assert not (tmp_path / "executed").exists() and settled and restarts == 0
    assert SessionArchive.open(poisoned / "cold").get_ids("chat").ids.tolist() == [1, 2, 3]


NIGHT = """
import json, sys
from pltz.archive.writing import commits
from pltz.coding import workers
from pltz.serving.nightly import config, job
commits.START_BYTES = 1  # processes from the first session on
started = []
command = workers.command
workers.command = lambda code: started.append(code) or command(code)
if __name__ == "__main__":
    report = job.run(config.load(sys.argv[1]))
    print(json.dumps([report["totals"]["frozen"], report["exit_code"], len(started)]))
"""


def test_the_nights_processes_import_nothing_from_the_current_directory(
    poisoned: Path, tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    from pltz.benchmarks.random_weights import random_weights
    from pltz.models.bundle.bundle import Bundle, write_bundle
    from tests.archive.towers import SessionArchive

    weights = random_weights(1, vocab=1024, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    write_bundle(tmp_path / "tiny", "tiny", weights, tiny_tokenizer_json(), b"", {})
    SessionArchive.create(tmp_path / "cold", [Bundle.load(tmp_path / "tiny")])
    (tmp_path / "chats").mkdir()
    chat = {"id": "a", "messages": [{"role": "user", "content": "Hello"}]}
    (tmp_path / "chats" / "a.jsonl").write_text(json.dumps(chat) + "\n")
    (tmp_path / "nightly.toml").write_text(
        f'archive = "cold"\nstate = "state"\nbundles = ["{tmp_path / "tiny"}"]\nthreads = 2\n'
        '[[source]]\nkind = "jsonl"\npath = "chats"\nname_key = "id"\n'
    )
    assert run(poisoned, NIGHT, tmp_path / "nightly.toml") == [1, 0, 1] and not (tmp_path / "executed").exists()


CHILD = """
import os, subprocess, sys
sys.path.append({root!r})
from pltz.plt_codec.child_python import command, environment
import pltz
code = "import json, sys, pltz; from {module} import WORD; print(json.dumps([pltz.__file__, WORD, sys.argv[1:]]))"
done = subprocess.run(command(code, "an argument", 7), env=environment(), stdout=subprocess.PIPE, text=True)
print(done.stdout.strip())
"""


def test_an_operators_path_still_works(tmp_path: Path) -> None:
    """Keep the operator's path, also where it names the current directory or pltz is a checkout only on that path."""
    here, other = tmp_path / "here", tmp_path / "other"
    for folder, word in ((here, "here"), (other, "other")):
        folder.mkdir()
        (folder / f"of_{word}.py").write_text(f"WORD = {word!r}\n")
    for word, path in (("here", str(here)), ("here", "."), ("other", str(other))):
        file, found, arguments = run(here, CHILD.format(root=str(ROOT), module=f"of_{word}"), path=path)
        assert (Path(file), found) == (ROOT / "pltz/__init__.py", word) and arguments == ["an argument", "7"]


def test_a_checkout_in_the_current_directory_is_found(tmp_path: Path) -> None:
    """Run ``python program.py`` in a checkout that is not installed: only pltz is imported from there."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for entry in ("pltz", "archive", "cli", "models", "plt_codec", "datasets"):
        (checkout / entry).symlink_to(ROOT / entry)
    (checkout / "of_cwd.py").write_text("WORD = 5\n")
    code = (
        CHILD.format(root=str(checkout), module="json.decoder")
        .replace("WORD", "JSONDecoder")
        .replace("JSONDecoder, sys", "JSONDecoder.__name__, sys")
    )
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "program.py"], cwd=checkout,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, stdout=subprocess.PIPE, check=True,
    )
    assert json.loads(done.stdout)[0] == str(checkout / "pltz/__init__.py")


def test_the_path_of_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other, link = tmp_path / "here", tmp_path / "other", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    monkeypatch.chdir(here)
    path: list[Any] = ["", ".", str(here), str(link), str(other), Path(other), "../other"]
    assert search_path(path, ["", str(other)]) == [str(other), str(other)]
    assert search_path([str(other), str(here)], ["."]) == [str(other), str(here)]
    here.rmdir()
    assert search_path([str(other)], []) == [str(other)]
