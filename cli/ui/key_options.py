"""The options that name the key of a sealed archive: a passphrase, a key file or a command that prints the key.

No option takes the secret itself on the command line, where every user of the machine could read it. The options
are kept in click's context, so that commands need not pass them on. `secret` turns them into a `Secret`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, cast

import click

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret

META = "pltz.archive.key"


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta.setdefault(META, {})[parameter.name] = value


def key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--key-file``, ``--key-command``, ``--passphrase-env`` and ``--passphrase``. `secret` reads them."""
    for option in (
        click.option(
            "--passphrase",
            is_flag=True,
            expose_value=False,
            callback=_keep,
            help="Ask for the passphrase of a sealed archive.",
        ),
        click.option(
            "--passphrase-env",
            metavar="VAR",
            expose_value=False,
            callback=_keep,
            help="Environment variable that holds the archive's passphrase.",
        ),
        click.option(
            "--key-command",
            metavar="CMD",
            expose_value=False,
            callback=_keep,
            help="Shell command that prints the archive's key.",
        ),
        click.option(
            "--key-file",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="File with the archive's key: at least 16 random bytes.",
        ),
    ):
        command = option(command)
    return command


class KeyWords(TypedDict, total=False):
    """The arguments of `pltz.Archive.open` that name a key, at most one of them."""

    key_file: str
    key_command: str
    passphrase_env: str
    passphrase: str


def key_is_named() -> bool:
    """Return whether the options of the running command name a key."""
    return bool(click.get_current_context().meta.get(META))


def key_words(*, confirm: bool = False) -> KeyWords:
    """Return the key that the options of the running command name, as arguments of `pltz.Archive.open`.

    With ``confirm`` a passphrase is asked for twice. Raises UsageError where more than one option was given.
    """
    given: dict[str, Any] = click.get_current_context().meta.get(META, {})
    if len(given) > 1:
        raise UsageError(
            "expected one of --key-file, --key-command, --passphrase-env and --passphrase, got more"
        )
    if "passphrase" in given:
        words = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
        return {"passphrase": words}
    return cast(KeyWords, dict(given))


def secret(*, confirm: bool = False) -> "Secret | None":
    """Return the key that the options of the running command name, or None where they name none.

    With ``confirm`` a passphrase is asked for twice. Raises UsageError where more than one option was given.
    """
    from pltz.archive.encryption.keys import Secret

    return Secret.chosen(**key_words(confirm=confirm))
