"""Find bundle folders: embedded in pltz, brought by an installed distribution, or added by the user
(docs/bundles.md).

They are searched in this order. A later place is searched only if the earlier ones lack the name or id,
because listing the installed distributions takes milliseconds that most runs need not pay.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pltz.models.bundle.folder import HEAD, BundleFolder
from pltz.plt_codec.errors import PltzError

EMBEDDED = Path(__file__).resolve().parent.parent / "bundles"
GROUP = "pltz.bundles"  # of entry points: NAME = "module:FOLDER", a path
USER_VARIABLE = "PLTZ_BUNDLES"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a plain file name, never a hidden one
PLTZ, USER = "pltz", "user"
UPGRADE = "pip install --upgrade pltz"
RELEASES = (  # id, name, and the command that installs it: files and archives name a bundle by its id alone
    (bytes.fromhex("ad6e91c6fbbfbcbccb445fff41e1e2e4"), "nano", UPGRADE),
    (bytes.fromhex("4df4727f3c087895cfea17d67fb8ce0b"), "mini", UPGRADE),
    (bytes.fromhex("be9333de2e58e290a6aed00659f2b556"), "base", "pip install pltz-base"),
)


class BundleLocation(NamedTuple):
    """A bundle folder that is found by name.

    Args:
        source: `pltz`, `user`, or the name and version of the distribution that brought it.
    """

    name: str
    folder: Path
    source: str

    def open(self) -> BundleFolder:
        """Read the folder's bundle.json. Raises ModelError, VersionError."""
        return BundleFolder.open(self.folder)


def user_folder() -> Path:
    """Return the folder of added bundles: $PLTZ_BUNDLES, $XDG_DATA_HOME/pltz/bundles or ~/.local/share/pltz/bundles."""
    if chosen := os.environ.get(USER_VARIABLE):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "pltz" / "bundles"


def locations() -> Iterator[BundleLocation]:
    """Yield every bundle by its name. Of several with one name, the first is the only one."""
    taken: set[str] = set()
    for location in _everywhere():
        if location.name not in taken:
            taken.add(location.name)
            yield location


def by_name(name: str) -> BundleLocation | None:
    """Return the bundle of this name, None where there is none or where it is no name but a path."""
    return next((each for each in locations() if each.name == name), None) if NAME.fullmatch(name) else None


def by_id(bundle_id: bytes) -> BundleLocation | None:
    """Return the bundle with this id, None where there is none. Bundles that cannot be read are passed over."""
    for location in locations():
        try:
            if location.open().id == bundle_id.hex():
                return location
        except PltzError:
            continue
    return None


def described(bundle_id: bytes) -> str:
    """Return the id of a bundle, after its name where pltz released it."""
    return next((f"{name} ({own.hex()})" for own, name, _ in RELEASES if own == bundle_id), bundle_id.hex())


def how_to_get(bundle: bytes | str) -> str:
    """Return the command that brings a bundle, by its id or name, as the end of a sentence."""
    if command := next((command for *known, command in RELEASES if bundle in known), None):
        return f"install it with `{command}`"
    return "add it with `pltz bundle add FOLDER`, the folder from whoever made it"


def _everywhere() -> Iterator[BundleLocation]:
    """Yield the bundles of each place, and look at a place only when those before it are exhausted."""
    yield from _under(EMBEDDED, PLTZ)
    yield from _entry_points(GROUP, tuple(sys.path))
    yield from _under(user_folder(), USER)


def _under(root: Path, source: str) -> list[BundleLocation]:
    """Return the bundle folders in a folder, by name."""
    found = sorted(path.parent for path in root.glob(f"*/{HEAD}"))
    return [BundleLocation(folder.name, folder, source) for folder in found if NAME.fullmatch(folder.name)]


@functools.lru_cache(maxsize=1)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[BundleLocation, ...]:
    """Return the bundles of installed distributions, by name.

    One that cannot be imported is passed over with a warning.

    Args:
        path: `sys.path`, the key of the cache: files of any age are opened in one process.
    """
    found = []
    for point in sorted(importlib.metadata.entry_points(group=group)):
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            folder = Path(point.load())
        except Exception as exc:  # noqa: BLE001 - code of others raises any error
            warnings.warn(
                f"pltz: bundle {point.name} of the distribution {distribution} cannot be found "
                f"({type(exc).__name__}: {exc}): reinstall or uninstall that distribution",
                stacklevel=2,
            )
            continue
        if NAME.fullmatch(point.name):
            found.append(BundleLocation(point.name, folder, distribution))
    return tuple(found)
