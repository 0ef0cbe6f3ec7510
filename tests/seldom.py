"""Tests that run where their files changed: emulated kernels, sanitizers and wheels, a third of the time of all tests.

    @pytest.mark.seldom("kv/pool/*", "kv/engines/*.cu")     # the files that the tests are about, beside their own
    PLTZ_ALL=1 make test                                    # runs them all, as each week's run does
    python -m tests.seldom                                  # runs them alone, and records those that passed

`tests/seldom.json` has, per file of tests, the digest of all these files when its tests passed last. A test is skipped
where that is their digest now.
"""

import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PASSED = Path(__file__).with_suffix(".json")
ALL = "PLTZ_ALL"  # variable: run them all
BUILT = {".so", ".pyc", ".o"}  # suffixes of files that are made
WHY = f"its files are as they were when it passed: {ALL}=1 runs it"


@cache
def passed() -> dict[str, str]:
    """Return the digests of what passed, by file of tests."""
    return dict(json.loads(PASSED.read_text("utf8"))) if PASSED.exists() else {}


@cache
def digest(file: str, patterns: frozenset[str]) -> str:
    """Return the digest of a file of tests, of the helpers beside it, and of the files that match, in hex."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern)} | {ROOT / file}
    found |= {path for path in (ROOT / file).parent.iterdir() if not path.name.startswith("test_") and path != PASSED}
    state = hashlib.sha256()
    for path in sorted(path for path in found if path.is_file() and path.suffix not in BUILT):
        state.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return state.hexdigest()


def patterns_of(items: Iterable[pytest.Item]) -> dict[str, frozenset[str]]:
    """Return the patterns of each file that has such tests, of all its tests together."""
    found: dict[str, set[str]] = defaultdict(set)
    for item in items:
        for mark in item.iter_markers("seldom"):
            found[item.path.relative_to(ROOT).as_posix()].update(mark.args)
    return {file: frozenset(patterns) for file, patterns in found.items()}


def skip_what_passed(items: Iterable[pytest.Item]) -> None:
    """Skip the tests whose files are as they were when these tests passed last."""
    if os.environ.get(ALL):
        return
    marked = [item for item in items if item.get_closest_marker("seldom")]
    patterns = patterns_of(marked)
    for item in marked:
        file = item.path.relative_to(ROOT).as_posix()
        if passed().get(file) == digest(file, patterns[file]):
            item.add_marker(pytest.mark.skip(reason=WHY))


class Recorder:
    """Records, after a run of all such tests, the digests of files of which none failed."""

    def __init__(self) -> None:
        self.patterns: dict[str, frozenset[str]] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are marked."""
        items[:] = [item for item in items if item.get_closest_marker("seldom")]
        self.patterns = patterns_of(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a file of which a test failed, or could not run here."""
        if report.failed or (report.skipped and report.when == "setup"):
            self.failed.add(report.nodeid.partition("::")[0])

    def record(self) -> None:
        """Write what passed, beside what passed before of other files that are still there."""
        fresh = {file: digest(file, patterns) for file, patterns in self.patterns.items() if file not in self.failed}
        both = {file: old for file, old in (passed() | fresh).items() if (ROOT / file).exists()}
        PASSED.write_text(json.dumps(dict(sorted(both.items())), indent=1) + "\n", "utf8")


def main(words: list[str]) -> int:
    """Run all such tests, with further words for pytest, and record those that passed. Return the exit status."""
    os.environ[ALL] = "1"
    recorder = Recorder()
    chosen = words if any(not word.startswith("-") for word in words) else [*words, str(ROOT / "tests")]
    status = pytest.main(["-m", "slow or not slow", "-p", "no:cacheprovider", *chosen], plugins=[recorder])
    recorder.record()
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
