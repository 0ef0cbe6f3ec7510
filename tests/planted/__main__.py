"""Plant each bug of the registry in a copy of the tree, one at a time, and run the tests that are to catch it.

    python -m tests.planted                       # all of them; `make planted`
    python -m tests.planted --room kv
    python -m tests.planted "packs deleted without a ledger entry"
    python -m tests.planted --list

A bug is caught where one of its tests fails. Before any is planted, all these tests have to pass. The last line is
JSON. The exit code is 0 if all are caught, 1 if not, 2 if the tests fail without a bug.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from tests.planted.registry import ROOT, PlantedBug, registry

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT, LONG = 120, 1200  # seconds for the tests of one bug, and for those of all of them without a bug
CAUGHT, MISSED, GONE = "caught", "NOT CAUGHT", "does not apply"
PASSED, FAILED, UNENDED = 0, 1, -1  # exit codes of pytest, and where it did not end
LIBRARIES = {"archive": ["hypothesis", "numpy", "pytest"]}
HEAVY = ["hypothesis", "numpy", "pytest", "torch", "transformers"]  # of the other rooms: seconds to import


def copy_tree(to: Path) -> None:
    """Copy the files that git tracks, those that are new, and the compiled modules."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    built = (path for room in ROOT.iterdir() if (room / "__init__.py").is_file() for path in room.rglob("*.so"))
    for name in {*filter(None, names), *(str(path.relative_to(ROOT)) for path in built)}:
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


@contextmanager
def planted(bug: PlantedBug, tree: Path) -> Iterator[None]:
    """Plant a bug in a copy of the tree, and take it out again. Raises ValueError where it does not apply."""
    path, text = tree / bug.file, bug.planted(tree)
    before = path.read_text()
    try:
        _write(path, text)
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # its time and size may be those of before


def exit_code(tests: Sequence[str], tree: Path, limit: float) -> int:
    """Run tests in a process of its own, in a tree, until one fails; return pytest's exit code, UNENDED without one."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(tests, tree))
    process.start()
    process.join(limit)
    with suppress(ProcessLookupError):  # with all that they started
        os.killpg(process.pid or 0, signal.SIGKILL)
    ended = process.exitcode is not None
    process.join()
    return process.exitcode if ended and process.exitcode is not None else UNENDED


def _run(tests: Sequence[str], tree: Path) -> None:
    os.setsid()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "pltz")]:
        del sys.modules[name]  # those of the tree are imported
    os.chdir(tree)
    sys.path[:] = [str(tree), *(place for place in sys.path if Path(place).resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(tree)  # of the processes that tests start
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os._exit(import_module("pytest").main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def verdict(bug: PlantedBug, tree: Path) -> str:
    """Return whether the tests of a bug catch it."""
    try:
        with planted(bug, tree):
            code = exit_code(bug.tests, tree, LIMIT)
    except ValueError as exc:
        return f"{GONE}: {exc}"
    if code == FAILED:
        return CAUGHT
    return MISSED if code == PASSED else f"{MISSED}: its tests did not end" if code == UNENDED else f"{MISSED}: {code}"


def run(bugs: Sequence[PlantedBug]) -> int:
    """Plant bugs one by one, print a line for each and a summary, and return the exit code."""
    begin = time.monotonic()
    for library in {name for bug in bugs for name in LIBRARIES.get(bug.room, HEAVY)}:
        import_module(library)  # once, for all processes that are forked
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        tests = sorted({test for bug in bugs for test in bug.tests})
        if (code := exit_code(tests, tree, LONG)) != PASSED:
            print(f"the tests fail without a bug (pytest's exit code {code}): run them, and mend that first")
            return 2
        counts = Counter[str]()
        for bug in bugs:
            start = time.monotonic()
            found = verdict(bug, tree)
            counts[found.partition(":")[0]] += 1
            print(f"{time.monotonic() - start:6.1f} s  {bug.room:<8} {bug.name}: {found}", flush=True)
    summary = {"bugs": len(bugs), **{kind: counts[kind] for kind in (CAUGHT, MISSED, GONE)}}
    print(json.dumps(summary | {"seconds": round(time.monotonic() - begin)}))
    return int(counts[CAUGHT] < len(bugs))


def main() -> int:
    """Read the command line, and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a bug; all of them where none is given")
    parser.add_argument("--room", help="only those of a room, such as archive")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    asked = parser.parse_args()
    bugs = [bug for bug in registry() if asked.room in (None, bug.room) and bug.name in (asked.names or [bug.name])]
    if unknown := set(asked.names) - {bug.name for bug in bugs}:
        parser.error(f"no bug {min(unknown)!r}: see --list")
    if not asked.list:
        return run(bugs) if bugs else parser.error("no bug in this room: see --list")
    print(*(f"{bug.room}: {bug.name}" for bug in bugs), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
