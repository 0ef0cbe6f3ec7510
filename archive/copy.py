"""Copy sessions from one archive to another: towers, names, tags, times, targets and histories.

A version keeps its moment and its time, so it has its place among those that the other archive has. A segment keeps its
place in the tower and its domain, so shared segments stay shared. With the same tokenizer it also keeps its id. The
other archive codes with its own codecs, so a copy also moves an archive to another bundle of the same tokenizer.

A version is copied when the other archive has none with its id. A sealed archive has ids of its own; there the version
is read, and the writer finds that it would put it again. So a killed copy is simply run again, and running it twice
adds nothing. Each commit is read back from the other archive and compared token by token before it is reported.

A hold on what is copied is placed in the other archive too, before anything of it is there, with its time, actor and
reason. A version that a collector moves is looked up again. A version erased since it was listed is skipped and
reported, and so is one of a session that the other archive erased.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pltz.archive.author import Author
from pltz.archive.catalog.holds import LegalHold
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import Tower
from pltz.archive.errors import ArchiveError, LostError, NotFound
from pltz.archive.format.ids import TENANT, Tokens
from pltz.archive.format.index_file import key_of_session
from pltz.archive.format.object_names import MANIFEST
from pltz.archive.opener import OpenArchive
from pltz.archive.writing.commits import COMMIT_SESSIONS
from pltz.archive.writing.new_session import CommitReceipt, NewSession, Slices
from pltz.archive.writing.put_request import PutReceipt
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import SegmentCodec, as_bytes
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.coding.log.recall import Passages
from pltz.models.session.session import kind_of, writing_in
from pltz.plt_codec.errors import BundleMismatch, FormatError, PltzError
from pltz.plt_codec.identity import NONE

AT_ONCE = 64  # versions decoded together
COMMIT_TOKENS = 1 << 20  # tokens of the sessions of one commit


@dataclass(frozen=True)
class Copied:
    """A version and its result in the other archive.

    ``receipt``: None where the version was there, or would be copied in a dry run, or was ``erased`` here
    since it was listed, or there before, or was forgotten and collected, or where it is ``lost``: cannot be read here.
    """

    version: Version
    there: bool
    receipt: CommitReceipt | PutReceipt | None
    erased: bool = False
    lost: PltzError | None = None


def copy(
    source: OpenArchive, versions: Iterable[Version], to: OpenArchive, *, dry_run: bool = False
) -> Iterator[Copied]:
    """Copy versions and yield each one's result; yielded versions are durable and were compared.

    ``versions``: as `SessionDirectory.ls` or `find` lists them, histories oldest first, with all parts.

    Raises:
        BundleMismatch: an archive was not opened with a codec of the version's tokenizer.
        StoreError, WriterFailed, Fenced: as `Archive.put`.
        ArchiveError: a copy does not read back.
    """
    to.catalog.refresh()  # once: `put` finds versions put there meanwhile
    holds = source.catalog.holds.all() if source.catalog.holds.rows else []
    batch: list[tuple[Tower, NewSession]] = []
    names: set[tuple[str, str, str]] = set()
    tokens = 0
    rest = _each(versions)
    while some := list(itertools.islice(rest, AT_ONCE)):
        source.keys.refresh()  # do not copy content erased meanwhile
        # versions that are there are not read
        for version in (buried := [v for v in some if to.keys.buried(to.keys.domain(TENANT, v.tenant), v.name)]):
            yield Copied(version, False, None, erased=True)
        some = [v for v in some if v not in buried]
        if not dry_run:
            holds = _carried(holds, some, to)
        there = _there(source, some, to, dry_run)
        if there:
            to.store.settle(MANIFEST)  # its writer may be between link and fsync
        yield from (Copied(v, v.id in there, None) for v in some if dry_run or v.id in there)
        wanted = [v for v in some if not dry_run and v.id not in there]
        for version, found in zip(wanted, _sessions(source, wanted, to.codecs), strict=True):
            if found is None or isinstance(found, FormatError):
                yield Copied(version, False, None, erased=found is None, lost=found)
                continue
            # a commit holds one version of a part of a session, and is bounded
            tower = found[0]
            name = version.tenant, version.name, version.part
            full = tokens >= COMMIT_TOKENS or len(batch) >= COMMIT_SESSIONS
            if batch and (full or name in names):
                yield from _commit(batch, to)
                batch, names, tokens = [], set(), 0
            batch.append(found)
            names.add(name)
            tokens += len(tower.tokens)
    if batch:
        yield from _commit(batch, to)


def _carried(holds: Sequence[LegalHold], versions: Sequence[Version], to: OpenArchive) -> list[LegalHold]:
    """Place those of some holds on versions in the other archive that it has not; return the others."""
    left = list[LegalHold]()
    for hold in holds:
        if not any(hold.covers(v.tenant, v.name, [v.tags]) for v in versions):
            left.append(hold)
        elif hold[1:] not in [known[1:] for known in to.catalog.holds.all()]:
            author = Author(hold.actor, hold.reason)
            to.catalog.holds.place(author, tenant=hold.tenant, name=hold.name, tag=hold.tag, time=hold.time)
    return left


def _each(versions: Iterable[Version]) -> Iterator[Version]:
    """Yield the versions of the parts of whole sessions, each once."""
    for _, session in itertools.groupby(versions, key=lambda v: (v.tenant, v.name)):
        yield from {v.id: v for whole in session for v in whole.each}.values()


def _sessions(
    source: OpenArchive, versions: Sequence[Version], codecs: CodecRegistry
) -> Iterator[tuple[Tower, NewSession] | FormatError | None]:
    """Yield each version's tower and the session to put, in order; None where it was erased, an error where it is lost.

    Raises the errors of `copy`.
    """
    for version, tower in zip(versions, _all_towers(source, versions), strict=True):
        try:
            yield _session(source, version, tower, codecs)
        except FormatError as exc:
            yield exc


def _all_towers(source: OpenArchive, versions: Sequence[Version]) -> Sequence[Tower | None]:
    """Return all towers, decoded together; None for each where any of them cannot be read as listed."""
    try:
        return source.reader.towers(versions)
    except PltzError:
        return [None] * len(versions)


def _session(
    source: OpenArchive, version: Version, tower: Tower | None, codecs: CodecRegistry
) -> tuple[Tower, NewSession] | None:
    """Return a version's tower and the session to put; None where it was erased."""
    with suppress(LostError, NotFound):
        read = source.reader.tower(version) if tower is None else tower
        return read, _new_session(source, read, codecs)
    source.catalog.refresh()  # a collector may have moved it since it was listed
    if _erased(source, version):
        return None
    read = source.reader.tower(version)
    return read, _new_session(source, read, codecs)


