"""``pltz archive ls``, ``find`` and ``stat``: list and count the contents of an archive.

Nothing is decoded, except by ``stat --content``.
"""

import dataclasses
import re
import string
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, duration, size
from pltz.archive.version_sizes import VersionSizes, tokens_in_words
from pltz.cli.archive import shared
from pltz.cli.archive.shared import facts, line_of, open_archive, seconds_of, show, tags_of
from pltz.cli.ui.groups import Command, NamingCommand
from pltz.cli.ui.key_options import key_options
from pltz.cli.ui.options import Decorator
from pltz.cli.ui.output import printable
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import pairs, render
from pltz.plt_codec.errors import PltzError, UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive, SessionVersion

SIZES = ("size", "tokens", "segments")
FIELDS = ("tenant", "name", "version", "time", "age", "kind", "tags", "forgotten", "id", "method", *SIZES, "turns")
LONG: Decorator = click.option(
    "-l", "--long", is_flag=True, help="With method, size, tokens (B: bytes, as of logs), segments, age."
)
TURNS: Decorator = click.option(
    "--turns", is_flag=True, help="With the messages of each chat. They are counted by decoding it, which takes time."
)
TEMPLATE: Decorator = click.option(
    "--format",
    "template",
    metavar="TEXT",
    help="A line for each, such as '{tenant}/{name} {tokens}'. Fields: " + ", ".join(FIELDS) + ".",
)


@click.command(
    cls=Command,
    short_help="List the last versions of sessions, by tenant and name.",
    examples=[
        "pltz archive ls /data/cold --long",
        "pltz archive ls /data/cold --turns",
        "pltz archive ls /data/cold --tenant acme --history --json",
        "pltz archive ls /data/cold --format '{name}'",
    ],
)
@shared.DIR
@shared.ONLY_TENANT
@click.option("--history", is_flag=True, help="All versions, not only the last of each session.")
@click.option("--forgotten", is_flag=True, help="Forgotten versions too.")
@LONG
@TURNS
@TEMPLATE
@shared.JSON_LINES
@key_options
@click.pass_context
def ls(
    ctx: click.Context,
    place: str,
    tenant: str | None,
    history: bool,
    forgotten: bool,
    long: bool,
    turns: bool,
    template: str | None,
    as_json: bool,
) -> None:
    """List the last versions of sessions, by tenant and name, numbers in names by value.

    Where packs are damaged, missing or lost, their sessions may not be listed, and the exit code is 7.
    """
    cold = open_archive(place)
    found = cold.list(tenant, forgotten=forgotten, history=history, partial=True)
    _show_all(cold, sorted(found, key=_natural), long, turns, template, as_json)
    ctx.exit(_warn(cold, tenant))


@click.command(
    cls=NamingCommand,
    short_help="List sessions by a part of their name, tags and time.",
    examples=[
        "pltz archive find /data/cold support",
        "pltz archive find /data/cold --tag channel=web --since 2026-01-01 --json",
    ],
)
@shared.DIR
@click.argument("text", metavar="[TEXT]", default="")
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@click.option("--since", metavar="DATE", help="Not older than this: 2026-01-31, 2026-01-31T12:00.")
@click.option("--until", metavar="DATE", help="Older than this.")
@LONG
@TURNS
@TEMPLATE
@shared.JSON_LINES
@key_options
@click.pass_context
def find(
    ctx: click.Context,
    place: str,
    text: str,
    tenant: str | None,
    tags: tuple[str, ...],
    since: str | None,
    until: str | None,
    long: bool,
    turns: bool,
    template: str | None,
    as_json: bool,
) -> None:
    """List the last versions of sessions that have all the tags and TEXT in their name, by time.

    Where packs are damaged, missing or lost, their sessions may not be listed, and the exit code is 7.
    """
    cold = open_archive(place)
    chosen, start, end = tags_of(tags), seconds_of(since), seconds_of(until)
    found = cold.find(text, tenant=tenant, tags=chosen, since=start, until=end, partial=True)
    _show_all(cold, found, long, turns, template, as_json)
    ctx.exit(_warn(cold, tenant))


