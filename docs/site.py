"""Hooks of mkdocs: what the documentation site has beyond the pages of docs/.

* README.md is the start page.
* A file outside docs/ that a page links to is part of the site, under source/. So links work in the repository and on
  the site alike.
* `<!-- commands -->` is replaced by the `--help` of every command. mkdocs-click would leave out the examples, which
  pltz prints after the options.
* `<!-- names -->` is replaced by the reference of every public name, which mkdocstrings makes from docstrings.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")  # path of a link, without its anchor
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the start page, and each file outside docs/ that a page links to, directly or not."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    waiting = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    known = set(waiting)
    while waiting:
        page = waiting.pop()
        for path in _linked(page):
            if path in known or not path.is_file():  # a missing file is reported by mkdocs
                continue
            known.add(path)
            if ROOT / "docs" not in path.parents:
                files.append(File.generated(config, _place(path), abs_src_path=str(path)))
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files outside docs/ point into the site, and write the references."""
    source = Path(page.file.abs_src_path)

    def moved(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / found[1]))
        return posixpath.relpath(_place(path), posixpath.dirname(page.file.src_uri) or ".")

    text, at = [], 0
    for code in FENCED.finditer(markdown):
        text += [LINK.sub(moved, markdown[at : code.start()]), code[0]]
        at = code.end()
    whole = "".join(text) + LINK.sub(moved, markdown[at:])
    if "<!-- commands -->" in whole:
        whole = whole.replace("<!-- commands -->", "\n".join(_commands()))
    if "<!-- names -->" in whole:
        whole = whole.replace("<!-- names -->", "\n".join(_names()))
    return whole


def _linked(page: Path) -> Iterator[Path]:
    for found in LINK.finditer(FENCED.sub("", page.read_text("utf8"))):
        yield Path(os.path.normpath(page.parent / found[1]))


def _place(path: Path) -> str:
    """Return the path within the site of a file of the repository."""
    if path == ROOT / "README.md":
        return "index.md"
    if (ROOT / "docs") in path.parents:
        return path.relative_to(ROOT / "docs").as_posix()
    return f"source/{path.relative_to(ROOT).as_posix()}"


def _commands() -> Iterator[str]:
    """Yield Markdown with the help of every command."""
    from pltz.cli.root import cli

    yield "## All commands"
    for path, command in _walk(cli, ("pltz",)):
        context = click.Context(command, info_name=" ".join(path), terminal_width=100, max_content_width=100)
        help_text = command.get_help(context).split("\nExit codes:")[0].rstrip()
        yield f"\n### {' '.join(path)}\n\n```text\n{help_text}\n```"


def _walk(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _walk(below, (*path, name))


def _names() -> Iterator[str]:
    """Yield a line of mkdocstrings for each public name, by kind."""
    import pltz

    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in sorted(pltz.__all__):
        value = getattr(pltz, name)
        if isinstance(value, type):
            kind = "Errors" if issubclass(value, pltz.PltzError) else "Classes"
        elif callable(value):
            kind = "Functions"
        else:
            continue
        kinds[kind].append(f"::: {value.__module__}.{value.__qualname__}")
    for kind, found in kinds.items():
        yield f"## {kind}\n"
        yield from (f"{line}\n" for line in found)
