"""Compiled: where the modules are that mypyc compiled of the ones here, for as long as these stay as they were.

The sources run anywhere. Compiled they make the same bytes in less than half the time. The folder of what is compiled
is named by a digest of the sources, so a change makes another folder: until setup.py has filled it, the sources run.
"""

from __future__ import annotations

import hashlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
LIBRARY: Final = "library"  # holds the code of all modules; each of them is a stub beside it
MODULES: Final = (
    "bit_coder",
    "codes",
    "joiner",
    "marks",
    "opaque",
    "past",
    "protobuf",
    "splitter",
    "times",
    "values",
    "walk",
)


def folder() -> Path:
    """Return the folder of what is compiled of these very sources, whether it is there or not."""
    state = hashlib.blake2b(digest_size=8)
    for name in MODULES:
        state.update((HERE / f"{name}.py").read_bytes())
    return HERE / f"compiled_{state.hexdigest()}"


def folders() -> list[str]:
    """Return the folders where modules are looked for before their sources: that of what is compiled, or none."""
    found = folder()
    files = {f"{name}{EXTENSION_SUFFIXES[0]}" for name in (*MODULES, f"{LIBRARY}__mypyc")}
    return [str(found)] if found.is_dir() and files <= {file.name for file in found.iterdir()} else []


def breathe() -> None:
    """Do nothing: only where compiled code calls Python, other threads have their turn and signals are heard."""
