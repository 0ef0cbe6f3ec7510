"""The header of a .pltz file: bundle, tokenizer and target of all its sessions. Spec: FORMAT.md, "Container".

>>> head = Header(bundle_id=bytes(16))
>>> Header.decode(head.encode() + b"frames follow") == (head, 22)
True
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pltz.plt_codec.errors import CorruptError, FormatError, UsageError, VersionError
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTZ"
FORMAT_VERSION = 1
FLAG_TOKENIZER = 1
FLAG_TARGET = 2
FLAG_DROPPED = 64
FLAG_EXACT = 128
FINGERPRINT = 16  # bytes of a bundle id, a fingerprint

FIXED = struct.Struct("<4sBB16s")
MAX_HEADER = FIXED.size + 2 * FINGERPRINT  # bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that all sessions of a file share.

    Args:
        bundle_id: 16 bytes.
        tokenizer_fingerprint: 16 bytes; None where ids belong to the bundle's own tokenizer.
        target_fingerprint: 16 bytes; None for any target.
        exact: the sessions in a row give the bytes of the inputs back (`Session.to_input_bytes`).
        dropped: signatures of thinking were left out of the sessions, where they had some.

    Raises:
        UsageError: a field is out of range or of the wrong length.
    """

    bundle_id: bytes
    tokenizer_fingerprint: bytes | None = None
    target_fingerprint: bytes | None = None
    exact: bool = False
    dropped: bool = False

    def __post_init__(self) -> None:
        for name in ("bundle_id", "tokenizer_fingerprint", "target_fingerprint"):
            value = getattr(self, name)
            if value is not None and len(value) != FINGERPRINT:
                raise UsageError(f"{name}: expected {FINGERPRINT} bytes, got {len(value)}")

    def encode(self) -> bytes:
        """Return the header's bytes, 22 to 54."""
        flags = FLAG_TOKENIZER * (self.tokenizer_fingerprint is not None)
        flags |= FLAG_TARGET * (self.target_fingerprint is not None)
        flags |= FLAG_DROPPED * self.dropped | FLAG_EXACT * self.exact
        body = FIXED.pack(MAGIC, FORMAT_VERSION, flags, self.bundle_id)
        return body + (self.tokenizer_fingerprint or b"") + (self.target_fingerprint or b"")

    @classmethod
    def decode(cls, data: bytes) -> tuple[Header, int]:
        """Read the header at the start of a file, and return it with its size in bytes.

        Its bytes are under the checksum in the footer.

        Raises:
            FormatError: not a .pltz file.
            VersionError: another format version, or a flag this version does not know.
            CorruptError: cut off.
        """
        if data[:4] != MAGIC:
            raise FormatError(f"expected a .pltz file (first bytes {MAGIC!r}), found {data[:4]!r}")
        if len(data) < FIXED.size:
            raise CorruptError(f"expected {FIXED.size} header bytes or more, found {len(data)}: cut off")
        read = VERSIONS[data[len(MAGIC)]]
        return read(data)


def _read(data: bytes) -> tuple[Header, int]:
    """Read a header of this version."""
    _, _, flags, bundle_id = FIXED.unpack_from(data)
    if flags & ~(FLAG_TOKENIZER | FLAG_TARGET | FLAG_DROPPED | FLAG_EXACT):
        raise VersionError(f"unknown header flags {flags:#04x}: use a newer pltz")
    position = FIXED.size
    fingerprints: list[bytes | None] = [None, None]
    for i, flag in enumerate((FLAG_TOKENIZER, FLAG_TARGET)):
        if flags & flag:
            fingerprints[i] = data[position : position + FINGERPRINT]
            position += FINGERPRINT
            if len(data) < position:
                raise CorruptError(f"expected {position} header bytes, found {len(data)}: the file was cut off")
    exact, dropped = bool(flags & FLAG_EXACT), bool(flags & FLAG_DROPPED)
    return Header(bundle_id, fingerprints[0], fingerprints[1], exact, dropped), position


VERSIONS = Readers("the .pltz file", {FORMAT_VERSION: _read})
