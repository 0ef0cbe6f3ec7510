"""The errors of an archive, each with its exit code. They extend the tree of `pltz.plt_codec.errors`.

    PltzError
    ├── ArchiveError           7   the archive cannot do this now
    │   ├── StoreError         7   the disk or object store failed, is full or refuses; the archive is as it was
    │   │   └── FullError      7   the disk is full or the quota used up; freeing space cures it
    │   ├── WriterFailed       7   an earlier sync failed, so this writer stops; open the archive again
    │   ├── Fenced             7   a collector went on without this writer; nothing was acknowledged, put again
    │   │   └── Outdated       7   what the look that decided relied on is condemned or gone; look and decide again
    │   ├── OnHold             7   a hold keeps it: nothing was done; release the hold first
    │   ├── WrongClock         7   this clock is days behind the archive's last change; set it, or --force-time
    │   ├── ManifestLost       7   the manifest is damaged or gone; repair makes it again
    │   └── RolledBack         7   the archive or its manifest is older than this machine knew it; run repair
    ├── NotFound               8   no such session, version or segment
    │   └── Erased             8   it was here: its key was destroyed
    ├── ContentError (plt_codec)
    │   └── StaysErased        5   a session of this name was erased, and is not put again unless the user says so
    ├── MismatchError (plt_codec)
    │   └── KeyMismatch        4   the archive is sealed, and this is not its key
    └── CorruptError (plt_codec)
        ├── LostError          3   it was here: its record is damaged or gone
        │   ├── MissingPack    7   the pack that holds it is missing: run repair, then ask again
        │   └── MissingKeys    7   the key file of its tenant or base is missing: bring it back, then ask again
        ├── ForeignPack        3   a pack of another archive is in this one: nothing of it is read
        ├── MisplacedPack      3   the file of a pack has the bytes of another one: nothing of it is read
        └── UnreadableError    3   the disk cannot read these bytes of a file: as good as damaged
"""

from __future__ import annotations

import errno
from typing import Any

from pltz.plt_codec.errors import ContentError, CorruptError, MismatchError, PltzError


class ArchiveError(PltzError):
    """The archive cannot do this now."""

    exit_code = 7


class StoreError(ArchiveError):
    """The disk or object store failed, is full or refuses; the archive is as it was."""


class FullError(StoreError):
    """The disk is full, or the quota is used up."""


class WriterFailed(ArchiveError):
    """A sync failed, so nothing that this writer wrote since is sure to last."""


class Fenced(ArchiveError):
    """A collector or keys went on while this writer worked, so nothing was acknowledged."""


class OnHold(ArchiveError):
    """A hold keeps what was to be forgotten or erased, so nothing was done. ``hold``: a `holds.LegalHold`."""

    def __init__(self, message: str, hold: Any) -> None:
        super().__init__(message)
        self.hold = hold


class WrongClock(ArchiveError):
    """This machine's clock is more than a day behind the archive's last change, so nothing was put."""


class Outdated(Fenced):
    """A pack that the deciding look relied on is condemned or gone by now, so nothing was acknowledged."""


class ManifestLost(ArchiveError):
    """The manifest is damaged or gone, or something that it needs is: repair makes it again from the packs."""


class RolledBack(ArchiveError):
    """The archive or its manifest is older than one that was seen before."""


class NotFound(PltzError):
    """No such session, version or segment."""

    exit_code = 8


class Erased(NotFound):
    """The content was erased: its key was destroyed, so its bytes are meaningless."""


class StaysErased(ContentError):
    """A session of this name was erased, and is not put again unless the user says so."""


def stays_erased(tenant: str, name: str) -> StaysErased:
    """Return the error about a session that is not put, since it was erased."""
    return StaysErased(
        f"session {name!r} of tenant {tenant!r} was erased, so it is not put again: to put it and what follows, "
        "--erased-too (from Python: erased_too=True)"
    )


class KeyMismatch(MismatchError):
    """The archive is sealed and was opened without its key, or with another."""


class LostError(CorruptError):
    """A session's record, or one it needs, is damaged or gone."""


class MissingPack(LostError):
    """The pack that holds a record is missing, and no collector deleted it: repair may restore it."""

    exit_code = 7


class MissingKeys(LostError):
    """Packs hold records of a tenant or base, and its key file is missing, damaged, or not the one for them."""

    exit_code = 7


class ForeignPack(CorruptError):
    """A pack of another archive is in this one."""


class MisplacedPack(CorruptError):
    """The file of a pack has the bytes of another pack of this archive, or not as many as it should have."""


class UnreadableError(CorruptError):
    """The disk cannot read some bytes of a file. They count as damaged, and parity may restore them."""


def is_full(exc: OSError) -> bool:
    """Return whether the system refused a write for lack of space: a full disk or a used-up quota."""
    return exc.errno in (errno.ENOSPC, errno.EDQUOT)


def reason(exc: OSError) -> str:
    """Return the reason of a system error in words, without the path.

    >>> reason(OSError(28, "No space left on device"))
    'the disk is full'
    """
    hint = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EACCES: "no permission"}
    return hint.get(exc.errno or 0, exc.strerror or str(exc))
