"""``pltz bundle``: the group of commands for decoder bundles. list, show and verify are here, the others have files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, size
from pltz.cli import above
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command, LazyGroup
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import pairs, render
from pltz.plt_codec.errors import PltzError

if TYPE_CHECKING:
    from pltz.models.bundle.folder import BundleFolder
    from pltz.models.bundle.locations import BundleLocation

NAME = click.argument("name", metavar="[NAME|DIR]", required=False)

FOLDER = {"source": "folder"}

COMMANDS = {
    "list": "pltz.cli.bundle.group:list_",
    "show": "pltz.cli.bundle.group:show",
    "verify": "pltz.cli.bundle.group:verify",
    "add": "pltz.cli.bundle.add:add",
    "remove": "pltz.cli.bundle.remove:remove",
    **above.COMMANDS["bundle"],
}


@click.group(cls=LazyGroup, lazy=COMMANDS, short_help="List, show, verify, add, measure and train bundles.")
def bundle() -> None:
    """List, show, verify, add and measure decoder bundles, and train one on your own sessions."""


@click.command("list", cls=Command, examples=["pltz bundle list", "pltz bundle list --json"])
@options.JSON
def list_(as_json: bool) -> None:
    """List the bundles at hand, and where each is from."""
    from pltz.models.bundle.locations import locations

    listed = [entry(location) for location in locations()]
    if as_json:
        write_text(json.dumps(listed))
        return
    sound = [each for each in listed if "problem" not in each]
    rows = [
        [b["name"], b["id"], str(b["contract"]), f"{b['vocabulary']:,}", size(b["bytes"]), b["source"]]
        for b in sound
    ]
    table = render(["bundle", "id", "contract", "vocabulary", "size", "from"], rows)
    damaged = [f"{b['name']} ({b['source']}, {b['path']}): {b['problem']}" for b in listed if "problem" in b]
    write_text("\n".join([table, *damaged]))


@click.command(
    cls=Command,
    short_help="Show identity, shape and card of a bundle.",
    examples=["pltz bundle show", "pltz bundle show base", "pltz bundle show ./my-bundle --json"],
)
@NAME
@options.JSON
def show(name: str | None, as_json: bool) -> None:
    """Show identity, shape and card of a bundle, by its name or folder. The default is mini."""
    from pltz.models.bundle.bundle import DEFAULT, Bundle
    from pltz.models.bundle.folder import BundleFolder
    from pltz.models.bundle.locations import by_name

    loaded = Bundle.load(name)
    location = by_name(name or DEFAULT)
    place = entry(location) if location else facts(BundleFolder.open(loaded.path)) | FOLDER
    found = place | {
        "path": str(loaded.path),
        "shape": loaded.weights.shape.to_dict(),
        "card": loaded.card,
    }
    write_text(json.dumps(found, ensure_ascii=False) if as_json else as_text(found, loaded.path))


@click.command(
    cls=Command,
    short_help="Check every file of a bundle against its digest.",
    examples=["pltz bundle verify", "pltz bundle verify ./my-bundle"],
)
@NAME
@options.JSON
def verify(name: str | None, as_json: bool) -> None:
    """Read every file of a bundle and compare it with bundle.json and the bundle's id. The default is mini."""
    from pltz.models.bundle.bundle import Bundle

    loaded = Bundle.load(name)
    files = loaded.verify()
    result = {"name": loaded.name, "id": loaded.id.hex(), "files": files, "ok": True}
    sentence = f"{loaded.name} {loaded.id.hex()}: {counted(len(files), 'file')} sound"
    write_text(json.dumps(result) if as_json else sentence)


def entry(location: "BundleLocation") -> dict[str, Any]:
    """Return identity, size and place of a bundle at hand.

    `problem` stands in place of the first two where it cannot be read.
    """
    place = {"name": location.name, "source": location.source, "path": str(location.folder)}
    try:
        return facts(location.open()) | place
    except PltzError as exc:
        return place | {"problem": str(exc)}


def facts(folder: "BundleFolder") -> dict[str, Any]:
    """Return the identity of a bundle, and its size in bytes."""
    return {
        "name": folder.name,
        "id": folder.id,
        "contract": folder.shape.contract,
        "vocabulary": folder.shape.vocab,
        "bytes": folder.size(),
    }


def as_text(found: dict[str, Any], folder: Path) -> str:
    """Return identity and shape, then the card: the written one where there is one."""
    rows = [
        ("bundle", found["name"]),
        ("id", found["id"]),
        ("contract", str(found["contract"])),
        ("size", f"{found['bytes']:,} bytes"),
        ("from", f"{found['source']}, {found['path']}"),
        ("shape", ", ".join(f"{key} {value:,}" for key, value in found["shape"].items())),
    ]
    card = folder / "CARD.md"
    words = (
        card.read_text("utf8") if card.is_file() else json.dumps(found["card"], indent=1, ensure_ascii=False)
    )
    return f"{pairs(rows, indent='')}\n\n{words}"
