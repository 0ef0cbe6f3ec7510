"""``pltz bench``: the measurements that a user can repeat."""

import click

from pltz.cli.ui.groups import LazyGroup

COMMANDS = {"codec": "pltz.cli.bench.codec.command:codec"}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Measure sizes beside other compressors.")
def bench() -> None:
    """Measure pltz on your own data: sizes next to its peers."""
