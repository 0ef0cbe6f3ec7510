"""``pltz bench``: the measurements that a user can repeat."""

import click

from pltz.cli.ui.groups import LazyGroup

COMMANDS = {
    "codec": "pltz.cli.bench.codec.command:codec",
    "archive": "pltz.cli.bench.archive.command:archive",
    "thaw": "pltz.cli.bench.thaw.command:thaw",
    "kv": "pltz.cli.bench.kv.command:kv",
    "neighbours": "pltz.cli.bench.neighbours.command:neighbours",
    "papers": "pltz.cli.bench.papers.command:papers",
    "joint": "pltz.cli.bench.joint.command:joint",
    "lossy": "pltz.cli.bench.lossy.command:lossy",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Measure sizes, the archive, thaws and forms of KV.")
def bench() -> None:
    """Measure pltz: sizes on your own data next to its peers, the archive, thaws, forms of KV."""
