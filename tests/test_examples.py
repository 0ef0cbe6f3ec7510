"""The examples in the docstrings of every module are correct."""

import doctest
import importlib
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.coding.log.sources import from_sources
from tests.test_imports import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[1]
FILES = [*(ROOT / "pltz").glob("*.py"), *(path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py"))]
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES if ">>> " in path.read_text("utf8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    with from_sources() if name.startswith("coding.log.") else nullcontext():  # doctest finds none in compiled ones
        module = importlib.import_module(name if name.startswith("pltz.") else f"pltz.{name}")
        done = doctest.testmod(module)
    assert done.attempted and not done.failed
