"""The golden files of KV, and what made them."""

from pathlib import Path
from types import ModuleType

from tests.loaded import module_at

FOLDER = Path(__file__).parents[2] / "golden" / "kv"


def maker() -> ModuleType:
    """Return make.py beside the files."""
    return module_at(FOLDER / "make.py")
