"""``pltz archive``: the group of commands. There is one file per noun, and each is imported when it is called."""

import click

from pltz.cli.ui.groups import LazyGroup

COMMANDS = {
    "init": "pltz.cli.archive.put:init",
    "put": "pltz.cli.archive.put:put",
    "get": "pltz.cli.archive.get:get",
    "ls": "pltz.cli.archive.list:ls",
    "find": "pltz.cli.archive.list:find",
    "stat": "pltz.cli.archive.list:stat",
    "verify": "pltz.cli.archive.verify:verify",
    "repair": "pltz.cli.archive.repair:repair",
    "forget": "pltz.cli.archive.forget:forget",
    "undelete": "pltz.cli.archive.forget:undelete",
    "collect": "pltz.cli.archive.forget:collect",
    "erase": "pltz.cli.archive.erase:erase",
    "convert": "pltz.cli.archive.convert:convert",
    "copy": "pltz.cli.archive.copy:copy",
    "export": "pltz.cli.archive.get:export",
    "join": "pltz.cli.archive.parts:join",
    "restore": "pltz.cli.archive.restore:restore",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="Keep all versions of sessions in an archive.")
def archive() -> None:
    """Keep sessions in an archive: every version, shared prompts once, each decoded and compared before it counts.

    An archive is a directory, or s3://bucket/prefix. Sessions have a name, a tenant, tags and a history. Putting a
    longer version of a session adds only its new turns.
    """
