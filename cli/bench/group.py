"""``pltz bench``: the measurements that a user can repeat."""

import click

from pltz.cli.ui.groups import LazyGroup

COMMANDS = {
    "codec": "pltz.cli.bench.codec:codec",
    "field": "pltz.cli.bench.field:field",
    "speed": "pltz.cli.bench.speed:speed",
    "archive": "pltz.cli.bench.archive:archive",
    "hook": "pltz.cli.bench.hook:hook",
    "nightly": "pltz.cli.bench.nightly:nightly",
    "thaw": "pltz.cli.bench.thaw:thaw",
    "kv": "pltz.cli.bench.kv:kv",
    "neighbours": "pltz.cli.bench.neighbours:neighbours",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Measure sizes, speed, the archive and thaws.")
def bench() -> None:
    """Measure pltz: sizes on your own data next to its peers, speed, the archive, thaws."""
