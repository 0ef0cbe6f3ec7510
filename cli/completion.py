"""``pltz completion``: a script that completes commands in a shell, or the manual pages of all commands."""

import json
from pathlib import Path

import click

from pltz.archive.humanize import counted
from pltz.cli.ui.groups import EXIT_CODES, Command, all_commands
from pltz.cli.ui.options import JSON
from pltz.cli.ui.output import Output, write_text
from pltz.plt_codec.errors import UsageError

VARIABLE = "_PLTZ_COMPLETE"


@click.command(
    cls=Command,
    short_help="Print shell completion, or write manual pages.",
    examples=[
        "pltz completion bash > ~/.local/share/bash-completion/completions/pltz",
        "pltz completion zsh > ~/.zfunc/_pltz",
        "pltz completion fish > ~/.config/fish/completions/pltz.fish",
        "pltz completion man -o ~/.local/share/man/man1",
    ],
)
@click.argument("what", metavar="bash|zsh|fish|man", type=click.Choice(["bash", "zsh", "fish", "man"]))
@click.option("-o", "--output", metavar="DIR", help="Folder for the manual pages.")
@JSON
@click.pass_context
def completion(ctx: click.Context, what: str, output: str | None, as_json: bool) -> None:
    """Print a script for the shell that completes pltz, or write a manual page of each command into a folder."""
    root = ctx.find_root()
    if what == "man":
        if output is None or not Path(output).is_dir():
            raise UsageError("expected --output DIR, an existing folder for the manual pages")
        pages = manual(root)
        for name, text in pages.items():
            Output(str(Path(output) / name), force=True).write([text.encode()])
        done = f"{counted(len(pages), 'manual page')} written to {output}"
        write_text(json.dumps({"pages": sorted(pages), "output": output}) if as_json else done)
        return
    from click.shell_completion import get_completion_class

    maker = get_completion_class(what)
    assert maker is not None
    script = maker(root.command, {}, "pltz", VARIABLE).source()
    write_text(json.dumps({"script": script}) if as_json else script)


def manual(root: click.Context) -> dict[str, str]:
    """Return the manual pages of pltz and all its commands, in roff, by file name."""
    assert isinstance(root.command, click.Group)
    pages = {"pltz.1": _page(root.command, click.Context(root.command, info_name="pltz"))}
    for path in all_commands(root):
        here = click.Context(root.command, info_name="pltz")
        for word in path[1:]:
            group = here.command
            assert isinstance(group, click.Group)
            found = group.get_command(here, word)
            assert found is not None
            here = click.Context(found, info_name=word, parent=here)
        pages["-".join(("pltz", *path[1:])) + ".1"] = _page(here.command, here)
    return pages


def _page(command: click.Command, ctx: click.Context) -> str:
    """Return one manual page."""
    title = ctx.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(ctx))
    lines = [f'.TH "{title.upper()}" 1 "" "pltz" "pltz"', ".SH NAME"]
    lines.append(_plain(f"{title} - {command.get_short_help_str()}"))
    lines += [".SH SYNOPSIS", _plain(f"{ctx.command_path} {usage}")]
    lines.append(".SH DESCRIPTION")
    for paragraph in (command.help or "").split("\n\n"):
        lines += [".PP", _plain(" ".join(paragraph.split()))]
    lines.append(".SH OPTIONS")
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            lines += [".TP", _plain(record[0]), _plain(record[1])]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name in command.list_commands(ctx):
            known = command.get_command(ctx, name)
            lines += [".TP", _plain(name), _plain(known.get_short_help_str() if known else "")]
    if isinstance(command, Command) and command.examples:
        lines.append(".SH EXAMPLES")
        for example in command.examples:
            lines += [".PP", ".nf", _plain(example), ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        lines += [".TP", code, _plain(meaning)]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
