"""TurnJoiner: join the last turns of sessions that grow. Spec: WRITING.md, "Joining turns".

    prompt <- turn 1 <- [turns 2 to 20] <- turn 21 <- turn 22 <- turn 23      after a put of turn 24:
    prompt <- turn 1 <- [turns 2 to 20] <- [turns 21 to 24]                   or one run of 2 to 24, if it is short
    prompt <- [turns 1 to 24]                                                 once a collector copies it

A session of many turns has few records so, and each token is coded anew a few times at most: a record grows by half or
more whenever a put joins it, and one of a block of tokens is left as it is, the new one too. A put takes at most `MOST`
tokens and those of one more record, however many turns were put without joining. A collector joins all that is short,
where that takes no more bytes.

Segments keep their ids and versions theirs, so a reader notices nothing but the time that it saves. A run is decoded
and compared before it is put, and its versions are looked up afterwards. The records that it replaces die, and
`collect` frees them. A crash leaves the runs of a commit or nothing of them.

Only records are joined that puts of this session made, as their session's name tells, so that no other session is
looked at. A put that forks from inside such a run is read through it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains, KnownSegment, Segments
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import ATTEMPTS, Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.errors import ArchiveError, Fenced, KeyMismatch
from pltz.archive.format.ids import LEAF, NO_SEGMENT, TENANT, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import RUN, Context, Record, pack_about
from pltz.archive.format.run import MAX_RUN, OlderVersion, Run, pack_run, unpack_run
from pltz.archive.writing.new_session import CommitReceipt
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import Coded, SegmentCodec, ways_of
from pltz.plt_codec.container.frame import FAST, Method
from pltz.plt_codec.errors import PltzError

FEW = 256  # tokens below which a put joins nothing: they are decoded in some ms, and a run would take more bytes
LEAST = 4  # records that a put joins at once, at least
SHARE = 2  # a put joins a record with those behind it where it has at most so many times their tokens
ENOUGH = 4096  # tokens of a record that is left as it is: a block is decoded in as many steps as the next one
MOST = 4 * ENOUGH  # tokens from which no more records are joined at once, so that it takes no longer
AT_ONCE = 1 << 20  # tokens of runs that a collector puts in one commit
FIXED = 11  # bytes at least of a record beside bitstring, name and what is beside it, without those of the index
NOTHING: Tokens = np.zeros(0, np.int64)

Row = tuple[Context, Record]


@dataclass(frozen=True)
class _Run:
    """A run to put: its row, its versions and the segments of each, which share their tokens.

    ``known``: segments that need not be decoded to read its versions back.
    """

    row: Row
    towers: list[tuple[Version, Segments]]
    tokens: int
    known: Mapping[bytes, KnownSegment]


class TurnJoiner:
    """Joins turns for one writer. Several may run at once beside writers and collectors.

    Args:
        codecs: those of the archive. ``load`` loads them, if they are not loaded yet.
        few: tokens below which a put joins nothing; None: `FEW`.
    """

    def __init__(
        self,
        catalog: Catalog,
        writer: ArchiveWriter,
        codecs: CodecRegistry,
        indexes: IndexKeeper,
        *,
        load: Callable[[], object] = lambda: None,
        few: int | None = None,
    ) -> None:
        self._catalog, self._writer, self._codecs, self._indexes = catalog, writer, codecs, indexes
        self._load, self._few = load, FEW if few is None else few

    def after(self, receipts: Sequence[CommitReceipt]) -> int:
        """Join the last turns of the sessions of a commit where that is due, and return how many were.

        The commit is durable whatever happens here: see `_noting`. The next put of a session tries again.
        """
        stable, done = self._catalog.listing.stable, 0
        with self._noting():
            runs = [run for r in receipts if self._due(r) and (run := stable(partial(self._grown, r)))]
            done = len(self._put(runs))
            if done:
                self._indexes.write_if_due()
        return done

    def sessions(self, named: Iterable[tuple[str, str, str]]) -> int:
        """Join the last turns of parts of sessions, where that takes no more bytes; return how many were.

        ``named``: tenant, name and part.

        What a collector cannot join it copies as it is: see `_noting`.
        """
        done, runs = 0, list[_Run]()
        with self._noting():
            for place in named:
                if run := self._catalog.listing.stable(partial(self._stored, *place)):
                    runs.append(run)
                if sum(run.tokens for run in runs) >= AT_ONCE:
                    done, runs = done + len(self._put(runs)), []
            done += len(self._put(runs))
        return done

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note any error as a problem, also one of a codec or of memory: nothing that was acknowledged hangs on it."""
        try:
            yield
        except KeyMismatch:  # a collector needs no key
            pass
        except Exception as exc:  # noqa: BLE001
            what = str(exc) if isinstance(exc, PltzError) else f"{type(exc).__name__}: {exc}"
            self._catalog.problems.note("join", "", f"turns were not joined: {what}")

    # ---- which turns

    def _due(self, receipt: CommitReceipt, staying: Sequence[Version] = ()) -> _Tail | None:
        """Return the records that a put is to join. Nothing is read: of the older ones only those that it has seen.

        ``staying``: as in `_records`.
        """
        coded = receipt.codec.method == Method.MODEL  # what is fresh is shrunk first
        tower = self._writer.recent.get(receipt.leaf)
        if receipt.version < LEAST or receipt.unchanged or receipt.new != 1 or not coded or not tower:
            return None
        codec = receipt.codec.tokenizer, receipt.codec.bundle_id, receipt.codec.method
        parent, tokens = tower[-2][0] if len(tower) > 1 else NO_SEGMENT, len(tower[-1][1])
        tail = _tail(self._records(receipt.tenant, receipt.name, codec, staying), parent, tokens, SHARE)
        return tail if len(tail.records) + 1 >= LEAST and tail.tokens >= self._few else None

    def _grown(self, receipt: CommitReceipt) -> _Run | None:
        """Return the run that joins the last turns of a session that was just put; None where it must stay as it is."""
        tower, staying = self._writer.recent.get(receipt.leaf), self._staying(*receipt[:3])
        if not staying or staying[-1].id != receipt.id or not tower or not (tail := self._due(receipt, staying)):
            return None
        return self._run(staying, tower, tail, receipt.codec)

    def _stored(self, tenant: str, name: str, part: str) -> _Run | None:
        """Return the run that joins the last turns of a stored part; None where it has none, or takes more bytes."""
        staying = self._staying(tenant, name, part)
        leaf = self._catalog.lookup.own_record(staying[-1]) if staying else None
        if leaf is None or leaf.context.method != Method.MODEL:
            return None
        records = self._records(tenant, name, _codec(leaf.context), staying)
        if not (tail := _tail(records, leaf.record.parent, leaf.record.tokens)).records:
            return None
        self._load()
        if (codec := self._codecs.for_context(leaf.context, leaf.record.mode)) is None:
            return None
        with self._catalog.lookup.keeping_blocks():
            tower = Chains(self._catalog, self._codecs).version(staying[-1])
            apart = sum(_size(self._catalog.lookup.at(item.location).record) for item in (*tail.records, leaf))
        run = self._run(staying, tower, tail, codec)
        return run if run and _size(self._catalog.keys.seal(*run.row)) <= apart else None

    def _staying(self, tenant: str, name: str, part: str) -> list[Version]:
        """Return the versions of a session that are not forgotten, those of a part last.

        None where it has none, or a copy would not tell what the last one is.
        """
        history = self._catalog.lookup.versions(self._catalog.keys.domain(TENANT, tenant), name)
        staying = sorted((v for v in history if not v.forgotten), key=lambda v: v.part == part)
        return [] if not staying or staying[-1].part != part or staying[-1].lacks else staying

    def _records(
        self, tenant: str, name: str, codec: tuple[bytes, bytes, int], staying: Sequence[Version]
    ) -> dict[bytes, Found]:
        """Return the records that have segments together with versions of a session, by segment, a run before others.

        A put of the session made each of them. ``codec``: the one of all. ``staying``: versions, of which those that
        differ from the last one in more than their end keep their records.
        """
        apart = {v.location for v in staying if _facts(v) != _facts(staying[-1])}
        domain = self._catalog.keys.domain(TENANT, tenant)
        key = self._catalog.keys.session_key(domain, name)
        found: dict[bytes, Found] = {}
        for item in self._catalog.lookup.seen_records(key):
            record, context = item.record, item.context
            if record.id is None or context.domain != domain or _codec(context) != codec or item.location in apart:
                continue
            if record.id not in found or found[record.id].record.tokens < record.tokens:
                found[record.id] = item
        return found

    # ---- the run

    def _run(self, staying: list[Version], tower: Segments, tail: _Tail, codec: SegmentCodec) -> _Run | None:
        """Return the run that joins the last turns of a session, proved to decode; None where it must stay as it is.

        ``staying``: its versions, of which the last one has this tower.
        """
        keys, path = self._catalog.keys, [NO_SEGMENT, *(name for name, _ in tower)]
        begin = path.index(tail.parent) if tail.parent in path else len(tower)
        inside = tower[begin:]
        names = [name for name, _ in inside]
        like = self._catalog.lookup.head(staying[-1].location)
        if sum(len(part) for _, part in inside) != tail.tokens or like.record.id != path[-1]:
            return None
        if any(keys.doomed(like.context, name) for name in names):
            return None
        mode, data = encoded(codec, _tokens(inside), _tokens(tower[:begin]))
        # the versions that end in the run
        places = {name: number for number, (name, _) in enumerate(tower)}
        towers: dict[bytes, Segments] = {}
        for version in staying:
            end = places.get(version.leaf, -1) + 1 - version.lacks
            if end > begin and tower[end - 1][0][:LEAF] == version.leaf_prefix:
                towers[version.id] = tower[:end]
        own = [v for v in staying if v.id in towers and _facts(v) == _facts(staying[-1])]
        content = Run([len(part) for _, part in inside], [], data)
        row = self._row(own, towers, tail, content, mode, like.context)
        if unpack_run(row[1])[::2] != content[::2]:
            raise ArchiveError("a run just made does not read back: nothing was written")
        # its tokens are proved by now, so only its versions are looked up once it is put
        known = {name: KnownSegment(up, part) for up, (name, part) in zip(path, tower, strict=False)}
        return _Run(row, [(version, towers[version.id]) for version in own], tail.tokens, known)

    def _row(
        self,
        own: Sequence[Version],
        towers: Mapping[bytes, Segments],
        tail: _Tail,
        content: Run,
        mode: int,
        like: Context,
    ) -> Row:
        """Return the record of a run, in the place of its last segment.

        Args:
            own: versions that end in the run, oldest first; the last one ends with it, and the others differ in nothing
                but their end.
            towers: segments of the versions, by the version's id.
            content: the run without versions.
            like: a context of the same codec.
        """
        newest, leaf = own[-1], towers[own[-1].id][-1][0]
        top = len(towers[newest.id])
        others = own[:-1][: -MAX_RUN - 1 : -1]
        older = [OlderVersion(top - len(towers[v.id]), v.moment, v.time, v.leaf_prefix) for v in others]
        context = replace(
            self._catalog.keys.context(TENANT, newest.tenant),
            tokenizer=like.tokenizer,
            bundle=like.bundle,
            method=like.method,
            target=newest.target,
            kind=newest.kind,
        )
        bitstring = pack_run(content._replace(versions=older), newest.moment, newest.time)
        return context, Record(
            0,
            tail.parent,
            leaf,
            tail.tokens,
            bitstring,
            newest.name,
            newest.moment,
            newest.time,
            pack_about(newest.part, newest.content, newest.tags),
            part=self._part_key(newest),
            mode=mode | RUN,
        )

    def _part_key(self, version: Version) -> int:
        keys = self._catalog.keys
        domain = keys.domain(TENANT, version.tenant)
        return keys.part_key(domain, keys.session_key(domain, version.name), version.part)

    # ---- put

    def _put(self, runs: Sequence[_Run]) -> list[_Run]:
        """Put runs, look their versions up and compare; return those that were put.

        One is left out of which a version was forgotten or collected since: with the run it would come back. For that
        nothing is put where a collector condemned packs after the last look.

        Raises ArchiveError, Fenced, StoreError, WriterFailed.
        """
        listing, runs = self._catalog.listing, list(runs)
        for turn in range(ATTEMPTS if runs else 0):
            listing.follow()  # keys stay as of the last look, since `check` has to find that they changed
            standing = listing.packs.keys() - listing.condemned  # where one of them is freed, so may be a version
            runs = [run for run in runs if listing.stable(partial(self._stands, run, standing))]
            if not runs:
                return []
            try:
                rows = ((run.row[0], self._catalog.keys.seal(*run.row)) for run in runs)
                fence = partial(self._catalog.keys.check, {run.row[0].domain for run in runs})
                self._writer.publisher.put(rows, relied=standing, fence=fence)
                break
            except Fenced:
                if turn + 1 == ATTEMPTS:
                    raise
        for run in runs:
            listing.stable(partial(self._read_back, run))
        return runs

    def _stands(self, run: _Run, standing: Collection[bytes]) -> bool:
        """Return whether all versions of a run are there and not forgotten, and the segment above has its own record.

        A collector may have joined that one with others meanwhile. ``standing``: packs that are not condemned.
        """
        above = run.row[1].parent
        if above != NO_SEGMENT and not any(at.pack in standing for at in self._catalog.lookup.places(SEGMENTS, above)):
            return False
        there = {version.id for version in self._versions(run) if not version.forgotten}
        return all(version.id in there for version, _ in run.towers)

    def _versions(self, run: _Run) -> list[Version]:
        newest = run.towers[-1][0]
        return self._catalog.lookup.versions(self._catalog.keys.domain(TENANT, newest.tenant), newest.name)

    def _read_back(self, run: _Run) -> None:
        """Look a session up as a reader would, and compare all its versions. Raises ArchiveError."""
        found = {v.id: v for v in self._versions(run)}
        chains = Chains(self._catalog, self._codecs, run.known)
        for version, tower in run.towers:
            if not _equal(chains.version(found.get(version.id, version)), tower):
                raise ArchiveError(
                    f"version {version.version} of {version.name!r} does not read back from its run: verify the "
                    "archive, and do not collect before"
                )


