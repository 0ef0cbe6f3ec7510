"""archive.json: what a directory is. Written once, as the last step of init. Spec: FORMAT.md, "archive.json".

{"format":1,"archive":"<32 hex>","features":[],"check":"<32 hex>"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pltz.archive.identity import SIZE, digest
from pltz.plt_codec.errors import CorruptError, VersionError

NAME = "archive.json"
FORMAT = 1
PERSON = b"pltz archive"
MAX_SIZE = 65536  # bytes


@dataclass(frozen=True)
class Settings:
    """``archive``: 16 random bytes, which archive this is."""

    archive: bytes

    def encode(self) -> bytes:
        """The file.

        >>> Settings.decode(Settings(bytes(16)).encode()) == Settings(bytes(16))
        True
        """
        fields = {"format": FORMAT, "archive": self.archive.hex(), "features": list[str]()}
        check = digest(PERSON, _line(fields)).hex()
        return _line(fields | {"check": check}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Settings:
        """Raises VersionError for a newer archive, CorruptError for anything else but what `encode` writes."""
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
            raise CorruptError(f"{NAME} is not that of an archive: {exc}") from exc
        if not sound:
            raise CorruptError(f"{NAME} does not match its checksum: damaged")
        if version != FORMAT or features:
            raise VersionError(f"the archive has format {version} and features {features}: use a newer pltz")
        settings = cls(identity)
        if len(identity) != SIZE or settings.encode() != data:
            raise CorruptError(f"{NAME} is not that of an archive")
        return settings


def _line(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
