"""Merge: rewrite the own chain of segments of a session that has gone cold as one run. Spec: FORMAT.md, "Runs".

    prompt <- turn 1 <- turn 2 <- turn 3        prompt <- [turn 1, turn 2, turn 3; versions 1, 2, 3]
              version 1  version 2  version 3

Segments keep their ids and versions theirs, so a reader notices nothing but the time that it saves. A segment that
another session has too, or that is in a base domain, is no part of a run. The run is decoded and compared before it
is put, and every version is read back through it afterwards. The records that it replaces die, and `collect` frees
them. A session whose run would be larger than the records that it replaces is left as it is.

A crash leaves the run of a commit or nothing of it. A second merge of the same session does nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains, KnownSegment
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import ATTEMPTS, Found
from pltz.archive.catalog.lookup import Version, older_versions, version_of
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.errors import ArchiveError, Fenced
from pltz.archive.format.context import RUN, WITHIN, Context
from pltz.archive.format.ids import TENANT, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import Record, pack_tags
from pltz.archive.format.run import MAX_RUN, OlderVersion, Run, pack_run
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, layout_mode, ways_of
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import FormatError, PltzError
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.limits import MAX_TOKENS

COMMIT_TOKENS = 1 << 20  # tokens of runs put at once
COLD = 7 * 86400  # seconds after its last version at which a session counts as cold
FIXED = 11  # bytes at least of a record beside bitstring, name and tags, without those of the index
TABLES = 2  # copies of the table of contexts in a pack
NO_TOKENS: Tokens = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Merged:
    """The result of a merge so far.

    Attributes:
        sessions: number of sessions looked at that are cold.
        merged: number of those rewritten, or in a dry run, that would be.
        segments: number of segments in their runs.
        before, after: bytes of the records replaced, and of those that replace them.
    """

    sessions: int = 0
    merged: int = 0
    segments: int = 0
    before: int = 0
    after: int = 0





@dataclass(frozen=True)
class _Chain:
    """A session's own chain. ``items``: the records from the leaf up; ``versions``: all, forgotten ones too."""

    items: list[Found]
    versions: list[Version]

    @property
    def staying(self) -> list[Version]:
        """Return the versions that are not forgotten."""
        return [version for version in self.versions if not version.forgotten]


@dataclass(frozen=True)
class PlannedRun:
    """A run to put: its rows, its versions and the segments of each of them, which share their tokens.

    ``before``, ``replaced``: bytes and contexts of the records that die by it. ``known``: segments that need not be
    decoded to read its versions back.
    """

    rows: list[tuple[Context, Record]]
    towers: list[tuple[Version, Segments]]
    segments: int
    tokens: int
    before: int = 0
    after: int = 0
    replaced: Sequence[Context] = ()
    known: Mapping[bytes, KnownSegment] = field(default_factory=dict)


