"""Fixtures of the archive's tests, which those of the hooks, engines and nights use too."""

from tests.archive.conftest import archive, codec, disk, s3, s3_server, sealed, store, tower_codec

__all__ = ["archive", "codec", "disk", "s3", "s3_server", "sealed", "store", "tower_codec"]
