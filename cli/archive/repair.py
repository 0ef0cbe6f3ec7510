"""``pltz archive repair``: restore damaged parts from parity and second copies, and name exactly what is lost."""

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.ui import options
from pltz.cli.ui.archive_options import ArchiveCommand, archive_place, author_words, key_given, key_words
from pltz.cli.ui.output import write_text

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Encryption
    from pltz.archive.format.settings import Settings
    from pltz.archive.maintenance.repair import Repaired


@click.command(
    cls=ArchiveCommand,
    short_help="Restore damaged parts from parity and second copies.",
    examples=[
        "pltz archive repair -r /data/cold --dry-run",
        "pltz archive repair",
        "pltz archive repair --key-file key --json",
        "pltz archive repair --acknowledge",
    ],
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--acknowledge", is_flag=True, help="Repair nothing. Record that you know of the losses that earlier runs found."
)
@options.JSON
@click.pass_context
def repair(ctx: click.Context, dry_run: bool, acknowledge: bool, as_json: bool) -> None:
    """Restore the damaged parts of the archive, as far as parity and second copies allow.

    Sessions that lost anything are named, also those of which nothing is left. Damaged files are moved to damaged/ in
    the archive, never deleted. Only older keys are deleted, if an erase that was cut off would have destroyed them. A
    sealed archive needs no key for this, but only with it lost sessions are shown by name. The exit code is 3 where
    anything is lost.

    A pack that cannot be restored is recorded in the archive as lost. Until --acknowledge says that you know of it,
    get, ls, find, verify and stat report it. A get of a lost session reports it afterwards, too.
    """
    if acknowledge:
        _acknowledge(dry_run, as_json)
        return
    from pltz.archive.author import Author
    from pltz.archive.encryption.keys import Secret
    from pltz.archive.maintenance.repair import Repairer
    from pltz.archive.opener import open_keys
    from pltz.archive.storage.places import open_store

    words, place = key_words(), archive_place()
    store, key = open_store(place), Secret.chosen(**words)
    given = author_words()
    author = Author.of(given.get("actor"), given.get("reason"))

    def keys(settings: "Settings") -> "Encryption":
        return open_keys(store, settings, key if settings.sealed or key_given() else None)

    done = Repairer(store, keys if key else None, dry_run=dry_run, author=author).run()
    write_text(json.dumps(as_fields(done)) if as_json else as_text(done, dry_run))
    if not done.whole:
        ctx.exit(3)


def _acknowledge(dry_run: bool, as_json: bool) -> None:
    """Record that the user knows of the losses recorded so far, and print them."""
    catalog = shared.open_archive().parts.catalog
    losses = catalog.damage.losses() if dry_run else catalog.acknowledge()
    if as_json:
        rows = [
            {
                "pack": loss.pack.hex(),
                "time": loss.time,
                "records": loss.missing,
                "sessions": sorted(f"{key:09x}" for key in loss.sessions),
                "complete": loss.complete,
            }
            for loss in losses
        ]
        write_text(json.dumps({"acknowledged": rows, "dry_run": dry_run}))
        return
    verb = "would be acknowledged" if dry_run else "acknowledged"
    lines = [f"{verb}: pack {loss.pack.hex()}: {str(loss).partition(';')[0]}" for loss in losses]
    write_text("\n".join([*lines, f"{counted(len(losses), 'loss')} {verb}"]))


def as_fields(done: "Repaired") -> dict[str, Any]:
    """Return the report as JSON."""
    fields = {k: v for k, v in asdict(done).items() if k not in ("lost", "unnamed")}
    lost = [{"tenant": v.tenant, "name": v.name, "version": v.version, "id": v.id.hex()} for v in done.lost]
    unnamed = [
        {"session": u.session, "tenant": u.tenant, "name": u.name, "pack": u.place.pack.hex(), "offset": u.place.offset}
        for u in done.unnamed
    ]
    return fields | {"lost": lost, "unnamed": unnamed, "whole": done.whole}


def as_text(done: "Repaired", dry_run: bool) -> str:
    """Return the report as text."""
    verb = "would be " if dry_run else ""
    lines = [f"{counted(done.checked, 'file')} checked"]
    for what, names in (
        (f"{verb}restored", done.restored),
        (f"{verb}remade", done.remade),
        ("moved aside", done.aside),
        ("beyond repair", done.broken),
        (f"unfinished erase: older keys {verb}overwritten and deleted", done.finished),
    ):
        lines += [f"{what}: {name}" for name in names]
    if done.named:
        lines.append(f"{counted(len(done.named), 'pack')} that no manifest named {verb}named")
    lines += [f"keys: {what}" for what in done.keyless]
    if done.salvaged:
        lines.append(f"{counted(done.salvaged, 'record')} {verb}saved from packs beyond repair")
    lines += [f"lost: version {v.version} of {v.name!r} of tenant {v.tenant!r}" for v in done.lost]
    for u in done.unnamed:
        name = f"a version of {u.name!r} of tenant {u.tenant!r}" if u.name else f"a version of session {u.session}"
        lines.append(f"lost: {name}, of which no record is left")
    if done.missing:
        lines.append(f"not read: {counted(done.missing, 'record')}, those above among them")
    if done.uncounted:
        lines.append(f"gone, with an unknown number of records: {counted(done.uncounted, 'pack')}")
    lines += [f"recorded by an earlier run, and not acknowledged: pack {name}" for name in done.recorded]
    if done.rolled_back:
        lines.append("the manifest was that of a backup: put again what was put since, which may be lost")
    last = "nothing is lost" if done.whole else "sessions are lost: put them again, or forget them"
    told = not done.whole and replace(done, keyless=[], rolled_back=False).whole
    lines.append("nothing else is lost" if told else last)
    return "\n".join(lines)
