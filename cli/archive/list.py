"""``pltz archive ls`` and ``stat``: list and count the contents of an archive.

Nothing is decoded, except by ``stat --by`` what the index of words has not yet.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, duration, folder_of, moment, size
from pltz.archive.version_sizes import VersionSizes
from pltz.cli.archive import shared
from pltz.cli.archive.shared import facts, is_of, line_of, open_archive, seconds_of, show, tags_of
from pltz.cli.ui.archive_options import ArchiveCommand
from pltz.cli.ui.output import printable
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import pairs, render
from pltz.plt_codec.errors import PltzError, UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive, SessionVersion
    from pltz.archive.catalog.lookup import Version
    from pltz.archive.word_index import PartFacts

SIZES = ("size", "tokens", "segments")
TOLD = ("agent", "project", "models", "in", "out", "cost")  # shown where a log has them
USED = ("input", "output", "read", "written", "cost")  # of what an agent used
BY = ("tenant", "agent", "project", "model", "month")


@click.command(
    cls=ArchiveCommand,
    short_help="List sessions: all, or those with TEXT in their name.",
    examples=[
        "pltz archive ls -r /data/cold --long",
        "pltz archive ls support --tag channel=web --since 2026-01-01",
        "pltz archive ls --tenant acme --history --json",
    ],
)
@click.argument("text", metavar="[TEXT]", default="")
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@shared.SINCE
@shared.UNTIL
@click.option("--history", is_flag=True, help="All versions, not only the last of each session.")
@click.option("--forgotten", is_flag=True, help="Forgotten versions too.")
@click.option(
    "-l",
    "--long",
    is_flag=True,
    help="With method, size, tokens (B: bytes, as of logs), segments, parts, turns, age, when it was said, title; of "
    "what search has seen agent, project, models, tokens in and out, dollars.",
)
@shared.JSON_LINES
@click.pass_context
def ls(
    ctx: click.Context,
    text: str,
    tenant: str | None,
    tags: tuple[str, ...],
    since: str | None,
    until: str | None,
    history: bool,
    forgotten: bool,
    long: bool,
    as_json: bool,
) -> None:
    """List the last versions of sessions that have TEXT in their name and all the tags, by tenant and name.

    Numbers in names count by value. What was said in a session is not searched. Where packs are damaged, missing or
    lost, their sessions may not be listed, and the exit code is 7.
    """
    cold = open_archive()
    wanted, period = tags_of(tags).items(), (seconds_of(since), seconds_of(until))
    found = [
        version
        for version in cold.list(tenant, forgotten=forgotten, history=history, partial=True)
        if text in version.name and wanted <= version.tags.items() and is_of(period, version)
    ]
    _show_all(cold, sorted(found, key=_natural), long, as_json)
    if text and not found:
        click.echo(f"no session has {printable(text)!r} in its name; what was said is not searched", err=True)
    ctx.exit(_warn(cold, tenant))


def _natural(version: "SessionVersion") -> tuple[str, list[tuple[int, str]], int]:
    """Return the key that sorts chat-2 before chat-10."""
    parts = re.split("([0-9]+)", version.name)
    name = [(int(part), "") if number % 2 else (-1, part) for number, part in enumerate(parts)]
    return version.tenant, name, version.version


def _show_all(cold: "Archive", versions: "Iterable[SessionVersion]", long: bool, as_json: bool) -> None:
    """Print versions: a line each, or a table with ``long``."""
    sizes = VersionSizes(cold) if long else None
    used = _indexed(cold) if long else {}
    now = cold.parts.store.now()
    rows = []
    for version in versions:
        record = facts(version) | {"age": max(0, now - version.time)}
        record |= sizes.of(version) | _used(sizes.whole(version), used) if sizes else {}
        if sizes and not as_json:
            rows.append(record)
        else:
            show(record, line_of(version), as_json)
    if rows:
        head = ("session", "version", "age", "kind", "method", *SIZES, "parts", "turns", "said", *TOLD, "title", "tags")
        cells = [_cells(record) for record in rows]
        shown = [n for n, name in enumerate(head) if name not in TOLD or any(row[n] != "-" for row in cells)]
        table = [[row[n] for n in shown] for row in cells]
        click.echo(render([head[n] for n in shown], table, left=(*TOLD[:3], "title", "tags")))


def _cells(record: dict[str, Any]) -> list[str]:
    """Return one line of the table of ``--long``."""
    units = {"tokens": " B" if record["bytewise"] else ""}
    numbers = ["?" if record[name] is None else f"{record[name]:,}{units.get(name, '')}" for name in SIZES]
    kind = record["kind"] + (" (forgotten)" if record["forgotten"] else "")
    name = printable(f"{record['tenant']}  {record['name']}")
    tags = printable(" ".join(f"{key}={value}" for key, value in record["tags"].items()))
    numbers += [f"{len(record['parts'])}", f"{record['turns'] or '-'}"]
    said = moment(record["said"][1])[:10] if record["said"] else "-"
    head = [name, f"{record['version']}", duration(record["age"]), kind, record["method"] or "-"]
    return [*head, *numbers, said, *_told(record), printable(record["title"]), tags]


def _told(record: dict[str, Any]) -> list[str]:
    """Return agent, project, models, tokens in and out, and dollars."""
    words = [record["agent"], folder_of(record["project"]), " ".join(record["models"])]
    tokens = [f"{record[name]:,}" if record[name] else "-" for name in ("input", "output")]
    return [*(printable(word) or "-" for word in words), *tokens, f"{record['cost']:,.2f}" if record["cost"] else "-"]


def _indexed(cold: "Archive") -> "dict[bytes, PartFacts]":
    """Return what the index of words has of parts of sessions; nothing where there is none, or no key."""
    index = cold.word_index()
    try:
        index.load()
    except PltzError:
        return {}
    return index.facts()


def _used(version: "Version | None", known: "dict[bytes, PartFacts]") -> dict[str, Any]:
    """Return what the agent of a session used, with all its parts. ``input``: tokens with those of caches."""
    from pltz.datasets.usage import NOT_KNOWN

    parts = [known[part.id] for part in (version.each if version else ()) if part.id in known]
    used = NOT_KNOWN
    for part in parts:
        used = used.then(part.usage._replace(summed=False))
    project, models, new, output, read, written, cost, _ = used
    agent = next((part.agent for part in parts if part.agent), "")
    counts = {"input": new + read + written, "output": output, "read": read, "written": written, "cost": cost}
    return {"agent": agent, "project": project, "models": models, **counts}


@click.command(
    cls=ArchiveCommand,
    short_help="Count sessions, versions and bytes.",
    examples=["pltz archive stat -r /data/cold", "pltz archive stat --by project,month", "pltz archive stat --json"],
)
@click.option("--by", metavar="KEYS", help=f"What agents used, by one or more of {', '.join(BY)}: as their logs tell.")
@click.option("-v", "--verbose", is_flag=True, help="Also packs, indexes, marks and other parts of the archive.")
@shared.TOKENIZERS
@shared.JSON_LINES
def stat(by: str | None, verbose: bool, tokenizers: tuple[str, ...], as_json: bool) -> None:
    """Count the contents of the archive: sessions, versions and bytes, and the ratio of content to bytes on disk.

    With --by: sessions, turns, tokens and dollars, of last versions. What the index of words has not yet is decoded.
    Input has the tokens of caches, of which "read" came from one. No price is looked up: some logs have none.

    Where packs are damaged, missing or lost, not all may be counted, and the exit code is 7.
    """
    from pltz.archive.catalog.stat import disk_bytes

    cold = open_archive(tokenizers=tokenizers)
    if by is not None:
        _show_used(cold, _keys(by), as_json)
        click.get_current_context().exit(_warn(cold))
    parts = dataclasses.asdict(cold.stat())
    parts["archive"] = parts["archive"].hex()
    found = parts | {"disk_bytes": disk_bytes(cold.parts.store)} | _totals(cold)
    found |= _content(cold, found)
    if as_json:
        show(found, "", True)
    else:
        rows = _rows(found)
        if verbose:
            rows += [(k.replace("_", " "), size(v) if k.endswith("bytes") else str(v)) for k, v in parts.items()]
        click.echo(pairs(rows, indent=""))
    click.get_current_context().exit(_warn(cold))


def _totals(cold: "Archive") -> dict[str, Any]:
    versions = list(cold.list(history=True, forgotten=True, partial=True))
    kept = [version for version in versions if not version.forgotten]
    return {
        "named_sessions": len({(version.tenant, version.name) for version in kept}),
        "versions": len(kept),
        "forgotten_versions": len(versions) - len(kept),
        "tenants": len({version.tenant for version in kept}),
    }


def _content(cold: "Archive", found: dict[str, Any]) -> dict[str, Any]:
    """Return the content bytes of the last versions, and their ratio to all bytes on disk; None where not all told."""
    sizes = [version.content.size for version in cold.directory.ls()]
    total, stored = sum(sizes) if all(sizes) else None, found["disk_bytes"]
    return {"content_bytes": total, "ratio": round(total / stored, 3) if total and stored else None}


def _keys(by: str) -> list[str]:
    keys = [key.strip() for key in by.split(",")]
    if odd := [key for key in keys if key not in BY]:
        raise UsageError(f"expected keys among {', '.join(BY)}, found {odd[0]!r}")
    return keys


def _show_used(cold: "Archive", keys: list[str], as_json: bool) -> None:
    """Print what agents used, a line for each group of sessions, those that used most first."""
    index = cold.word_index()
    with Progress("read", unit="parts of sessions", shown=wanted(None)) as bar:
        lacking = index.catch_up(bar.reach)
    known = index.facts()
    sums = defaultdict[tuple[str, ...], list[float]](lambda: [0.0] * (2 + len(USED)))
    for version in cold.directory.ls():
        record = _used(version, known)
        about = {"tenant": version.tenant, "agent": record["agent"], "project": record["project"]}
        about |= {"model": "+".join(record["models"]), "month": moment(version.content.last or version.time)[:7]}
        turns = sum(part.content.turns for part in version.each)
        row = [1, turns, *(record[name] for name in USED)]
        key = tuple(about[name] for name in keys)
        sums[key] = [a + b for a, b in zip(sums[key], row, strict=True)]
    head = (*keys, "sessions", "turns", *USED)
    rows = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    if as_json:
        for key, row in rows:
            numbers = [*map(int, row[:-1]), round(row[-1], 6)]
            show(dict(zip(head, (*key, *numbers), strict=True)), "", True)
    else:
        words = ([printable(word) or "-" for word in key] for key, _ in rows)
        counts = ([*(f"{n:,.0f}" for n in row[:-1]), f"{row[-1]:,.2f}" if row[-1] else "-"] for _, row in rows)
        click.echo(render(head, [a + b for a, b in zip(words, counts, strict=True)], left=keys))
    if lacking:
        click.echo(f"warning: {counted(lacking, 'part')} of sessions cannot be read, or are being added now", err=True)


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the report that everyone understands."""
    forgotten = f", and {found['forgotten_versions']:,} forgotten" if found["forgotten_versions"] else ""
    packed = found["pack_bytes"] + found["index_bytes"]
    rows = [
        ("sessions", f"{found['named_sessions']:,} of {counted(found['tenants'], 'tenant')}"),
        ("versions", f"{found['versions']:,}{forgotten}"),
        ("on disk", f"{size(found['disk_bytes'])}, of which packs and indexes {size(packed)}"),
    ]
    if found["content_bytes"]:
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
    if problems := cold.parts.catalog.problems:
        click.echo(
            f"warning: {counted(len(problems), 'damaged part')}, so sessions may be missing here: "
            "run pltz archive verify",
            err=True,
        )
    return 0
