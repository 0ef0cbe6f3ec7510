"""``pltz archive``: sessions kept for good. One file of commands a noun; each loads when asked for."""

import click

from pltz.cli.ui.groups import LazyGroup

COMMANDS = {
    "init": "pltz.cli.archive_put:init",
    "put": "pltz.cli.archive_put:put",
    "get": "pltz.cli.archive_get:get",
    "ls": "pltz.cli.archive_list:ls",
    "find": "pltz.cli.archive_list:find",
    "stat": "pltz.cli.archive_list:stat",
    "verify": "pltz.cli.archive_verify:verify",
    "repair": "pltz.cli.archive_repair:repair",
    "forget": "pltz.cli.archive_forget:forget",
    "undelete": "pltz.cli.archive_forget:undelete",
    "collect": "pltz.cli.archive_forget:collect",
    "erase": "pltz.cli.archive_erase:erase",
    "copy": "pltz.cli.archive_copy:copy",
    "export": "pltz.cli.archive_get:export",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Keep sessions in an archive, every version of them.")
def archive() -> None:
    """Keep sessions in an archive: every version, shared prompts once, proved before it is acknowledged.

    An archive is a directory, or s3://bucket/prefix. Sessions have a name, a tenant, tags and a history; putting a longer
    version of a session adds its new turns alone.
    """
