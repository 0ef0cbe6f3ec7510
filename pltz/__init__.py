"""LLM sessions, frozen to about a kilobyte and thawed bit for bit.

    import pltz

    data = pltz.compress("chats.jsonl")          # bytes of a .pltz file, every session decoded back and compared
    sessions = pltz.decompress(data)             # value for value
    with pltz.open("chats.pltz") as file:        # single sessions, without the others
        print(len(file), file[7].value)
    thawed = pltz.thaw("chats.pltz", "mini-llama", 7)   # the target's KV cache, after one prefill

    cold = pltz.Archive.open("/data/cold", create=True)
    cold.put("chat-7", {"messages": [...]}, tenant="acme")
    cold.get("chat-7", tenant="acme").value

Names are loaded when they are first used: ``import pltz`` costs no torch and no numpy. `__init__.pyi` lists them.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """Return the module that each public name is imported from in `__init__.pyi`."""
    import ast

    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    """Import a public name from its home, once (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("pltz")
    elif name == "__all__":
        value = sorted([*_homes(), "__version__"])
    elif name.startswith("__") or name not in _homes():
        raise AttributeError(f"module 'pltz' has no attribute {name!r}")
    else:
        value = getattr(importlib.import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, and nothing else."""
    return list(__getattr__("__all__"))
