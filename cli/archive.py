"""``pltz archive``: the group; its commands live one or two a file and load when asked for."""

import click

from pltz.cli.groups import LazyGroup

COMMANDS = {
    "init": "pltz.cli.archive_put:init",
    "put": "pltz.cli.archive_put:put",
    "get": "pltz.cli.archive_get:get",
    "export": "pltz.cli.archive_get:export",
    "ls": "pltz.cli.archive_ls:ls",
    "find": "pltz.cli.archive_ls:find",
    "stat": "pltz.cli.archive_ls:stat",
    "verify": "pltz.cli.archive_verify:verify",
    "forget": "pltz.cli.archive_forget:forget",
    "undelete": "pltz.cli.archive_forget:undelete",
    "collect": "pltz.cli.archive_forget:collect",
    "copy": "pltz.cli.archive_copy:copy",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def archive() -> None:
    """Keep sessions in an archive: a directory, or s3://bucket/prefix.

    An archive stores each segment of a session once, keeps every version, and can be used by several
    processes at the same time. What put acknowledges is on disk and was decoded and compared.
    """
