"""``pltz archive``: the group of commands. There is one file per noun, and each is imported when it is called."""

import click

from pltz.cli.ui.archive_options import ArchiveGroup

COMMANDS = {
    "init": "pltz.cli.archive.put:init",
    "put": "pltz.cli.archive.put:put",
    "get": "pltz.cli.archive.get:get",
    "ls": "pltz.cli.archive.list:ls",
    "stat": "pltz.cli.archive.list:stat",
    "verify": "pltz.cli.archive.verify:verify",
    "repair": "pltz.cli.archive.repair:repair",
    "forget": "pltz.cli.archive.forget:forget",
    "undelete": "pltz.cli.archive.forget:undelete",
    "collect": "pltz.cli.archive.forget:collect",
    "shrink": "pltz.cli.archive.shrink:shrink",
    "rekey": "pltz.cli.archive.rekey:rekey",
    "erase": "pltz.cli.archive.erase:erase",
    "copy": "pltz.cli.archive.copy:copy",
    "join": "pltz.cli.archive.parts:join",
}
SECTIONS = {
    "In and out": ("init", "put", "get", "ls", "stat", "copy"),
    "Check and mend": ("verify", "repair", "shrink", "join", "rekey"),
    "Take out": ("forget", "undelete", "collect", "erase"),
}
# words of restic
ALIASES = {"backup": ("put",), "check": ("verify",), "snapshots": ("ls", "--history"), "prune": ("collect",)}


@click.group(
    cls=ArchiveGroup,
    lazy=COMMANDS,
    sections=SECTIONS,
    aliases=ALIASES,
    short_help="Keep all versions of sessions in an archive.",
)
def archive() -> None:
    """Keep sessions in an archive: every version, shared prompts once, each decoded and compared before it counts.

    Name the archive by -r, before or behind the command, or once by PLTZ_ARCHIVE. Sessions have a name, a tenant, tags
    and a history. Putting a longer version of a session adds only its new turns. What restic's prune does at once,
    collect does in two runs, a grace period apart, while others read and write.
    """
