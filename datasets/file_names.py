"""Names of the sessions of files: of agent logs, which are one session per file, and of files of many sessions.

    given                                     log of an agent                session 3 of a file of chats
    projects/-home-me-shop/4f35e220.jsonl     ./-home-me-shop/4f35e220
    projects                                  ./-home-me-shop/4f35e220
    chats/monday.jsonl                                                       monday/3
    chats                                                                    monday/3

A name is the path below the input that was given. An agent log keeps at least one folder in it, since many agents call
each log the same. So a log has one name whether it is given alone or with its folder. A path that begins with a dash,
as the folders of Claude Code do, has ./ before it: no command takes such a name for an option. What lies below such a
folder has its name in it, wherever the input that was given begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

from pltz.plt_codec.errors import UsageError

STDIN = "-"


def stem_of(path: str) -> str:
    """Return the name of a file without the suffixes of its format.

    >>> stem_of("logs/monday.v2.jsonl.gz"), stem_of("-")
    ('monday.v2', 'stdin')
    """
    name = PurePath(path).name
    return "stdin" if path == STDIN else name.removesuffix(".zst").removesuffix(".gz").rsplit(".", 1)[0] or name or path


def no_option(name: str) -> str:
    """Return a path that no command takes for an option: with ./ where it begins with a dash.

    >>> no_option("-home-me-shop/4f35e220"), no_option("shop/-4f35e220")
    ('./-home-me-shop/4f35e220', 'shop/-4f35e220')
    """
    return f"./{name}" if name.startswith("-") else name


def below(given: str, file: str) -> str:
    """Return the path of a file below the input that holds it, without suffixes; its stem where it is the input.

    >>> below("chats", "chats/en/monday.jsonl"), below("chats/monday.jsonl", "chats/monday.jsonl")
    ('en/monday', 'monday')
    """
    if given == STDIN or PurePath(file) == PurePath(given):
        return no_option(stem_of(given))
    inside = PurePath(file).relative_to(given)
    return no_option("/".join([*_dashed(given), *inside.parent.parts, stem_of(inside.name)]))


def _dashed(folder: str | PurePath) -> tuple[str, ...]:
    """Return the parts of a folder's path from the last one on that begins with a dash; none where none does.

    >>> _dashed("/home/ada/.claude/projects/-home-ada-shop/4f35e220"), _dashed("/home/ada")
    (('-home-ada-shop', '4f35e220'), ())
    """
    parts = PurePath(os.path.abspath(folder)).parts
    last = max((n for n, part in enumerate(parts) if part.startswith("-")), default=len(parts))
    return parts[last:]


def log_name(given: str, file: str) -> str:
    """Return the name of an agent log: its path below the input that holds it, with at least one folder.

    >>> log_name("/home/ada/.claude/projects", "/home/ada/.claude/projects/-home-ada-shop/4f35e220.jsonl")
    './-home-ada-shop/4f35e220'
    >>> log_name("/home/ada/shop/4f35e220.jsonl", "/home/ada/shop/4f35e220.jsonl"), log_name("-", "standard input")
    ('shop/4f35e220', 'stdin')
    """
    name = below(given, file).removeprefix("./")
    if given != STDIN and "/" not in name:
        folder = PurePath(os.path.abspath(file)).parent
        name = "/".join([*(_dashed(folder) or filter(None, [folder.name])), name])
    return no_option(name)


def heads_of(given: Sequence[str]) -> dict[str, str]:
    """Return what the names of each input's sessions begin with: "" for a folder, and for a file its stem.

    Files of one stem get as many of their folders as set them apart.

    >>> heads_of(["mon/a/chats.jsonl", "tue/a/chats.jsonl", "notes.txt"])
    {'mon/a/chats.jsonl': 'mon/a/chats', 'tue/a/chats.jsonl': 'tue/a/chats', 'notes.txt': 'notes'}

    Raises:
        UsageError: an input is given twice, or two differ in their suffix alone.
    """
    heads = {path: "" if path != STDIN and os.path.isdir(path) else stem_of(path) for path in given}
    files = [path for path, head in heads.items() if head]
    for path in files:
        alike = [other for other in files if stem_of(other) == stem_of(path)]
        folders = {other: PurePath(os.path.abspath(other)).parent.parts[1:] for other in alike}
        deepest = max(map(len, folders.values())) if len(alike) > 1 and STDIN not in alike else 0
        for depth in range(1, deepest + 1):
            heads[path] = "/".join((*folders[path][-depth:], stem_of(path)))
            if sum("/".join((*folders[other][-depth:], stem_of(other))) == heads[path] for other in alike) == 1:
                break
    for number, path in enumerate(given):
        head = heads[path]
        other = next((one for one in given[:number] if one == path or (head and heads[one] == head)), None)
        if other is not None:
            raise UsageError(
                f"the sessions of {other} and {path} would both be named {head or path}/0 and so on: "
                "give each input once"
            )
    return {path: no_option(head) for path, head in heads.items()}


class FileOfName:
    """The files of names that were met, so that two files never give one name."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}

    def want(self, name: str, file: str) -> None:
        """Take a name for a file. Raises UsageError where another file has it."""
        other = self._files.setdefault(name, file)
        if other != file:
            raise UsageError(
                f"the sessions of {other} and {file} would both be named {name}: put the folder that holds both, or "
                f"{file} alone with a --name"
            )
