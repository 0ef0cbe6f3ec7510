"""``pltz bench``: measurements a user can repeat."""

import click

from pltz.cli.groups import LazyGroup

COMMANDS = {
    "codec": "pltz.cli.bench_codec:codec",
    "field": "pltz.cli.bench_field:field",
    "speed": "pltz.cli.bench_speed:speed",
    "archive": "pltz.cli.bench_archive:archive",
    "hook": "pltz.cli.bench_hook:hook",
    "nightly": "pltz.cli.bench_nightly:nightly",
    "thaw": "pltz.cli.bench_thaw:thaw",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def bench() -> None:
    """Measure pltz against its peers on your own data."""
