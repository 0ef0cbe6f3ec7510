"""Put: sessions to packs, with group commit. Spec: FORMAT.md, "Put".

    NewSession --ids--> which segments are new --encode--> pack in memory --parse, decode, compare--> put --plans?--> Receipt

One call is one commit (or several packs, where it is large). What is known already is relied on only after its record was decoded and
compared, and only where no plan condemns its pack. After the packs are in place the plans are read again: a collector may have
condemned what was relied on, and then it is put again, before anything is acknowledged.

A crash leaves all sessions of a pack or none of them; see the table in FORMAT.md.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pltz.archive import identity
from pltz.archive.chain import MAX_SEGMENTS, NOTHING
from pltz.archive.codec import Coded, Plain, SegmentCodec, codec_of
from pltz.archive.errors import ArchiveError, Fenced, StoreError
from pltz.archive.identity import BASE, NONE, TENANT, U32, Tokens
from pltz.archive.index import MARKS, SEGMENTS, SESSIONS, Entries, Location, key_of_session
from pltz.archive.keys import Keys
from pltz.archive.pack import FOOTER, MANY_CHILDREN, TOWER, Builder, Context, Damage, Pack
from pltz.archive.parity import Parity, Range
from pltz.archive.record import FORGET, MAX_NAME, Mark, Record, pack_labels
from pltz.archive.view import Found, Version, View
from pltz.plt_codec.errors import ContentError, CorruptError, PltzError, UsageError

KINDS = ("chat", "text", "ids")
BATCH_TOKENS = 1 << 22  # handed to a codec at once
PROVED = 1 << 18  # segments remembered as decoded and compared


@dataclass(frozen=True)
class NewSession:
    """A session to freeze.

    ``segments``: token ids from the root to the leaf, each (T,); none is a session without tokens. ``shared``: how many of them, from the
    root, belong to the domain ``base`` rather than to the tenant's: prompts that many tenants have. ``time``: seconds since
    1970, None is now. ``target``: fingerprint of the weights it was made with. ``codec``: number of the archive's codec.
    """

    name: str
    segments: Sequence[Tokens]
    tenant: str = "default"
    shared: int = 0
    base: str = "base"
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = "ids"
    target: bytes | None = None
    time: int | None = None
    codec: int = 0


class Receipt(NamedTuple):
    """What a put did. ``new``: segments that were not there; ``size``: bytes of their bitstrings; ``unchanged``: the session's
    last version is the same, so none was added."""

    tenant: str
    name: str
    version: bytes
    number: int
    leaf: bytes
    new: int
    size: int
    unchanged: bool


class _Segment:
    """A segment of the batch: its place and tokens, then its name, then its bitstring.

    ``up``: the segment above; ``own``: its context of mode ALONE, one object for all that share it; ``context``: the one it is stored
    under, ``own`` or that of mode TOWER; ``digest``: 32 bytes that begin with its ``id``.
    """

    __slots__ = "codec", "context", "data", "digest", "id", "own", "tokens", "up"

    def __init__(self, own: Context, codec: SegmentCodec, up: _Segment | None, tokens: Tokens):
        self.own = self.context = own
        self.codec, self.up, self.tokens = codec, up, tokens
        self.id = self.digest = self.data = b""

    @property
    def parent(self) -> bytes:
        return self.up.id if self.up else NONE

    def above(self, reach: int) -> Tokens:
        """The last ``reach`` tokens above it, (m,)."""
        parts: list[Tokens] = []
        at = self.up
        while at is not None and reach > 0:
            parts.append(at.tokens[-reach:])
            reach -= len(parts[-1])
            at = at.up
        return np.concatenate([NOTHING, *parts[::-1]])

    def row(self) -> _Row:
        """The segment alone."""
        record = Record(0, self.parent, self.id, len(self.tokens), self.data)
        return self.context, record, None, self


class _Draft:
    """A session of the batch: its tower, and the version to write. ``kept``: the last version, where it is the same; ``new``, ``size``:
    segments that it is the first to have, and bytes of their bitstrings."""

    __slots__ = (
        "context",
        "kept",
        "key",
        "labels",
        "new",
        "number",
        "session",
        "size",
        "time",
        "tower",
        "version",
    )

    def __init__(self, session: NewSession, tower: list[_Segment], context: Context, key: bytes, time: int):
        self.session, self.tower, self.context, self.key, self.time = session, tower, context, key, time
        self.labels = pack_labels(session.labels)
        self.number, self.version = 1, b""
        self.kept: Version | None = None
        self.new = self.size = 0

    @property
    def leaf(self) -> bytes:
        return self.tower[-1].id if self.tower else NONE

    def receipt(self) -> Receipt:
        s, unchanged = self.session, self.kept is not None
        return Receipt(s.tenant, s.name, self.version, self.number, self.leaf, self.new, self.size, unchanged)


# What is put: a record and its context; the key of the session in it; the new segment in it, which is decoded before it is written
_Row = tuple[Context, Record, bytes | None, _Segment | None]


class Writer:
    """Puts sessions and marks. One a process is enough; several processes need not know of each other."""

    def __init__(self, view: View, codecs: Sequence[SegmentCodec], parity: tuple[int, int] = (0, 0)):
        self.view, self.codecs, self.parity = view, codecs, parity
        self._proved: dict[bytes, tuple[bytes, int, bytes]] = {}  # pack, offset, the segment's digest

    def put(self, sessions: Sequence[NewSession]) -> list[Receipt]:
        """Freeze sessions; a receipt each, once all are durable. See `Archive.put`."""
        with _no_sweeps():
            return self._put(sessions)

    def _put(self, sessions: Sequence[NewSession]) -> list[Receipt]:
        contexts = _Contexts(self.codecs, self.view.keys)
        drafts, segments = self._drafts(sessions, contexts)
        fresh, relied = self._sort_out(segments)
        self._encode(list(fresh.values()))
        self._number(drafts)
        self._publish(self._sealed(_session_rows(drafts, dict(fresh))))
        if relied:  # another writer may stand between its link and its sync
            self.view.store.settle("packs")
        self.view.keys.check(contexts.domains)
        self._fence(segments, relied)
        return [draft.receipt() for draft in drafts]

    def mark(self, versions: Sequence[Version], verb: int) -> None:
        """Forget or restore versions; restoring copies what lies only in condemned packs, since that may go any moment."""
        tenant = {v.location: self.view.at(v.location) for v in versions}
        rows: list[tuple[Context, Record]] = []
        copied: set[bytes] = set()
        for v in versions:
            item = tenant[v.location]
            if verb != FORGET:
                rows += self._rescued(item, copied)
            counter = self.view.state(v.id)[1] + 1
            rows.append((item.context, Record(0, mark=Mark(v.id, counter, verb))))
        before = self.view.epoch
        self._publish([_as_it_is(*row) for row in rows])
        if verb != FORGET and (lost := self.view.read_plans()):
            self._check_plans(before)
            if any(at.pack in lost for v in versions for at in self._places(v)):
                self.mark(versions, verb)

    def copy(self, rows: Iterable[tuple[Context, Record]]) -> None:
        """Put records as they are (for the collector)."""
        self._publish([_as_it_is(*row) for row in rows])

    def _drafts(
        self, sessions: Sequence[NewSession], contexts: _Contexts
    ) -> tuple[list[_Draft], list[_Segment]]:
        """Sessions checked, and their segments named: each of these once, parents first. Raises ContentError, UsageError."""
        self._check(sessions)
        known: dict[tuple[int, int, int], _Segment] = {}  # many sessions hand over one prompt
        now, session_key = self.view.store.now(), self.view.keys.session_key
        drafts = []
        for session in sessions:
            own, base = contexts.of(session)
            tower = self._tower(session, own, base, known)
            time = now if session.time is None else session.time
            drafts.append(_Draft(session, tower, own, session_key(own.domain, session.name), time))
        segments = list(known.values())
        self._name(segments)
        return drafts, segments

    def _check(self, sessions: Sequence[NewSession]) -> None:
        """Raises ContentError, UsageError."""
        for tenant, base, codec, kind, target in {
            (s.tenant, s.base, s.codec, s.kind, s.target) for s in sessions
        }:
            _check_name(tenant)
            _check_name(base)
            if not 0 <= codec < len(self.codecs):
                raise UsageError(
                    f"expected one of the archive's {len(self.codecs)} codecs, got number {codec}"
                )
            if kind not in KINDS:
                raise UsageError(f"expected a kind among {', '.join(KINDS)}, got {kind!r}")
            if target is not None and len(target) != identity.SIZE:
                raise UsageError(f"expected a target fingerprint of 16 bytes, got {len(target)}")
        for s in sessions:
            _check_name(s.name)
            if not 0 <= s.shared <= len(s.segments):
                raise UsageError(f"{s.shared} shared of {len(s.segments)} segments: not valid")
            if len(s.segments) > MAX_SEGMENTS:
                raise ContentError(f"a tower has at most {MAX_SEGMENTS} segments, not {len(s.segments)}")
            if s.time is not None and not 0 <= s.time < 1 << 40:
                raise UsageError(f"expected a time in seconds since 1970, got {s.time}")

    def _tower(
        self,
        session: NewSession,
        own: Context,
        base: Context,
        known: dict[tuple[int, int, int], _Segment],
    ) -> list[_Segment]:
        """The segments of a session, not named yet."""
        tower: list[_Segment] = []
        up, codec, shared = None, self.codecs[session.codec], session.shared
        for number, tokens in enumerate(session.segments):
            context = base if number < shared else own
            place = id(context), id(up), id(tokens)
            segment = known.get(place)
            if segment is None:
                segment = known[place] = _Segment(context, codec, up, tokens)
            tower.append(segment)
            up = segment
        return tower

    def _name(self, segments: Sequence[_Segment]) -> None:
        """Name segments by their tokens, parents first. Raises ContentError."""
        name = self.view.keys.segment_digest
        for s in segments:
            if not isinstance(s.tokens, np.ndarray) or s.tokens.dtype != U32 or s.tokens.ndim != 1:
                s.tokens = identity.checked(s.tokens).astype(U32)
            s.digest = name(s.own.domain, s.codec.tokenizer, s.up.id if s.up else NONE, s.tokens)
            s.id = s.digest[: identity.SIZE]

    def _sort_out(self, segments: list[_Segment]) -> tuple[dict[bytes, _Segment], dict[bytes, Location]]:
        """(segments to write, stored segments relied on). Raises CorruptError where two segments have one id."""
        fresh: dict[bytes, _Segment] = {}
        for segment in segments:
            if fresh.setdefault(segment.id, segment).digest != segment.digest:
                raise _collision(segment.id)
        relied: dict[bytes, Location] = {}
        for name in self.view.known(SEGMENTS, list(fresh)):
            if location := self._prove(fresh[name]):
                relied[name] = location
                del fresh[name]
        return fresh, relied

    def _prove(self, segment: _Segment) -> Location | None:
        """Where a segment is stored such that it decodes to these tokens; None: nowhere that may be relied on."""
        if known := self._proved.get(segment.id):
            location, digest = Location(*known[:2]), known[2]
            if digest != segment.digest:
                raise _collision(segment.id)
            stays = location.pack in self.view.packs and location.pack not in self.view.condemned
            if stays and not (self.view.keys.cipher and self._going(self.view.at(location), segment.id)):
                return location
        for item in self.view.find(SEGMENTS, segment.id):
            codec = codec_of(self.codecs, item.context)
            if item.location.pack in self.view.condemned or codec is None or self._going(item, segment.id):
                continue
            try:
                bits = self.view.keys.bits(item.context, item.record)
                above = segment.above(codec.reach) if item.context.mode else NOTHING
                tokens = codec.decode([Coded(bits, item.record.tokens, above)])[0]
            except (PltzError, FileNotFoundError) as exc:
                self.view.problem("record", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))
                continue
            if not np.array_equal(tokens, segment.tokens):
                name = self.view.keys.segment_digest(
                    segment.context.domain, segment.codec.tokenizer, segment.parent, tokens
                )
                if name[: identity.SIZE] == segment.id:
                    raise _collision(segment.id)
                self.view.problem(
                    "record",
                    f"{item.location.pack.hex()} at {item.location.offset}",
                    "decodes to other tokens than its id says",
                )
                continue
            self._remember(item.location.pack, [(item.location.offset, segment)])
            return item.location
        return None

    def _going(self, item: Found, segment: bytes) -> bool:
        """Whether a segment was erased, or is being erased: it is not relied on."""
        keys = self.view.keys
        return keys.gone(item.context, segment) or keys.doomed(item.context, segment)

    def _sealed(self, rows: list[_Row]) -> list[_Row]:
        if not self.view.keys.cipher:
            return rows
        return [(c, self.view.keys.seal(c, r), key, segment) for c, r, key, segment in rows]

    def _encode(self, segments: Sequence[_Segment]) -> None:
        """After the tower, or alone where that is no longer: a prompt may say nothing of what follows, and alone is read faster."""
        towers: dict[int, Context] = {}
        for codec, numbers in _batches(segments):
            batch = [segments[n] for n in numbers]
            for segment, data in zip(
                batch, codec.encode([Plain(s.tokens, NOTHING) for s in batch]), strict=True
            ):
                segment.data, segment.context = data, segment.own
            if not codec.reach:
                continue
            plain = [(s, Plain(s.tokens, s.above(codec.reach))) for s in batch if s.up]
            below = [(s, p) for s, p in plain if len(p.above) and len(p.tokens)]
            for (segment, _), data in zip(below, codec.encode([p for _, p in below]), strict=True):
                if len(data) < len(segment.data):
                    own = segment.own
                    tower = towers.setdefault(id(own), replace(own, mode=TOWER))
                    segment.data, segment.context = data, tower

    def _number(self, drafts: list[_Draft]) -> None:
        """Give each session its version number, or find that its last version is the same."""
        latest: dict[bytes, _Draft] = {}
        stored = self.view.known(SESSIONS, [d.key for d in drafts])
        marked = self.view.marked()
        for d in drafts:
            if d.key in latest:
                d.number = latest[d.key].number + 1
            elif d.key in stored:
                known = self.view.versions(d.context.domain, d.session.name)
                d.number = max((v.number for v in known), default=0) + 1
                staying = [v for v in known if not v.forgotten]
                if staying and self._same(staying[-1], d):
                    d.kept, d.number = staying[-1], staying[-1].number
            latest[d.key] = d
            d.version = d.kept.id if d.kept else identity.version_id(d.key, d.number, d.leaf, d.time)
            while marked and not d.kept and self.view.state(d.version)[0] == FORGET:
                d.number += 1
                d.version = identity.version_id(d.key, d.number, d.leaf, d.time)

    def _same(self, version: Version, draft: _Draft) -> bool:
        """Whether a put would add nothing to the last version. One in a condemned pack is not relied on."""
        c = draft.context
        return (
            (version.leaf, version.kind, version.target) == (draft.leaf, c.kind, c.target)
            and pack_labels(version.labels) == draft.labels
            and version.location.pack not in self.view.condemned
            and draft.session.time in (None, version.time)
        )

    def _publish(self, rows: list[_Row]) -> None:
        """Lay out packs, prove them and put them."""
        while rows:
            contexts, records, _, segments = zip(*rows, strict=True)
            times = [r.time for r in records if r.name is not None]
            time = min(times) if times else self.view.store.now()
            builder = Builder(self.view.epoch, time, self.view.store.random(16))
            count = builder.fill(contexts, records)
            part, rows = rows[:count], rows[count:]
            data = builder.finish()
            offsets = _read_back(data, builder)
            self._prove_decoding([row for row in part if row[3]])
            self._put_pack(data, part, offsets)
            self._put_parity(data, part, offsets)
            self._remember(_pack_name(data), zip(offsets, segments, strict=False))

    def _prove_decoding(self, rows: Sequence[_Row]) -> None:
        """Decode every new segment from what the pack holds and compare, before a byte is written."""
        bits, segments = self.view.keys.bits, [segment for *_, segment in rows if segment]
        for codec, numbers in _batches(segments):
            coded = [
                Coded(bits(c, r), r.tokens, s.above(codec.reach) if c.mode and s else NOTHING)
                for c, r, _, s in map(rows.__getitem__, numbers)
            ]
            _compare(codec.decode(coded), [segments[n].tokens for n in numbers])

    def _put_pack(self, data: bytes, rows: Sequence[_Row], offsets: Sequence[int]) -> None:
        name = _pack_name(data)
        if not self.view.store.put(f"packs/{name.hex()}", data):
            raise StoreError(
                f"packs/{name.hex()} holds other bytes than its name says: nothing was acknowledged"
            )
        _, records, keys, _ = zip(*rows, strict=True)
        entries = {
            SEGMENTS: Entries.of([r.id for r in records], offsets),
            SESSIONS: Entries.of(keys, offsets),
            MARKS: Entries.of([r.mark.version if r.mark else None for r in records], offsets),
        }
        self.view.add_pack(name, len(data), entries)

    def _put_parity(self, data: bytes, rows: Sequence[_Row], offsets: Sequence[int]) -> None:
        """After the pack, so that parity never stands for a pack that was not there; see FORMAT.md.

        Where there is no room for it the pack is durable all the same, so it is acknowledged, and `repair` tries again.
        """
        if not self.parity[0]:
            return
        name = _pack_name(data)
        contexts, records = [row[0] for row in rows], [row[1] for row in rows]
        shared = shared_ranges(contexts, records, [*offsets, Pack.of(data).end])
        parity = Parity.of(name, data, shared, self.parity)
        try:
            self.view.store.put(f"parity/{name.hex()}", parity.encode())
            if not self._there(f"packs/{name.hex()}"):  # collected while this writer stood still
                self.view.store.delete(f"parity/{name.hex()}")
        except StoreError as exc:
            self.view.problem("parity", name.hex(), f"{exc}: this pack has no parity until repair writes it")

    def _there(self, name: str) -> bool:
        try:
            self.view.store.read(name, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def _fence(self, segments: Sequence[_Segment], relied: dict[bytes, Location]) -> None:
        """Step 7: put again what was relied on and is condemned now. Raises Fenced."""
        while True:
            before = self.view.epoch
            condemned = self.view.read_plans()
            if not condemned:
                return
            self._check_plans(before)
            lost = {name for name, at in relied.items() if at.pack in condemned}
            again = list({s.id: s for s in segments if s.id in lost}.values())
            relied = {name: at for name, at in relied.items() if name not in lost}
            self._encode(again)
            self._publish(self._sealed([s.row() for s in again]))

    def _check_plans(self, before: int) -> None:
        """Raises Fenced where the plan after the one known is gone: what it condemned cannot be known."""
        if not self.view.has_plan(before + 1):
            raise Fenced(
                f"the plan of epoch {before + 1} is gone, so what it condemned is not known: nothing was acknowledged, put again"
            )

    def _rescued(self, item: Found, copied: set[bytes]) -> Iterator[tuple[Context, Record]]:
        """Records of a version and its tower that lie only in condemned packs, parents first."""
        chain: list[Found] = []
        leaf = item.record.leaf
        while leaf != NONE and len(chain) < MAX_SEGMENTS:
            places = self.view.find(SEGMENTS, leaf)
            if not places:
                raise ArchiveError("a segment of this version is already gone: it cannot be restored")
            if all(p.location.pack in self.view.condemned for p in places) and leaf not in copied:
                chain.append(places[0])
            copied.add(leaf)
            leaf = places[0].record.parent
        for found in reversed(chain):
            yield found.context, segment_only(found.record)
        if item.location.pack in self.view.condemned:
            yield item.context, session_only(item.record)

    def _places(self, version: Version) -> Iterator[Location]:
        item = self.view.at(version.location)
        yield item.location
        leaf = item.record.leaf
        for _ in range(MAX_SEGMENTS):
            places = self.view.find(SEGMENTS, leaf) if leaf != NONE else []
            if not places:
                return
            yield from (p.location for p in places)
            leaf = places[0].record.parent

    def _remember(self, pack: bytes, segments: Iterable[tuple[int, _Segment | None]]) -> None:
        if len(self._proved) >= PROVED:
            self._proved.clear()
        self._proved.update((s.id, (pack, offset, s.digest)) for offset, s in segments if s)


@contextmanager
def _no_sweeps() -> Iterator[None]:
    """A put makes many objects and no cycles of them: looking for some again and again takes a fifth of its time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def segment_only(record: Record) -> Record:
    """The segment of a record without its session."""
    return Record(0, record.parent, record.id, record.tokens, record.bitstring)


