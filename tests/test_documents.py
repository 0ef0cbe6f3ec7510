"""The code that documents show parses, imports `pltz` alone, and its calls fit the functions that they call."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pltz

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("docs", "examples", "archive", "benchmarks", "cli", "datasets", "models", "plt_codec")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for room in ROOMS for page in sorted((ROOT / room).rglob("*.md"))),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shown() -> Iterator[tuple[str, str]]:
    """Yield the name and the code of every example file and of every ```python block."""
    for page in PAGES:
        text = page.read_text("utf8")
        for found in BLOCK.finditer(text):
            yield f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[1]
    for file in sorted((ROOT / "examples").glob("*.py")):
        yield str(file.relative_to(ROOT)), file.read_text("utf8")


SHOWN = dict(shown())


def faults(code: str) -> list[str]:
    """Return what is wrong with a piece of code, a line each."""
    tree = ast.parse(code)
    kinds: dict[str, Any] = {
        "pltz": pltz
    }  # what a name stands for: the package, or an object of a class of it
    found = [f"import pltz, not {name}" for name in _imports(tree) if name.startswith("pltz.")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made = _made(node.value)
            if made is not None:
                kinds[node.targets[0].id] = made
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _dotted(node.value) == ["pltz"] and node.attr not in pltz.__all__:
            found.append(f"pltz.{node.attr} is not public")
        if isinstance(node, ast.Call) and (dotted := _dotted(node.func)) and dotted[0] in kinds:
            found += _misfit(kinds[dotted[0]], dotted, node)
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dotted(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``, none of any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (below := _dotted(node.value)):
        return [*below, node.attr]
    return []


def _made(node: ast.expr) -> Any:
    """Return the class of what ``pltz.Class(...)``, ``.open(...)`` or ``.load(...)`` makes; None for all else."""
    names = _dotted(node.func) if isinstance(node, ast.Call) else []
    if len(names) in (2, 3) and names[0] == "pltz" and names[2:] in ([], ["open"], ["load"]):
        made = getattr(pltz, names[1], None)
        return made if isinstance(made, type) else None
    return None


def _misfit(start: Any, dotted: list[str], call: ast.Call) -> list[str]:
    """Return why a call does not fit what it calls, if it does not."""
    name, value = ".".join(dotted), start
    if start is not pltz and len(dotted) > 2:  # of an attribute of an object nothing is known
        return []
    for part in dotted[1:]:
        value = getattr(value, part, None)
        if value is None:
            return [f"there is no {name}"]
    if not callable(value) or any(isinstance(one, ast.Starred) for one in call.args):
        return []
    given = [None] * (len(call.args) + (start is not pltz and inspect.isfunction(value)))  # self, too
    try:
        inspect.signature(value).bind_partial(*given, **{k.arg: None for k in call.keywords if k.arg})
    except TypeError as exc:
        return [f"{name}: {exc}"]
    return []


def test_there_are_examples_to_check() -> None:
    assert {name.partition(":")[0] for name in SHOWN} >= {
        "README.md",
        "docs/vllm.md",
        "examples/llama_server.py",
    }
    assert len(SHOWN) >= 9


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_imports_pltz_alone_and_calls_it_right(name: str) -> None:
    assert faults(SHOWN[name]) == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("from pltz.archive.archive import Archive", "import pltz, not pltz.archive.archive.Archive"),
        ("import pltz.api", "import pltz, not pltz.api"),
        ("import pltz\npltz.api.thaw('x')", "pltz.api is not public"),
        ("import pltz\npltz.Archive.make('x')", "there is no pltz.Archive.make"),
        ("import pltz\ncold = pltz.Archive.open('x', creat=True)", "creat"),
        (
            "import pltz\ncold = pltz.Archive.open('x')\ncold.get('x', 'acme')",
            "cold.get: too many positional",
        ),
        ("import pltz\ncold = pltz.Archive.open('x')\ncold.fetch('x')", "there is no cold.fetch"),
    ],
)
def test_the_check_finds_what_is_wrong(code: str, fault: str) -> None:
    assert any(fault in one for one in faults(code))
