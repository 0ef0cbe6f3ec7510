"""Groups and commands of the command line: lazy loading, one shape of help, errors in one line.

A group names its commands as ``{"inspect": "pltz.cli.inspect:inspect"}`` and imports one only when it is called.
A command imports its other dependencies (tensors above all) inside its function. So ``pltz --help`` and
``pltz inspect`` start at once.

Errors: the root group turns every error into ``error: <message>`` on stderr and an exit code, or with ``--json`` into
a line of JSON: ``{"error": ..., "kind": ..., "exit_code": ...}``. A closed pipe is left to click. A bug stays a
traceback. An interrupt says what was written before it (`say_if_interrupted`).
"""

import contextlib
import difflib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click

from pltz.cli.ui.output import INTERRUPTED, printable
from pltz.plt_codec.errors import PltzError

SENTENCE = 200  # characters
# Words of other programs, and the commands that do it here. Those of the same group are suggested first.
MEANT = {
    "list": ("ls",), "dir": ("ls",), "grep": ("search", "ls"), "find": ("search", "ls"), "info": ("stat", "show"),
    "rm": ("forget",), "delete": ("forget",), "remove": ("forget",), "purge": ("erase",),
    "gc": ("collect",), "clean": ("collect",), "fsck": ("verify",), "test": ("verify",), "fix": ("repair",),
    "undo": ("undelete",), "cat": ("show", "get"), "read": ("show", "get"), "export": ("get",), "restore": ("get",),
    "dump": ("get",), "extract": ("get", "decompress"), "store": ("put",), "add": ("put",), "save": ("put",),
    "create": ("init",), "new": ("init",), "encode": ("compress",), "freeze": ("compress",), "decode": ("decompress",),
    "load": ("thaw",),
}  # fmt: skip
HELP = ("-h", "--help")

EXIT_CODES = (
    ("0", "done"),
    ("1", "interrupted, or no disk, memory or permission"),
    ("2", "wrong call: option, file, bundle"),
    ("3", "damaged, no .pltz file, or of a newer format"),
    ("4", "wrong partner: bundle, tokenizer, target"),
    ("5", "content refused"),
    ("6", "bundle or target unusable"),
    ("7", "the archive cannot do it now, or is damaged in part"),
    ("8", "no such session or version"),
    ("9", "sound, but copies are missing: repair"),
    ("10", "sound, but an erase was cut off: repair"),
    ("11", "nightly: nothing new came, or the disk fills"),
)


class Interrupted(Exception):
    """The user stopped a command. The message says what was written before."""


class SentenceCommand(click.Command):
    """A command whose line in the help of its group is a whole sentence, however wide the terminal."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the short help, or the first sentence. By default click cuts it off after some 50 characters."""
        return super().get_short_help_str(SENTENCE)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the names of the help option. click keeps them, so they are the same in whatever context."""
        return list(HELP)


class Command(SentenceCommand):
    """A click command whose help ends with examples.

    Args:
        examples: command lines, each starting with ``pltz``.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they stand."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises Interrupted where the user stops it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            told = ctx.meta.get(INTERRUPTED, "interrupted")
            raise Interrupted(told() if callable(told) else told) from error