class _Tail(NamedTuple):
    """Records to join with those behind them. ``parent``: the segment above; ``tokens``: of all, the leaf's too."""

    parent: bytes
    tokens: int
    records: list[Found]


def _tail(records: Mapping[bytes, Found], parent: bytes, tokens: int, share: int | None = None) -> _Tail:
    """Return the records above a leaf of so many tokens to join with it, from this parent up.

    ``share``: most tokens of each, in those of all behind it; None for any.
    """
    tail = _Tail(parent, tokens, [])
    segments = 1
    while tail.tokens < MOST and (item := records.get(tail.parent)) and tokens < ENOUGH:
        size = item.record.tokens
        segments += len(unpack_run(item.record).lengths) if item.record.mode & RUN else 1
        if size >= ENOUGH or segments > MAX_RUN or (share and size > share * tail.tokens):
            break
        tail = _Tail(item.record.parent, tail.tokens + size, [*tail.records, item])
    return tail


def _codec(context: Context) -> tuple[bytes, bytes, int]:
    return context.tokenizer, context.bundle, context.method


def _facts(version: Version) -> tuple[str, dict[str, str], int, bytes, bytes]:
    """Return the fields that the versions of a run have in common."""
    return version.part, version.tags, version.kind, version.target, version.tokenizer


