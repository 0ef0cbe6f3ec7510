"""Files frozen with the embedded bundle thaw for ever, with every engine, and are frozen to the same bytes again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pltz.models.bundle import Bundle
from pltz.models.codec import Codec
from pltz.plt_codec import native
from pltz.plt_codec.container import Reader
from pltz.plt_codec.frame import TokenCoder

FOLDER = Path(__file__).parents[1] / "golden" / "mini"
FILES = sorted(FOLDER.glob("*.pltz"))


def maker() -> ModuleType:
    """make.py beside the files."""
    spec = importlib.util.spec_from_file_location("golden_mini", FOLDER / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["compiled", "torch"])
def codec(request: pytest.FixtureRequest) -> Codec:
    bundle = Bundle.load("mini")
    if request.param == "torch":
        return Codec(bundle, TokenCoder(bundle.engine()))
    if not native.available():
        pytest.skip("the compiled engine was not built here")
    return Codec(bundle, native.NativeCoder(bundle.weights))


def test_there_is_a_file_for_each_layout() -> None:
    bundle = Bundle.load("mini").id.hex()
    assert {p.stem.removeprefix(bundle + "-") for p in FILES if p.stem.startswith(bundle)} == set(
        maker().LAYOUTS
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem[-8:])
def test_golden_files_thaw_and_freeze_again(codec: Codec, path: Path) -> None:
    data, sessions = path.read_bytes(), maker().sessions()
    assert codec.decompress(data) == sessions
    layout = next(v for k, v in maker().LAYOUTS.items() if path.stem.endswith(k))
    assert codec.compress(sessions, verify=False, **layout) == data
    Reader(data).verify()
