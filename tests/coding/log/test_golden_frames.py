"""Golden log frames: those of this table thaw and are frozen again, those of an older one are refused by version."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pltz.coding.log import table
from pltz.coding.log.log_coder import LogCoder, parse
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import VersionError

SHIPPED = True

FOLDER = Path(__file__).parents[2] / "golden" / "logs"
FILES = sorted(FOLDER.glob("*.frame"))


def maker() -> ModuleType:
    """Return make.py beside the files."""
    spec = importlib.util.spec_from_file_location("golden_logs", FOLDER / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[33:])
def test_golden_frames_thaw_and_freeze_again(path: Path) -> None:
    bundle_id, version, case = path.stem.split("-")
    content, above, by_model = maker().CASES[case]
    older = int(version) < table.VERSION  # no model is asked, so the bundle that made it need not be here
    bundle = Bundle.load() if older else Bundle.find(bytes.fromhex(bundle_id))
    coder, frame = LogCoder(bundle, bundle.coder()), path.read_bytes()
    if older and case != "whole":
        with pytest.raises(VersionError):
            coder.decode([(frame, len(content), above)])
        return
    assert coder.decode([(frame, len(content), above)]) == [content]
    assert coder.encode([(content, above)], by_model=by_model) == [frame]


def test_there_is_a_file_for_each_method() -> None:
    names = {case: {path for path in FILES if path.stem.endswith(f"-{case}")} for case in maker().CASES}
    assert all(names.values())
    found = {parse(path.read_bytes()).name for path in FILES}
    assert found == {"zstd", "log + zstd", "log + model"}
    assert {path.stem.split("-")[2] for path in FILES if parse(path.read_bytes()).narrow} == {"narrow"}
