"""Every planted bug applies to the tree, and the tests that are to catch it are there. None of them runs here."""

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.planted.registry import ROOT, PlantedBug, registry

BUGS = registry()


@pytest.mark.parametrize("room", sorted({bug.room for bug in BUGS}))
def test_each_bug_applies_and_stays_python(room: str) -> None:
    for bug in (bug for bug in BUGS if bug.room == room):
        text = bug.planted(ROOT)
        assert bug.old != bug.new, bug.name
        try:
            ast.parse(text)
        except SyntaxError as exc:  # it would be caught by any test at all
            pytest.fail(f"{bug.name}: {exc}")


def test_each_test_that_is_named_is_there() -> None:
    absent = [(bug.name, test) for bug in BUGS for test in bug.tests if not _is_there(test)]
    assert absent == [] and [bug.name for bug in BUGS if not 1 <= len(bug.tests) <= 2] == []


def test_names_and_bugs_are_different() -> None:
    for facts in ([bug.name for bug in BUGS], [(bug.file, bug.old, bug.new) for bug in BUGS]):
        assert len(facts) == len(set(facts))


def test_a_text_that_is_gone_or_stands_twice_is_an_error(tmp_path: Path) -> None:
    bug = PlantedBug("archive", "a sync left out", "store.py", "sync()", "pass", ())
    for text, why in (("write()", "stands 0 times"), ("sync()\nsync()", "stands 2 times")):
        (tmp_path / "store.py").write_text(text)
        with pytest.raises(ValueError, match=why):
            bug.planted(tmp_path)
    (tmp_path / "store.py").write_text("write()\nsync()\n")
    assert bug.planted(tmp_path) == "write()\npass\n"
    with pytest.raises(ValueError, match=r"disk\.py is gone"):
        replace(bug, file="disk.py").planted(tmp_path)


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return name.partition("[")[0] in _tests_of(file)


@cache
def _tests_of(file: str) -> set[str]:
    """Return the tests of a file as pytest names them, as far as they are written there."""
    found = set[str]()
    for node in ast.parse((ROOT / file).read_text()).body if (ROOT / file).is_file() else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.Assign):  # the test case of a state machine
            found |= {f"{one.id}::runTest" for one in node.targets if isinstance(one, ast.Name)}
    return found
