"""The bundles that pltz has released, and the command that brings each: errors about a missing bundle name both.

A file and an archive name a bundle by its id alone. Without this table a reader who lacks the bundle would see
32 hexadecimal digits only.
"""

from __future__ import annotations

from typing import NamedTuple

UPGRADE = "pip install --upgrade pltz"


class Release(NamedTuple):
    """A released bundle, and the command that installs it."""

    name: str
    command: str


RELEASES = {
    bytes.fromhex("ad6e91c6fbbfbcbccb445fff41e1e2e4"): Release("nano", UPGRADE),
    bytes.fromhex("4df4727f3c087895cfea17d67fb8ce0b"): Release("mini", UPGRADE),
    bytes.fromhex("be9333de2e58e290a6aed00659f2b556"): Release("base", "pip install pltz-base"),
}


def described(bundle_id: bytes) -> str:
    """Return the id of a bundle, after its name where pltz released it."""
    release = RELEASES.get(bundle_id)
    return f"{release.name} ({bundle_id.hex()})" if release else bundle_id.hex()


def how_to_get(bundle_id: bytes) -> str:
    """Return the command that brings a bundle, as the end of a sentence."""
    if release := RELEASES.get(bundle_id):
        return f"install it with `{release.command}`"
    return "add it with `pltz bundle add FOLDER`; whoever made the file has its folder"


def how_to_get_named(name: str) -> str:
    """Return the command that brings a bundle of a name, as the end of a sentence."""
    found = next((one for one in RELEASES.values() if one.name == name), None)
    return f"`{found.command}` brings it" if found else "`pltz bundle add FOLDER` adds one"
