"""Errors of the KV store. They extend the tree of `pltz.plt_codec.errors`."""

from __future__ import annotations

from pltz.plt_codec import MismatchError, PltzError


class WarmFileError(PltzError):
    """A warm file cannot be removed, so content that must go may still be on the disk."""

    exit_code = 7


class PoolFull(PltzError):
    """A pool has no block left, and none that nobody holds."""

    exit_code = 7


class MemoryFailed(PltzError):
    """The disk cannot read or write a memory now. Nothing of it is lost."""

    exit_code = 7


class MemoryMismatch(MismatchError):
    """A file is the memory of another agent, or another process wrote it since it was read."""
