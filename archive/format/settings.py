"""Settings: archive.json, which describes an archive. Written once, as the last step of init.

Spec: FORMAT.md, "archive.json".

{"format":1,"archive":"<32 hex>","features":[],"check":"<32 hex>"}

A second copy is under `parity/`, for `repair`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pltz.archive.format.object_names import SETTINGS
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

FORMAT = 1
PERSON = b"pltz archive"
MAX_SIZE = 65536  # bytes
FEATURE_SEALED, FEATURE_APPEND_ONLY = "sealed", "append-only"
FEATURES: tuple[list[str], ...] = ([], [FEATURE_SEALED], [FEATURE_APPEND_ONLY], [FEATURE_SEALED, FEATURE_APPEND_ONLY])


@dataclass(frozen=True)
class Settings:
    """The settings of an archive.

    Attributes:
        archive: id of the archive, 16 random bytes.
        sealed: whether it is encrypted.
        append_only: whether puts leave to collect what they would delete, so that they need no right to it.
    """

    archive: bytes
    sealed: bool = False
    append_only: bool = False

    @property
    def features(self) -> list[str]:
        """Return the names of what a reader must know."""
        return [FEATURE_SEALED] * self.sealed + [FEATURE_APPEND_ONLY] * self.append_only

    def encode(self) -> bytes:
        """Return the bytes of the file.

        >>> Settings.decode(Settings(bytes(16)).encode()) == Settings(bytes(16))
        True
        """
        fields = {"format": FORMAT, "archive": self.archive.hex(), "features": self.features}
        check = digest(PERSON, _line(fields)).hex()
        return _line(fields | {"check": check}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Settings:
        """Return the settings in a file's bytes.

        Raises VersionError for a newer archive, CorruptError for anything else that `encode` does not write.
        """
        try:
            fields = json.loads(data)
            check = fields.pop("check")
            identity, version, features = (bytes.fromhex(fields["archive"]), fields["format"], fields["features"])
            sound = digest(PERSON, _line(fields)).hex() == check and data == _line(fields | {"check": check}) + b"\n"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise CorruptError(f"{SETTINGS} is not that of an archive: {exc}") from exc
        if not sound:
            raise CorruptError(f"{SETTINGS} does not match its checksum: damaged")
        read = VERSIONS[version if type(version) is int else str(version)]
        if features not in FEATURES:
            raise VersionError(f"the archive has features {features}: use a newer pltz")
        if len(identity) != SIZE:
            raise CorruptError(f"{SETTINGS} is not that of an archive")
        return read(identity, fields)


FIELDS = ("format", "archive", "features")  # in this order


def _read(archive: bytes, fields: Mapping[str, Any]) -> Settings:
    """Return the settings in these fields."""
    if tuple(fields) != FIELDS or fields["archive"] != archive.hex():
        raise CorruptError(f"{SETTINGS} is not that of an archive")
    return Settings(archive, *(name in fields["features"] for name in (FEATURE_SEALED, FEATURE_APPEND_ONLY)))


VERSIONS = Readers("the archive", {FORMAT: _read})


def _line(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
