"""Errors of the KV store. They extend the tree of `pltz.plt_codec.errors`."""

from __future__ import annotations

from pltz.plt_codec import MismatchError, PltzError


class WarmFileError(PltzError):
    """A warm file cannot be removed, so content that must go may still be on the disk."""

    exit_code = 7


class ForeignFile(PltzError):
    """A file of KV is encrypted by no key at hand, or is not encrypted where it should be. ``owner``: that it names."""

    def __init__(self, owner: bytes) -> None:
        super().__init__("some are of another archive, or of a tenant that has no key here")
        self.owner = owner


class PoolFull(PltzError):
    """A pool has no block left, and none that nobody holds."""

    exit_code = 7


class MemoryFailed(PltzError):
    """The disk cannot read or write a memory now. Nothing of it is lost."""

    exit_code = 7


class MemoryMismatch(MismatchError):
    """A file is the memory of another agent, or another process wrote it since it was read."""
