"""``pltz bench``: measurements a user can repeat."""

import click

from pltz.cli.groups import LazyGroup


@click.group(
    cls=LazyGroup, lazy={"archive": "pltz.cli.bench_archive:archive", "codec": "pltz.cli.bench_codec:codec"}
)
def bench() -> None:
    """Measure pltz against its peers on your own data."""