def _tokens(tower: Sequence[tuple[bytes, Tokens]]) -> Tokens:
    return np.concatenate([NOTHING, *(tokens for _, tokens in tower)])


def _equal(one: Segments, other: Segments) -> bool:
    """Return whether two towers have the same segments. Arrays that they share are not compared."""
    if [name for name, _ in one] != [name for name, _ in other]:
        return False
    return all(a is b or np.array_equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def _size(record: Record) -> int:
    """Return about the bytes of a record in a pack, rather too few."""
    name = len((record.name or "").encode())
    return FIXED + len(record.bitstring) + name + len(record.about) + len(record.veil)


def encoded(codec: SegmentCodec, tokens: Tokens, above: Tokens) -> tuple[int, bytes]:
    """Return the shorter encoding with its mode, alone or after the tokens above, (m,), once it was proved.

    Raises ArchiveError where it does not decode to ``tokens``, (T,).
    """
    ways = ways_of(codec, tokens, above)
    coded = codec.encode([plain for _, plain in ways])
    data, (mode, plain) = min(zip(coded, ways, strict=True), key=lambda way: len(way[0]))
    mode |= codec.fast * FAST
    if not np.array_equal(codec.decode([Coded(data, len(tokens), plain.above, mode)])[0], tokens):
        raise ArchiveError("a run just encoded does not decode to its tokens: nothing was written")
    return mode, data
