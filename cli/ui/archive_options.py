"""The options that name an archive and its key: once for all commands, before a command or behind it.

    pltz -r /data/cold archive ls                       pltz archive ls -r /data/cold
    export PLTZ_ARCHIVE=/data/cold PLTZ_KEY_FILE=key    pltz archive ls

What they say is kept in click's context, so that commands need not pass it on. `archive_place` and `archive_key` read
it. No option takes the secret itself on the command line, where every user of the machine could read it.
"""

import os
from typing import TYPE_CHECKING, Any, TypedDict, cast

import click

from pltz.cli.ui.groups import Command, LazyGroup
from pltz.cli.ui.options import nonempty
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import KeySource

PLACE, KEY_FILE, KEY_COMMAND, ACTOR = "PLTZ_ARCHIVE", "PLTZ_KEY_FILE", "PLTZ_KEY_COMMAND", "PLTZ_ACTOR"  # variables
META = "pltz.archive"


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta.setdefault(META, {})[parameter.name] = value


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(list(names), expose_value=False, callback=_keep, **settings)


OPTIONS: list[click.Parameter] = [
    _option(
        "-r",
        "--archive",
        "place",
        type=nonempty,
        metavar="ARCHIVE",
        help=f"A folder, or s3://bucket/prefix.  [env: {PLACE}]",
    ),
    _option("--key-file", type=nonempty, metavar="FILE", help=f"Key of a sealed archive.  [env: {KEY_FILE}]"),
    _option("--key-command", type=nonempty, metavar="CMD", help=f"Shell command that prints it.  [env: {KEY_COMMAND}]"),
    _option("--passphrase-env", type=nonempty, metavar="VAR", help="Environment variable that holds the passphrase."),
    _option("--passphrase", is_flag=True, help="Ask for the passphrase."),
    _option("--actor", type=nonempty, metavar="WHO", help=f"Who changes it; else user and host.  [env: {ACTOR}]"),
    _option("--reason", type=nonempty, metavar="WHY", help="Why, for holds and the audit."),
    _option("--force-time", is_flag=True, help="This clock is right, whatever the archive's last changes say."),
]
KEYS = "key_file", "key_command", "passphrase_env", "passphrase"


class OnArchive(click.Command):
    """A command or group that takes the options of an archive beside its own."""

    shown: tuple[str, ...] = ("place", "key_file")  # in its help; all are in that of `pltz archive`
    heading = "Archive and key"

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters, and the options of an archive."""
        return super().get_params(ctx) + OPTIONS

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its own options, those of an archive under a heading, and the commands of a group."""
        own, archive = super().get_params(ctx), [option for option in OPTIONS if option.name in self.shown]
        sections: dict[str, list[tuple[str, str]]] = {}
        for heading, options in (("Options", own), (self.heading, archive)):
            found = [option.get_help_record(ctx) for option in options if isinstance(option, click.Option)]
            sections.setdefault(heading, []).extend(record for record in found if record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class ArchiveCommand(OnArchive, Command):
    """A command on an archive."""


class ChangeCommand(ArchiveCommand):
    """A command for which somebody may have to answer."""

    shown = (*ArchiveCommand.shown, "actor", "reason", "force_time")


class ArchiveGroup(OnArchive, LazyGroup):
    """The group of commands on an archive."""

    shown = ("place", *KEYS, "actor", "reason", "force_time")


class KeyWords(TypedDict, total=False):
    """The arguments of `pltz.Archive.open` that name a key, at most one of them."""

    key_file: str
    key_command: str
    passphrase_env: str
    passphrase: str


def _given() -> dict[str, Any]:
    found: dict[str, Any] = click.get_current_context().meta.get(META, {})
    return found


def key_given() -> bool:
    """Return whether an option names a key in the running command, and not the environment alone."""
    return not set(_given()).isdisjoint(KEYS)


def place_given() -> str | None:
    """Return the archive that -r names in the running command, None where only the environment may name one."""
    return _given().get("place")


def archive_place() -> str:
    """Return the archive of the running command. Raises UsageError where none is named."""
    place = place_given() or os.environ.get(PLACE)
    if not place:
        raise UsageError(f"no archive is named: add -r ARCHIVE, or set {PLACE}")
    return place


def key_words(*, confirm: bool = False) -> KeyWords:
    """Return the key of the running command, as arguments of `pltz.Archive.open`; of options before the environment.

    With ``confirm`` a passphrase is asked for twice. Raises UsageError where more than one option was given.
    """
    given = {name: value for name, value in _given().items() if name in KEYS}
    if len(given) > 1:
        raise UsageError("expected one of --key-file, --key-command, --passphrase-env and --passphrase, got more")
    if confirm and os.environ.get(KEY_FILE) == "":  # as of an unset variable: an archive that nobody meant to be open
        raise UsageError(f"{KEY_FILE} is empty: unset it, or name a file")
    if "passphrase" in given:
        words = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
        return {"passphrase": words}
    return cast(KeyWords, given or _by_environment())


def _by_environment() -> dict[str, str]:
    """Return the key that the environment names. Raises UsageError where it names two."""
    named = {"key_file": os.environ.get(KEY_FILE), "key_command": os.environ.get(KEY_COMMAND)}
    found = {name: value for name, value in named.items() if value}
    if len(found) > 1:
        raise UsageError(f"expected one of {KEY_FILE} and {KEY_COMMAND}, got both: unset one")
    return found


def archive_key(place: str, *, perhaps: bool = False) -> KeyWords:
    """Return the key with which the archive at ``place`` is opened, as `key_words`.

    None for an archive that is not sealed, where the environment alone names the key, or with ``perhaps``: opening it
    refuses any other key. Raises UsageError for a missing archive before a passphrase is asked for.
    """
    by_option = key_given()
    if not by_option and not _by_environment():
        return {}
    if by_option and not perhaps and "passphrase" not in _given():
        return key_words()
    from pltz.archive import opener

    sealed = opener.open_at(place).settings.sealed
    return key_words() if sealed or (by_option and not perhaps) else {}


class AuthorWords(TypedDict, total=False):
    """The arguments of `pltz.Archive.open` that name who changes it, and why."""

    actor: str
    reason: str
    force_time: bool


def author_words() -> AuthorWords:
    """Return who changes the archive and why, as arguments of `pltz.Archive.open`, as far as it is told."""
    given = {"actor": os.environ.get(ACTOR), **_given()}
    names = "actor", "reason", "force_time"
    return cast(AuthorWords, {name: value for name in names if (value := given.get(name))})


def archive_words() -> list[str]:
    """Return the archive and key as words for a process that has not this environment. Raises UsageError."""
    if "passphrase" in _given():
        raise UsageError("--passphrase asks at this terminal alone: name a key file for other processes")
    named = {"archive": archive_place(), **key_words(), **author_words()}
    words = [("--" + name.replace("_", "-"), value) for name, value in named.items()]
    return [word for name, value in words for word in ([name] if value is True else [name, str(value)])]


def archive_secret(place: str) -> "KeySource | None":
    """Return the key with which the archive at ``place`` is opened, if any. Raises as `archive_key`."""
    from pltz.archive.encryption.keys import Secret

    return Secret.chosen(**archive_key(place))
