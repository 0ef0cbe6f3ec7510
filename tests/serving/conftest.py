"""Fixtures of the tests of the archive and of commands, which those of the rooms above the core use too."""

from tests.archive.conftest import archive, codec, disk, s3, s3_server, sealed, store, tower_codec
from tests.cli.conftest import bundle_at_hand, chats, cold, frozen, put, run, shipped, tiny, trained

__all__ = ["archive", "bundle_at_hand", "chats", "codec", "cold", "disk", "frozen", "put", "run"]
__all__ += ["s3", "s3_server", "sealed", "shipped", "store", "tiny", "tower_codec", "trained"]
