"""Options and arguments that several commands share, so that they read the same everywhere."""

import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.coding.codec import Codec
    from pltz.coding.level import Level
    from pltz.plt_codec.container.file import Reader

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


FILE_LEVEL, PUT_LEVEL = 6, 5  # of `pltz.coding.level`, by default
MOST_NUMBERS = 1_000_000  # of sessions that one option names
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def size(value: str) -> int | None:
    """Return a number of bytes, a type of option. Raises BadParameter.

    >>> [size(text) for text in ("4096", "500 kB", "1.5MiB", "none")]
    [4096, 500000, 1572864, None]
    """
    if value.lower() == "none":
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", value)
    if found is None or found[2].lower() not in UNITS:
        raise click.BadParameter(f"expected a size such as 500 kB or 4 MiB, or none, found {value!r}")
    return int(float(found[1]) * UNITS[found[2].lower()])


def numbers(value: str) -> Sequence[int]:
    """Return the numbers of ``5,7,10-20``, a type of option. Raises BadParameter.

    >>> list(numbers("5,7,10-12"))
    [5, 7, 10, 11, 12]
    """
    found: list[range] = []
    for part in value.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise click.BadParameter(f"expected numbers such as 7 or 5,7,10-20, found {value!r}")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    if sum(map(len, found)) > MOST_NUMBERS:
        raise click.BadParameter(f"expected at most {MOST_NUMBERS:,} numbers, found more")
    return [number for part in found for number in part]


def token_count(value: str) -> int | str | None:
    """Return a number of tokens, None for ``none``, or ``auto``: a type of option. Raises BadParameter."""
    if value in ("auto", "none"):
        return value if value == "auto" else None
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise click.BadParameter(f"expected a number, none or auto, found {value!r}")
    return int(value)


def nonempty(value: str) -> str:
    """Return the value of an option that must not be empty, as an unset shell variable would be.

    Raises:
        BadParameter: the value is empty.
    """
    if not value:
        raise click.BadParameter("expected a name, found nothing")
    return value


FILE: Decorator = click.argument("file", metavar="FILE")

BUNDLE: Decorator = click.option(
    "--bundle",
    metavar="NAME|DIR",
    help="Bundle to code with, in place of that of --level: a name or a folder.  [default: mini]",
)
DEVICE: Decorator = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
)
THREADS: Decorator = click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads.  [default: all cores]"
)
LEVEL: Decorator = click.option(
    "--level",
    type=click.IntRange(0, 7),
    metavar="0..7",
    help="0, of an archive, codes all by PPMd, until archive shrink. 1 to 3 code with nano, the fastest bundle, 4 "
    "to 6 with mini, 7 with base, the smallest. 1 and 4 thaw sooner on a GPU. 3, 6 and 7 try sessions of a "
    "file after similar ones, and code logs by the bundle too; the others code them by PPMd, at once.  "
    "[default: 6 of a file, of an archive 5 for new sessions of up to 32 KiB in all, else 0]",
)
TARGET: Decorator = click.option(
    "--target", metavar="MODEL", help="Target model: a folder, the name of one that ships with pltz, or a hub name."
)
TOKENIZER: Decorator = click.option(
    "--tokenizer", metavar="FILE", help="tokenizer.json of the token ids, where they are not the bundle's."
)
SESSIONS: Decorator = click.option(
    "--session",
    "indices",
    type=numbers,
    multiple=True,
    metavar="I",
    callback=lambda ctx, parameter, value: tuple(itertools.chain.from_iterable(value)),
    help="Only these sessions: 7, or 5,7,10-20 (repeatable).",
)
OUTPUT: Decorator = click.option(
    "-o", "--output", default="-", metavar="OUT", help="Where to write.  [default: stdout]"
)
FORCE: Decorator = click.option("--force", is_flag=True, help="Replace the output file if it exists.")
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of text.")
PROGRESS: Decorator = click.option(
    "--progress/--no-progress",
    "-v/-q",
    default=None,
    help="Progress on stderr: phase, share, rate and time left.  [default: on a terminal only]",
)


