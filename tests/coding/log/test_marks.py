"""A line of a file is the same line under numbers, in the output of grep and in diffs."""

import json

import pytest

from pltz.coding.log import table
from pltz.coding.log.above import Above
from pltz.coding.log.marks import Marks, numbering_of
from tests.coding.log.logs import CODE, numbered

LINES = [f"    {name} = compute_the_value_of_{name}(width, height)" for name in ("first", "second", "third", "fourth")]
NEW = ["another line, which is new here", *LINES]
FORMS = {
    "numbers": numbered("\n".join(NEW)),
    "cat -n": "\n".join(f"{n:6d}\t{line}" for n, line in enumerate(NEW, 7)),
    "view": "\n".join(f"{n}. {line}" for n, line in enumerate(NEW, 98)),
    "grep": "\n".join(f"{n * 7 + 10}:{line}" for n, line in enumerate(NEW)),
    "hunk": "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n " + "\n ".join(LINES[:2]) + f"\n-{LINES[2]}\n+{LINES[3]}\nend",
}


@pytest.mark.parametrize("form", FORMS)
def test_marked_lines_come_back_and_are_found_again(form: str) -> None:
    plain = json.dumps({"text": "\n".join(LINES)}).encode() + b"\n"
    marked = json.dumps({"text": FORMS[form]}, ensure_ascii=False).encode() + b"\n"
    found = table.split(marked, Above.of(plain))
    assert table.join(found.columns, found.opaque, found.pieces, len(marked), Above.of(plain)) == marked
    assert not any("compute_the_value_of" in piece.text for piece in found.pieces)


def test_lines_of_a_diff_in_a_list_are_found_again() -> None:
    plain = json.dumps({"text": "\n".join(LINES)}).encode() + b"\n"
    marked = json.dumps({"patch": [sign + line for sign, line in zip(" -+ ", LINES, strict=True)]}).encode() + b"\n"
    found = table.split(marked, Above.of(plain))
    assert table.join(found.columns, found.opaque, found.pieces, len(marked), Above.of(plain)) == marked
    assert not any("compute_the_value_of" in piece.text for piece in found.pieces)


@pytest.mark.parametrize("line", ["", "def f():", "- item", "2026", "  12", "a b:3:c", "0012→x y", "x" * 300 + ":1:"])
def test_what_has_no_mark_has_no_numbering(line: str) -> None:
    found = numbering_of(line)
    assert found is None or line.startswith(found.mark())


def test_a_numbering_is_over_after_a_line_without_a_mark() -> None:
    state = Marks()
    state.passed("1: one", 3, None)
    assert state.numbering is not None
    state.passed(CODE.split("\n")[0], 3, None)
    assert state.numbering is None
