"""``pltz bundle``: the group of commands for decoder bundles. show is here, the others have files."""

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

FOLDER = {"source": "folder"}

COMMANDS = {"show": "pltz.cli.bundle.group:show", "add": "pltz.cli.bundle.add:add", **above.COMMANDS["bundle"]}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, aliases={"list": ("show",)}, short_help="List, show, add, remove and train bundles."
)
def bundle() -> None:
    """List, show, add and remove decoder bundles, and train one on your own sessions."""


@click.command(
    cls=Command,
    short_help="List the bundles at hand, or show and check one.",
    examples=["pltz bundle show", "pltz bundle show base", "pltz bundle show ./my-bundle --json"],
)
@click.argument("name", metavar="[NAME|DIR]", required=False)
@options.JSON
def show(name: str | None, as_json: bool) -> None:
    """List the bundles at hand and where each is from, or show identity, shape and card of one.

    Every file of that one is read and compared with bundle.json and the bundle's id.
    """
    if name is None:
        write_text(_listed(as_json))
        return
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.folder import BundleFolder
    from pltz.models.bundle.locations import by_name

    loaded = Bundle.load(name)  # every file is compared
    location, folder = by_name(name), BundleFolder.open(loaded.path)
    place = entry(location) if location else facts(folder) | FOLDER
    found = place | {
        "path": str(loaded.path),
        "files": sorted(folder.files),
        "shape": loaded.weights.shape.to_dict(),
        "card": loaded.card,
    }
    write_text(json.dumps(found, ensure_ascii=False) if as_json else as_text(found, loaded.path))


def _listed(as_json: bool) -> str:
    from pltz.models.bundle.locations import locations

    listed = [entry(location) for location in locations()]
    if as_json:
        return json.dumps(listed)
    rows = [
        [b["name"], b["id"], str(b["contract"]), f"{b['vocabulary']:,}", size(b["bytes"]), b["source"]]
        for b in listed
        if "problem" not in b
    ]
    table = render(["bundle", "id", "contract", "vocabulary", "size", "from"], rows)
    damaged = [f"{b['name']} ({b['source']}, {b['path']}): {b['problem']}" for b in listed if "problem" in b]
    return "\n".join([table, *damaged])


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
        ("files", f"{counted(len(found['files']), 'file')} sound"),
        ("shape", ", ".join(f"{key} {value:,}" for key, value in found["shape"].items())),
    ]
    card = folder / "CARD.md"
    words = card.read_text("utf8") if card.is_file() else json.dumps(found["card"], indent=1, ensure_ascii=False)
    return f"{pairs(rows, indent='')}\n\n{words}"
