"""Files frozen with an embedded bundle thaw for ever, with every engine, and are frozen to the same bytes again."""

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from pltz.coding.codec import Codec
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.engines.native import coder as native
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.lanes import LayoutName
from tests.loaded import module_at

SHIPPED = True

FOLDER = Path(__file__).parents[1] / "golden" / "mini"
FILES = sorted(FOLDER.glob("*.pltz"))


def maker() -> ModuleType:
    """make.py beside the files."""
    return module_at(FOLDER / "make.py")


@cache
def codec(engine: str, bundle_id: str) -> Codec:
    """Return the codec of an embedded bundle."""
    bundle = Bundle.find(bytes.fromhex(bundle_id))
    coder = TokenCoder(TorchEngine(bundle.weights)) if engine == "torch" else native.NativeCoder(bundle.weights)
    return Codec(bundle, coder)


@pytest.mark.parametrize("name", ["mini", "nano"])
def test_there_is_a_file_for_each_layout(name: str) -> None:
    bundle = Bundle.load(name).id.hex()
    assert {p.stem.removeprefix(bundle + "-") for p in FILES if p.stem.startswith(bundle)} == set(maker().LAYOUTS)


# torch decodes slowly; its frequencies in all layouts are golden too (benchmarks/test_exactness.py)
CASES = [("compiled", path) for path in FILES]
CASES += [("torch", path) for path in FILES if path.stem.endswith("-fast")][-1:]


@pytest.mark.parametrize(
    ("engine", "path"), CASES, ids=lambda value: value if isinstance(value, str) else value.stem[:4] + value.stem[-8:]
)
def test_golden_files_thaw_and_freeze_again(engine: str, path: Path) -> None:
    if engine == "compiled" and not native.available():
        pytest.skip("the compiled engine was not built here")
    bundle_id, _, title = path.stem.partition("-")
    data, sessions, known = path.read_bytes(), maker().sessions(), codec(engine, bundle_id)
    assert known.decompress(data) == sessions
    assert known.compress(sessions, verify=False, layout=cast("LayoutName", title)) == data
    Reader(data).verify()
