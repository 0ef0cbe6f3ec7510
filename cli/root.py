"""``pltz``: the root of the command line. Each command has a file of its own and is imported when it is called."""

import click

from pltz.cli import above
from pltz.cli.ui.archive_options import OnArchive
from pltz.cli.ui.groups import RootGroup

COMMANDS = {
    "archive": "pltz.cli.archive.group:archive",
    "hold": "pltz.cli.archive.hold:hold",
    "audit": "pltz.cli.archive.audit:audit",
    "show": "pltz.cli.show:show",
    "search": "pltz.cli.search:search",
    "resume": "pltz.cli.resume:resume",
    "compress": "pltz.cli.compress:compress",
    "decompress": "pltz.cli.decompress:decompress",
    "inspect": "pltz.cli.inspect:inspect",
    **above.COMMANDS["pltz"],
    "bundle": "pltz.cli.bundle.group:bundle",
    "bench": "pltz.cli.bench.group:bench",
    "demo": "pltz.cli.demo:demo",
    "doctor": "pltz.cli.doctor:doctor",
}
SECTIONS = {
    "An archive of sessions": ("archive", "show", "search", "browse", "resume", "hold", "audit", "live", "nightly"),
    "One file of sessions": ("compress", "decompress", "inspect"),
    "Served models": ("thaw", "serve", "hook", "llama", "target"),
    "Bundles and this machine": ("bundle", "bench", "demo", "doctor"),
}


class Root(OnArchive, RootGroup):
    """The root group, which takes the options of an archive for the commands below."""

    heading = "Options"


@click.group(cls=Root, lazy=COMMANDS, sections=SECTIONS)
@click.version_option(package_name="pltz", prog_name="pltz")
def cli() -> None:
    """Entropy codec for LLM sessions: freeze them small, thaw them bit for bit.
    `pltz COMMAND --help` and `pltz help COMMAND` show options and examples.
    """