def session_only(record: Record) -> Record:
    """The session of a record, its segment named as parent."""
    return Record(
        0,
        record.leaf,
        name=record.name,
        number=record.number,
        time=record.time,
        labels=record.labels,
        veil=record.veil,
    )


def _as_it_is(context: Context, record: Record) -> _Row:
    """A record that is stored already."""
    return context, record, None if record.name is None else key_of_session(record, context), None


def _read_back(data: bytes, builder: Builder) -> list[int]:
    """Read a pack as a reader would: every record must be what was put into it. Offsets of all of them."""
    offsets = list[int]()
    for run in Pack.of(data).runs():
        if isinstance(run, Damage):
            break
        at, found = run
        if found != builder.records[len(offsets) : len(offsets) + len(at)]:
            break
        offsets += at
    if len(offsets) != len(builder.records):
        raise ArchiveError("the pack just laid out does not read back: nothing was written")
    return offsets


def shared_ranges(
    contexts: Sequence[Context], records: Sequence[Record], offsets: Sequence[int]
) -> Iterator[Range]:
    """Where in a pack the segments lie that many sessions depend on, and what it takes to read them: header and table.

    ``contexts``, ``records``: all of the pack in order; ``offsets``: where they begin, and where the last ends.
    """
    children = Counter([r.parent for r in records])
    shared = [
        span
        for span, r, c in zip(pairwise(offsets), records, contexts, strict=True)
        if r.id is not None and (c.domain_kind == BASE or children[r.id] >= MANY_CHILDREN)
    ]
    if shared:
        yield Range(0, offsets[0])
    yield from (Range(begin, end - begin) for begin, end in shared)


