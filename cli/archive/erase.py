"""``pltz archive erase``: destroy the keys of a session, a tenant or a base, and prove that no record opens."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.archive.certificate import certificate as certified
from pltz.cli.archive.shared import open_archive
from pltz.cli.ui import options
from pltz.cli.ui.archive_options import ChangeCommand
from pltz.cli.ui.options import nonempty
from pltz.cli.ui.output import printable, write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.maintenance.erase import BaseUse, Erasure

WHOSE = "; what was put without a tenant is of --tenant default"


@click.command(
    cls=ChangeCommand,
    short_help="Destroy the keys of a session, a tenant or a base.",
    examples=[
        "pltz archive erase -r /data/cold --tenant acme --name chat-7 --key-file key --dry-run",
        "pltz archive erase --tenant acme --name chat-7 --yes",
        "pltz archive erase --tenant acme --all --key-command my-vault --yes",
        "pltz archive erase --base prompts",
        "pltz archive erase --tenant acme --matching 'AKIA[A-Z0-9]{16}' --dry-run",
    ],
)
@click.option("--tenant", type=nonempty, metavar="TENANT", help="Tenant of the session.")
@click.option("--name", type=nonempty, metavar="NAME", help="The session, with all its versions, forgotten ones too.")
@click.option(
    "--matching", type=nonempty, metavar="REGEX", help="All sessions of the tenant with this in any version or part."
)
@click.option("--all", "everything", is_flag=True, help="All sessions of the tenant. Base domains stay.")
@click.option("--base", type=nonempty, metavar="NAME", help="A base domain. Refused while any session uses it.")
@click.option(
    "--certificate", type=nonempty, metavar="FILE", help="Write a document of it: what, when, who, why, and the proof."
)
@shared.HOT
@click.option("--dry-run", is_flag=True, help="Only say what would be erased.")
@click.option("--yes", is_flag=True, help="Do not ask. This cannot be undone.")
@options.JSON
def erase(
    tenant: str | None,
    name: str | None,
    matching: str | None,
    everything: bool,
    base: str | None,
    certificate: str | None,
    hot: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Destroy the keys of a session, of a tenant or of a base domain in a sealed archive.

    As a proof, every record is then read from the raw packs and looked up among the keys that remain. Two things stay
    readable: segments that other sessions of the tenant share, and base domains, which hold prompts of many tenants.
    Each base that the erased sessions used is named. It can be erased once no session uses it, and forgotten ones count
    until they are collected.

    Erase cannot reach copies of the folder keys/ in backups, snapshots and versioned buckets, or blocks that a
    copy-on-write file system or a flash disk keeps. Such copies open only with the archive's key. Every erase first
    finishes an earlier one that was cut off. The next runs of collect free the bytes.
    """
    if matching is not None:
        if tenant is None or name is not None or everything or base is not None:
            raise UsageError(f"expected --matching REGEX with --tenant TENANT alone{WHOSE}")
        shared.clear_hot(hot, ())  # they can be reached
        cold = open_archive()
        _erase_matching(cold, matching, tenant, certificate, dry_run, yes, as_json)
        return None if dry_run else shared.clear_hot(hot, [tenant], cold)
    if base is not None and (tenant is not None or name is not None or everything):
        raise UsageError("--base NAME stands alone: leave --tenant, --name and --all out")
    if base is None and (tenant is None or (name is None) != everything):
        raise UsageError(f"expected --tenant TENANT with either --name NAME or --all, or --base NAME{WHOSE}")
    shared.clear_hot(hot, ())  # they can be reached
    cold = open_archive()
    _want_room_for(certificate)

    def run(dry_run: bool) -> "Erasure":
        return cold.erase(name, tenant=tenant, everything=everything, base=base, dry_run=dry_run)

    if not (dry_run or yes):
        click.confirm(question(run(True)), abort=True, err=True)  # the dry run refuses first what cannot be erased
    done = run(dry_run)
    under = cold.directory.salted(tenant) if everything and tenant else []
    _certify([certified(done, cold, under)] if certificate and not dry_run else [], certificate)
    for other in under:
        click.echo(printable(f"not erased: tenant {other}, under a salt of {tenant}"), err=True)
    write_text(json.dumps(asdict(done)) if as_json else as_text(done, dry_run))
    if not dry_run:
        shared.clear_hot(hot, None if tenant is None else [tenant], cold)


