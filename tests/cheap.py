"""Run cheap tests of every room first, and end at the first of them that is red: `pytest -p tests.cheap`.

`make test` runs all tests so, those of each file in one process. Files of `conftest.LONG` come next.
"""

from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CHEAP = (
    "test_imports.py", "test_packaging.py", "test_heads.py", "test_quick.py", "test_facade.py", "archive/catalog",
    "archive/format", "archive/writing", "archive/test_tower_archive.py", "archive/test_sessions.py", "cli/archive",
    "cli/test_help.py", "coding/test_codec.py", "coding/test_neighbours.py", "coding/codecs",
    "datasets/test_formats.py", "kv/forms", "kv/port", "kv/store/test_kv_folder.py", "models/session",
    "plt_codec/container", "serving/eviction/journal", "serving/nightly/test_config.py",
)  # fmt: skip
ENDS = "a cheap test is red: the others are left out"


@cache
def is_cheap(file: Path) -> bool:
    """Return whether the tests of a file run first."""
    return any(file.is_relative_to(TESTS / name) for name in CHEAP)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put cheap tests first."""
    items.sort(key=lambda item: not is_cheap(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the run at a cheap test that is red."""
    report = yield
    if report.failed and is_cheap(item.path):
        item.session.shouldfail = ENDS
    return report
