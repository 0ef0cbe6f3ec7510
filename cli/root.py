"""``pltz``: the root of the command line. Each command has a file of its own and is imported when it is called."""

import click

from pltz.cli import above
from pltz.cli.ui.groups import RootGroup

COMMANDS = {
    "compress": "pltz.cli.compress:compress",
    "decompress": "pltz.cli.decompress:decompress",
    "inspect": "pltz.cli.inspect:inspect",
    "archive": "pltz.cli.archive.group:archive",
    "bundle": "pltz.cli.bundle.group:bundle",
    **above.COMMANDS["pltz"],
    "bench": "pltz.cli.bench.group:bench",
    "demo": "pltz.cli.demo:demo",
    "doctor": "pltz.cli.doctor:doctor",
    "completion": "pltz.cli.completion:completion",
    "help": "pltz.cli.help:help_",
}


@click.group(cls=RootGroup, lazy=COMMANDS)
@click.version_option(package_name="pltz", prog_name="pltz")
def cli() -> None:
    """Entropy codec for LLM sessions: freeze them small, thaw them bit for bit.

    A session (a chat, a text, a list of token ids) is coded by a small integer language model, the
    bundle, and an entropy coder. The .pltz file names the bundle it needs; decoding gives back the
    same session, and thawing rebuilds the KV cache of the model that served it.
    """
