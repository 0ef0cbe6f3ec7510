"""Problems: everything wrong that one process met in an archive, each once, and the packs that it could not read.

    problems.note("pack", pack.hex(), "12 bytes at 70: ...", pack=pack)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_PROBLEMS = 10_000  # at most this many are listed


@dataclass(frozen=True)
class Problem:
    """A problem found in the archive.

    Attributes:
        kind: the kind of file or object it concerns, such as pack, record, index, list, loss, session,
            settings, parity, keys, erase, merge or freshness.
        name: name of the file, or of the session's version.
    """

    kind: str
    name: str
    what: str


class Problems:
    """A list of problems without repetitions. ``problems``: a list to extend; None: a new one.

    ``packs``: the packs with bytes that could not be read. ``blind``: those of them in which heads of records could not
    be read. Only `note` adds to them.
    """

    def __init__(self, problems: list[Problem] | None = None) -> None:
        self._problems = [] if problems is None else problems
        self._known = set(self._problems)
        self.packs: set[bytes] = set()
        self.blind: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._problems)

    def note(self, kind: str, name: str, what: str, *, pack: bytes | None = None, blind: bool = False) -> None:
        """Add a problem unless it is known.

        After MOST_PROBLEMS problems one last problem says that there are more.

        Args:
            pack: the pack with bytes that could not be read, if any.
            blind: whether heads of records are among these bytes, so that it is not known whose they are.
        """
        if pack is not None:
            self.packs.add(pack)
            if blind:
                self.blind.add(pack)
        self.add(Problem(kind, name, what))

    def add(self, problem: Problem) -> None:
        """Add a problem, as `note` does."""
        if problem in self._known or len(self._problems) > MOST_PROBLEMS:
            return
        if len(self._problems) == MOST_PROBLEMS:
            problem = Problem(problem.kind, "", f"more than {MOST_PROBLEMS} problems: no more are listed")
        self._known.add(problem)
        self._problems.append(problem)
