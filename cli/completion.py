"""``pltz completion``: a script that completes commands in a shell."""

import json

import click

from pltz.cli.ui.groups import Command
from pltz.cli.ui.options import JSON
from pltz.cli.ui.output import write_text

VARIABLE = "_PLTZ_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Command,
    short_help="Print a script that completes pltz in a shell.",
    examples=[
        "pltz completion bash > ~/.local/share/bash-completion/completions/pltz",
        "pltz completion zsh > ~/.zfunc/_pltz",
        "pltz completion fish > ~/.config/fish/completions/pltz.fish",
    ],
)
@click.argument("shell", metavar="|".join(SHELLS), type=click.Choice(SHELLS))
@JSON
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print a script for the shell that completes commands and options of pltz."""
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    assert maker is not None
    script = maker(ctx.find_root().command, {}, "pltz", VARIABLE).source()
    write_text(json.dumps({"script": script}) if as_json else script)
