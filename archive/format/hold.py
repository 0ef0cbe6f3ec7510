"""A hold: sessions that may not go until a person releases it, as one small object. Spec: AUDIT.md, "Holds".

    Hold(TAG, archive, time, note)    note: JSON of what is held, by whom and why; in a sealed archive a box of it
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import NONE, SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC, VERSION = b"PLTh", 1
HEAD = struct.Struct("<4sBB2s16s16s16sQ")  # magic, version, kind, reserved, archive, domain, session key, time
PERSON = b"pltz hold"
KINDS = SESSION, TAG, TENANT = range(3)
MAX_SIZE = 1 << 13  # bytes
MAX_TIME = 1 << 62


@dataclass(frozen=True)
class Hold:
    """A hold as it is stored.

    Attributes:
        kind: SESSION, TAG or TENANT.
        archive: id of the archive, 16 bytes.
        time: when it was placed, in seconds since 1970.
        note: bytes of the note, a box in a sealed archive.
        domain, session: of a session, id of its tenant's domain and its key, 16 bytes each; else zeros.
    """

    kind: int
    archive: bytes
    time: int
    note: bytes
    domain: bytes = NONE
    session: bytes = NONE

    @property
    def head(self) -> bytes:
        """Return the bytes before the note, to which its box is bound."""
        return HEAD.pack(MAGIC, VERSION, self.kind, bytes(2), self.archive, self.domain, self.session, self.time)

    @property
    def id(self) -> bytes:
        """Return the digest of its bytes, 16 bytes, which is its name."""
        return digest(PERSON, self.head + self.note)

    def encode(self) -> bytes:
        """Return its bytes, with its id at the end."""
        return self.head + self.note + self.id

    @classmethod
    def decode(cls, data: bytes) -> Hold:
        """Return the hold in these bytes. Raises CorruptError, VersionError."""
        if not HEAD.size + SIZE <= len(data) <= MAX_SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("a hold does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("a hold does not begin with its magic: damaged")
        read = VERSIONS[data[len(MAGIC)]]
        return read(data)


def _read(data: bytes) -> Hold:
    """Return the hold in bytes of which digest and magic are right."""
    _, _, kind, reserved, archive, domain, session, time = HEAD.unpack_from(data)
    if any(reserved) or kind not in KINDS:
        raise VersionError("a hold is of a kind that this version does not know: use a newer pltz")
    if time >= MAX_TIME:
        raise CorruptError("a hold has a time that cannot be: damaged")
    return Hold(kind, archive, time, data[HEAD.size : -SIZE], domain, session)


VERSIONS = Readers("a hold", {VERSION: _read})
