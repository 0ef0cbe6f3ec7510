"""TowerReader: the tokens of versions and segments, read from an archive. SessionReader: the sessions of versions.

    reader = TowerReader(catalog, codecs)
    reader.tower(version).tokens            # (T,), decoded and proved by the ids of its segments
    for tower in reader.each(versions):     # side by side, in groups that memory holds
        ...

    sessions = SessionReader(reader, codecs)
    sessions.read(version)                  # the session that was put, value for value

Which version a name has is found by `directory.SessionDirectory`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import LOG_SHARE, Chains, Heard, KnownSegment, Segments, decodable_groups, naming
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Blocks, Version
from pltz.archive.catalog.sources import Sources
from pltz.archive.errors import LostError
from pltz.archive.format.ids import BASE, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import RUN
from pltz.coding.codecs.bundle_codecs import BundleCodecs, CodecRegistry
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.coding.workers import START_BYTES, ahead
from pltz.models.session import transcript
from pltz.models.session.long_text import LongText, PartedText
from pltz.models.session.session import Session, kind_of, writing_in
from pltz.plt_codec.container.frame import is_bytewise
from pltz.plt_codec.limits import MAX_TOKENS

PARTED = 1 << 24  # bytes of a text from which it is decoded in parts, where that will do


@dataclass(frozen=True)
class Tower:
    """A session thawed to tokens. ``segments``: (id, tokens (T,)) from the root to the leaf."""

    version: Version
    segments: Segments

    @property
    def tokens(self) -> Tokens:
        """Return all tokens, (T,)."""
        return np.concatenate([np.zeros(0, np.int64), *(tokens for _, tokens in self.segments)])


class TowerReader:
    """Reads towers of one archive. One thread uses it at a time. ``codecs``: those that decode."""

    def __init__(self, catalog: Catalog, codecs: CodecRegistry) -> None:
        self.catalog, self.codecs = catalog, codecs

    def tower(self, version: Version) -> Tower:
        """Return the tokens of a version. Raises LostError, CorruptError, BundleMismatch, KeyMismatch, Erased."""
        return self.towers([version])[0]

    def towers(
        self, versions: Sequence[Version], known: Mapping[bytes, KnownSegment] | None = None, heard: Heard | None = None
    ) -> list[Tower]:
        """Return the tokens of versions, decoded together, shared segments once.

        All of them are in memory at once: ask for some hundred at a time. Raises the errors of `tower` for the first
        that is lost.

        Args:
            known: segments that the caller already has; they are neither read nor decoded.
            heard: called with each record that is proved, as by `chain.decode_records`.
        """

        def work() -> list[Tower]:
            with self.catalog.lookup.keeping_blocks():
                segments = Chains(self.catalog, self.codecs, known, heard).begin_versions(versions)
                return list(map(Tower, versions, segments()))

        return self.catalog.twice(work)

    def _begin(self, versions: Sequence[Version]) -> Callable[[], list[Segments]]:
        """Begin to decode the towers of versions, and return the rest of it."""
        return Chains(self.catalog, self.codecs).begin_versions(versions)

    def each(self, versions: Iterable[Version], blocks: Blocks | None = None) -> Iterator[Tower]:
        """Yield the tokens of versions in their order, decoded in groups (`decodable_groups`).

        The next group is begun while the caller works. ``blocks``: those that the look-up of these versions parsed; no
        block is parsed twice. Raises the errors of `tower` for the first that is lost, before others of its group are
        yielded.
        """
        known: Blocks = {} if blocks is None else blocks

        def begun() -> Iterator[tuple[list[Version], list[Callable[[], list[Segments]]]]]:
            groups = decodable_groups(versions, self._weight)
            while True:
                ways: list[Callable[[], list[Segments]]] = []
                with self.catalog.lookup.keeping_blocks(known):  # not while the caller works: it may read other things
                    if (group := next(groups, None)) is None:
                        return
                    with suppress(FileNotFoundError, LostError):
                        ways.append(self._begin(group))
                yield group, ways

        for group, ways in ahead(begun(), 1, first=0):
            with self.catalog.lookup.keeping_blocks(known):
                towers = self.catalog.twice(partial(self._end, group, ways))
            yield from towers

    def _end(self, versions: Sequence[Version], begun: list[Callable[[], list[Segments]]]) -> list[Tower]:
        """Return the towers of versions that were begun, or, the second time, that are read anew."""
        return list(map(Tower, versions, (begun.pop() if begun else self._begin(versions))()))

    def pieces(self, version: Version) -> Iterator[Tokens]:
        """Yield the tokens of a version of any length, (t,) of a segment at a time. Raises the errors of `tower`."""
        if version.lacks or not self.is_long(version):
            yield from (tokens for _, tokens in self.tower(version).segments)
            return
        chains = Chains(self.catalog, self.codecs)
        with naming(version):
            yield from (tokens for _, tokens in chains.walk(chains.path(version.leaf)))

    def text(self, version: Version) -> LongText:
        """Return the bytes of a long version, of which a slice decodes its segments and what these need of others.

        Raises LostError, MissingPack, CorruptError; a slice raises the errors of `tower`.
        """
        path, sources = Chains(self.catalog, self.codecs).path(version.leaf), Sources(self.catalog)

        def read(first: int, last: int) -> Iterator[memoryview]:
            chains = Chains(self.catalog, self.codecs, needed=True, sources=sources)
            return (_bytes(tokens) for _, tokens in chains.walk(path[first:last]))

        return PartedText(repr(version.name), [*itertools.accumulate(item.record.tokens for item in path)], read)

    def is_long(self, version: Version, *, parted: bool = False) -> bool:
        """Return whether a version is too long to be decoded at once, or to be ``parted``."""
        if parted and kind_of(version.kind) != "text":
            return False
        most = PARTED if parted else MAX_TOKENS
        return is_bytewise(version.tokenizer) and (version.content.size or self.length(version)) > most

    def _weight(self, version: Version) -> int:
        return self.length(version) // (LOG_SHARE if is_bytewise(version.tokenizer) else 1)

    def length(self, version: Version) -> int:
        """Return the tokens of a version's tower, from its records alone; 0 where one of them cannot be read."""
        with suppress(FileNotFoundError):  # whoever reads it looks again
            chains = Chains(self.catalog, self.codecs)
            chains.note([version])
            return chains.length(version.leaf)
        return 0

    def record(self, segment: bytes) -> Found:
        """Return a segment's record with its location. Raises LostError."""
        return self.catalog.twice(lambda: self._record(segment))

    def _record(self, segment: bytes) -> Found:
        found = self.catalog.lookup.find(SEGMENTS, segment)
        if not found:
            raise LostError(f"segment {segment.hex()} is damaged or gone: see pltz archive verify")
        return min(found, key=lambda item: item.record.mode & RUN)

    def records(self, segment: bytes) -> list[Found]:
        """Return the records of a segment, the best first. Raises ArchiveError, StoreError."""
        return self.catalog.listing.stable(lambda: self.catalog.lookup.find(SEGMENTS, segment))

    def base_of(self, tower: Tower) -> tuple[int, str | None]:
        """Return how many segments of a tower that was read are in a base domain, and its name; (0, None) if none."""
        shared, name = 0, None
        for segment, _ in tower.segments:
            found = self.records(segment)
            if not found or found[0].context.domain_kind != BASE:  # a segment inside a run may have no record
                break
            shared, name = shared + 1, self.catalog.keys.domain_name(found[0].context)
        return shared, name


