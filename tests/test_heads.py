"""The head of every module begins with one sentence, and its trees, tables and lists keep their lines."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[1]
ROOMS = [*MAY_IMPORT, "pltz"]
FILES = sorted(
    path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")
    if not any(folder.is_symlink() for folder in path.parents)
)
WORDS = 30  # of the first sentence
BOXES = "├└│"
ITEM = "* "
Function = ast.FunctionDef | ast.AsyncFunctionDef
QUESTION = re.compile(r"(What|Of|Whether|Where|Who|That|Those|How|As|From|When|Which)\b")


def faults(head: str) -> list[str]:
    """Return what is wrong with a docstring, a line each.

    >>> faults("Packs: what a disk keeps.\\n\\n    head | blocks   | footer\\n")
    []
    """
    found = []
    paragraph = " ".join(head.partition("\n\n")[0].split())
    sentence = re.match(r"(?:[^.]|\.(?=\S))*\.(?=\s|$)", paragraph)
    if not re.match(r"[A-Z]|``?[a-z]", paragraph):
        found.append(f"begins with no capital: {paragraph[:40]}")
    if sentence is None:
        found.append("no sentence ends in its first paragraph")
    elif len(sentence[0].split()) > WORDS:
        found.append(f"its first sentence has {len(sentence[0].split())} words")
    in_list = in_example = False
    for line in head.splitlines():
        in_example = line.startswith(">>> ") or (in_example and line != "")
        if in_example:
            continue
        in_list = line.startswith(ITEM) or (in_list and line != "")
        if in_list and not line.startswith((ITEM, "  ")):
            found.append(f"a list goes on outside: {line[:40]}")
        if re.match(r"\S", line) and re.search(r"\S   +\S", line):
            found.append(f"a table is not indented: {line[:40]}")
        if any(box in re.sub(r"^[\s├└│─]+", "", line) for box in BOXES):
            found.append(f"a tree was joined: {line[:40]}")
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what the parser makes of a module."""
    return ast.parse((ROOT / path).read_text("utf8"))


def test_a_module_begins_with_a_sentence_and_keeps_its_lines() -> None:
    found = []
    for path in FILES:
        head = ast.get_docstring(tree_of(path), clean=False)  # cleaned, a head of one table is not indented
        if head is None:
            found += [f"{path}: has no head"] * bool(tree_of(path).body)
        else:
            found += [f"{path}: {fault}" for fault in faults(head)]
    assert not found


def test_no_docstring_begins_with_a_question() -> None:
    """A function's begins with a verb, a class's with a noun."""
    found = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and QUESTION.match(ast.get_docstring(node) or ""):
                found.append(f"{path}:{node.lineno} {node.name}")
    assert not found


@pytest.mark.parametrize(("head", "told"), [
    ("no capital.", "no capital"),
    ("Thaw: from ids to KV", "no sentence"),
    ("Errors: all of them.\n\nPltzError ├── ArchiveError  7 │   └── StoreError  7", "a tree was joined"),
    ("Verify: read.\n\npacks     digest against name", "not indented"),
    ("Thaw: ids.\n\n* Its KV differs by noise (token by\ntoken).", "goes on outside"),
    ("Words: " + "word " * 30 + "end.", "32 words"),
])
def test_a_destroyed_head_is_seen(head: str, told: str) -> None:
    assert [fault for fault in faults(head) if told in fault]


def public_functions(tree: ast.AST, methods: bool = False) -> Iterator[tuple[Function, bool]]:
    """Yield the public functions of a module and the methods of its classes, those inside functions left out."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node, methods=True)
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield node, methods


def is_overload(node: Function) -> bool:
    """Tell whether a definition gives only types."""
    return any(ast.unparse(one) in ("overload", "typing.overload") for one in node.decorator_list)


def test_a_public_function_has_a_docstring_and_a_method_has_one_where_it_is_first_defined() -> None:
    found = [(path, *each) for path in FILES for each in public_functions(tree_of(path))]
    # A method that implements a protocol's or a base class's is documented there, under the same name.
    documented = {node.name for _, node, method in found if method and ast.get_docstring(node)}
    bare = [
        f"{path}:{node.lineno} {node.name}" for path, node, method in found
        if not ast.get_docstring(node) and not is_overload(node) and not (method and node.name in documented)
    ]
    assert not bare
