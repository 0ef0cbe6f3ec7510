"""What mypyc compiled is of the sources as they are. What both make is compared in test_table.py."""

import importlib
import shutil
import threading
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from pltz.coding.log import compiled, table
from tests.coding.log.sources import from_sources


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("name", compiled.MODULES)
def test_modules_are_compiled_of_their_sources_as_they_are(name: str) -> None:
    file = importlib.import_module(f"pltz.coding.log.{name}").__file__
    told = f"coding/log/{name}.py runs as Python: make .venv/.tests, or pip install -e . --no-deps"
    assert file and compiled.folder() in Path(file).parents, told


def test_a_changed_source_runs_instead_of_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in compiled.MODULES:
        shutil.copy(compiled.HERE / f"{name}.py", tmp_path)
    monkeypatch.setattr(compiled, "HERE", tmp_path)
    compiled.folder().mkdir()
    for name in (*compiled.MODULES, f"{compiled.LIBRARY}__mypyc"):
        assert compiled.folders() == []
        (compiled.folder() / f"{name}{EXTENSION_SUFFIXES[0]}").touch()
    assert compiled.folders() == [str(compiled.folder())]
    with (tmp_path / "walk.py").open("a") as file:
        file.write("\n")
    assert compiled.folders() == []


def test_sources_run_beside_what_is_compiled() -> None:
    with from_sources():
        from pltz.coding.log import walk
    assert walk.__file__ == str(compiled.HERE / "walk.py")
    assert importlib.import_module("pltz.coding.log.walk") is not walk


def test_other_threads_run_while_a_log_is_joined() -> None:
    data = b"".join(b"line %d of a text\n" % n for n in range(50_000))
    found, turns, done = table.split(data), [0], threading.Event()

    def run() -> None:
        while not done.is_set():
            time.sleep(0.001)
            turns[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    before, made = turns[0], table.join(*found, len(data))
    after = turns[0]
    done.set()
    thread.join()
    assert made == data and after - before > 9
