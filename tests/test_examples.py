"""The examples in the docstrings of every module are correct."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["plt_codec", "models", "coding", "kv", "archive", "serving", "datasets", "benchmarks", "cli"]
FILES = [*(ROOT / "pltz").glob("*.py"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))]
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in FILES
    if ">>> " in path.read_text("utf8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name if name.startswith("pltz.") else f"pltz.{name}")
    done = doctest.testmod(module)
    assert done.attempted and not done.failed
