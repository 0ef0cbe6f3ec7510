"""Names of the sessions of files: of agent logs, which are one session per file, and of files of many sessions.

    given                                     log of an agent                session 3 of a file of chats
    projects/-home-me-shop/4f35e220.jsonl     ./-home-me-shop/4f35e220
    projects                                  ./-home-me-shop/4f35e220
    .codex, or any folder in it               2026/08/01/rollout-2026-08-01T10-00-00-019fdbfa
    chats/monday.jsonl                                                       monday/3
    chats                                                                    monday/3

A name is the path below the input that was given. An agent log keeps at least one folder in it, since many agents call
each log the same. Below a folder whose name begins with a dash, as those of Claude Code's projects do, it is the path
from that folder on, whichever folder was given, with ./ before it: no command takes such a name for an option. A
rollout of Codex has its date and id in the name of its file: so it has one name whether it is live, archived or packed.

Of files in one folder that differ in their suffix alone, all but the first have it in their name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import PurePath

from pltz.plt_codec.errors import UsageError

STDIN = "-"
PACKED = (".zst", ".zstd", ".gz")
ROLLOUT = re.compile(r"rollout-([0-9]{4})-([0-9]{2})-([0-9]{2})T[0-9-]+-[0-9a-zA-Z][\w-]*")  # of Codex


def unpacked(path: str) -> str:
    """Return the name of a file without the suffix of what packed it.

    >>> unpacked("logs/monday.jsonl.zst")
    'monday.jsonl'
    """
    name = PurePath(path).name
    return next((name[: -len(end)] for end in PACKED if name.endswith(end) and name != end), name)


def stem_of(path: str) -> str:
    """Return the name of a file without the suffixes of its format.

    >>> stem_of("logs/monday.v2.jsonl.gz"), stem_of("-")
    ('monday.v2', 'stdin')
    """
    name = unpacked(path)
    stem = name.rsplit(".", 1)[0]
    return "stdin" if path == STDIN else (stem if stem.strip(".") else name) or path


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
    inside = _dashed(PurePath(file).parent) or PurePath(file).relative_to(given).parent.parts
    return no_option("/".join([*inside, stem_of(file)]))


def _dashed(folder: str | PurePath) -> tuple[str, ...]:
    """Return the parts of a folder's path from the first one on that begins with a dash; none where none does.

    >>> _dashed("/home/ada/.claude/projects/-home-ada-shop/4f35e220"), _dashed("/home/ada")
    (('-home-ada-shop', '4f35e220'), ())
    """
    parts = PurePath(os.path.abspath(folder)).parts
    first = next((n for n, part in enumerate(parts) if part.startswith("-")), len(parts))
    return parts[first:]


def log_name(given: str, file: str) -> str:
    """Return the name of an agent log: that of a rollout, or its path, by the rule at the top of this file.

    >>> log_name("/home/ada/.claude/projects", "/home/ada/.claude/projects/-home-ada-shop/4f35e220.jsonl")
    './-home-ada-shop/4f35e220'
    >>> log_name("/home/ada/shop/4f35e220.jsonl", "/home/ada/shop/4f35e220.jsonl"), log_name("-", "standard input")
    ('shop/4f35e220', 'stdin')
    >>> log_name(".codex", ".codex/archived_sessions/rollout-2026-08-01T10-00-00-019fdbfa.jsonl.zst")
    '2026/08/01/rollout-2026-08-01T10-00-00-019fdbfa'
    """
    if given != STDIN and (rollout := ROLLOUT.fullmatch(stem_of(file))):
        return "/".join([*rollout.groups(), rollout[0]])
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
        UsageError: an input is given twice.
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
        else:
            heads[path] = stem_of(path)
    for number, path in enumerate(given):
        if path in given[:number]:
            raise UsageError(f"{path} is named twice: give each input once")
        if heads[path] and heads[path] in [heads[one] for one in given[:number]]:
            heads[path] = with_suffix(heads[path], path)
    return {path: no_option(head) for path, head in heads.items()}


def with_suffix(name: str, file: str) -> str:
    """Return a name with the suffix of its file, where another file has the name without.

    >>> with_suffix("shop/chats", "shop/chats.json")
    'shop/chats.json'
    """
    return name + PurePath(file).name[len(stem_of(file)) :]


class FileOfName:
    """The files of names that were met, so that two files never give one name."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}

    def want(self, name: str, file: str) -> None:
        """Take a name for a file. Raises UsageError where another file has it."""
        other = self._files.setdefault(name, file)
        if other != file:
            raise UsageError(
                f"{file}: its sessions would be named {name}, as those of {other}: put it with a --tenant of its own"
            )
