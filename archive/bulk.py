"""Bulk work on many machines: verify, repair, collect, merge, copy, put. Shards take the archive's own calls.

    recipe = ArchiveRecipe("s3://bucket/cold", {"bundle": "mini"})
    report = verify(recipe.open(), recipe, spread, decode=True)     # as Archive.verify, by the workers of `spread`

A worker opens the archive by the recipe and calls what a single machine calls: `Verifier.check`,
`Repairer.unsound`, `Collector.count`, `Clusterer.chosen`, `Merger.merge`, `copy.copy`, `Archive.put_many`. The
coordinator cuts the work into shards and puts the results together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pltz.archive.archive import Archive
from pltz.archive.catalog.freshness import Token, rolled_back
from pltz.archive.copy import copy as copy_here
from pltz.archive.format import object_names
from pltz.archive.format.settings import Settings
from pltz.archive.maintenance import bulk_checked
from pltz.archive.maintenance.bulk_journal import Result
from pltz.archive.maintenance.bulk_shards import Shard, ShardWork, Spread, cut, shard_name
from pltz.archive.maintenance.merge import Merged
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.places import open_store
from pltz.archive.writing.put_request import PutReceipt, PutRequest
from pltz.datasets.given import as_session
from pltz.models.session.session import content_bytes
from pltz.plt_codec.errors import ContentError, PltzError

if TYPE_CHECKING:
    from pltz.archive.catalog.lookup import Version
    from pltz.archive.maintenance.collect import Collected
    from pltz.archive.maintenance.verify import CheckedPacks, Report
    from pltz.archive.writing.commits import Refused

SHARDS = 512  # that a command makes of what there is, about
VERSIONS = 64  # in a shard, at least
PUT_BYTES, PUT_SESSIONS = 1 << 20, 1024  # content and sessions in a shard of a put
PUT_NAMES = 1 << 17  # names met before a put waits for all that is under way


@dataclass(frozen=True)
class ArchiveRecipe:
    """The way to open an archive on any machine. It pickles, and keys travel with it to the workers.

    ``options``: arguments of `Archive.open`.
    """

    place: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Archive:
        """Open the archive. Raises the errors of `Archive.open`."""
        return Archive.open(self.place, **self.options)


def _whole(place: str) -> str:
    """Return a place by which results are known: those of an archive say nothing of its copy in another folder."""
    return place if "://" in place else os.path.realpath(place)


def _decoders(cold: Archive) -> list[str]:
    """Return what it depends on which records can be decoded: bundles and keys."""
    codecs = [codec.tokenizer.hex() + codec.bundle_id.hex() for codec in cold.codecs.registry]
    return codecs + sorted(cold.parts.store.list(object_names.KEYS))


# ---- verify


@dataclass(frozen=True)
class VerifyTask:
    """Check packs."""

    recipe: ArchiveRecipe
    decode: bool

    def open(self) -> ShardWork:
        verifier = self.recipe.open().verifier(self.decode)
        return lambda packs: bulk_checked.packed(verifier.check(packs, self.decode))


def verify(
    cold: Archive,
    recipe: ArchiveRecipe,
    spread: Spread,
    *,
    decode: bool = False,
    fraction: float = 1.0,
    expect: str | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Verify an archive as `Archive.verify` does. Packs are checked by workers, all else here.

    A shard of the journal stands for its packs where these and the indexes that cover them are the same.
    """
    verifier = cold.verifier(decode)

    def elsewhere(packs: Sequence[bytes]) -> Iterator[CheckedPacks]:
        listing = verifier.catalog.listing
        state = [_whole(recipe.place), cold.parts.settings.archive.hex(), str(decode)]
        if decode:
            state += _decoders(cold)
        covers: dict[bytes, list[str]] = {}
        for name in sorted(listing.indexes):
            for pack in listing.indexes[name].names:
                covers.setdefault(pack, []).append(name)
        shards = (
            Shard(
                shard_name("verify", *state, *(pack.hex() + ",".join(covers.get(pack, ())) for pack in run)), list(run)
            )
            for run in cut(packs, lambda pack: pack, max(1, len(packs) // SHARDS))
        )
        for _, result in spread.results(VerifyTask(recipe, decode), shards):
            yield bulk_checked.unpacked(result)

    return verifier.run(
        decode=decode,
        fraction=fraction,
        expect=None if expect is None else Token.parse(expect),
        progress=progress,
        elsewhere=elsewhere,
    )


# ---- repair


@dataclass(frozen=True)
class RepairTask:
    """Find the packs that repair has work with."""

    place: str
    settings: Settings

    def open(self) -> ShardWork:
        repairer = Repairer(open_store(self.place))
        return lambda packs: {"unsound": [pack.hex() for pack in repairer.unsound(packs, self.settings)]}


def unsound(place: str, spread: Spread) -> Callable[[Sequence[bytes], Settings], Iterator[bytes]]:
    """Return what finds packs that are not sound by workers, for `Repairer.run`, which repairs them here."""

    def found(packs: Sequence[bytes], settings: Settings) -> Iterator[bytes]:
        shards = (
            Shard(shard_name("repair", _whole(place), settings.archive.hex(), str(settings.parity), *run), list(run))
            for run in cut(packs, lambda pack: pack, max(1, len(packs) // SHARDS))
        )
        for _, result in spread.results(RepairTask(place, settings), shards):
            yield from map(bytes.fromhex, result["unsound"])

    return found


# ---- collect


@dataclass(frozen=True)
class CountTask:
    """Read the records of packs for a census."""

    recipe: ArchiveRecipe

    def open(self) -> ShardWork:
        return self.recipe.open().collector().count


def collect(
    cold: Archive, recipe: ArchiveRecipe, spread: Spread, *, grace: int = 0, dry_run: bool = False
) -> Collected:
    """Collect as `Archive.collect` does. Packs are read by workers, all else is done here.

    A shard of the journal stands for its packs as long as nothing is erased.
    """

    def elsewhere(packs: Sequence[bytes]) -> Iterator[Result]:
        parts = cold.parts
        keys = sorted(parts.store.list(object_names.KEYS)) if parts.settings.sealed else []
        state = [_whole(recipe.place), parts.settings.archive.hex(), *keys]
        runs = cut(packs, lambda pack: pack, max(1, len(packs) // SHARDS))
        shards = (Shard(shard_name("collect", *state, *run), list(run)) for run in runs)
        for _, result in spread.results(CountTask(recipe), shards):
            yield result

    return cold.collector().run(grace=grace, dry_run=dry_run, elsewhere=elsewhere)


# ---- merge


@dataclass(frozen=True)
class MergeTask:
    """Merge some sessions."""

    recipe: ArchiveRecipe
    dry_run: bool

    def open(self) -> ShardWork:
        cold = self.recipe.open()
        merger = cold.merger()

        def work(sessions: Sequence[tuple[str, str]]) -> Result:
            done = merger.merge(sessions, dry_run=self.dry_run)
            return {"merged": asdict(done), "token": "" if self.dry_run else cold.token()}

        return work


def merge(
    cold: Archive,
    recipe: ArchiveRecipe,
    spread: Spread,
    *,
    age: int,
    tenant: str | None = None,
    dry_run: bool = False,
    progress: Callable[[Merged], None] | None = None,
) -> Merged:
    """Merge sessions of this ``age`` in seconds as `Archive.merge` does, each by one worker.

    Whether merges of a tenant pay with the tables that they need is told for each shard.
    """

    def elsewhere(histories: Iterable[list[Version]]) -> Iterator[Merged]:
        state = [_whole(recipe.place), cold.parts.settings.archive.hex(), *_decoders(cold)]
        rows = [(history[0].tenant, history[0].name, history[-1].id) for history in histories]
        runs = cut(rows, lambda row: row[2], max(VERSIONS, len(rows) // SHARDS))
        shards = (
            Shard("" if dry_run else shard_name("merge", *state, repr(run)), [(t, name) for t, name, _ in run])
            for run in runs
        )
        for _, result in spread.results(MergeTask(recipe, dry_run), shards, lambda r: _still_there(cold, r)):
            yield Merged(**result["merged"])

    return cold.merger().run(cold=age, tenant=tenant, dry_run=dry_run, progress=progress, elsewhere=elsewhere)


# ---- copy


class CopiedAs(NamedTuple):
    """The version that a copy became. ``size``: bytes of its new segments."""

    version: int
    size: int


@dataclass(frozen=True)
class CopiedVersion:
    """A version and its result in the other archive, as `copy.Copied`."""

    version: Version
    there: bool
    receipt: CopiedAs | None
    erased: bool


@dataclass(frozen=True)
class CopyTask:
    """Copy the versions of some sessions."""

    source: ArchiveRecipe
    to: ArchiveRecipe
    dry_run: bool

    def open(self) -> ShardWork:
        source, other = self.source.open(), self.to.open()
        source.load()
        other.load()

        def work(versions: Sequence[Version]) -> Result:
            source.parts.catalog.refresh()
            rows = []
            for done in copy_here(source.parts, versions, other.parts, dry_run=self.dry_run):
                receipt = done.receipt and [done.receipt.version, done.receipt.size]
                rows.append([done.version.id.hex(), done.there, done.erased, receipt])
            return {"rows": rows, "token": other.token()}

        return work


def copy(
    source: ArchiveRecipe,
    versions: Iterable[Version],
    to: ArchiveRecipe,
    other: Archive,
    spread: Spread,
    *,
    dry_run: bool = False,
) -> Iterator[CopiedVersion]:
    """Copy versions as `copy.copy` does, those of a session by one worker; yield each one's result.

    ``other``: the archive of ``to``. Segments that sessions of two shards share may be stored by both.
    """
    sessions = [list(rows) for _, rows in groupby(versions, key=lambda v: (v.tenant, v.name))]
    archive = other.parts.settings.archive.hex()
    several = max(VERSIONS, len(sessions) // SHARDS)
    runs = ([v for rows in run for v in rows] for run in cut(sessions, lambda rows: rows[0].id, several))
    shards = (
        Shard("" if dry_run else shard_name("copy", archive, *(v.id for v in run)), run)
        for run in runs
    )
    task = CopyTask(source, to, dry_run)
    for shard, result in spread.results(task, shards, lambda result: _still_there(other, result)):
        by_id = {version.id.hex(): version for version in shard.content}
        for name, there, erased, receipt in result["rows"]:
            yield CopiedVersion(by_id[name], there, CopiedAs(*receipt) if receipt else None, erased)


# ---- put


@dataclass(frozen=True)
class PutTask:
    """Put some sessions."""

    recipe: ArchiveRecipe
    options: Mapping[str, Any]

    def open(self) -> ShardWork:
        cold = self.recipe.open()
        cold.load()

        def work(requests: Sequence[PutRequest]) -> Result:
            numbers = {id(request): number for number, request in enumerate(requests)}
            refused: list[list[Any]] = []

            def refuse(request: PutRequest, error: PltzError) -> None:
                refused.append([numbers[id(request)], str(error)])

            receipts = [_fields(r) for r in cold.put_many(requests, refused=refuse, **self.options)]
            return {"receipts": receipts, "refused": refused, "token": cold.token() if receipts else ""}

        return work


@dataclass
class SpreadPuts:
    """Puts by the workers of a cluster, with the calls of `Archive` that `pltz archive put` makes.

    ``cold``: the archive of ``recipe``, to look whether what a journal says is still there.
    """

    cold: Archive
    recipe: ArchiveRecipe
    spread: Spread
    _token: str = ""

    def put_many(
        self,
        requests: Iterable[PutRequest],
        *,
        keep_opaque: bool = False,
        dry_run: bool = False,
        refused: Refused | None = None,
        **pace: Any,
    ) -> Iterator[PutReceipt]:
        """Put sessions as `Archive.put_many` does, of one name by one worker at a time, and yield each receipt.

        ``pace``: ``commit_bytes`` and ``commit_seconds``; others are of no use here. Segments that sessions of two
        shards share may be stored by both.
        """
        how: dict[str, Any] = {"keep_opaque": keep_opaque, "dry_run": dry_run}
        how |= {key: pace[key] for key in ("commit_bytes", "commit_seconds") if key in pace}
        task = PutTask(self.recipe, how)
        shards = self._shards(requests, keep_opaque, dry_run)
        for shard, result in self.spread.results(task, shards, lambda result: _still_there(self.cold, result)):
            self._token = result["token"] or self._token
            for number, why in result["refused"]:
                if refused is None:
                    raise ContentError(why)
                refused(shard.content[number], ContentError(why))
            yield from map(_receipt, result["receipts"])
        self.cold.parts.catalog.refresh()
        self._token = self.cold.token()

    def token(self) -> str:
        """Return a token of an archive that has what was put so far."""
        return self._token

    def _shards(self, requests: Iterable[PutRequest], keep_opaque: bool, dry_run: bool) -> Iterator[Shard]:
        state = [self.cold.parts.settings.archive.hex(), str(keep_opaque)]
        rows, size, barrier = list[PutRequest](), 0, False
        names, met = set[tuple[str, str]](), set[tuple[str, str]]()  # of this shard, of those before it

        def shard() -> Shard:
            name = "" if dry_run else shard_name("put", *state, *map(_identity, rows))
            return Shard(name, list(rows), barrier)

        for request in requests:
            rows.append(request)
            names.add((request.tenant, request.name))
            size += content_bytes(as_session(request.session))
            if size >= PUT_BYTES or len(rows) >= PUT_SESSIONS:
                # a name is put by one worker at a time, in order
                barrier = not met.isdisjoint(names) or len(met) > PUT_NAMES
                yield shard()
                met = set(names) if barrier else met | names
                rows, size, names = [], 0, set()
        if rows:
            barrier = not met.isdisjoint(names)
            yield shard()


def _identity(request: PutRequest) -> bytes:
    """Return a digest of a session and of all that is put with it."""
    session = as_session(request.session)
    how: list[object] = [request.name, request.tenant, sorted(request.tags.items()), request.base, request.time]
    how += [request.continues, list(request.prefixes), request.parent, request.salt, request.tokenizer]
    if session.kind == "chat":
        value = json.dumps([session.value, session.writing]).encode()
    else:
        value = session.value if session.kind == "text" else session.value.tobytes()
    return shard_name(repr(how), session.kind, value).encode()


def _fields(receipt: PutReceipt) -> dict[str, Any]:
    found = dict(vars(receipt))
    return found | {"id": receipt.id.hex(), "target": receipt.target.hex() if receipt.target else None}


def _receipt(fields: Mapping[str, Any]) -> PutReceipt:
    target = bytes.fromhex(fields["target"]) if fields["target"] else None
    return PutReceipt(**{**fields, "id": bytes.fromhex(fields["id"]), "target": target})


def _still_there(cold: Archive, result: Result) -> bool:
    """Return whether an archive is not older than when a shard was finished."""
    return not result["token"] or rolled_back(cold.parts.catalog, Token.parse(result["token"])) is None