class Merger:
    """One merge. Several may run at once beside writers and collectors: equal runs are equal records."""

    def __init__(
        self, catalog: Catalog, writer: ArchiveWriter, codecs: CodecRegistry, indexes: IndexKeeper
    ) -> None:
        self.catalog, self.writer, self.codecs, self.indexes = catalog, writer, codecs, indexes
        self._owners: dict[bytes, bytes] = {}  # segment -> its session's key, NONE where several have it

    def run(
        self,
        *,
        cold: int = COLD,
        tenant: str | None = None,
        dry_run: bool = False,
        progress: Callable[[Merged], None] | None = None,
    ) -> Merged:
        """Merge every cold session and return what was done.

        Args:
            cold: least age of a session's newest version, in seconds.
            tenant: merge only sessions of this tenant.
            dry_run: only report the work to do.
            progress: called with the result so far, after each session.

        Raises:
            ArchiveError: packs are damaged or gone, so it is not known which segments sessions share.
            Fenced: something of a tenant was erased meanwhile; merge again.
            StoreError, WriterFailed: the store failed. Runs put before stay.
        """
        self.catalog.refresh()
        self._want_sight()
        done = self._merged(self._cold(cold, tenant), dry_run, progress)
        if done.merged and not dry_run:
            self.indexes.write_if_due()
        return done

    def _merged(
        self, histories: Iterable[list[Version]], dry_run: bool, progress: Callable[[Merged], None] | None
    ) -> Merged:
        """Merge sessions with these versions. Arguments and errors as of `run`."""
        done, batch = Merged(), list[PlannedRun]()
        for sessions, run in self._runs(histories):
            done = replace(done, sessions=sessions)
            batch += [run] if run else []
            if sum(r.tokens for r in batch) >= COMMIT_TOKENS:
                done, batch = self._commit(done, batch, dry_run), []
            if progress:
                progress(done)
        return self._commit(done, batch, dry_run)

    def _want_sight(self) -> None:
        """Check that no damage is known that may hide versions. Raises ArchiveError."""
        if self.catalog.damage.hiding():
            raise ArchiveError(
                "packs are damaged, gone or lost, so what sessions share is not known: repair first; "
                "where repair gives up, pltz archive repair --acknowledge"
            )

    def _commit(self, done: Merged, batch: Sequence[PlannedRun], dry_run: bool) -> Merged:
        """Put those of the runs that are worth it. Raises the errors of `run`."""
        batch = _worth(batch, self._uses)
        if batch and not dry_run:
            batch = self.put(batch)
        return replace(
            done,
            merged=done.merged + len(batch),
            segments=done.segments + sum(run.segments for run in batch),
            before=done.before + sum(run.before for run in batch),
            after=done.after + sum(run.after for run in batch),
        )

    def put(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Put runs, read their versions back through them and compare; return those that were put.

        One is left out of which a version was forgotten or collected since: with the run it would come back. For that
        nothing is put where a collector published a plan after the last look. Raises the errors of `run`.
        """
        listing, runs = self.catalog.listing, list(runs)
        for turn in range(ATTEMPTS):
            if not listing.follow():  # keys stay as of the last look, since `check` has to find that they changed
                listing.read()
            listing.new_plans()
            epoch = listing.epoch
            runs = [run for run in runs if listing.stable(partial(self._stands, run))]
            rows = [row for run in runs for row in run.rows]
            if not rows:
                return []
            try:
                self.writer.copy(((c, self.catalog.keys.seal(c, record)) for c, record in rows), epoch=epoch)
                break
            except Fenced:
                if turn + 1 == ATTEMPTS:
                    raise
        self.catalog.keys.check({context.domain for context, _ in rows})
        for run in runs:
            listing.stable(partial(self._read_back, run))
        return runs

    def _stands(self, run: PlannedRun) -> bool:
        """Return whether all versions of a run are there and not forgotten."""
        there = {version.id for version in self._versions(run) if not version.forgotten}
        return all(version.id in there for version, _ in run.towers)

    def _versions(self, run: PlannedRun) -> list[Version]:
        newest = run.towers[-1][0]
        return self.catalog.lookup.versions(self.catalog.keys.domain(TENANT, newest.tenant), newest.name)

    def _uses(self) -> Counter[bytes]:
        """Return the number of records of each context, dead ones and copies included; nothing where a pack vanished.

        Only heads of blocks are read. Raises StoreError.
        """
        uses = Counter[bytes]()
        for pack in list(self.catalog.listing.packs):
            try:
                opened = self.catalog.listing.opened(pack)
                encoded = [context.encode() for context in opened.head.contexts]
                for number, count in opened.uses().items():
                    uses[encoded[number]] += count
            except (FileNotFoundError, FormatError):
                return Counter()
        return uses

    def _read_back(self, run: PlannedRun) -> None:
        """Look a session up as a reader would, and compare all its versions. Raises ArchiveError."""
        found = {v.id: v for v in self._versions(run)}
        chains = Chains(self.catalog, self.codecs, run.known)
        for version, tower in run.towers:
            if not _equal(chains.version(found.get(version.id, version)), tower):
                raise ArchiveError(
                    f"version {version.version} of {version.name!r} does not read back from its run: verify the "
                    "archive, and do not collect before"
                )

    def _cold(self, cold: int, tenant: str | None) -> Iterator[list[Version]]:
        """Yield the versions of each cold session."""
        latest = self.catalog.store.now() - cold
        for history in self.catalog.lookup.histories():
            staying = [v for v in history if not v.forgotten]
            if staying and staying[-1].time <= latest and tenant in (None, history[0].tenant):
                yield history

    def _runs(self, histories: Iterable[list[Version]]) -> Iterator[tuple[int, PlannedRun | None]]:
        """Yield the number of sessions seen so far, and the run of each that is worth one.

        A collector may delete packs meanwhile. Who owns what is then looked at again, and a session before its run.
        """
        listing = self.catalog.listing
        seen = listing.stable(self._own_all)
        self._want_sight()  # all heads are read by now
        for sessions, history in enumerate(histories, 1):
            yield sessions, listing.stable(partial(self._planned, history, seen))

    def _planned(self, history: list[Version], seen: int) -> PlannedRun | None:
        """Return the run of a session, None where it is not worth one.

        ``seen``: the listing's staleness when the history was read. Raises FileNotFoundError where a collector deleted
        a pack meanwhile.
        """
        if self.catalog.listing.staleness != seen:  # some of its versions may lie elsewhere now
            tenant, name = history[0].tenant, history[0].name
            history = self.catalog.lookup.versions(self.catalog.keys.domain(TENANT, tenant), name)
        staying = [v for v in history if not v.forgotten]
        late = any(v.late or v.hidden for v in history)  # a copy would not tell it
        chain = self._chain(staying[-1].leaf, history) if staying and not late else None
        return self._run(chain) if chain else None

    def _own_all(self) -> int:
        """Note whose segments those of all sessions are, and return the listing's staleness before."""
        seen = self.catalog.listing.staleness
        self._owners.clear()
        for history in self.catalog.lookup.histories():
            self._own(history)
        return seen

    def _own(self, history: Sequence[Version]) -> None:
        """Note whose segments those of a session are, forgotten versions included."""
        key = self._key(history[0])
        todo = [version.leaf for version in history]
        while todo:
            at = todo.pop()
            owner = self._owners.get(at)
            if at == NONE or owner in (key, NONE):
                continue
            self._owners[at] = key if owner is None else NONE
            for item in self.catalog.lookup.find(SEGMENTS, at):
                todo.append(item.record.parent)

    def _key(self, version: Version) -> bytes:
        keys = self.catalog.keys
        return keys.session_key(keys.domain(TENANT, version.tenant), version.name)

    def _chain(self, leaf: bytes, versions: list[Version]) -> _Chain | None:
        """Return the own chain of a session from a leaf up; None where it is one record already."""
        key, items, at = self._key(versions[-1]), list[Found](), leaf
        while at != NONE and self._owners.get(at) == key and len(items) < MAX_RUN:
            item = next(iter(self.catalog.lookup.find(SEGMENTS, at)), None)
            if item is None or (items and _codec(item) != _codec(items[0])) or self._going(item):
                break
            items.append(item)
            at = item.record.parent
        if sum(item.context.mode != WITHIN for item in items) < 2:
            return None
        return _Chain(items, versions)

    def _going(self, item: Found) -> bool:
        """Return whether a segment is in a base domain, or is being erased."""
        return item.context.domain_kind != TENANT or self.catalog.keys.doomed(item.context, item.record.id or NONE)

    def _run(self, chain: _Chain) -> PlannedRun | None:
        """Return the run of a chain, proved to decode; None where it would be larger or cannot be read."""
        codec = self.codecs.for_context(chain.items[0].context)
        chains = Chains(self.catalog, self.codecs)
        try:
            towers = {v.id: chains.version(v) for v in chain.staying}
        except FormatError:  # verify reports it
            return None
        if codec is None:
            return None
        tower = towers[chain.staying[-1].id]
        parent = chain.items[-1].record.parent
        names = [name for name, _ in tower]
        first = names.index(parent) + 1 if parent != NONE else 0
        inside = names[first:]
        parts = [tokens for _, tokens in tower[first:]]
        tokens = np.concatenate(parts)
        if not 2 <= len(inside) <= MAX_RUN or len(tokens) > MAX_TOKENS:
            return None
        mode, data = encoded(codec, tokens, _tokens(tower[:first]))
        content = Run([len(part) for part in parts], [], data)
        for version in chain.versions:
            if version.forgotten:  # it can be undeleted as long as it is there, so a segment outside keeps its parent
                with suppress(PltzError):
                    towers[version.id] = chains.version(version)
        rows, moved = self.rows(chain.staying, towers, inside, parent, content, mode, chain.items[0].context)
        # the run is put only where it is no larger than the records it replaces
        replaced = self._replaced(chain, inside, moved)
        before = sum(_size(item.record) for item in replaced)
        after = sum(_size(self.catalog.keys.seal(context, record)) for context, record in rows)
        if after > before:
            return None
        own = [(v, towers[v.id]) for v in chain.staying]
        contexts = [item.context for item in replaced]
        return PlannedRun(rows, own, len(inside), len(_tokens(tower)), before, after, contexts)

    def rows(
        self,
        staying: Sequence[Version],
        towers: Mapping[bytes, Segments],
        inside: Sequence[bytes],
        parent: bytes,
        content: Run,
        mode: int,
        like: Context,
    ) -> tuple[list[tuple[Context, Record]], set[bytes]]:
        """Return the records that put a run, and the ids of the versions that they have.

        Args:
            staying: versions that are not forgotten, oldest first; the last one ends with the run.
            towers: segments of the versions, and of others that may need segments of the run, by the version's id.
            inside: segments of the run.
            parent: the segment above it.
            content: the run without versions.
            like: a context of the same codec.
        """
        # versions that differ in nothing but their end become older versions of the run
        newest = staying[-1]
        ends = {v.id: towers[v.id][-1][0] if towers[v.id] else NONE for v in staying}
        alike = [v for v in reversed(staying) if ends[v.id] in inside and _facts(v) == _facts(newest)]
        older = [
            OlderVersion(len(inside) - 1 - inside.index(ends[v.id]), v.version, v.time, v.leaf_prefix)
            for v in alike[1 : MAX_RUN + 1]
        ]
        bitstring = pack_run(content._replace(versions=older), newest.version, newest.time)
        own = replace(
            self.catalog.keys.context(TENANT, newest.tenant),
            tokenizer=like.tokenizer,
            bundle=like.bundle,
            contract=like.contract,
        )
        # the record of the run, in the place of its last segment
        record = Record(
            0,
            parent,
            inside[-1],
            sum(content.lengths),
            bitstring,
            newest.name,
            newest.version,
            newest.time,
            pack_tags(newest.tags),
        )
        rows = [(replace(own, mode=mode | RUN, target=newest.target, kind=newest.kind), record)]
        # segments of the run that something outside needs keep a record of their own, without a bitstring
        moved = {v.id for v in alike[: MAX_RUN + 1]}
        outside = [v for v in staying if v.id not in moved]
        needed = {ends[v.id] for v in outside}
        for tower in towers.values():
            path = [NONE, *(name for name, _ in tower)]
            needed |= {above for above, name in itertools.pairwise(path) if name not in inside}
        for name in (name for name in inside[:-1] if name in needed):
            context, within = replace(own, mode=WITHIN), Record(0, inside[-1], name)
            for version in outside:
                own_leaf = version.leaf == name and not version.lacks
                if own_leaf and self.catalog.lookup.head(version.location).record.id == name:
                    context = replace(context, target=version.target, kind=version.kind)
                    tags = pack_tags(version.tags)
                    within = within._replace(
                        name=version.name, version=version.version, time=version.time, tags=tags
                    )
                    moved.add(version.id)
                    break
            rows.append((context, within))
        return rows, moved

    def _replaced(self, chain: _Chain, inside: Sequence[bytes], moved: set[bytes]) -> list[Found]:
        """Return the records that die by a merge. Those that die without it do not count."""
        staying = {v.id for v in chain.staying}
        found = {item.location: item for name in inside for item in self.catalog.lookup.find(SEGMENTS, name)}
        for version in chain.staying:
            if version.location not in found:
                item = self.catalog.lookup.head(version.location)
                if item.record.id is None:
                    found[item.location] = item
        dying = []
        for item in found.values():
            held = set() if item.record.name is None else {version_of(item), *older_versions(item)}
            if not held or (held & staying and held & staying <= moved):
                dying.append(item)
        return dying


def _facts(version: Version) -> tuple[dict[str, str], int, bytes, bytes]:
    """Return the fields that the versions of a run have in common."""
    return version.tags, version.kind, version.target, version.tokenizer


def _worth(runs: Sequence[PlannedRun], uses: Callable[[], Counter[bytes]]) -> list[PlannedRun]:
    """Return the runs of the tenants that need fewer bytes with them, the tables of contexts included.

    A merge adds contexts, and those die that no other record has. ``uses``: number of records of each context.
    """
    gains = Counter[bytes]()
    contexts: dict[bytes, set[bytes]] = {}
    for run in runs:
        domain = run.rows[0][0].domain
        for context, _ in run.rows:
            contexts.setdefault(domain, set()).add(context.encode())
        gains[domain] += run.before - run.after
    for domain, encoded in contexts.items():
        gains[domain] -= TABLES * sum(map(len, encoded))
    if any(gain < 0 for gain in gains.values()):
        using, replaced = uses(), Counter(context for run in runs for context in run.replaced)
        for context, count in replaced.items():
            data = context.encode()
            if using[data] == count and data not in contexts[context.domain]:
                gains[context.domain] += TABLES * len(data)
    return [run for run in runs if gains[run.rows[0][0].domain] >= 0]


def _codec(item: Found) -> tuple[bytes, bytes, int]:
    return item.context.tokenizer, item.context.bundle, item.context.contract


def _tokens(tower: Sequence[tuple[bytes, Tokens]]) -> Tokens:
    return np.concatenate([NO_TOKENS, *(tokens for _, tokens in tower)])


def _equal(one: Segments, other: Segments) -> bool:
    """Return whether two towers have the same segments. Arrays that they share are not compared."""
    if [name for name, _ in one] != [name for name, _ in other]:
        return False
    return all(a is b or np.array_equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def _size(record: Record) -> int:
    """Return about the bytes of a record in a pack, rather too few."""
    name = len((record.name or "").encode())
    return FIXED + len(record.bitstring) + name + len(record.tags) + len(record.veil)


def encoded(codec: SegmentCodec, tokens: Tokens, above: Tokens) -> tuple[int, bytes]:
    """Return the shorter encoding with its mode, alone or after the tokens above, (m,), once it was proved.

    Raises ArchiveError where it does not decode to ``tokens``, (T,).
    """
    layout = layout_mode(codec, len(tokens))
    ways = ways_of(codec, above)
    encoded = codec.encode([Plain(tokens, context) for _, context in ways])
    data, (mode, context) = min(zip(encoded, ways, strict=True), key=lambda way: len(way[0]))
    mode |= layout
    if not np.array_equal(codec.decode([Coded(data, len(tokens), context, mode)])[0], tokens):
        raise ArchiveError("a run just encoded does not decode to its tokens: nothing was written")
    return mode, data