def _session_rows(drafts: Sequence[_Draft], unwritten: dict[bytes, _Segment]) -> list[_Row]:
    """The batch in tower order, a session in the record of its leaf where that is new. A new segment is counted for the first session
    that has it."""
    rows: list[_Row] = []
    for d in drafts:
        leaf: _Segment | None = None
        for s in d.tower:
            if leaf:
                rows.append(leaf.row())
            if leaf := unwritten.pop(s.id, None):
                d.new += 1
                d.size += len(leaf.data)
        if leaf and (d.kept or leaf.own is not d.context):
            rows.append(leaf.row())
            leaf = None
        if d.kept:
            continue
        session = d.session.name, d.number, d.time, d.labels
        if leaf:
            record = Record(0, leaf.parent, leaf.id, len(leaf.tokens), leaf.data, *session)
            rows.append((leaf.context, record, d.key, leaf))
        else:
            rows.append((d.context, Record(0, d.leaf, None, 0, b"", *session), d.key, None))
    return rows


class _Contexts:
    """One `Context` object for all sessions of a batch that share it."""

    def __init__(self, codecs: Sequence[SegmentCodec], keys: Keys):
        self.codecs, self.keys = codecs, keys
        self._known: dict[tuple[int, str, int, bytes | None, str], Context] = {}
        self._pairs: dict[tuple[str, str | None, int, bytes | None, str], tuple[Context, Context]] = {}

    @property
    def domains(self) -> set[bytes]:
        """Of all that was asked for."""
        return {context.domain for context in self._known.values()}

    def of(self, session: NewSession) -> tuple[Context, Context]:
        """Of a session and its tenant's segments, and of its shared segments."""
        s = session
        key = s.tenant, s.base if s.shared else None, s.codec, s.target, s.kind
        found = self._pairs.get(key)
        if found is None:
            own = self._context(TENANT, s.tenant, s.codec, s.target, s.kind)
            base = self._context(BASE, s.base, s.codec, None, "ids") if s.shared else own
            found = self._pairs[key] = own, base
        return found

    def _context(self, kind: int, name: str, codec: int, target: bytes | None, session: str) -> Context:
        key = kind, name, codec, target, session
        if (known := self._known.get(key)) is None:
            c, domain = self.codecs[codec], self.keys.context(kind, name)
            known = replace(
                domain,
                tokenizer=c.tokenizer,
                bundle=c.bundle_id,
                contract=c.contract,
                target=target or NONE,
                kind=KINDS.index(session),
            )
            self._known[key] = known
        return known


