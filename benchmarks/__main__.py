"""``python -m pltz.benchmarks``: the measurements of pltz that need a checkout. Users have ``pltz bench``."""

import click

from pltz.cli.ui import process
from pltz.cli.ui.groups import RootGroup

COMMANDS = {
    "field": "pltz.benchmarks.sizes.field:field",
    "speed": "pltz.benchmarks.speed.speed:speed",
    "hook": "pltz.benchmarks.archive.hook:hook",
    "nightly": "pltz.benchmarks.archive.nightly:nightly",
}


@click.group(cls=RootGroup, lazy=COMMANDS)
def benchmarks() -> None:
    """Measure pltz beside other coders, on the shapes of its engines, in a serving loop, and over nights."""


if __name__ == "__main__":
    process.prepare()
    benchmarks(prog_name="python -m pltz.benchmarks")
