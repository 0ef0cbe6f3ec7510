"""Errors of the KV store. They extend the tree of `pltz.plt_codec.errors`."""

from __future__ import annotations

from pltz.plt_codec.errors import PltzError


class WarmFileError(PltzError):
    """A warm file cannot be removed, so content that must go may still be on the disk."""

    exit_code = 7
