"""``pltz help``: the help of a command, or the table of exit codes."""

import json

import click

from pltz.cli.ui.groups import EXIT_CODES, Command, suggestions
from pltz.cli.ui.options import JSON
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import pairs

TOPIC = "exit-codes"


@click.command(
    "help",
    cls=Command,
    short_help="Show the help of a command, or the exit codes.",
    examples=["pltz help archive put", "pltz help exit-codes", "pltz help exit-codes --json"],
)
@click.argument("words", metavar="[COMMAND...|exit-codes]", nargs=-1)
@JSON
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Show the help of COMMAND, of pltz, or the table of exit codes."""
    if words == (TOPIC,):
        codes = {code: meaning for code, meaning in EXIT_CODES}
        write_text(json.dumps(codes) if as_json else pairs(EXIT_CODES, indent=""))
        return
    here = ctx.find_root()
    for word in words:
        group = here.command
        found = group.get_command(here, word) if isinstance(group, click.Group) else None
        if found is None:
            meant = suggestions(here, word) if isinstance(group, click.Group) else []
            hint = f": did you mean {' or '.join(meant)}?" if meant else ""
            raise click.UsageError(f"no command {word!r}{hint}")
        here = click.Context(found, info_name=word, parent=here)
    text = here.get_help()
    write_text(json.dumps({"help": text}) if as_json else text)
