"""SessionReader: towers of tokens back to the sessions that were put, value for value.

    sessions = SessionReader(reader, codecs)
    sessions.read(version)                  # the Session of a version
    sessions.session(tower)                 # that of a tower that was read already
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from pltz.archive.catalog.lookup import Blocks, Version
from pltz.archive.catalog.reader import Tower, TowerReader
from pltz.coding.codecs.bundle_codecs import BundleCodecs
from pltz.coding.codecs.codec import BytesCodec
from pltz.models.session import transcript
from pltz.models.session.session import Kind, Session, kind_of, writing_in


class SessionReader:
    """Reads sessions of one archive, with the tokenizers of the bundles that it is open with."""

    def __init__(self, reader: TowerReader, codecs: BundleCodecs) -> None:
        self._reader, self._codecs = reader, codecs

    def read(self, version: Version) -> Session:
        """Return the session of a version. Raises LostError, BundleMismatch."""
        return self.session(self._reader.tower(version))

    def read_many(self, versions: Iterable[Version], blocks: Blocks | None = None) -> Iterator[Session]:
        """Yield the sessions of versions in their order, decoded side by side. Raises the errors of `read`.

        ``blocks``: as in `TowerReader.each`.
        """
        return map(self.session, self._reader.each(versions, blocks))

    def session(self, tower: Tower) -> Session:
        """Return the session of a tower's tokens. Raises BundleMismatch, CorruptError."""
        session = self._session(tower, kind_of(tower.version.kind))
        writing = writing_in(tower.version.kind)
        return replace(session, writing=writing) if writing else session

    def _session(self, tower: Tower, kind: Kind) -> Session:
        version = tower.version
        if version.tokenizer == BytesCodec.tokenizer:
            content = b"".join(tokens.astype(np.uint8).tobytes() for _, tokens in tower.segments)
            return Session.from_bytes(kind, content)
        if kind == "ids":
            return Session("ids", tower.tokens)
        return transcript.from_tokens(kind, tower.tokens, self._codecs.tokenizer_of(version.tokenizer))
