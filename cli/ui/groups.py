"""Groups and commands of the command line: lazy loading, one shape of help, errors in one line.

A group names its commands as ``{"inspect": "pltz.cli.inspect:inspect"}`` and imports one only when it is called.
A command imports its other dependencies (tensors above all) inside its function. So ``pltz --help`` and
``pltz inspect`` start at once.

Errors: the root group turns a `PltzError` into ``error: <message>`` on stderr and the exit code of its class. A
closed pipe and Ctrl-C are left to click. A bug stays a traceback.
"""

import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from pltz.cli.ui.output import printable
from pltz.plt_codec.errors import PltzError

SENTENCE = 200  # characters

EXIT_CODES = (
    ("0", "done"),
    ("1", "interrupted, or the machine failed: disk full, no permission, out of memory"),
    ("2", "the call is wrong: a bad option, a missing file, an unknown bundle"),
    ("3", "the file is damaged, not a .pltz file, or from a newer format"),
    ("4", "the right file with the wrong partner: bundle, tokenizer or target"),
    ("5", "content refused: not a session, or an image, audio or file part"),
    ("6", "a bundle or target model cannot be loaded or used"),
    ("7", "the archive cannot do it now: storage failed or is full, or something in it is damaged"),
    ("8", "no such session, version or segment in the archive"),
    ("9", "verify: the archive is sound, but redundant copies are missing; repair makes them again"),
    ("10", "the archive is sound, but an erase was cut off: repair or erase finishes it"),
)


class Whole(click.Command):
    """A command whose line in the help of its group is a whole sentence, however wide the terminal."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the short help, or the first sentence. By default click cuts it off after some 50 characters."""
        return super().get_short_help_str(SENTENCE)


class Command(Whole):
    """A click command whose help ends with examples and exit codes.

    Args:
        examples: command lines, each starting with ``pltz``.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they stand, then the exit codes."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")
        write_exit_codes(formatter)


class OrderedGroup(Whole, click.Group):
    """A click group that keeps its commands in the order they were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of definition, which is the order of the help page."""
        return list(self.commands)


class LazyGroup(Whole, click.Group):
    """A click group that imports a command when it is asked for.

    Args:
        lazy: command name -> ``"module:attribute"``, in the order of the help page.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order they were given, which is the order of the help page."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or return None for an unknown name."""
        if cmd_name not in self.lazy:
            return None
        module, attribute = self.lazy[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


class RootGroup(LazyGroup):
    """The group every command runs under: it turns errors into one line and an exit code."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line. An error of pltz or of the machine ends in a line on stderr and an exit code."""
        try:
            return super().main(*args, **options)
        except PltzError as error:
            fail(str(error) or type(error).__name__, error.exit_code)
        except MemoryError:
            fail("out of memory", 1)
        except OSError as error:  # click has already handled a closed pipe
            fail(machine_failure(error), 1)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes of all commands."""
        write_exit_codes(formatter)


def fail(message: str, exit_code: int) -> NoReturn:
    """Print ``error: <message>`` in one line on stderr and exit with the code, even where stderr cannot be written."""
    with contextlib.suppress(OSError):
        click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
    sys.exit(exit_code)


def machine_failure(error: OSError) -> str:
    """Return ``<file>: <reason>``, or the reason alone where the system names no file."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def write_exit_codes(formatter: click.HelpFormatter) -> None:
    """Write the section that lists the exit codes and their meanings."""
    with formatter.section("Exit codes"):
        formatter.write_dl(EXIT_CODES)
