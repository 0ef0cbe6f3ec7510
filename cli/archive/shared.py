"""The parts that the commands of ``pltz archive`` share: options, opening, choosing and showing versions."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, moment
from pltz.archive.work_part import WorkPart
from pltz.cli import above
from pltz.cli.ui.archive_options import archive_key, archive_place, author_words
from pltz.cli.ui.groups import loaded
from pltz.cli.ui.options import Decorator, nonempty
from pltz.cli.ui.output import printable, write_text
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE
from pltz.plt_codec.named_files import MAX_TOKENIZER, named_file

if TYPE_CHECKING:
    from pltz.archive.archive import Archive, SessionVersion
    from pltz.archive.catalog.lookup import Version, VersionName
    from pltz.datasets.secrets import Redactor
    from pltz.plt_codec.lanes import LayoutName

Period = tuple[int | None, int | None]  # seconds since 1970: from the first on, before the second; None: no bound
LEAST_DIGITS = 8  # of an id; a number has fewer
LONG = 100  # characters of the value of a tag, from which a line leaves it out


class VersionType(click.ParamType["VersionName"]):
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


NAMES: Decorator = click.argument("names", metavar="[NAME...]", nargs=-1)
TOKENIZERS: Decorator = click.option(
    "--tokenizer",
    "tokenizers",
    metavar="FILE|MODEL",
    multiple=True,
    help="tokenizer.json or target model of token ids, where they are not the bundle's (repeatable).",
)
TENANT: Decorator = click.option(
    "--tenant", type=nonempty, metavar="TENANT", default="default", show_default=True, help="Tenant of the session."
)
ONLY_TENANT: Decorator = click.option("--tenant", type=nonempty, metavar="TENANT", help="Only sessions of this tenant.")
ONLY_TAGS: Decorator = click.option(
    "--tag", "tags", metavar="KEY=VALUE", multiple=True, help="Only sessions with this tag (repeatable)."
)
SINCE: Decorator = click.option(
    "--since", metavar="DATE", help="Said (if not known: put) at this time or later: 2026-01-31T12:00."
)
UNTIL: Decorator = click.option("--until", metavar="DATE", help="Begun before this.")
VERSION: Decorator = click.option(
    "--version",
    "number",
    type=VersionType(),
    metavar="N|ID",
    help="Version N, or that whose id begins with ID, 8 digits or more.  [default: the last]",
)
REDACT: Decorator = click.option(
    "--redact", is_flag=True, help="Put marks such as [redacted: aws-key] in place of secrets, and count them."
)
HOT: Decorator = click.option(
    "--hot",
    type=click.Path(file_okay=False),
    metavar="DIR",
    multiple=True,
    envvar="PLTZ_HOT",
    help="A folder of KV (thaw --hot, serve --disk), which loses all of the tenant's (repeatable).  [env: PLTZ_HOT]",
)
DRY_RUN: Decorator = click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing.")
JSON_LINES: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line, instead of text."
)


def open_archive(
    place: str | None = None,
    *,
    bundle: str | None = None,
    tokenizers: Iterable[str] = (),
    device: str = "cpu",
    threads: int | None = None,
    layout: "LayoutName" = "default",
    model_logs: bool = False,
    model_ids: bool | None = None,
    perhaps_sealed: bool = False,
) -> "Archive":
    """Open the archive at ``place``, by default that of the running command, with its key where it is sealed.

    A bundle is loaded only when something is coded.

    Args:
        bundle: codes what is put.
        tokenizers: tokenizer files or targets, for ids that do not belong to the bundle's tokenizer.
        layout: layout of long segments that are put.
        model_logs, model_ids: as in `Archive.open`.
        perhaps_sealed: ignore the key for an archive that is not sealed, instead of refusing it.

    Raises:
        UsageError, FormatError, ModelError, KeyMismatch: the archive, a tokenizer or the key cannot be used.
    """
    from pltz.archive.archive import Archive

    place = archive_place() if place is None else place
    return Archive.open(
        place,
        bundle=bundle,
        tokenizers=[tokenizer_json(name) for name in tokenizers],
        device=device,
        threads=threads,
        layout=layout,
        model_logs=model_logs,
        model_ids=model_ids,
        **archive_key(place, perhaps=perhaps_sealed),
        **author_words(),
    )


def clear_hot(folders: Iterable[str], tenants: Iterable[str] | None, cold: "Archive | None" = None) -> None:
    """Remove the KV of an archive's tenants, all of None, from folders. It is no session's alone, and is made again.

    Raises UsageError for what is no folder of KV, and what `kv_folder.clear_all` does.
    """
    for folder in folders:
        loaded(above.CLEAR_HOT)(folder, tenants, cold)


def redactor(wanted: bool) -> "Redactor | None":
    """Return what marks secrets, None where it is not wanted. Raises UsageError without its rules."""
    from pltz.datasets.secrets import Redactor

    return Redactor() if wanted else None


def tell_redacted(marked: "Redactor | None") -> dict[str, Any]:
    """Print what was marked, and return it as JSON; nothing where no marks were wanted."""
    if marked is None:
        return {}
    click.echo(f"redacted: {marked.report()}", err=True)
    return {"redacted": dict(marked.counts)}


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
    cold: "Archive",
    names: Iterable[str],
    tenant: str | None,
    tags: Mapping[str, str],
    *,
    number: "VersionName | None" = None,
    history: bool = False,
    part: WorkPart | None = None,
    period: Period = (None, None),
) -> "Iterator[Version]":
    """Yield the last versions of sessions, those of ``number``, or all with ``history``, that have all the tags.

    A name is that of one session of the tenant, by default of "default", and is looked up alone. One that ends in
    ``*`` is the beginning of names, or of what is behind a slash in them. Without names all sessions are meant, of all
    tenants or of the one that is named. ``part``: only those in it. ``period``: only those of it.

    Raises:
        NotFound: no session has such a name, or the version.
        LostError, ArchiveError: damage took a version, or may hide it.
    """
    named = _named(cold, names, tenant or "default", number, history)
    for version in named if names else cold.directory.ls(tenant, history=history):
        mine = part is None or part.has_session(version.tenant, version.name)
        if mine and tags.items() <= version.tags.items() and is_of(period, version):
            yield version


def _named(
    cold: "Archive", names: Iterable[str], tenant: str, number: "VersionName | None", history: bool
) -> "Iterator[Version]":
    from pltz.archive.catalog.directory import history_of
    from pltz.archive.catalog.lookup import as_sessions

    met = set[str]()
    for name in itertools.chain.from_iterable(meant(cold, name, tenant) for name in names):
        if name in met:
            continue
        met.add(name)
        last = cold.directory.whole(name, tenant, number)
        if history:
            known = history_of(cold.parts.catalog, tenant, name)
            known.want_named()
            yield from (each for each in as_sessions(known.versions) if not each.forgotten)
        else:
            yield last


def is_of(period: Period, version: "Version | SessionVersion") -> bool:
    """Return whether something of a version was said in a period, or it was put then if that is not known."""
    (first, last), (start, end) = version.content.said(version.time), period
    return (start is None or last >= start) and (end is None or first < end)


def meant(cold: "Archive", name: str, tenant: str) -> list[str]:
    """Return the names of a tenant that are meant by one, as `choose` says. Raises NotFound where there is none."""
    from pltz.archive.errors import NotFound

    if not name.endswith("*"):
        return [name]
    start = name[:-1]
    known = sorted({version.name for version in cold.directory.ls(tenant)})
    found = [each for each in known if f"/{start}" in f"/{each}"]
    if not found:
        cold.directory.want_whole(f"found no session {name!r}", tenant)
        raise NotFound(f"no session of tenant {tenant!r} begins with {start!r}: see pltz archive ls")
    return found


def one_meant(cold: "Archive", name: str, tenant: str) -> str:
    """Return the one name that is meant, and print it where it is another. Raises NotFound for several, none.

    It is meant by a beginning with ``*``, or, where no session is called so, by its end, as the UUID of a log. Of that
    a beginning with ``*`` will do.
    """
    from pltz.archive.errors import NotFound

    start, starred = name.removesuffix("*"), name.endswith("*")
    known = cold.directory.ls(tenant) if starred or not cold.directory.sight(name, tenant).versions else ()
    names = sorted({version.name for version in known})
    found = [each for each in names if starred and f"/{start}" in f"/{each}"]
    end = re.compile(f"[/_-]{re.escape(start)}" + ("" if starred else "$"))
    found = found or [each for each in names if end.search(f"/{each}")] or meant(cold, name, tenant)
    if len(found) > 1:
        some = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise NotFound(f"{counted(len(found), 'session')} are meant by {name!r}: {some}")
    if found[0] != name:
        click.echo(f"{printable(name)}: {printable(found[0])}", err=True)
    return found[0]


def facts(version: "SessionVersion") -> dict[str, Any]:
    """Return a version as JSON, its times in seconds since 1970. What is not known of its content is null."""
    content = version.content
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
        "part": version.part,
        "parts": list(version.parts),
        "title": content.title,
        "turns": content.turns or None,
        "content_bytes": content.size or None,
        "mtime": content.mtime / 10**9 or None,
        "said": [content.first, content.last] if content.last else None,
    }


def line_of(version: "SessionVersion") -> str:
    """Return a version as one line of text."""
    tags = "".join(f"  {key}={value if len(value) <= LONG else '...'}" for key, value in version.tags.items())
    state = "  (forgotten)" if version.forgotten else ""
    part = f"  {version.part}" if version.part else ""
    parts = f"  {len(version.parts)} parts" if len(version.parts) > 1 else ""
    title = f"  {version.content.title!r}" if version.content.title else ""
    head = f"{version.tenant}  {version.name}{part}  version {version.version}  {moment(version.time)}  {version.kind}"
    return f"{head}{parts}{title}{tags}{state}"


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
