"""Offer: the public names of a package, each loaded when it is first asked for.

    __getattr__, __dir__ = offer(__file__)

The package's `__init__.pyi` says which home each name has, for people, type checkers and this module alike. A name that
is offered is no module of the package: Python would find the module first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def homes(file: str) -> dict[str, str]:
    """Return the module that each name is imported from in the ``.pyi`` beside a package's ``__init__.py``."""
    import ast  # half of what `import pltz` would take

    tree = ast.parse(Path(file).with_suffix(".pyi").read_text("utf8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def offer(file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` (PEP 562). ``file``: its ``__init__.py``.

    Nothing is remembered: a name is what its home says now.
    """

    def getattribute(name: str) -> Any:
        if name == "__all__":
            return sorted(homes(file))
        if name.startswith("__") or name not in homes(file):
            raise AttributeError(f"{file} has no attribute {name!r}")
        home = importlib.import_module(homes(file)[name])
        return getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{home.__name__}.{name}")

    return getattribute, lambda: sorted(homes(file))
