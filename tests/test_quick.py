"""`make quick` takes the tests nearest to what changed first."""

import subprocess
import sys
from pathlib import Path

from tests.cheap import CHEAP, ENDS
from tests.quick import ALWAYS, ROOT, selected

TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def folders(tests: list[str]) -> list[str]:
    """Return the folders of tests in their order, each once."""
    return list(dict.fromkeys(str(Path(test).parent) for test in tests))


def test_own_tests_come_before_those_of_the_folder_and_of_the_room() -> None:
    found = selected(["archive/format/block.py"], TESTS)
    assert tuple(found[:3]) == (*ALWAYS, "tests/archive/format/test_block.py")
    assert folders(found)[:2] == ["tests", "tests/archive/format"]
    assert {Path(test).parts[1] for test in found[2:]} == {"archive"} and len(found) == len(set(found))


def test_the_nearest_tests_of_each_file_come_first() -> None:
    found = selected(["coding/sketch.py", "archive/format/parity.py", "tests/kv/store/test_kv_file.py"], TESTS)
    assert found[2:5] == [
        "tests/coding/test_sketch.py", "tests/archive/format/test_parity.py", "tests/kv/store/test_kv_file.py"
    ]  # fmt: skip
    assert {Path(test).parts[1] for test in found[2:]} == {"coding", "archive", "kv"}


def test_a_document_is_tested_as_one_and_other_files_select_nothing() -> None:
    for page in ("docs/archive.md", "archive/format/FORMAT.md"):
        assert selected([page], TESTS)[2:] == ["tests/test_documents.py"]
    assert selected(["LICENSE", "gone/away.py"], TESTS) == list(ALWAYS)


def test_the_cheap_tests_are_there() -> None:
    assert [name for name in CHEAP if not (ROOT / "tests" / name).exists()] == []


def test_a_red_cheap_test_ends_the_run_and_another_does_not(tmp_path: Path) -> None:
    """The copies have one red test each, before a green one of their own file and the red one of the other."""
    for name in ("test_imports.py", "test_wheel.py"):
        (tmp_path / name).write_text("def test_red():\n    assert False\n\n\ndef test_green():\n    pass\n")
    (tmp_path / "cheap.py").write_text((ROOT / "tests/cheap.py").read_text())
    words = [sys.executable, "-m", "pytest", "-p", "cheap", "-p", "no:cacheprovider", "test_wheel.py"]
    for more, ended in ([], "1 failed, 1 passed"), (["test_imports.py"], "1 failed"):
        done = subprocess.run([*words, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert f"{ended} in" in done.stdout and (ENDS in done.stdout) == bool(more)
