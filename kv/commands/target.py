"""``pltz target``: the group of commands for served models."""

import click

from pltz.cli import LazyGroup

COMMANDS = {"calibrate": "pltz.kv.commands.calibrate:calibrate"}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Calibrate the small forms of a served model's KV.")
def target() -> None:
    """Prepare a served model: calibrate the forms in which its KV is kept small."""