class _AliasGroup(SentenceCommand, click.Group):
    """A group whose help names the words of other programs that it takes, and that tells what a wrong word may mean.

    Args:
        sections: heading -> names of commands, for the help page. None: one section with all.
        aliases: word -> the words that it stands for.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]] | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.sections, self.aliases = sections, dict(aliases or {})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises UsageError, with what may be meant."""
        args = [*self.aliases.get(args[0], args[:1]), *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = suggestions(ctx, args[0])
            hint = f": did you mean {' or '.join(meant)}?" if meant else f": see {ctx.command_path} --help"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, and the aliases in a line."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for heading, chosen in (self.sections or {"Commands": names}).items():
            with formatter.section(heading):
                found = [(name, self.get_command(ctx, name)) for name in chosen]
                rows = [(name.ljust(width), command.get_short_help_str()) for name, command in found if command]
                formatter.write_dl(rows)
        if self.aliases:
            words = ", ".join(f"{word} ({' '.join(meant)})" for word, meant in self.aliases.items())
            formatter.write_paragraph()
            formatter.write_text(f"Also: {words}.")


class OrderedGroup(_AliasGroup):
    """A click group that keeps its commands in the order they were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of definition, which is the order of the help page."""
        return list(self.commands)


class LazyGroup(_AliasGroup):
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
        command: click.Command = loaded(self.lazy[cmd_name])
        return command


def loaded(place: str) -> Any:
    """Return what "pltz.module:name" names."""
    module, attribute = place.split(":")
    return getattr(importlib.import_module(module), attribute)


class RootGroup(LazyGroup):
    """The group every command runs under: it turns errors into one line and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``pltz help COMMAND`` for ``pltz COMMAND --help``."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line. Every error ends in a line on stderr and an exit code."""
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        options["standalone_mode"] = False  # the errors are told here
        words = options.get("args", args[0] if args else None)
        as_json = "--json" in (sys.argv[1:] if words is None else words)
        try:
            code = super().main(*args, **options)
        except PltzError as error:
            fail(str(error) or type(error).__name__, error.exit_code, type(error).__name__, as_json)
        except click.exceptions.NoArgsIsHelpError as error:  # its message is the whole help
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            fail(usage(error), error.exit_code, "UsageError", as_json)
        except Interrupted as error:
            fail(str(error), 1, "Interrupted", as_json)
        except click.Abort:  # a question that was not answered with yes, or an interrupt before the work
            fail("stopped, nothing was done", 1, "Interrupted", as_json)
        except MemoryError:
            fail("out of memory", 1, "MemoryError", as_json)
        except OSError as error:  # click has already handled a closed pipe
            fail(machine_failure(error), 1, type(error).__name__, as_json)
        sys.exit(code if isinstance(code, int) else 0)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes of all commands, in a few lines."""
        formatter.write_paragraph()
        formatter.write_text("Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES) + ".")


def suggestions(ctx: click.Context, name: str) -> list[str]:
    """Return the commands that a wrong name may mean, as they are typed: one of another group, or a near one."""
    group = ctx.command
    assert isinstance(group, click.Group)
    words = (name, *MEANT.get(name, ()))
    commands = group.list_commands(ctx)
    here = [one for one in words if one in commands]
    there = [" ".join(path) for path in all_commands(ctx.find_root()) if path[-1] in words]
    if not here and there:
        return sorted(there, key=lambda path: not path.endswith(f" {name}"))[:2]
    return [f"{ctx.command_path} {one}" for one in here or difflib.get_close_matches(name, commands, n=1)]


def all_commands(root: click.Context) -> Iterator[tuple[str, ...]]:
    """Yield all commands below the root as the words that are typed."""

    def below(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name in group.list_commands(root):
            command = group.get_command(root, name)
            yield (*path, name)
            if isinstance(command, click.Group):
                yield from below(command, (*path, name))

    assert isinstance(root.command, click.Group)
    return below(root.command, (root.info_name or "pltz",))


def usage(error: click.ClickException) -> str:
    """Return the message of a wrong call, with the help to read."""
    message = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    if ctx is None or "--help" in message:
        return message
    return f"{message}; see {ctx.command_path} --help"


def fail(message: str, exit_code: int, kind: str, as_json: bool) -> NoReturn:
    """Print an error in one line on stderr and exit with the code, even where stderr cannot be written."""
    text = " ".join(message.split())
    line = f"error: {printable(text)}"
    if as_json:
        line = json.dumps({"error": text, "kind": kind, "exit_code": exit_code}, ensure_ascii=False)
    with contextlib.suppress(OSError):
        click.echo(line.encode("utf-8", "backslashreplace"), err=True)
    sys.exit(exit_code)


def machine_failure(error: OSError) -> str:
    """Return ``<file>: <reason>``, or the reason alone where the system names no file."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"
