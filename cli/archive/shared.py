"""The parts that the commands of ``pltz archive`` share: options, opening, choosing and showing versions."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, moment
from pltz.archive.work_part import WorkPart
from pltz.cli.ui import options
from pltz.cli.ui.key_options import KeyWords, key_is_named, key_options, key_words
from pltz.cli.ui.options import Decorator, nonempty
from pltz.cli.ui.output import printable, write_text
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE
from pltz.plt_codec.limits import ZSTD_ABOVE
from pltz.plt_codec.named_files import MAX_TOKENIZER, named_file

if TYPE_CHECKING:
    from pltz.archive.archive import Archive, SessionVersion
    from pltz.archive.catalog.lookup import Version, VersionName
    from pltz.plt_codec.lanes import LayoutName
LEAST_DIGITS = 8  # of an id; a number has fewer


class VersionType(click.ParamType):
    """A version of a session: its number, from 1, or the first 8 digits of its id or more."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "VersionName":
        """Return the number, or the first bytes of the id."""
        if isinstance(value, int | bytes):
            return value
        if len(value) < LEAST_DIGITS and value.isdecimal() and int(value):
            return int(value)
        with suppress(ValueError):
            if LEAST_DIGITS <= len(value) <= 2 * SIZE:
                return bytes.fromhex(value[: len(value) // 2 * 2])
        self.fail(f"expected a number from 1, or 8 hex digits or more of an id, found {value!r}", param, ctx)


DIR: Decorator = click.argument("place", metavar="DIR")
NAMES: Decorator = click.argument("names", metavar="[NAME...]", nargs=-1)
BUNDLES: Decorator = click.option(
    "--bundle",
    "bundles",
    metavar="NAME|DIR",
    multiple=True,
    help="Bundle to code with: mini, nano, base or a folder (repeatable: the others are for reading).  [default: mini]",
)
READ_BUNDLES: Decorator = click.option(
    "--bundle",
    "bundles",
    metavar="NAME|DIR",
    multiple=True,
    help="Bundle to read with, beside those that ship with pltz (repeatable).",
)
TOKENIZERS: Decorator = click.option(
    "--tokenizer",
    "tokenizers",
    metavar="FILE|MODEL",
    multiple=True,
    help="tokenizer.json or target model of token ids, where they are not the bundle's (repeatable).",
)
TENANT: Decorator = click.option(
    "--tenant",
    type=nonempty,
    metavar="TENANT",
    default="default",
    show_default=True,
    help="Tenant of the session.",
)
ONLY_TENANT: Decorator = click.option(
    "--tenant", type=nonempty, metavar="TENANT", help="Only sessions of this tenant."
)
ONLY_TAGS: Decorator = click.option(
    "--tag", "tags", metavar="KEY=VALUE", multiple=True, help="Only sessions with this tag (repeatable)."
)
VERSION: Decorator = click.option(
    "--version",
    "number",
    type=VersionType(),
    metavar="N|ID",
    help="Version N, or that whose id begins with ID, 8 digits or more.  [default: the last]",
)
DRY_RUN: Decorator = click.option(
    "--dry-run", is_flag=True, help="Show what would be done and change nothing."
)
JSON_LINES: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line, instead of text."
)


@dataclass(frozen=True)
class Recoding:
    """Hold the options of a command that codes stored sessions, as `recoding_options` adds them."""

    bundles: tuple[str, ...]
    tokenizers: tuple[str, ...]
    dry_run: bool
    threads: int | None
    device: str
    layout: "LayoutName"
    progress: bool | None
    as_json: bool

    def open(self, place: str, *, perhaps_sealed: bool = False) -> "Archive":
        """Open an archive to code with these options. See `open_archive` for ``perhaps_sealed``, errors."""
        return open_archive(
            place,
            self.bundles,
            tokenizers=self.tokenizers,
            device=self.device,
            threads=self.threads,
            layout=self.layout,
            perhaps_sealed=perhaps_sealed,
        )


# The command takes them as ``recoding``, a `Recoding`.
recoding_options: Decorator = options.together(
    Recoding,
    "recoding",
    BUNDLES,
    TOKENIZERS,
    DRY_RUN,
    options.LAYOUT,
    options.THREADS,
    options.DEVICE,
    options.PROGRESS,
    JSON_LINES,
    key_options,
)


def open_archive(
    place: str,
    bundles: Iterable[str] = (),
    *,
    tokenizers: Iterable[str] = (),
    device: str = "cpu",
    threads: int | None = None,
    layout: "LayoutName" = "default",
    zstd_above: int | None = ZSTD_ABOVE,
    merge_turns: bool = True,
    perhaps_sealed: bool = False,
) -> "Archive":
    """Open the archive at ``place``, a sealed one with the key that the command's options name.

    A bundle is loaded only when something is coded.

    Args:
        tokenizers: tokenizer files or targets, for ids that do not belong to the bundle's tokenizer.
        layout: layout of long segments that are put.
        zstd_above: put sessions of more bytes by zstd and not by the model.
        merge_turns: join the last turns of sessions that grow.
        perhaps_sealed: ignore the key for an archive that is not sealed, instead of refusing it.

    Raises:
        UsageError, FormatError, ModelError, KeyMismatch: the archive, a tokenizer or the key cannot be used.
    """
    from pltz.archive.archive import Archive

    key: KeyWords = {}
    if key_is_named():
        found = Archive.open(place)  # refuse a missing archive before a passphrase is asked for
        key = key_words() if found.parts.settings.sealed or not perhaps_sealed else {}
    return Archive.open(
        place,
        bundle=[*bundles] or None,
        tokenizers=[tokenizer_json(name) for name in tokenizers],
        device=device,
        threads=threads,
        layout=layout,
        zstd_above=zstd_above,
        merge_turns=merge_turns,
        **key,
    )


def tokenizer_json(name: str) -> bytes:
    """Return a tokenizer.json, by its path or by its target. No weights are loaded. Raises UsageError, ModelError."""
    from pltz.models.target.checkpoint import resolve, tokenizer_json_of

    if not Path(name).is_file():
        return tokenizer_json_of(resolve(name))
    try:
        return named_file(name, MAX_TOKENIZER)
    except OSError as exc:
        raise UsageError(f"cannot read {name}: {exc.strerror or exc}") from exc


def tags_of(words: Iterable[str]) -> dict[str, str]:
    """Return ``key=value`` words as a dictionary. Raises UsageError where one is empty or a key is given twice.

    >>> tags_of(["a=1", "b=x=y"])
    {'a': '1', 'b': 'x=y'}
    """
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if not key or not value:
            raise UsageError(f"expected a tag as KEY=VALUE, found {word!r}")
        if key in found:
            raise UsageError(f"tag {key!r} is given twice")
        found[key] = value
    return found


def choose(
    archive: "Archive",
    names: Iterable[str],
    tenant: str | None,
    tags: Mapping[str, str],
    *,
    history: bool = False,
    part: WorkPart | None = None,
) -> "Iterator[Version]":
    """Yield versions of the sessions named (of all without names) that have all the tags.

    With ``tenant`` only that tenant's, with ``part`` only those in it. Yields the last version of each session, or all
    with ``history``. Raises NotFound for a name that no session has, LostError where a version of it is damaged or
    gone, ArchiveError where damage may hide it.
    """
    from pltz.archive.errors import NotFound

    wanted, met = set(names), set[tuple[str, str]]()
    for version in archive.directory.ls(tenant, history=history):
        if wanted and version.name not in wanted:
            continue
        if wanted and (version.tenant, version.name) not in met:
            met.add((version.tenant, version.name))
            known = archive.parts.catalog.histories.of(version.tenant, version.name)
            (known.want_named if history else known.want_newest)()
        if tags.items() <= version.tags.items() and (part is None or part.has_session(version.tenant, version.name)):
            yield version
    if missing := sorted(wanted - {name for _, name in met}):
        archive.directory.want_whole(f"found no session {missing[0]!r}", tenant)
        raise NotFound(f"no session {missing[0]!r} in this archive")


def full_names(cold: "Archive", names: Iterable[str], tenant: str, number: "VersionName | None") -> list[str]:
    """Return the names of sessions of a tenant. One that ends in ``*`` may be a beginning that only one of them has.

    A part of what is behind the last slash will do, too. All names are listed for it, and for no other name.
    ``number``: the version that is wanted, None for the last.

    Raises:
        NotFound: several sessions are meant.
        ArchiveError: damage may hide the session.
    """
    from pltz.archive.errors import Erased, NotFound

    found = []
    for name in names:
        if name.endswith("*"):
            try:
                cold.directory.version(name, tenant, number)
            except NotFound as error:
                if not isinstance(error, Erased):
                    name = the_one_meant(cold, name[:-1], tenant)
        found.append(name)
    return found


def the_one_meant(cold: "Archive", name: str, tenant: str | None) -> str:
    """Return the name that is meant by a part of it, as `full_names` says, and print it; else the part.

    Raises NotFound where several are meant.
    """
    from pltz.archive.errors import ArchiveError, NotFound

    known = set[str]()
    with suppress(ArchiveError):  # damage may hide sessions: none is guessed
        known = {version.name for version in cold.list(tenant, forgotten=True)}
    if name in known:
        return name
    meant = sorted(one for one in known if one.startswith(name) or one.rpartition("/")[2].startswith(name))
    meant = meant or sorted(one for one in known if name in one.rpartition("/")[2])
    if len(meant) > 1:
        some = ", ".join(meant[:3]) + (", ..." if len(meant) > 3 else "")
        raise NotFound(f"{counted(len(meant), 'session')} are meant by {name!r}: {some}")
    if not meant:
        return name
    click.echo(f"{printable(name)}: {printable(meant[0])}", err=True)
    return meant[0]


def facts(version: "SessionVersion") -> dict[str, Any]:
    """Return a version as JSON, its time in seconds since 1970."""
    return {
        "tenant": version.tenant,
        "name": version.name,
        "version": version.version,
        "time": version.time,
        "kind": version.kind,
        "tags": version.tags,
        "target": None if version.target is None else version.target.hex(),
        "forgotten": version.forgotten,
        "id": version.id.hex(),
    }


def line_of(version: "SessionVersion") -> str:
    """Return a version as one line of text."""
    tags = "".join(f"  {key}={value}" for key, value in version.tags.items())
    state = "  (forgotten)" if version.forgotten else ""
    when = moment(version.time)
    return f"{version.tenant}  {version.name}  version {version.version}  {when}  {version.kind}{tags}{state}"


def show(record: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print one record: a line of JSON, or a line of text."""
    write_text(json.dumps(record, ensure_ascii=False) if as_json else printable(text))


def seconds_of(text: str | None) -> int | None:
    """Return the seconds since 1970 of a date, a date with a time, or a whole number. Raises UsageError.

    A time without a zone is UTC.

    >>> seconds_of("1970-01-02"), seconds_of("1970-01-01T00:01"), seconds_of("7")
    (86400, 60, 7)
    """
    from datetime import UTC, datetime

    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise UsageError(f"expected a date such as 2026-01-31 or 2026-01-31T12:00, found {text!r}") from exc
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
