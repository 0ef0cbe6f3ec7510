"""Golden log frames thaw and are frozen again."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from pltz.coding.log import table
from pltz.coding.log.log_coder import LogCoder, parse
from pltz.models.bundle.bundle import Bundle
from tests.loaded import module_at

SHIPPED = True

FOLDER = Path(__file__).parents[2] / "golden" / "logs"
FILES = sorted(FOLDER.glob("*.frame"))


def maker() -> ModuleType:
    """Return make.py beside the files."""
    return module_at(FOLDER / "make.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[33:])
def test_golden_frames_thaw_and_freeze_again(path: Path) -> None:
    bundle_id, version, case = path.stem.split("-")
    content, above, by_model, fast = maker().CASES[case]
    assert int(version) == table.VERSION
    bundle = Bundle.find(bytes.fromhex(bundle_id))
    coder, frame = LogCoder(bundle, bundle.coder()), path.read_bytes()
    assert coder.decode([(frame, len(content), above)]) == [content]
    assert coder.encode([(content, above)], by_model=by_model, fast=fast) == [frame]


def test_there_is_a_file_for_each_method() -> None:
    names = {case: {path for path in FILES if path.stem.endswith(f"-{case}")} for case in maker().CASES}
    assert all(names.values())
    found = {parse(path.read_bytes()).name for path in FILES}
    assert found == {"zstd", "log + zstd", "log + model"}
    assert {path.stem.split("-")[2] for path in FILES if parse(path.read_bytes()).fast} == {"fast"}
