"""Look into an archive: the records behind a session, however the archive is arranged.

Tests that say something of records, and not of what calls return, take them from here alone.
"""

from pltz.archive.archive import Archive
from pltz.archive.catalog.listing import Found
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.opener import OpenArchive
from tests.archive.towers import SessionArchive, TowerArchive

Kind = Archive | SessionArchive | TowerArchive | OpenArchive
DEFAULT = "default"  # tenant


def peek(archive: Kind, name: str, tenant: str = DEFAULT) -> list[Found]:
    """Return the best record of each segment of a session's newest version, from the root to the leaf."""
    found: list[Found] = []
    segment = _inside(archive).directory.version(name, tenant).leaf
    while segment != NO_SEGMENT:
        found.append(records(archive, segment)[0])
        segment = found[-1].record.parent
    return found[::-1]


def records(archive: Kind, segment: bytes) -> list[Found]:
    """Return all records of a segment, the best first; none where it is gone."""
    return _inside(archive).catalog.lookup.find(SEGMENTS, segment)


def _inside(archive: Kind) -> OpenArchive:
    """Return the parts of an archive."""
    if isinstance(archive, SessionArchive):
        archive = archive.cold
    return archive if isinstance(archive, OpenArchive) else archive.parts
