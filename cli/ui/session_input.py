"""Read sessions from the inputs that a user names: files, folders, stdin; and say what they were recognised as."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted
from pltz.cli.ui import options
from pltz.cli.ui.output import printable
from pltz.datasets.file_walk import EXCLUDE
from pltz.plt_codec.errors import PltzError, UsageError

if TYPE_CHECKING:
    from pltz.datasets.file_walk import WalkedFile
    from pltz.datasets.input_format import ReadOptions, Recognised
    from pltz.models.session.session import Session

META = "pltz.input"
SHOWN = 2  # remarks of one kind about the files of an input
PACKED = frozenset((".gz", ".zst", ".zstd", ".parquet", ".arrow", ".db", ".sqlite", ".npy"))
INPUT_FORMAT = options.form(
    ("auto", "agent-log", "jsonl", "text", "ids"),
    "Format of the inputs. auto recognises them all; agent-log makes one session of each JSONL file.",
)


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta.setdefault(META, {})[parameter.name] = value


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--column``, ``--query``, ``--drop``, ``--exclude`` and ``--exact``. `InputFiles` reads them."""
    for option in (
        click.option(
            "--exact",
            is_flag=True,
            expose_value=False,
            callback=_keep,
            help="Keep the bytes of JSON inputs too, not only their values: decompress writes the very bytes. Logs of "
            "agents are always kept so.",
        ),
        click.option(
            "--drop",
            type=click.Choice(("signatures",)),
            multiple=True,
            expose_value=False,
            callback=_keep,
            help="Drop signatures and ciphertext of thinking from agent logs. They cannot be brought back; not with "
            "--exact.",
        ),
        click.option(
            "--query",
            metavar="SQL",
            expose_value=False,
            callback=_keep,
            help="The rows of a SQLite database to take, a session per row.",
        ),
        click.option(
            "--column",
            "columns",
            metavar="NAME",
            multiple=True,
            expose_value=False,
            callback=_keep,
            help="Take only this column of a Parquet or Arrow table (repeatable).",
        ),
        click.option(
            "--exclude",
            metavar="PATTERN",
            multiple=True,
            expose_value=False,
            callback=_keep,
            help="Leave such files of a folder out; one with a slash is of paths in it (repeatable; '' for none)."
            f"  [default: {' '.join(EXCLUDE)}]",
        ),
    ):
        command = option(command)
    return command


@dataclass
class FileCounts:
    """Sessions of one input file: by what they are, by format, and their content in bytes."""

    nouns: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    content_bytes: int = 0

    def add(self, found: Recognised) -> None:
        """Count one session."""
        from pltz.models.session.session import content_bytes

        self.nouns[found.noun] += 1
        self.formats[found.format] += 1
        self.content_bytes += content_bytes(found.session)

    def words(self) -> str:
        """Return the counts in words: ``3 chat, 1 json``."""
        return ", ".join(f"{count:,} {noun}" for noun, count in self.nouns.items()) or "nothing"


def want_there(paths: Sequence[str]) -> None:
    """Refuse inputs of which one is not there, or stdin is named twice, before any is read. Raises UsageError."""
    if paths.count("-") > 1:
        raise UsageError("stdin (-) can be read only once")
    for path in paths:
        if path != "-" and not Path(path).exists():
            raise UsageError(f"expected a file or a folder, found nothing at {path}")


