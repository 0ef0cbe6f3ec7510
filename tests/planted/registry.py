"""Planted bugs: for each one a text that stands once in a file, what takes its place, and the tests that catch it.

A room has a file of them, `archive.toml` for one:

    [[bug]]
    name = "packs deleted without a ledger entry"                   what is broken then
    file = "archive/maintenance/collect.py"
    old = '''...'''                                                 a few lines at most
    new = '''...'''
    tests = ["tests/archive/maintenance/test_collect.py::test_..."] one or two, the narrowest

Who changes the old text states the bug anew in the same commit: a bug that does not apply tells nothing.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class PlantedBug:
    """A bug. ``tests``: node ids of pytest, without parameters."""

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, root: Path) -> str:
        """Return the text of the file in a tree with the bug. Raises ValueError where it does not apply there."""
        try:
            text = (root / self.file).read_text()
        except FileNotFoundError as exc:
            raise ValueError(f"{self.name}: {self.file} is gone, name the file that has its text now") from exc
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its text stands {count} times in {self.file}, not once: state it anew")
        return text.replace(self.old, self.new)


def registry() -> list[PlantedBug]:
    """Return all bugs, room by room."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for row in tomllib.loads(path.read_text())["bug"]:
            found.append(PlantedBug(path.stem, **row | {"tests": tuple(row["tests"])}))
    return found
