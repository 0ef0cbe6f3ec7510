"""Add bundles to the user's folder (docs/bundles.md). To remove one, remove its folder there.

A bundle comes as a folder. Its bundle.json is read first. It names the files, so nothing else is copied. The copy is
loaded, which checks every file and computes its fingerprint. Only then does a rename give it its name, so it is there
whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pltz.models.bundle import locations
from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.folder import CARD, HEAD, BundleFolder, publish
from pltz.models.bundle.locations import NAME, USER, BundleLocation, user_folder
from pltz.plt_codec.errors import BundleMismatch, UsageError

WRITTEN_CARD = "CARD.md"
PART = ".part-"


def add(source: str | os.PathLike[str], *, name: str | None = None, bundle_id: str | None = None) -> BundleLocation:
    """Add a bundle to the user's folder and return its location. Adding an existing one again changes nothing.

    Args:
        source: a bundle folder.
        name: the name it gets; by default the one in its bundle.json.
        bundle_id: the fingerprint it must have, 32 hexadecimal digits.

    Raises:
        UsageError: no such folder; a bad name, or one that another bundle has.
        BundleMismatch: the bundle is sound but has another fingerprint.
        ModelError, VersionError: the bundle is damaged, incomplete, too large or too new.
    """
    if bundle_id is not None and not re.fullmatch(r"[0-9a-fA-F]{32}", bundle_id):
        raise UsageError(f"expected a fingerprint of 32 hexadecimal digits, found {bundle_id!r}")
    if not Path(source).is_dir():
        raise UsageError(f"expected the folder of a bundle, found none at {os.fspath(source)!r}: unpack it first")
    with _held() as root:
        part = Path(tempfile.mkdtemp(prefix=PART, dir=root))
        try:
            _copy(Path(source), part)
            loaded = Bundle.load(part)
            if bundle_id is not None and loaded.id.hex() != bundle_id.lower():
                raise BundleMismatch(
                    f"expected bundle {bundle_id.lower()}, found {loaded.id.hex()} ({loaded.name}) in {source}: "
                    "ask where you have it from which is right"
                )
            chosen = name or loaded.name
            if not NAME.fullmatch(chosen):
                raise UsageError(
                    f"{chosen!r} is no name for a bundle: expected at most 64 letters, digits, dots, hyphens and "
                    "underscores, the first a letter or digit; choose one with --name"
                )
            if (here := locations.by_name(chosen)) is not None:
                if locations.by_id(loaded.id) == here:
                    return here
                raise UsageError(
                    f"another bundle has the name {chosen} ({here.source}, {here.folder}): choose one with --name"
                )
            part.chmod(0o755)  # mkdtemp's is private
            publish(part, root / chosen)
            return BundleLocation(chosen, root / chosen, USER)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _held() -> Iterator[Path]:
    """Make the user's folder and hold its lock. Leftovers of runs that were killed go."""
    root = user_folder()
    if not root.is_absolute():
        raise UsageError(f"expected an absolute path for added bundles, found {root}: set {locations.USER_VARIABLE}")
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in root.glob(f"{PART}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield root


def _copy(source: Path, part: Path) -> None:
    """Copy bundle.json, the files it names and the cards, as far as they are there. Raises ModelError."""
    for name in (HEAD, *BundleFolder.open(source).files, CARD, WRITTEN_CARD):
        if (source / name).is_file():
            shutil.copyfile(source / name, part / name)
