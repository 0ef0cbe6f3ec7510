"""An archive through its towers and segments: the ways in that tests of records need and `pltz.Archive` does not have.

    archive = TowerArchive.create(DirectoryStore(disk), [BytesCodec()])
    archive.put([NewSession("chat-7", [prompt_ids, turn_ids], shared=1)])

Tests take both classes from here alone, however the archive is arranged.
"""

from __future__ import annotations

from pltz.archive.sessions import SessionArchive
from pltz.archive.tower_archive import Tower, TowerArchive, open_keys

__all__ = ["SessionArchive", "Tower", "TowerArchive", "open_keys"]
