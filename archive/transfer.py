"""Copy sessions from one archive to another: towers, names, tags, times, targets and histories.

Versions go over oldest first, so a session keeps the order of its versions (their numbers are counted anew). A segment keeps its place in
the tower and its domain, so what was shared stays shared, and with the same tokenizer it keeps its id. The other archive codes
with its own codecs: copying is also how an archive moves to another bundle of the same tokenizer.

A version is copied when the other archive has one with the same leaf, time, tags, kind and target. So a copy that was
killed is simply run again, and running it twice adds nothing. Each commit is read back from the other archive and compared token by token
before it is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pltz.archive.archive import Archive, Tower
from pltz.archive.codec import SegmentCodec
from pltz.archive.errors import ArchiveError
from pltz.archive.identity import NONE
from pltz.archive.sessions import COMMIT_SESSIONS, COMMIT_TOKENS, base_of
from pltz.archive.view import Version
from pltz.archive.writer import KINDS, NewSession, Receipt
from pltz.plt_codec.errors import BundleMismatch


@dataclass(frozen=True)
class Copied:
    """A version and what the other archive made of it. ``receipt``: None where it was there (or would be copied, in a dry run)."""

    version: Version
    there: bool
    receipt: Receipt | None


def copy(
    source: Archive, versions: Iterable[Version], to: Archive, *, dry_run: bool = False
) -> Iterator[Copied]:
    """Copy versions (`Archive.ls` or `find` lists them, histories oldest first); what is yielded is durable and was compared.

    Raises:
        LostError: a version is damaged here; those before it were copied.
        BundleMismatch: an archive was not opened with a codec of the version's tokenizer.
        StoreError, WriterFailed, Fenced: as `Archive.put`.
        ArchiveError: what was copied does not read back.
    """
    batch: list[tuple[Version, Tower]] = []
    names: set[tuple[str, str]] = set()
    tokens = 0
    for version in versions:
        there = _is_there(version, to)
        if there or dry_run:
            yield Copied(version, there, None)
            continue
        full = tokens >= COMMIT_TOKENS or len(batch) >= COMMIT_SESSIONS
        if batch and (full or (version.tenant, version.name) in names):
            yield from _commit(source, batch, to)
            batch, names, tokens = [], set(), 0
        batch.append((version, source.tower(version)))
        names.add((version.tenant, version.name))
        tokens += len(batch[-1][1].tokens)
    if batch:
        yield from _commit(source, batch, to)


def _is_there(version: Version, to: Archive) -> bool:
    return any(_same(version, other) for other in to.history(version.name, version.tenant))


def _same(a: Version, b: Version) -> bool:
    return (a.leaf, a.time, a.labels, a.kind, a.target) == (b.leaf, b.time, b.labels, b.kind, b.target)


def _commit(source: Archive, batch: Sequence[tuple[Version, Tower]], to: Archive) -> Iterator[Copied]:
    """Put a batch, read it back, compare. Raises as `copy`."""
    receipts = to.put([_new_session(source, tower, to.codecs) for _, tower in batch])
    for (version, tower), receipt in zip(batch, receipts, strict=True):
        history = to.history(version.name, version.tenant)
        found = to.tower(next(v for v in history if v.id == receipt.version))
        if not np.array_equal(found.tokens, tower.tokens):
            raise ArchiveError(
                f"version {version.number} of {version.name!r} does not read back from the copy: verify it"
            )
        yield Copied(version, False, receipt)


def _new_session(source: Archive, tower: Tower, codecs: Sequence[SegmentCodec]) -> NewSession:
    version = tower.version
    shared, base = base_of(source, tower)
    return NewSession(
        version.name,
        [tokens for _, tokens in tower.segments],
        version.tenant,
        shared,
        base or "base",
        version.labels,
        KINDS[version.kind],
        None if version.target == NONE else version.target,
        version.time,
        _codec(version, codecs),
    )


def _codec(version: Version, codecs: Sequence[SegmentCodec]) -> int:
    """Number of the first codec that takes a version's tokens. Raises BundleMismatch."""
    for number, codec in enumerate(codecs):
        if codec.tokenizer == version.tokenizer:
            return number
    raise BundleMismatch(
        f"no bundle at hand has tokenizer {version.tokenizer.hex()}, which {version.name!r} needs: name it (--bundle)"
    )