def _want_room_for(certificate: str | None) -> None:
    """Raise UsageError where a certificate cannot be written as a new file."""
    if certificate is not None and (Path(certificate).exists() or not Path(certificate).absolute().parent.is_dir()):
        raise UsageError(f"{certificate} is there already, or its folder is not: name a new file for the certificate")


def _certify(texts: Sequence[str], certificate: str | None) -> None:
    """Write certificates into one new file, durably."""
    if certificate is None or not texts:
        return
    with open(certificate, "x", encoding="utf-8", errors="backslashreplace") as file:
        file.write("\n\n".join(texts))
        file.flush()
        os.fsync(file.fileno())


def _erase_matching(
    cold: "Archive", pattern: str, tenant: str, certificate: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Erase the sessions with a match in any version or part, whole, after each was found and can be erased.

    Raises NotFound where none has one, ArchiveError where some cannot be read, which may have one.
    """
    from pltz.archive.errors import NotFound
    from pltz.archive.holders import every_part, holders, matching

    look = matching(pattern)
    _want_room_for(certificate)
    texts = list[str]()
    parts = every_part(cold.directory.ls(tenant, history=True, forgotten=True))
    with Progress("search", unit="parts of versions", total=len(parts), shown=wanted(None)) as bar:
        names = sorted({holder.name for holder in holders(cold.sessions, parts, look, lambda: bar.add(1))})
    cold.directory.want_whole("searched what is listed", tenant)
    if not names:
        raise NotFound(f"no session of tenant {tenant!r} has {pattern!r} in any version")
    done = [cold.erase(name, tenant=tenant, dry_run=True) for name in names]
    if not dry_run:
        for found in done if not yes else ():
            click.echo(printable(f"{found.name}: {counted(found.versions, 'version')}"), err=True)
        if not yes:
            click.confirm(f"Erase {counted(len(names), 'session')}? This cannot be undone", abort=True, err=True)
        done = []
        try:
            for name in names:
                done.append(cold.erase(name, tenant=tenant))
                texts.append(certified(done[-1], cold))
        finally:  # those of before an error too
            _certify(texts, certificate)
    for one in done:
        write_text(json.dumps(asdict(one)) if as_json else printable(f"{one.name}:") + "\n" + as_text(one, dry_run))


def question(found: "Erasure") -> str:
    """Return the question to ask, from the result of a dry run."""
    if found.base is not None:
        return f"Erase base {found.base!r}, segments: {found.segments}? This cannot be undone"
    what = f"session {found.name!r}" if found.name is not None else "everything"
    return f"Erase {what} of tenant {found.tenant!r}, versions: {found.versions}? This cannot be undone"


def as_text(done: "Erasure", dry_run: bool) -> str:
    """Return what was done and what stays readable, as text."""
    verb = "would be erased" if dry_run else "erased"
    segments = counted(done.segments, "segment")
    if done.base is not None:
        lines = [f"base {done.base!r}: {segments} {verb}"]
    else:
        lines = [f"{counted(done.versions, 'version')} {verb}"]
    if done.name is not None:
        lines.append(f"{segments} with them; kept, as other sessions share them: {done.shared:,}")
    if done.moved:
        lines.append(f"{counted(done.moved, 'record')} of other sessions put again under new keys")
    lines += [use_of(use, dry_run) for use in done.bases]
    if not dry_run:
        lines.append(f"{counted(done.files, 'key file')} overwritten and deleted")
        lines.append(f"proof: {counted(done.records, 'record')} read from the packs, none has a key any more")
    if done.finished:
        verb = "would be overwritten and deleted" if dry_run else "overwritten and deleted"
        lines.append(f"finished an erase that was cut off before: {counted(done.finished, 'older key file')} {verb}")
    if done.kept:
        lines.append("the bucket keeps versions: what was erased can be brought back until these are deleted:")
        lines += [f"  {name}" for name in done.kept]
    if done.unread:
        lines.append(f"damaged and not fully read: {counted(done.unread, 'pack')}; run pltz archive repair")
    return "\n".join(map(printable, lines))


def use_of(use: "BaseUse", dry_run: bool) -> str:
    """Return whether a base stays, and how to erase it."""
    if use.erased:
        return f"base {use.name!r} {'would be ' if dry_run else ''}erased: no other session uses it"
    command = shlex.join(["pltz", "archive", "erase", "--base", use.name])
    return f"base {use.name!r} stays readable, as tenants share it; once no session uses it: {command}"