def _compare(found: Sequence[Tokens], wanted: Sequence[Tokens]) -> None:
    """All rows must be equal, and their ids in range. Raises ArchiveError, ContentError."""
    if len(found) != len(wanted):
        raise ArchiveError(f"a codec made {len(found)} segments of {len(wanted)}: nothing was written")
    for row, tokens in zip(found, wanted, strict=True):
        same = row.tobytes() == tokens.tobytes() if row.dtype == tokens.dtype else np.array_equal(row, tokens)
        if not same:
            raise ArchiveError("a segment just encoded does not decode to its tokens: nothing was written")
        if (most := tokens.max(initial=0)) > identity.MAX_TOKENS:
            raise ContentError(f"expected token ids in 0..{identity.MAX_TOKENS}, found {most}")


def _batches(segments: Sequence[_Segment]) -> Iterator[tuple[SegmentCodec, list[int]]]:
    """Numbers of segments of one codec, so many that the codec is busy and memory is bounded."""
    for codec in {id(s.codec): s.codec for s in segments}.values():
        batch: list[int] = []
        total = 0
        for number, s in enumerate(segments):
            if s.codec is not codec:
                continue
            size = len(s.tokens) + codec.reach
            if batch and total + size > BATCH_TOKENS:
                yield codec, batch
                batch, total = [], 0
            batch.append(number)
            total += size
        yield codec, batch


def _check_name(name: str) -> None:
    if name.isascii() and len(name) <= MAX_NAME:
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise ContentError("a name is not valid Unicode (a lone surrogate)") from exc
    if size > MAX_NAME:
        raise ContentError(f"a name has {size} bytes, at most {MAX_NAME} are allowed")


def _pack_name(data: bytes) -> bytes:
    return data[12 - FOOTER.size : 28 - FOOTER.size]


def _collision(segment: bytes) -> CorruptError:
    return CorruptError(
        f"two different segments have the id {segment.hex()}: this content is crafted, and refused"
    )