class SessionReader:
    """Reads sessions of one archive, with the tokenizers of the bundles that it is open with."""

    def __init__(
        self,
        reader: TowerReader,
        codecs: BundleCodecs,
        recorded: Callable[[Iterable[Version]], Iterable[Version]] = lambda versions: versions,
    ) -> None:
        """Make a reader. ``recorded``: is given versions before they are read, and returns them."""
        self._reader, self._codecs, self._recorded = reader, codecs, recorded

    def read(self, version: Version) -> Session:
        """Return the session of a version. Raises LostError, BundleMismatch."""
        self._recorded([version])
        if self._reader.is_long(version):
            return self._long(version)
        return self.session(self._reader.tower(version))

    def _long(self, version: Version) -> Session:
        """Return a session that is too long for memory, its bytes in a temporary file."""
        return Session("text", LongText.filled(repr(version.name), map(_bytes, self._reader.pieces(version))))

    def parted(self, version: Version) -> Session:
        """Return the session of a version, as `read`; a long one is decoded where slices are read, and raises then."""
        if not self._reader.is_long(version, parted=True):
            return self.read(version)
        self._recorded([version])
        return self._parted(version)

    def _parted(self, version: Version) -> Session:
        return self._long(version) if version.lacks else Session("text", self._reader.text(version))

    def read_many(
        self, versions: Iterable[Version], blocks: Blocks | None = None, *, parted: bool = False
    ) -> Iterator[Session]:
        """Yield the sessions of versions in their order, decoded side by side. Raises the errors of `read`.

        ``blocks``: as in `TowerReader.each`. ``parted``: long ones as of the function of this name.
        """
        chosen, workers = list(versions), self._codecs.workers
        logs = sum(v.content.size for v in chosen if v.tokenizer == LOG_TOKENIZER)
        workers.on |= workers.count > 0 and logs >= START_BYTES
        is_long, read = partial(self._reader.is_long, parted=parted), self._parted if parted else self._long
        for long, some in itertools.groupby(self._recorded(chosen), key=is_long):
            if long:
                yield from map(read, some)
            else:
                yield from map(self.session, self._reader.each(some, blocks))

    def session(self, tower: Tower) -> Session:
        """Return the session of a tower's tokens. Raises BundleMismatch, CorruptError."""
        version = tower.version
        kind, writing = kind_of(version.kind), writing_in(version.kind)
        if is_bytewise(version.tokenizer):
            content = b"".join(tokens.astype(np.uint8).tobytes() for _, tokens in tower.segments)
            session = Session.from_bytes(kind, content)
        elif kind == "ids":
            session = Session("ids", tower.tokens)
        else:
            session = transcript.from_tokens(kind, tower.tokens, self._codecs.tokenizer_of(version.tokenizer))
        return replace(session, writing=writing) if writing else session


def _bytes(tokens: Tokens) -> memoryview:
    return tokens.astype(np.uint8, copy=False).data
