"""``python -m pltz.experiments``: the systems of the papers, and measurements of pltz that no user calls."""

import click

from pltz.cli.ui import process
from pltz.cli.ui.groups import RootGroup

COMMANDS = {
    "papers": "pltz.experiments.papers.command:papers",
    "kv": "pltz.experiments.kv_peers:kv",
    "joint": "pltz.experiments.joint.command:joint",
    "lossy": "pltz.experiments.lossy.command:lossy",
    "archive": "pltz.experiments.archive.command:archive",
    "thaw": "pltz.experiments.thaw.command:thaw",
    "neighbours": "pltz.experiments.neighbours.command:neighbours",
    "communities": "pltz.experiments.communities.command:communities",
    "stack": "pltz.experiments.stack:stack",
    "slot": "pltz.experiments.slots.command:slot",
}


@click.group(cls=RootGroup, lazy=COMMANDS)
def experiments() -> None:
    """Run the systems of the papers, and measure archives, thaws, neighbours and a whole deployment."""


if __name__ == "__main__":
    process.prepare()
    experiments(prog_name="python -m pltz.experiments")
