"""What the commands of ``pltz archive`` share: arguments, opening, how versions are shown, how times are told."""

import json
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from pltz.cli.output import write_text
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.freezer import Freezer
    from pltz.archive.view import Version

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PLACE: Decorator = click.argument("place", metavar="ARCHIVE")
NAMES: Decorator = click.argument("names", metavar="NAME...", nargs=-1)
TENANT: Decorator = click.option(
    "--tenant", default="default", show_default=True, metavar="NAME", help="Whose sessions."
)
ANY_TENANT: Decorator = click.option(
    "--tenant", metavar="NAME", help="Whose sessions.  [default: everybody's]"
)
LABELS: Decorator = click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the sessions (repeatable)."
)
VERSION: Decorator = click.option(
    "--version", "number", type=click.IntRange(min=1), metavar="N", help="Version N.  [default: the last]"
)
DRY_RUN: Decorator = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
LINES: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "m": 30 * 86400, "y": 365 * 86400}


def open_freezer(
    place: str, bundle: str | None, device: str, threads: int | None, *, create: bool = False
) -> "Freezer":
    """The archive with a bundle to code and decode. Raises UsageError, ModelError."""
    from pltz.archive.freezer import Freezer

    return Freezer.open(place, bundle, create=create, device=device, threads=threads)


def open_archive(place: str) -> "Archive":
    """The archive without a bundle: for what looks at records only. Raises UsageError."""
    from pltz.archive.archive import Archive
    from pltz.archive.codec import BytesCodec

    return Archive.open(place, [BytesCodec()])


def labels_of(pairs: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` pairs as a dict. Raises UsageError."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"expected --label KEY=VALUE, got {pair!r}")
        found[key] = value
    return found


def duration(text: str) -> int:
    """Seconds of ``90s``, ``12h``, ``30d``, ``2w``, ``6m`` (30 days each), ``1y``. Raises UsageError.

    >>> duration("36h"), duration("2w")
    (129600, 1209600)
    """
    found = re.fullmatch(r"(\d{1,9})(s|min|h|d|w|m|y)", text)
    if not found:
        raise UsageError(f"expected a duration such as 36h, 30d, 2w, 6m or 1y, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def moment(text: str) -> int:
    """Seconds since 1970 of a date (``2026-11-20``, ``2026-11-20T18:00``, UTC unless it says), or of a duration ago. Raises UsageError."""
    from datetime import UTC, datetime

    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return max(0, int(time.time()) - duration(text))
    return max(0, int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()))


def day(seconds: int) -> str:
    """Date and time, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def facts(version: "Version") -> dict[str, Any]:
    """A version as JSON."""
    from pltz.archive.identity import NONE
    from pltz.archive.writer import KINDS

    return {
        "tenant": version.tenant,
        "name": version.name,
        "version": version.number,
        "time": version.time,
        "kind": KINDS[version.kind],
        "labels": version.labels,
        "target": None if version.target == NONE else version.target.hex(),
        "leaf": version.leaf.hex(),
        "forgotten": version.forgotten,
    }


def show(versions: Iterable["Version"], as_json: bool) -> None:
    """Print versions, a line each, as they come."""
    for version in versions:
        f = facts(version)
        if as_json:
            write_text(json.dumps(f, ensure_ascii=False))
        else:
            labels = " ".join(f"{k}={v}" for k, v in version.labels.items())
            gone = "  (forgotten)" if version.forgotten else ""
            write_text(
                f"{day(version.time)}  {version.tenant}  v{version.number}  {f['kind']:4}  {version.name}  {labels}".rstrip()
                + gone
            )
