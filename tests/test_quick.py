"""`make quick` takes the tests nearest to what changed first."""

from __future__ import annotations

import re
from pathlib import Path

from tests.quick import ALWAYS, ROOT, selected

TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def folders(tests: list[str]) -> list[str]:
    """Return the folders of tests in their order, each once."""
    return list(dict.fromkeys(str(Path(test).parent) for test in tests))


def test_own_tests_come_before_those_of_the_folder_and_of_the_room() -> None:
    found = selected(["archive/format/block.py"], TESTS)
    assert tuple(found[:3]) == (*ALWAYS, "tests/archive/format/test_block.py")
    assert folders(found)[:2] == ["tests", "tests/archive/format"]
    assert {Path(test).parts[1] for test in found[2:]} == {"archive"}
    assert len(found) == len(set(found))


def test_the_nearest_tests_of_each_file_come_first() -> None:
    found = selected(["coding/sketch.py", "archive/format/parity.py", "tests/kv/store/test_tier.py"], TESTS)
    assert found[2:5] == [
        "tests/coding/test_sketch.py", "tests/archive/format/test_parity.py", "tests/kv/store/test_tier.py"
    ]  # fmt: skip
    assert {Path(test).parts[1] for test in found[2:]} == {"coding", "archive", "kv"}


def test_a_document_is_tested_as_one_and_other_files_select_nothing() -> None:
    for page in ("docs/archive.md", "archive/format/FORMAT.md"):
        assert selected([page], TESTS)[2:] == ["tests/test_documents.py"]
    assert selected(["LICENSE", "gone/away.py"], TESTS) == list(ALWAYS)


def test_the_cheap_tests_of_the_makefile_are_there() -> None:
    """`make cheap` stops at the first red test. A path that was moved away would stop it before any test."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    listed = re.sub(
        r"\$\(addprefix (\S+?),([^)]*)\)",
        lambda match: " ".join(match[1] + name for name in match[2].split()),
        next(line for line in text.splitlines() if line.startswith("CHEAP :=")),
    ).split()[2:]
    assert len(listed) > 20
    assert [path for path in listed if not (ROOT / path).exists()] == []
