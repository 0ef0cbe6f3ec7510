"""Settings: archive.json, which describes an archive. Written once, as the last step of init.

Spec: FORMAT.md, "archive.json".

{"format":6,"archive":"<32 hex>","features":[],"parity":[50,1000],"check":"<32 hex>"}

A second copy is under `parity/`, for `repair`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pltz.archive.format.object_names import SETTINGS
from pltz.archive.format.parity import SHARE, SHARED
from pltz.plt_codec.errors import CorruptError, UsageError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

FORMAT = 6
PERSON = b"pltz archive"
MAX_SIZE = 65536  # bytes
FEATURE_MANIFEST, FEATURE_SEALED = "manifest", "sealed"  # in the order of the file
MAX_SHARE = 1000  # thousandths of parity


@dataclass(frozen=True)
class Settings:
    """The settings of an archive. Raises UsageError for a share of parity out of range.

    Attributes:
        archive: id of the archive, 16 random bytes.
        sealed: whether it is encrypted.
        parity: thousandths of parity for packs, and for segments that many sessions depend on; 0 is none.
        manifest: whether one small object names its packs and indexes.
    """

    archive: bytes
    sealed: bool = False
    parity: tuple[int, int] = (SHARE, SHARED)
    manifest: bool = False

    def __post_init__(self) -> None:
        if not all(type(share) is int and 0 <= share <= MAX_SHARE for share in self.parity):
            raise UsageError(
                f"expected shares of parity from 0 to {MAX_SHARE} thousandths, got {self.parity}"
            )

    @property
    def features(self) -> list[str]:
        """Return the names of what a reader must know."""
        return [FEATURE_MANIFEST] * self.manifest + [FEATURE_SEALED] * self.sealed

    def encode(self) -> bytes:
        """Return the bytes of the file.

        >>> Settings.decode(Settings(bytes(16)).encode()) == Settings(bytes(16))
        True
        """
        fields = {
            "format": FORMAT,
            "archive": self.archive.hex(),
            "features": self.features,
            "parity": list(self.parity),
        }
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
            identity, version, features = (
                bytes.fromhex(fields["archive"]),
                fields["format"],
                fields["features"],
            )
            sound = (
                digest(PERSON, _line(fields)).hex() == check
                and data == _line(fields | {"check": check}) + b"\n"
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise CorruptError(f"{SETTINGS} is not that of an archive: {exc}") from exc
        if not sound:
            raise CorruptError(f"{SETTINGS} does not match its checksum: damaged")
        read = VERSIONS.of(version)
        if features not in ([], [FEATURE_MANIFEST], [FEATURE_SEALED], [FEATURE_MANIFEST, FEATURE_SEALED]):
            raise VersionError(f"the archive has features {features}: use a newer pltz")
        if len(identity) != SIZE:
            raise CorruptError(f"{SETTINGS} is not that of an archive")
        return read(identity, fields)


FIELDS = ("format", "archive", "features", "parity")  # of format 5, in this order


def _read(archive: bytes, fields: Mapping[str, Any]) -> Settings:
    """Return the settings in the fields of format 5."""
    try:
        pack, shared = fields["parity"]
        features = fields["features"]
        settings = Settings(archive, FEATURE_SEALED in features, (pack, shared), FEATURE_MANIFEST in features)
    except (ValueError, KeyError, TypeError, UsageError) as exc:
        raise CorruptError(f"{SETTINGS} is not that of an archive: {exc}") from exc
    if tuple(fields) != FIELDS or (fields["archive"], fields["parity"]) != (archive.hex(), [pack, shared]):
        raise CorruptError(f"{SETTINGS} is not that of an archive")
    return settings


AGAIN = "read it with the pltz that wrote it, and put its sessions into a new archive"
VERSIONS = Readers("the archive", {FORMAT: _read}, AGAIN)


def _line(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
