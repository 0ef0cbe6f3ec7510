"""``pltz archive verify``: read an archive and say what is wrong with it."""

import json
import os
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import click

from pltz.cli import archive_options as shared
from pltz.cli import options
from pltz.cli.groups import Command
from pltz.cli.output import Output, write_text
from pltz.cli.progress import Progress, wanted
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from pltz.archive.verify import Report


@click.command(
    cls=Command,
    short_help="Check an archive.",
    examples=[
        "pltz archive verify /data/cold",
        "pltz archive verify /data/cold --decode --json",
        "pltz archive verify /data/cold --max-seconds 3600 --state /var/lib/pltz/verify.json",
        "pltz archive verify /data/cold --fraction 0.05",
    ],
)
@shared.PLACE
@click.option("--decode", is_flag=True, help="Decode every segment and compare it with its id.")
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the packs, chosen at random.",
)
@click.option(
    "--max-seconds", type=click.IntRange(min=1), metavar="N", help="Stop reading packs after N seconds."
)
@click.option(
    "--state",
    metavar="FILE",
    help="Remember in FILE which packs were read, and go on there; a full round begins anew.",
)
@options.BUNDLE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def verify(
    place: str,
    decode: bool,
    fraction: float,
    max_seconds: int | None,
    state: str | None,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Read the packs, indexes and towers of ARCHIVE and report all that is wrong; change nothing.

    Exit code 3 where anything is damaged; the report names every session that cannot be had any more.
    """
    archive = (
        shared.open_freezer(place, bundle, device, threads).archive if decode else shared.open_archive(place)
    )
    known = State.read(state, archive.settings.archive.hex(), decode) if state else State("", decode)
    with Progress("verify", unit="bytes", shown=wanted(progress)) as bar:
        report = archive.verify(
            decode=decode, fraction=fraction, max_seconds=max_seconds, done=known.packs, progress=bar.add
        )
    round_done = set(archive.view.packs) <= known.packs | report.checked
    if state:
        known.write(state, frozenset() if round_done else known.packs | report.checked)
    write_text(json.dumps(facts(report, round_done)) if as_json else text(place, report, round_done))
    if not report.sound:
        raise CorruptError(f"{len(report.problems)} problems, {len(report.lost)} versions lost")


class State:
    """Which packs earlier runs read: {"archive", "decode", "packs"}."""

    def __init__(self, archive: str, decode: bool, packs: AbstractSet[bytes] = frozenset()):
        self.archive, self.decode, self.packs = archive, decode, packs

    @classmethod
    def read(cls, path: str, archive: str, decode: bool) -> "State":
        """The state in a file, or an empty one where there is none. Raises UsageError where it is of another archive or no state."""
        if not os.path.exists(path):
            return cls(archive, decode)
        try:
            with open(path, encoding="utf8") as f:
                found = json.load(f)
            packs = frozenset(bytes.fromhex(p) for p in found["packs"])
            same = found["archive"] == archive
        except (ValueError, KeyError, TypeError) as exc:
            raise UsageError(
                f"{path} is not a state of pltz archive verify: delete it to begin anew"
            ) from exc
        if not same:
            raise UsageError(f"{path} belongs to archive {found['archive']}: name another file")
        return cls(archive, decode, packs if found.get("decode") == decode else frozenset())

    def write(self, path: str, packs: AbstractSet[bytes]) -> None:
        """Put the file in place, whole."""
        line = {"archive": self.archive, "decode": self.decode, "packs": sorted(p.hex() for p in packs)}
        Output(path, force=True, binary=False).write([json.dumps(line).encode() + b"\n"])


def facts(report: "Report", round_done: bool) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "sound": report.sound,
        "complete": report.complete,
        "round_complete": round_done,
        "packs": report.packs,
        "records": report.records,
        "decoded": report.decoded,
        "undecoded": report.undecoded,
        "problems": [{"kind": p.kind, "name": p.name, "what": p.what} for p in report.problems],
        "lost": [shared.facts(v) for v in report.lost],
    }


def text(place: str, report: "Report", round_done: bool) -> str:
    """The report for people."""
    lines = [f"{p.kind} {p.name}: {p.what}" for p in report.problems]
    lines += [f"lost: {v.tenant} {v.name} v{v.number}" for v in report.lost]
    scope = "everything" if report.complete else "all packs, over several runs" if round_done else "a part"
    decoded = f", {report.decoded:,} segments decoded" if report.decoded else ""
    missing = f", {report.undecoded:,} of bundles not at hand" if report.undecoded else ""
    lines.append(
        f"{place}: {'sound' if report.sound else 'DAMAGED'}; read {scope}: {report.packs:,} packs, {report.records:,} records{decoded}{missing}"
    )
    return "\n".join(lines)