def _erased(source: OpenArchive, version: Version) -> bool:
    """Return whether a listed version was erased since, or forgotten and collected.

    The proof is that its record is there and its key is not, or that a collector deleted the pack, and that no other
    record of it is left: an erase of another session may have moved it.
    """
    catalog, pack = source.catalog, version.location.pack
    if pack in catalog.listing.packs:
        try:
            item = catalog.lookup.head(version.location)
            if not catalog.keys.gone(item.context, key_of_session(item.record, item.context)):
                return False
        except FileNotFoundError:
            catalog.refresh()
        except FormatError:
            return False
    if pack in catalog.listing.missing():
        return False
    return all(known.id != version.id for known in source.directory.sight(version.name, version.tenant).versions)


def _there(source: OpenArchive, versions: Sequence[Version], to: OpenArchive, dry_run: bool) -> set[bytes]:
    """Return the ids of the versions that the other archive has. Of a sealed one a dry run alone tells, by their facts.

    Two versions of a part with the same facts were put at one moment, so this is exact but for such.
    """
    there, sealed = set[bytes](), source.settings.sealed or to.settings.sealed
    for version in () if sealed and not dry_run else versions:
        known = to.catalog.lookup.versions(to.keys.domain(TENANT, version.tenant), version.name)
        if any(_facts(v) == _facts(version) if sealed else v.id == version.id for v in known):
            there.add(version.id)
    return there


def _facts(version: Version) -> tuple[str, int, int, dict[str, str], int, bytes, bytes]:
    return version.part, version.moment, version.time, version.tags, version.kind, version.target, version.tokenizer


def _commit(batch: Sequence[tuple[Tower, NewSession]], to: OpenArchive) -> Iterator[Copied]:
    """Put a batch, read it back and compare it. Raises the errors of `copy`."""
    receipts = to.writer.put([session for _, session in batch])
    for begin in range(0, len(batch), AT_ONCE):
        part = list(zip((tower for tower, _ in batch), receipts, strict=True))[begin : begin + AT_ONCE]
        copies = to.reader.towers([_put(tower.version, receipt, to) for tower, receipt in part])
        for (tower, receipt), found in zip(part, copies, strict=True):
            version = tower.version
            if not np.array_equal(found.tokens, tower.tokens):
                raise ArchiveError(
                    f"version {version.version} of {version.name!r} does not read back from the copy: verify it"
                )
            yield Copied(version, receipt.unchanged, None if receipt.unchanged else receipt)


def _put(version: Version, receipt: CommitReceipt, to: OpenArchive) -> Version:
    """Return the version of a receipt, as the other archive lists it. Raises ArchiveError."""
    known = to.catalog.lookup.versions(to.keys.domain(TENANT, version.tenant), version.name)
    found = next((v for v in known if v.id == receipt.id), None)
    if found is None:
        raise ArchiveError(f"{receipt.name!r} was erased or collected from the copy while it was made: copy again")
    return found


def _new_session(source: OpenArchive, tower: Tower, codecs: CodecRegistry) -> NewSession:
    version = tower.version
    shared, base = source.reader.base_of(tower)
    segments: Sequence[Tokens] = [tokens for _, tokens in tower.segments]
    if version.tokenizer == LOG_TOKENIZER:
        content, ends = b"".join(map(as_bytes, segments)), [*itertools.accumulate(map(len, segments))]
        segments = Slices(content, 0, ends, Passages(content))
    return NewSession(
        version.name,
        segments,
        tenant=version.tenant,
        shared=shared,
        base=base or "base",
        tags=version.tags,
        kind=kind_of(version.kind),
        writing=writing_in(version.kind),
        target=None if version.target == NONE else version.target,
        time=version.time,
        moment=version.moment,
        codec=_codec(version, codecs),
        part=version.part,
        content=version.content,
    )


def _codec(version: Version, codecs: CodecRegistry) -> SegmentCodec:
    """Return the first codec that takes a version's tokens. Raises BundleMismatch."""
    for codec in codecs:
        if codec.tokenizer == version.tokenizer:
            return codec
    raise BundleMismatch(
        f"no bundle at hand has tokenizer {version.tokenizer.hex()}, which {version.name!r} needs: name it (--bundle)"
    )
