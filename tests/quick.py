"""Run ruff on the changed files, the tests of imports and packages, and fast tests of what changed, for a minute.

    python -m tests.quick [PROCESSES]      # `make quick`

Changed are the files that differ from main, or on main from the commit before. A changed `archive/format/block.py`
selects, in this order,

    tests/archive/format/test_block*.py    the tests of its own name
    tests/archive/format/                  the other tests of its folder
    tests/archive/                         the other tests of its room

No test begins after the minute, and the run says so then. `make test` runs them all.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("tests/test_imports.py", "tests/test_packaging.py")
SECONDS = 60  # for everything
LAST = 15  # of them are left for a test that began, and for the summary
FILES = 40  # files of tests that a minute has use for; each takes time to be collected
END, ORDER = "PLTZ_QUICK_END", "PLTZ_QUICK_ORDER"  # variables: time after which no test begins, tests in their order
RUFF = sys.executable, "-m", "ruff", "check", "--quiet"
NO_TIME = "the minute is over, and tests are left: `make test` runs them all"


def git(*words: str) -> list[str]:
    """Return the lines that a git command prints, none where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed() -> list[str]:
    """Return the files that differ from main, or on main from the commit before; new ones too, removed ones too."""
    base, head = git("merge-base", "main", "HEAD"), git("rev-parse", "HEAD")
    since = base[0] if base and base != head else "HEAD~1"
    return sorted({*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")})


def selected(files: Iterable[str], tests: Iterable[str]) -> list[str]:
    """Return the tests of changed files: those that always run, then the nearest of every file, then farther ones."""
    known = sorted(tests)
    by_distance: list[list[str]] = [[], [], []]
    for file in files:
        for found, nearest in zip(by_distance, _nearest(PurePosixPath(file), known), strict=True):
            found += nearest
    order = [*ALWAYS, *(test for found in by_distance for test in found)]
    return [test for test in dict.fromkeys(order) if test in known]


def _nearest(file: PurePosixPath, known: list[str]) -> Iterator[list[str]]:
    """Yield the tests of a file's own name, of its folder, and of its room."""
    inside = PurePosixPath(*file.parts[1:]) if file.parts[0] == "tests" else file
    folder = PurePosixPath("tests", inside.parent)
    room = PurePosixPath("tests", *inside.parent.parts[:1])
    name = inside.stem.removeprefix("test_")
    if file.suffix == ".md":
        yield from (["tests/test_documents.py"], [], [])
        return
    own = {str(file), *(f"{folder}/test_{name}{end}" for end in (".py", "_command.py"))}
    yield [test for test in known if test in own or test.startswith(f"{folder}/test_{name}_")]
    in_room = [test for test in known if len(inside.parts) > 1 and test.startswith(f"{room}/")]
    yield [test for test in in_room if test.startswith(f"{folder}/")]
    yield in_room


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the nearest tests first."""
    order = {ROOT / name: number for number, name in enumerate(os.environ[ORDER].split())}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Begin no other test after the end."""
    if time.time() > float(os.environ[END]):
        item.session.shouldstop = NO_TIME


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Succeed where time alone ended the run."""
    if exitstatus == pytest.ExitCode.INTERRUPTED and not session.testsfailed and time.time() > float(os.environ[END]):
        session.exitstatus = pytest.ExitCode.OK


def main(processes: str = "2") -> int:
    """Run ruff on what changed, then tests until the time is over. Return the exit code."""
    start, files = time.time(), changed()
    sources = [file for file in files if file.endswith(".py") and (ROOT / file).is_file()]
    if sources and (red := subprocess.run([*RUFF, *sources], cwd=ROOT, check=False).returncode):
        return red
    tests = selected(files, (str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")))
    print(f"{len(files)} changed files, the nearest {min(len(tests), FILES)} of {len(tests)} test files", flush=True)
    tests = tests[:FILES]
    environment = {END: str(start + SECONDS - LAST), ORDER: " ".join(tests)}
    spread = ("-n", processes, "--dist", "load", "--maxschedchunk", "1")  # one by one, in order
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.quick", *spread, *tests]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
