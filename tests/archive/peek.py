"""Look into an archive: the records behind a session, however the archive is arranged.

Tests that say something of records, and not of what calls return, take them from here alone.
"""

from __future__ import annotations

from pltz.archive.archive import Archive
from pltz.archive.catalog.listing import Found
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.sessions import SessionArchive
from pltz.archive.tower_archive import TowerArchive
from pltz.plt_codec.identity import NONE

Kind = Archive | SessionArchive | TowerArchive
DEFAULT = "default"  # tenant


def peek(archive: Kind, name: str, tenant: str = DEFAULT) -> list[Found]:
    """Return the best record of each segment of a session's newest version, from the root to the leaf."""
    found: list[Found] = []
    segment = _inside(archive).version(name, tenant).leaf
    while segment != NONE:
        found.append(records(archive, segment)[0])
        segment = found[-1].record.parent
    return found[::-1]


def records(archive: Kind, segment: bytes) -> list[Found]:
    """Return all records of a segment, the best first; none where it is gone."""
    return _inside(archive).catalog.lookup.find(SEGMENTS, segment)


def _inside(archive: Kind) -> TowerArchive:
    if isinstance(archive, Archive):
        return archive.tower
    return archive.archive if isinstance(archive, SessionArchive) else archive