def _natural(version: "SessionVersion") -> tuple[str, list[tuple[int, str]], int]:
    """Return the key that sorts chat-2 before chat-10."""
    parts = re.split("([0-9]+)", version.name)
    name = [(int(part), "") if number % 2 else (-1, part) for number, part in enumerate(parts)]
    return version.tenant, name, version.version


def _show_all(
    cold: "Archive",
    versions: "Iterable[SessionVersion]",
    long: bool,
    turns: bool,
    template: str | None,
    as_json: bool,
) -> None:
    """Print versions: a line each, or a table with ``long`` or ``turns``. Raises UsageError for an unknown field."""
    named = _fields(template)
    sizes = VersionSizes(cold) if long or turns or named & {*SIZES, "method"} else None
    counted_turns = Turns(cold) if turns or "turns" in named else None
    now = cold.parts.store.now()
    rows = []
    for version in versions:
        record = facts(version) | {"age": max(0, now - version.time)}
        if sizes is not None:
            record |= sizes.of(version)
        if counted_turns is not None:
            record["turns"] = counted_turns.of(version)
        if template is not None and not as_json:
            show(record, template.format_map(_words(record)), False)
        elif sizes is not None and not as_json:
            rows.append(record)
        else:
            show(record, line_of(version), as_json)
    if rows:
        head = ("session", "version", "age", "kind", "method", *(["turns"] if turns else []), *SIZES, "tags")
        click.echo(render(head, [_cells(record) for record in rows]))


def _fields(template: str | None) -> set[str]:
    """Return the fields that a template names. Raises UsageError where one is unknown."""
    try:
        named = {field for _, field, _, _ in string.Formatter().parse(template or "") if field is not None}
    except ValueError as exc:
        raise UsageError(f"--format {template!r}: {exc}") from exc
    if unknown := sorted(named - set(FIELDS)):
        raise UsageError(f"--format has no field {unknown[0]!r}: expected {', '.join(FIELDS)}")
    return named