def level_of(number: int | None, bundle: str | None, default: int = FILE_LEVEL) -> "tuple[str | None, Level]":
    """Return what ``--level`` and ``--bundle`` choose: the bundle, and the level for the rest.

    Raises UsageError where the level's bundle is needed and not installed, and for 0 of a file.
    """
    from pltz.coding.level import LEVELS, level

    if number == 0 and default == FILE_LEVEL:
        raise UsageError("level 0 is of an archive, which shrinks later: a file has levels 1 to 7")
    chosen = level(number) if number is not None and not bundle else LEVELS[default if number is None else number]
    if number is None:
        chosen = chosen._replace(model_ids=None)
    return (chosen.bundle if number is not None and not bundle else bundle), chosen


def decode_limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the limits for files that are not trusted: ``max_tokens``, ``max_bytes``, ``max_seconds``."""
    for option in (
        click.option(
            "--max-seconds", type=click.FloatRange(min=0), metavar="S", help="Stop where decoding takes longer."
        ),
        click.option(
            "--max-bytes", type=size, metavar="SIZE", help="Refuse more content than this: 500 kB, 1 GiB, or none."
        ),
        click.option(
            "--max-tokens",
            type=token_count,
            metavar="N",
            default="auto",
            show_default="16384 and 32 per byte",
            help="Refuse, before decoding, a file that asks the model for more tokens; none for a file you trust.",
        ),
    ):
        command = option(command)
    return command


def coder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that codes with a bundle: which one, where, and whether progress is shown."""
    for option in (PROGRESS, DEVICE, THREADS, BUNDLE):
        command = option(command)
    return command


def together(kind: type, name: str, *added: Decorator) -> Decorator:
    """Return a decorator that adds options, which the command takes as one argument.

    ``kind``: a dataclass with a field per option. ``name``: the argument. ``added``: the options, as the help has them.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def packed(*arguments: Any, **others: Any) -> Any:
            own = {field.name: others.pop(field.name) for field in fields(kind)}
            return command(*arguments, **others, **{name: kind(**own)})

        result: Callable[..., Any] = packed
        for option in reversed(added):
            result = option(result)
        return result

    return add


def count(name: str, default: int, text: str) -> Decorator:
    """Return an option of a whole number from 1. ``name``: with its dashes; ``text``: its help."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, metavar="N", help=text)


def form(choices: Sequence[str], text: str) -> Decorator:
    """Return the option ``--format``, with ``auto`` among its choices. The command takes it as ``form``."""
    return click.option("--format", "form", type=click.Choice(choices), default="auto", show_default=True, help=text)


def open_reader(path: str) -> "Reader":
    """Open the .pltz file at ``path``, or read the one on stdin for ``-``.

    Raises:
        UsageError: there is no such readable file.
        FormatError: it is not a sound .pltz file.
    """
    from pltz.plt_codec.container.file import Reader

    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder: name a .pltz file, or see an archive with pltz archive stat -r {path}")
    if path != "-":
        return Reader.open(path)
    try:
        data = sys.stdin.buffer.read()
    except OSError as error:
        raise UsageError(f"cannot read stdin: {error.strerror}") from error
    return Reader(data)


def one_tokenizer(target: str | None, tokenizer: str | None) -> None:
    """Refuse a call that names two tokenizers. Raises UsageError."""
    if target is not None and tokenizer is not None:
        raise UsageError("--target brings its own tokenizer: leave --tokenizer out")


def load_codec(bundle: str | None, device: str, threads: int | None) -> "Codec":
    """Load the codec of a bundle by name or folder. Raises UsageError or ModelError where it cannot be loaded."""
    from pltz.coding.codec import Codec

    return Codec.load(bundle, device=device, threads=threads)


def load_codec_for(reader: "Reader", device: str, threads: int | None) -> "Codec":
    """Load the codec that reads a file, from the installed bundle that it names. Raises BundleMismatch without it."""
    from pltz.coding.codec import Codec
    from pltz.models.bundle.bundle import Bundle

    return Codec.load(Bundle.find(reader.header.bundle_id).path, device=device, threads=threads)
