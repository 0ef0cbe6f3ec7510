"""``pltz archive copy``: copy sessions from one archive to another."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.files import readable
from pltz.cli.archive.parts import PartCommand, parted, report_of
from pltz.cli.archive.shared import choose, facts, line_of, open_archive, redactor, show, tags_of, tell_redacted
from pltz.cli.ui import options
from pltz.cli.ui.archive_options import archive_place
from pltz.cli.ui.output import printable, say_if_interrupted
from pltz.cli.ui.progress import Progress, wanted
from pltz.plt_codec.errors import PltzError, UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version
    from pltz.archive.copy import Copied
    from pltz.datasets.secrets import Redactor


@click.command(
    cls=PartCommand,
    short_help="Copy sessions with their histories to another archive.",
    examples=[
        "pltz archive copy -r /data/cold /mnt/backup",
        "pltz archive copy /mnt/acme --tenant acme --last --json",
        "pltz archive copy /mnt/backup support/7 --dry-run",
    ],
)
@click.argument("to", metavar="TO")
@shared.NAMES
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@click.option("--last", is_flag=True, help="Only the last version of each session.")
@shared.REDACT
@parted("sessions")
@options.BUNDLE
@shared.TOKENIZERS
@shared.DRY_RUN
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.JSON_LINES
def copy(
    to: str,
    names: tuple[str, ...],
    tenant: str | None,
    tags: tuple[str, ...],
    last: bool,
    redact: bool,
    bundle: str | None,
    tokenizers: tuple[str, ...],
    dry_run: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Copy sessions of the archive to the archive TO, with histories, tags, times and targets.

    Make TO first, with init. Versions that are in TO already are skipped, so a copy that was stopped is simply run
    again. Every session is read back from TO and compared before its line is printed. Without NAME all sessions are
    copied. Where one is damaged, it is named, the others are copied, and the exit code is 3, or 7 where damage may hide
    others. --redact copies last versions alone, and keeps names as they are.
    """
    from pltz.archive.copy import copy as transfer

    marked, place = redactor(redact), archive_place()
    source, other = (
        open_archive(each, bundle=bundle, tokenizers=tokenizers, device=device, threads=threads, perhaps_sealed=True)
        for each in (place, to)
    )
    if source.parts.settings.archive == other.parts.settings.archive:
        raise UsageError("the archive and TO are the same one, or a file copy of it: name another one")
    if source.parts.settings.sealed and not other.parts.settings.sealed:
        click.echo(f"warning: {printable(to)} is not sealed: what is copied can be read there without a key", err=True)
    # Both need their codecs: a version is decoded from one and coded into the other.
    source.load()
    other.load()
    chosen = list(choose(source, names, tenant, tags_of(tags), history=not (last or marked), part=part))
    copied = there = erased = lost = code = 0
    say_if_interrupted("interrupted: the versions printed above are in TO; run copy again for the others")
    rows = len({row.id for version in chosen for row in version.each})
    with Progress("copy", unit="versions", total=rows, shown=wanted(progress)) as bar:
        copying = transfer(source.parts, chosen, other.parts, dry_run=dry_run)
        for done in _redacted(source, chosen, other, marked, dry_run) if marked else copying:
            there += done.there
            erased += done.erased
            copied += not (done.there or done.erased or done.lost)
            bar.add(1)
            if done.lost:
                code = max(code, done.lost.exit_code)
                lost += 1
            _show(done, dry_run, as_json)
    told = tell_redacted(marked)
    if not as_json:
        gone = (f"; erased: {erased:,}" if erased else "") + (f"; not copied, as damaged: {lost:,}" if lost else "")
        verb = "would be copied" if dry_run else "copied, read back and compared"
        click.echo(f"{counted(copied, 'version')} {verb}; there already: {there:,}{gone}", err=True)
    # A copy of everything is whole only where no damage hid a version.
    if not names:
        source.directory.want_whole(f"went through {counted(copied + there, 'version')} of {place}", tenant)
    if as_json and part:
        counts = {"copied": copied, "there": there, "erased": erased, "lost": lost}
        show(report_of(part, counts | told), "", as_json)
    click.get_current_context().exit(code)


def _redacted(
    source: "Archive", versions: "Sequence[Version]", to: "Archive", marked: "Redactor", dry_run: bool
) -> "Iterator[Copied]":
    """Put versions into the other archive with marks in place of secrets. Raises as `Archive.put_many`."""
    from pltz.archive.copy import Copied
    from pltz.archive.errors import StaysErased
    from pltz.archive.writing.content_facts import facts_of
    from pltz.archive.writing.put_request import PutRequest

    rows = {(row.tenant, row.name, row.part): row for version in versions for row in version.each}
    erased: list[Version] = []
    lost: list[Copied] = []

    def requests() -> "Iterator[PutRequest]":
        for row, session in zip(rows.values(), readable(source, rows.values()), strict=True):
            if isinstance(session, PltzError):
                lost.append(Copied(row, False, None, lost=session))
                continue
            shown = marked.session(session)
            size = len(shown.value if shown.kind == "text" else shown.to_bytes())
            about = facts_of(shown, size, row.content.mtime) if any(row.content) else row.content
            tags = {key: marked.text(value) for key, value in row.tags.items()}
            yield PutRequest(row.name, shown, tenant=row.tenant, tags=tags, part=row.part, time=row.time, content=about)

    def refused(request: PutRequest, error: PltzError) -> None:
        if not isinstance(error, StaysErased):
            raise error
        erased.append(rows[request.tenant, request.name, request.part])

    if dry_run:
        for seen in to.preview(requests()):
            row = rows[seen.request.tenant, seen.request.name, seen.request.part]
            yield Copied(row, seen.state == "unchanged", None, erased=seen.state == "erased")
        return
    for receipt in to.put_many(requests(), refused=refused):
        row = rows[receipt.tenant, receipt.name, receipt.part]
        yield Copied(row, receipt.unchanged, None if receipt.unchanged else receipt)
    yield from [*(Copied(row, False, None, erased=True) for row in erased), *lost]


def _show(done: "Copied", dry_run: bool, as_json: bool) -> None:
    from pltz.archive.archive import SessionVersion

    version = SessionVersion.of(done.version)
    record = facts(version) | {"there": done.there, "dry_run": dry_run, "erased": done.erased}
    if done.receipt is not None:
        record |= {"to_version": done.receipt.version, "bytes": done.receipt.size}
    if done.lost:
        record |= {"lost": str(done.lost)}
    if as_json or not done.there:
        why = "  (erased, not copied)" if done.erased else f"  (NOT copied: {done.lost})" if done.lost else ""
        show(record, line_of(version) + why, as_json)
