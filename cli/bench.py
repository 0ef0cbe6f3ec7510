"""``pltz bench``: measurements a user can repeat."""

import click

from pltz.cli.ui.groups import LazyGroup

COMMANDS = {
    "codec": "pltz.cli.bench_codec:codec",
    "field": "pltz.cli.bench_field:field",
    "speed": "pltz.cli.bench_speed:speed",
    "archive": "pltz.cli.bench_archive:archive",
    "hook": "pltz.cli.bench_hook:hook",
    "nightly": "pltz.cli.bench_nightly:nightly",
    "thaw": "pltz.cli.bench_thaw:thaw",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Measure sizes, speed, the archive and thaws.")
def bench() -> None:
    """Measure pltz: sizes on your own data next to its peers, speed, the archive, thaws."""
