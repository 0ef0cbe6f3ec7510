"""What opens a sealed archive, as options of every command that needs it: a passphrase, a key file or a command that prints the key.

None of them takes the secret itself on the command line, where every user of the machine could read it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.keys import Secret


def key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--key-file``, ``--key-command`` and ``--passphrase``; `secret` makes one of what they give."""
    for option in (
        click.option("--passphrase", is_flag=True, help="Ask for the passphrase of a sealed archive."),
        click.option("--key-command", metavar="CMD", help="Shell command that prints the archive's key."),
        click.option(
            "--key-file", metavar="FILE", help="File with the archive's key: at least 16 random bytes."
        ),
    ):
        command = option(command)
    return command


def secret(
    key_file: str | None, key_command: str | None, passphrase: bool, *, confirm: bool = False
) -> "Secret | None":
    """What the options name; None where none was given. ``confirm``: ask for a passphrase twice. Raises UsageError."""
    from pltz.archive.keys import Secret

    if sum(map(bool, (key_file, key_command, passphrase))) > 1:
        raise UsageError("expected one of --key-file, --key-command and --passphrase, got more")
    if key_file:
        return Secret.file(key_file)
    if key_command:
        return Secret.command(key_command)
    if passphrase:
        return Secret.passphrase(
            click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
        )
    return None