class InputFiles:
    """The inputs of a command, read once, with counts of what was recognised in them.

    Remarks about an input are printed on stderr when it was read. ``refusing``: so is why a file of a folder cannot be
    read, or with ``several`` an input, and the others are read; else the first such file is an error. ``parts``: as of
    `ReadOptions`.

    Raises UsageError where there is nothing at a path.
    """

    def __init__(
        self, paths: Sequence[str], form: str, *, refusing: bool = False, several: bool = False, parts: bool = False
    ) -> None:
        want_there(paths)
        self.paths, self.form = paths, form
        self.files: dict[str, FileCounts] = {}
        self.remarks: list[str] = []
        self.refused: list[str] = []
        self.left = Counter[str]()  # files that were left out, by what does it
        self.passed_over: Callable[[int], None] = lambda size: None  # called with the bytes of a refused file
        self._alike = Counter[str]()  # remarks, without the names of files
        self._refusing, self._several, self._parts = refusing, several, parts
        self.dropped, self.packings = 0, set[str]()

    def __iter__(self) -> Iterator[Session]:
        """Yield the sessions of all inputs, in order. Raises as `pltz.datasets.load`."""
        for found in self.recognised():
            self.files.setdefault(found.file, FileCounts()).add(found)
            self.dropped += found.dropped
            yield found.session

    def recognised(self) -> Iterator[Recognised]:
        """Yield the sessions with what they were recognised as. They are not counted."""
        from pltz.datasets.loaders import recognise

        options = self._options()
        for path in self.paths:
            try:
                for found in recognise(path, options):
                    self.packings |= {found.packing} - {""}
                    yield found
            except PltzError as error:
                if not (self._refusing and self._several):
                    raise
                self._refuse(str(error), os.path.getsize(path) if os.path.isfile(path) else 0)
        for text, count in self._alike.items():
            if count > SHOWN:
                click.echo(f"warning: {counted(count - SHOWN, 'more file')}: {printable(text)}", err=True)

    @property
    def total(self) -> int | None:
        """Return the bytes of all inputs, None where that is not known before they are read."""
        from pltz.datasets.file_walk import walk

        if "-" in self.paths:
            return None
        try:
            found = [file for path in self.paths for file in walk(path, self._options().exclude) if file.fate == "read"]
        except UsageError:  # reading it tells why
            return None
        if any(Path(file.path).suffix.lower() in PACKED for file in found):
            return None
        return sum(file.size for file in found)

    @property
    def exact(self) -> bool:
        """Return whether the sessions in a row are the bytes of the inputs."""
        return self._options().exact

    @property
    def nouns(self) -> dict[str, int]:
        """Return the number of sessions by what they were recognised as."""
        total: Counter[str] = sum((file.nouns for file in self.files.values()), Counter())
        return dict(total)

    @property
    def content_bytes(self) -> int:
        """Return the content of the sessions read so far, in bytes."""
        return sum(file.content_bytes for file in self.files.values())

    def _options(self) -> ReadOptions:
        from pltz.datasets.input_format import ReadOptions

        given = click.get_current_context().meta.get(META, {})
        refused = (lambda why, file: self._refuse(why, file.size)) if self._refusing else None
        how: dict[str, Any] = {"refused": refused, "parts": self._parts, "long": self._parts, "left": self._leave}
        return ReadOptions(format=self.form, warn=self._remark, **how, **given)

    def _leave(self, file: WalkedFile) -> None:
        """Count a file that is left out, and print why where no pattern of the user's does it."""
        from pltz.datasets.loaders import told

        if file.fate == "left":
            self.left[file.rule] += 1
        if file.why:
            self._remark(told(file))

    def _remark(self, text: str) -> None:
        self.remarks.append(text)
        alike = text.partition(": ")[2]
        self._alike[alike] += 1
        if self._alike[alike] <= SHOWN:
            click.echo(f"warning: {printable(text)}", err=True)

    def _refuse(self, text: str, size: int) -> None:
        self.refused.append(text)
        self.passed_over(size)
        click.echo(f"refused: {printable(text)}", err=True)


def left_out(left: Mapping[str, int]) -> str:
    """Return how many files were left out, and by what, in words; empty where none was.

    >>> left_out({"*-wal": 2, "no file": 1})
    '3 files left out (2 *-wal, 1 no file)'
    """
    each = ", ".join(f"{count:,} {rule}" for rule, count in sorted(left.items()))
    return f"{counted(sum(left.values()), 'file')} left out ({each})" if each else ""


def content_alone(packings: Collection[str]) -> str:
    """Return in words how many packed files are kept by their content alone; empty where none was."""
    return f"what is in {counted(len(packings), 'packed file')} is kept, not how it was packed" if packings else ""


def drops() -> tuple[str, ...]:
    """Return what the user asked to drop."""
    given: tuple[str, ...] = click.get_current_context().meta.get(META, {}).get("drop", ())
    return given


def as_text(inputs: InputFiles) -> str:
    """Return what inputs hold, a line per file and a total."""
    lines = []
    for name, file in inputs.files.items():
        formats = ", ".join(form for form in file.formats if form not in file.nouns)
        told = f" ({formats})" if formats else ""
        lines.append(f"{name}: {counted(file.nouns.total(), 'session')}: {file.words()}{told}")
    total = sum(inputs.nouns.values())
    refused = f"; {counted(len(inputs.refused), 'file')} refused" if inputs.refused else ""
    refused += f"; {left}" if (left := left_out(inputs.left)) else ""
    lines.append(f"{counted(total, 'session')} in {counted(len(inputs.files), 'file')}{refused}; nothing was coded")
    return "\n".join(map(printable, lines))


def as_fields(inputs: InputFiles) -> dict[str, Any]:
    """Return what inputs hold, as JSON."""
    files = [
        {
            "file": name,
            "recognised": dict(file.nouns),
            "formats": dict(file.formats),
            "content_bytes": file.content_bytes,
        }
        for name, file in inputs.files.items()
    ]
    left = {"refused": inputs.refused, "left_out": dict(inputs.left)}
    return {"recognised": inputs.nouns, "files": files, "remarks": inputs.remarks, **left}
