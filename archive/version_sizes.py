"""Sizes of the versions in an archive. Nothing is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pltz.archive.format.record import RUN, Context
from pltz.archive.format.run import unpack_run
from pltz.plt_codec.container.frame import is_bytewise
from pltz.plt_codec.errors import PltzError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive, SessionVersion
    from pltz.archive.catalog.lookup import Version
    from pltz.archive.catalog.reader import TowerReader


def method_of(context: Context) -> str:
    """Return how the records of a context are coded: by the model, as a log, by zstd, or by PPMd."""
    return ("model", "log", "zstd" if is_bytewise(context.tokenizer) else "ppmd", "ppmd")[context.method]


def tokens_of(reader: TowerReader, version: Version) -> int:
    """Return the tokens of a version, from the heads of its records. Raises LostError, KeyMismatch."""
    lengths: list[int] = []
    segment = version.leaf
    while any(segment):
        item = reader.record(segment)
        inside = unpack_run(item.record).lengths if item.record.mode & RUN else [item.record.tokens]
        lengths = [*inside, *lengths]
        segment = item.record.parent
    return sum(lengths[: len(lengths) - version.lacks])


class SegmentHead(NamedTuple):
    """Hold the head of a record.

    ``lengths``: tokens of each of its segments. ``size``: bytes of its bitstring. ``bytewise``: its tokens are bytes.
    """

    parent: bytes
    lengths: list[int]
    size: int
    method: str
    bytewise: bool


class VersionSizes:
    """Sizes of versions, read from the heads of their records, each of which is read once."""

    def __init__(self, cold: Archive) -> None:
        self._reader = cold.parts.reader
        self._whole = {version.id: version for version in cold.directory.ls(forgotten=True, history=True)}
        self._segments: dict[bytes, SegmentHead] = {}

    def of(self, version: SessionVersion) -> dict[str, Any]:
        """Return the sizes of a version with all its parts, None where damage hides them.

        They are bytes, tokens, segments, and of its first part the method, and ``bytewise``: whether tokens are bytes.
        """
        try:
            chains = [(part, self.chain(part)) for part in self._whole[version.id].each]
        except (PltzError, KeyError):
            return dict.fromkeys(("size", "tokens", "segments", "method", "bytewise"))
        lengths = [length for part, chain in chains for length in self._lengths(part, chain)]
        last = self._segments[chains[0][1][0]] if chains[0][1] else None
        found = {"size": sum(self._size(*one) for one in chains), "tokens": sum(lengths), "segments": len(lengths)}
        return found | {"method": last and last.method, "bytewise": last is not None and last.bytewise}

    def whole(self, version: SessionVersion) -> Version | None:
        """Return a version with its parts, None where damage hides it."""
        return self._whole.get(version.id)

    def _lengths(self, version: Version, chain: list[bytes]) -> list[int]:
        """Return the tokens of each segment of a version."""
        lengths = [length for one in reversed(chain) for length in self._segments[one].lengths]
        return lengths[: len(lengths) - version.lacks]

    def _size(self, version: Version, chain: list[bytes]) -> int:
        """Return the bytes of a version's bitstrings. One that ends within a run has a share of it by its tokens."""
        total = sum(self._segments[one].size for one in chain)
        if not version.lacks:
            return total
        run = self._segments[chain[0]]
        lacking = sum(run.lengths[len(run.lengths) - version.lacks :])
        return total - run.size * lacking // max(1, sum(run.lengths))

    def chain(self, version: Version) -> list[bytes]:
        """Return the segments of a version, the last one first. Raises LostError, KeyMismatch."""
        found: list[bytes] = []
        segment = version.leaf
        while any(segment):
            if segment not in self._segments:
                item = self._reader.record(segment)
                record = item.record
                lengths = unpack_run(record).lengths if item.record.mode & RUN else [record.tokens]
                how = method_of(item.context), is_bytewise(item.context.tokenizer)
                self._segments[segment] = SegmentHead(record.parent, lengths, len(record.bitstring), *how)
            found.append(segment)
            segment = self._segments[segment].parent
        return found
