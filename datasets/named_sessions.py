"""Named sessions: what a source holds with the names under which an archive keeps it.

    for session in named(recognise("projects", options), "projects"):
        session.name                          # ./-home-me-shop/4f35e220, or chats/3

The rule of the names is in file_names.py. Whoever puts sessions of files names them so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from pltz.datasets.file_forms import FILE, tags_of_file
from pltz.datasets.file_names import STDIN, below, log_name, unpacked, with_suffix
from pltz.datasets.input_format import CHANGED, Recognised


@dataclass(frozen=True)
class NamedSession:
    """A session of a source, with its name.

    Attributes:
        head: its name without its number.
        number: of the session in its file, None where the file is one session or a part of one.
        alone: whether no other session is in its file.
    """

    found: Recognised
    head: str
    number: int | None = None
    alone: bool = False

    @property
    def name(self) -> str:
        """Return the name by its file."""
        return self.head if self.number is None else f"{self.head}/{self.number}"

    @property
    def mtime(self) -> int:
        """Return when its file was changed last, in nanoseconds since 1970, where that is its own; else 0."""
        return self.found.mtime if self.number is None or self.alone else 0

    @property
    def continues(self) -> bool:
        """Return whether it has to continue what is stored: else it is that of another file. Logs and texts change."""
        return self.found.noun not in CHANGED

    def tags(self) -> dict[str, str]:
        """Return the tag that tells its file, where its name and content do not."""
        found = self.found
        if found.second and not found.part:
            return {FILE: "" if unpacked(found.file) == found.file.rpartition("/")[2] else ".jsonl"}
        if not self.alone or found.part:
            return {}
        return tags_of_file(self.name, found.file, found.session, numbered=self.number is not None)


def named(sessions: Iterable[Recognised], given: str, head: str = "") -> Iterator[NamedSession]:
    """Yield the sessions of a source with their names. An error comes after the sessions before it.

    ``given``: the source, as it was named. ``head``: what their names begin with, where that is not told by the file.
    """
    counts = Counter[str]()
    for found, alone in _with_alone(sessions):
        whole = found.is_log or bool(found.part)
        if whole or not counts[found.file]:  # those that follow in a file have its name, too
            name = _name_of(found, given, head)
        yield NamedSession(found, name, None if whole else counts[found.file], alone and found.is_verbatim)
        counts[found.file] += 1


def _name_of(found: Recognised, given: str, head: str) -> str:
    """Return the name by the file of a session. ``given``, ``head``: as of `named`."""
    # the log of parts may lie above what is given
    inside = given == STDIN or PurePath(found.file).is_relative_to(given)
    whole = found.is_log or bool(found.part)
    name = log_name(given if inside else found.file, found.file) if whole else head or below(given, found.file)
    in_zip = given != STDIN and PurePath(found.file) != PurePath(given)
    if head and not whole and inside and in_zip:
        inside_it = below(given, found.file).removeprefix("./")
        name = f"{head}{PurePath(given).suffix}/{inside_it}"
    return with_suffix(name, found.file) if found.second and not found.part else name


def _with_alone(sessions: Iterable[Recognised]) -> Iterator[tuple[Recognised, bool]]:
    """Yield sessions, each with whether it is the only one of its file. An error comes after those before it."""
    first: Recognised | None = None  # of its file, until it is known whether there are more
    file = ""
    try:
        for found in sessions:
            if first is not None:
                yield first, first.file != found.file
                first = None
            if found.is_log or found.part or found.file == file:
                yield found, found.is_log
            else:
                first = found
            file = found.file
    except Exception:
        if first is not None:
            yield first, False
        raise
    if first is not None:
        yield first, True
