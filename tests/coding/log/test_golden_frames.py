"""Golden log frames thaw and are frozen again."""

from pathlib import Path
from types import ModuleType

import pytest

from pltz.coding.log import table
from pltz.coding.log.log_coder import Decoded, parse
from pltz.coding.log.splitter import Splitter
from pltz.models.bundle.bundle import Bundle
from tests.coding.log.frame_coder import FrameCoder
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
    content, _, by_model, fast = maker().CASES[case]
    assert int(version) == table.VERSION
    bundle = Bundle.find(bytes.fromhex(bundle_id))
    coder = FrameCoder(bundle, bundle.coder)
    with pytest.MonkeyPatch.context() as patch:  # a reader splits nothing
        patch.setattr(Splitter, "content", lambda *_: pytest.fail("a reader split a log"))
        assert decoded(coder, path).content() == content
    assert coder.encode([(content, maker().above(case))], by_model=by_model, fast=fast) == [path.read_bytes()]


def decoded(coder: FrameCoder, path: Path) -> Decoded:
    """Return a frame decoded after the frames above it."""
    head, _, case = path.stem.rpartition("-")
    content, up, *_ = maker().CASES[case]
    above = decoded(coder, path.with_name(f"{head}-{up}.frame")).part if up else None
    return coder.decode_begun([(path.read_bytes(), len(content), above)])[0]


def test_there_is_a_file_for_each_method() -> None:
    names = {case: {path for path in FILES if path.stem.endswith(f"-{case}")} for case in maker().CASES}
    assert all(names.values()) and {parse(path.read_bytes()).name for path in FILES} == {"log + ppmd", "log + model"}
    assert {path.stem.split("-")[2] for path in FILES if parse(path.read_bytes()).unpacked} == {"packed"}
    assert {path.stem.split("-")[2] for path in FILES if parse(path.read_bytes()).fast} == {"fast"}
