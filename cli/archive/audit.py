"""``pltz audit``: who changed an archive, when and why, each record checked against the one before it."""

import json

import click

from pltz.archive.humanize import counted, moment
from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive
from pltz.cli.ui.archive_options import ChangeCommand
from pltz.cli.ui.output import printable, write_text


@click.command(
    cls=ChangeCommand,
    short_help="Show who changed an archive, when and why.",
    examples=[
        "pltz audit -r /data/cold",
        "pltz audit --json",
        "pltz audit --expect 39a7f198b37e99ebfc02210ac36cdad1",
        "pltz audit --reads on",
    ],
)
@click.option("--expect", metavar="DIGEST", help="Digest of a record, kept elsewhere, that has to be among them.")
@click.option("--reads", type=click.Choice(["on", "off"]), help="Record reads too, by whomever, or no longer.")
@shared.JSON_LINES
def audit(expect: str | None, reads: str | None, as_json: bool) -> None:
    """Print the records of all changes, the oldest first: time, actor, reason, what, and the digest of the one before.

    Each is checked against the one before it (exit code 3). No name and nothing of a content is in a record, but keys;
    sessions that are there are shown by name. The last digest, kept elsewhere, tells later that nothing was rewritten.
    """
    from pltz.archive.catalog.audit import names_of

    cold = open_archive()
    if reads is not None:
        return cold.record_reads(reads == "on")
    names, count, last = names_of(cold.parts.catalog), 0, ""
    for entry in cold.audit(expect=expect):
        count, last, keys = count + 1, entry.digest, entry.sessions
        known = [names.get(key, key) for key in keys]
        if as_json:
            row = entry._asdict() | {"names": {key: names[key] for key in keys if key in names}}
            write_text(json.dumps(row, ensure_ascii=False))
            continue
        more = ", ..." if keys and len(keys) < entry.number else ""
        notes = "  records before may lack" * entry.broken + "  time forced" * entry.forced
        notes += "  said without the key" * entry.unproven
        rest = "  ".join(f"{key}={value}" for key, value in entry.about.items())
        what = "  ".join(filter(None, (", ".join(known) + more, rest, entry.reason)))
        line = f"{entry.place}  {moment(entry.time)}  {entry.actor or '-'}  {entry.verb} {entry.number}  {what}{notes}"
        write_text(printable(line.rstrip()))
    if not as_json:
        click.echo(f"{counted(count, 'record')}, each follows the one before; the last is {last or 'none'}", err=True)
