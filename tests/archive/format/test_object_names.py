"""Object names: every name that is made is read back, all others are skipped, and nobody else makes one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pltz.archive.format import object_names
from pltz.archive.format.object_names import KeyFileName, last_part

ROOT = Path(__file__).resolve().parents[3]
ID = bytes(range(16))
FOREIGN = ["", "notes.txt", "00" * 15, "00" * 17, "0F" * 16, "ledger-00", "00" * 16 + "-00000001-2", "archive.json"]
# a path in one of the folders, or the name of a folder that is passed to a store
MADE = re.compile(rf"({'|'.join(object_names.FOLDERS)})/.*")


def test_packs_and_their_parity_are_read_back() -> None:
    for kind in object_names.pack, object_names.parity, object_names.table_copy:
        names = [last_part(kind(ID)), *FOREIGN]
        assert kind.listed(lambda folder: dict.fromkeys(names, 7)) == {ID: 7}  # noqa: B023


def test_key_files_are_read_back() -> None:
    names = object_names.key_copies(ID, 300)
    wanted = [KeyFileName(ID, 300, 0), KeyFileName(ID, 300, 1)]
    assert object_names.key_files_among([*map(last_part, names), *FOREIGN]) == wanted
    assert tuple(file.name for file in wanted) == names


def test_damaged_copies_are_found_by_the_name_of_the_original() -> None:
    names = [object_names.damaged(object_names.pack(ID), bytes([n]) * 16) for n in (2, 1)]
    listed = [*map(last_part, names), last_part(object_names.damaged(object_names.parity(ID), ID)), *FOREIGN]
    assert object_names.damaged_among(listed, object_names.pack(ID)) == sorted(names)


@pytest.mark.parametrize("folder", ["archive", "cli"])
def test_nobody_else_makes_names(folder: str) -> None:
    made = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "object_names.py" and "nightly" not in path.parts  # the nightly job's state is no archive
        for text in _texts(ast.parse(path.read_text("utf8")))
        if MADE.fullmatch(text)
    }
    assert not made


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the string constants of a module, and of each f-string its beginning with braces for the values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value