def _words(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record for a template: tags and absent figures as words."""
    tags = " ".join(f"{key}={value}" for key, value in record["tags"].items())
    return {key: "-" if value is None else value for key, value in record.items()} | {"tags": tags}


def _cells(record: dict[str, Any]) -> list[str]:
    """Return one line of the table of ``--long``."""
    units = {"tokens": " B" if record["bytewise"] else ""}
    figures = [(record[name], units.get(name, "")) for name in ("turns", *SIZES) if name in record]
    numbers = ["?" if figure is None else f"{figure:,}{unit}" for figure, unit in figures]
    words = _words(record)
    kind = record["kind"] + (" (forgotten)" if record["forgotten"] else "")
    name = printable(f"{record['tenant']}  {record['name']}")
    age, tags = duration(record["age"]), printable(words["tags"])
    return [name, f"{record['version']}", age, kind, words["method"], *numbers, tags]


class Turns:
    """The number of messages of versions, each counted in the decoded session."""

    def __init__(self, cold: "Archive") -> None:
        self._sessions = cold.sessions
        self._versions = {version.id: version for version in cold.directory.ls(forgotten=True, history=True)}

    def of(self, version: "SessionVersion") -> int | None:
        """Return the number of messages of a version, None where it is no chat or damage hides it."""
        from pltz.models.session.session import messages_of

        try:
            messages = messages_of(self._sessions.read(self._versions[version.id]))
        except (PltzError, KeyError):
            return None
        return None if messages is None else len(messages)


@click.command(
    cls=Command,
    short_help="Count sessions, tokens, bytes, and what sharing saved.",
    examples=[
        "pltz archive stat /data/cold",
        "pltz archive stat /data/cold --content",
        "pltz archive stat /data/cold --json",
    ],
)
@shared.DIR
@click.option("--content", is_flag=True, help="Decode the last versions, to count the bytes of their content.")
@click.option("-v", "--verbose", is_flag=True, help="Also packs, indexes, marks and other parts of the archive.")
@shared.READ_BUNDLES
@shared.TOKENIZERS
@shared.JSON_LINES
@key_options
def stat(
    place: str,
    content: bool,
    verbose: bool,
    bundles: tuple[str, ...],
    tokenizers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count the contents of the archive: sessions, versions, tokens, bytes, and what sharing of segments saved."""
    from pltz.archive.catalog.stat import disk_bytes

    cold = open_archive(place, bundles, tokenizers=tokenizers)
    parts = dataclasses.asdict(cold.stat())
    parts["archive"] = parts["archive"].hex()
    found = parts | {"disk_bytes": disk_bytes(cold.parts.store)} | _totals(cold)
    if content:
        found |= _content(cold, found)
    if as_json:
        show(found, "", True)
    else:
        rows = _rows(found)
        if verbose:
            rows += [(k.replace("_", " "), size(v) if k.endswith("bytes") else str(v)) for k, v in parts.items()]
        click.echo(pairs(rows, indent=""))
    _warn(cold)


def _totals(cold: "Archive") -> dict[str, Any]:
    versions = list(cold.list(history=True, forgotten=True, partial=True))
    kept = [version for version in versions if not version.forgotten]
    found: dict[str, Any] = {
        "named_sessions": len({(version.tenant, version.name) for version in kept}),
        "versions": len(kept),
        "forgotten_versions": len(versions) - len(kept),
        "tenants": len({version.tenant for version in kept}),
    }
    try:
        return found | VersionSizes(cold).shared()
    except PltzError:  # damaged, or sealed and without its key: the warning says which
        hidden = ("tokens", "tokens_bytewise", "tokens_unshared", "frozen_bytes", "frozen_bytes_unshared")
        return found | dict.fromkeys(hidden)


def _content(cold: "Archive", found: dict[str, Any]) -> dict[str, Any]:
    """Return the content bytes of the last versions, and their ratio to all bytes on disk."""
    from pltz.models.session.session import content_bytes

    chosen = list(cold.directory.ls())
    total = 0
    with Progress("decode", unit="sessions", total=len(chosen), shown=wanted(None)) as bar:
        for version in chosen:
            total += content_bytes(cold.sessions.read(version))
            bar.add(1)
    stored = found["disk_bytes"]
    return {"content_bytes": total, "ratio": round(total / stored, 3) if stored else None}


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the report that everyone understands."""
    forgotten = f", and {found['forgotten_versions']:,} forgotten" if found["forgotten_versions"] else ""
    packed = found["pack_bytes"] + found["index_bytes"]
    rows = [
        ("sessions", f"{found['named_sessions']:,} of {counted(found['tenants'], 'tenant')}"),
        ("versions", f"{found['versions']:,}{forgotten}"),
        ("on disk", f"{size(found['disk_bytes'])}, of which packs and indexes {size(packed)}"),
    ]
    if found["tokens"] is not None:
        tokens = tokens_in_words(found["tokens"], found["tokens_bytewise"])
        rows.append(("tokens", f"{tokens}, in {size(found['frozen_bytes'])}"))
        saved = found["frozen_bytes_unshared"] - found["frozen_bytes"]
        share = saved / found["frozen_bytes_unshared"] if saved else 0
        rows.append(("sharing", f"saved {size(saved)}, {share:.0%} of what the versions would take alone"))
    if "content_bytes" in found:
        content = size(found["content_bytes"])
        rows.append(("content", f"{content} in the last versions, {found['ratio']} times the bytes on disk"))
    for key, words in (("problems", "damaged parts"), ("missing", "packs missing"), ("losses", "packs lost")):
        if found[key]:
            rows.append((words, f"{found[key]:,}: run pltz archive verify"))
    return rows


def _warn(cold: "Archive", tenant: str | None = None) -> int:
    """Print a warning where names are sealed, or parts are damaged or gone. Return an exit code."""
    from pltz.archive.encryption.keys import LockedArchive
    from pltz.archive.errors import ArchiveError

    if isinstance(cold.parts.keys, LockedArchive):
        click.echo(
            "warning: the archive is sealed, so names and tenants are shown as ids, and tags are not: give its key "
            "with --key-file, --key-command, --passphrase-env or --passphrase",
            err=True,
        )
    try:
        cold.directory.want_whole("listed what is there", tenant)
    except ArchiveError as exc:
        click.echo(f"warning: {exc}", err=True)
        return exc.exit_code
    if problems := cold.parts.catalog.damage.problems:
        click.echo(
            f"warning: {counted(len(problems), 'damaged part')}, so sessions may be missing here: "
            "run pltz archive verify",
            err=True,
        )
    return 0
