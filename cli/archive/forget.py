"""``pltz archive forget``, ``undelete`` and ``collect``: forget sessions, bring them back, free their space."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, size
from pltz.cli.archive import shared
from pltz.cli.archive.shared import VersionType, facts, line_of, open_archive, show, tags_of
from pltz.cli.ui.archive_options import ArchiveCommand, ChangeCommand
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import SessionVersion
    from pltz.archive.catalog.lookup import VersionName
    from pltz.archive.retention import Policy


@click.command(
    cls=ChangeCommand,
    short_help="Forget sessions by name, or versions by a policy.",
    examples=[
        "pltz archive forget -r /data/cold support/7 --tenant acme",
        "pltz archive forget support/7 --version 2",
        "pltz archive forget --keep-last 3 --keep-within 30d --dry-run",
    ],
)
@shared.NAMES
@click.option("--version", "number", type=VersionType(), metavar="N|ID", help="Only this version of NAME.")
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the last N versions of each session.")
@click.option("--keep-within", metavar="DURATION", help="Keep what was said within this: 30d, 12h, 2w, 1y.")
@click.option("--keep-at-least", metavar="DURATION", help="Keep what is younger, whatever the other rules say.")
@click.option("--keep-at-most", metavar="DURATION", help="Keep nothing older, not even the last version.")
@shared.HOT
@shared.DRY_RUN
@shared.JSON_LINES
def forget(
    names: tuple[str, ...],
    number: "VersionName | None",
    tenant: str | None,
    tags: tuple[str, ...],
    keep_last: int | None,
    keep_within: str | None,
    keep_at_least: str | None,
    keep_at_most: str | None,
    hot: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Forget sessions: NAME... with all versions, or the versions that a policy does not keep.

    A version stays if any rule keeps it, and every session keeps its last version, but for --keep-at-most. Without
    --tenant, NAME means a session of the tenant "default". A policy without NAME applies to all sessions, or to those
    of --tenant. Forgotten versions can be brought back with undelete until collect has freed them.
    """
    policy = policy_of(keep_last, (keep_within, keep_at_least, keep_at_most), tags)
    if policy is None and not names:
        raise UsageError("name sessions to forget, or a policy: --keep-last N, --keep-within DURATION")
    if policy is not None and number is not None:
        raise UsageError("--version and a policy exclude each other")
    shared.clear_hot(hot, ())  # they can be reached
    cold = open_archive()
    if policy is not None:
        versions = cold.expire(policy, names, tenant=tenant, dry_run=dry_run)
    else:
        owner = tenant or "default"
        versions = cold.forget(names, tenant=owner, version=number, tags=tags_of(tags), dry_run=dry_run)
    _show_all(versions, "forgotten", "forget", dry_run, as_json)
    if not dry_run:
        shared.clear_hot(hot, sorted({version.tenant for version in versions}), cold)
    if policy is not None:
        cold.directory.want_whole(f"{'would forget' if dry_run else 'forgot'} {counted(len(versions), 'version')}")


def policy_of(keep_last: int | None, ages: Sequence[str | None], tags: Iterable[str]) -> "Policy | None":
    """Return the policy that the options name, if any. Raises UsageError for options that do not fit together.

    ``ages``: within which all is kept, that is kept at least, and at most.
    """
    from pltz.archive.retention import Policy, seconds

    if keep_last is None and not any(ages):
        return None
    within, least, most = (None if age is None else seconds(age) for age in ages)
    return Policy(keep_last, within, tags_of(tags), keep_at_least=least, keep_at_most=most)


@click.command(
    cls=ArchiveCommand,
    short_help="Bring forgotten versions back.",
    examples=["pltz archive undelete support/7 --tenant acme", "pltz archive undelete support/7 --version 2 --dry-run"],
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--version", "number", type=VersionType(), metavar="N|ID", help="Only this version.")
@shared.TENANT
@shared.DRY_RUN
@shared.JSON_LINES
def undelete(names: tuple[str, ...], number: "VersionName | None", tenant: str, dry_run: bool, as_json: bool) -> None:
    """Bring back all forgotten versions of NAME..., or version N, unless collect has freed them."""
    cold = open_archive()
    versions = cold.undelete(names, tenant=tenant, version=number, dry_run=dry_run)
    _show_all(versions, "brought back", "bring back", dry_run, as_json)


@click.command(
    cls=ArchiveCommand,
    short_help="Free the space of forgotten sessions, in two steps.",
    examples=["pltz archive collect", "pltz archive collect --grace 7d --dry-run --json"],
)
@click.option(
    "--grace",
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="Least time that forgotten sessions and condemned packs stay: 12h, 7d. With 0s the next run deletes them.",
)
@shared.DRY_RUN
@shared.JSON_LINES
def collect(grace: str, dry_run: bool, as_json: bool) -> None:
    """Free the space of forgotten sessions and merge small packs, in two steps of two runs.

    A run first moves the records that are still needed out of packs that were condemned longer than the grace period
    ago, and deletes these packs. Then it condemns packs that are mostly dead, and small ones, tier by tier. What was
    forgotten less than the grace period ago is still needed, so undelete brings it back. Readers, writers and other
    collectors may work at the same time.
    """
    from pltz.archive.retention import seconds

    wait = seconds(grace)
    found = open_archive().collect(grace=wait, dry_run=dry_run)
    done = dataclasses.asdict(found)
    may = "would be " if dry_run else ""
    text = (
        f"{counted(done['deleted'], 'pack')} {may}deleted ({size(max(done['freed'], 0))} freed, "
        f"{counted(done['copied'], 'record')} moved), {done['condemned']} {may}condemned; "
        f"{counted(done['live_versions'], 'version')} in {counted(done['live_segments'], 'segment')} live"
    )
    if done["kept"]:
        text += f"; the bucket keeps a version of {counted(len(done['kept']), 'deleted pack')}, which can still be read"
    show(done | {"dry_run": dry_run}, text, as_json)


def _show_all(versions: "Sequence[SessionVersion]", done: str, verb: str, dry_run: bool, as_json: bool) -> None:
    for version in versions:
        show(facts(version) | {"dry_run": dry_run}, line_of(version), as_json)
    if not as_json:
        what = f"would {verb}" if dry_run else done
        click.echo(f"{what}: {counted(len(versions), 'version')}", err=True)
