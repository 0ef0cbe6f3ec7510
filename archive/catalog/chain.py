"""Chains: towers of stored segments back to tokens, level by level, each segment once.

    leaves --look up--> their parents, up to the roots
    roots, then their children, ... --decode, prove--> tokens

A single path goes by one call of a codec that decodes chains; otherwise the segments go level by level.
Each level is one batch, so a segment that many sessions share is decoded once. A segment that cannot be read
has an error as its answer. Segments that need it as context get the same error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar, cast

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.losses import PackState
from pltz.archive.catalog.sources import Sources
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import Erased, KeyMismatch, LostError, MissingPack, StoreError
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import LEAF, NO_SEGMENT, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import RUN
from pltz.archive.format.run import unpack_run
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import Coded, SegmentCodec
from pltz.coding.log.recall import Source
from pltz.coding.workers import ahead
from pltz.models.bundle.locations import described, how_to_get
from pltz.plt_codec.container.frame import CODING, TOWER, Method
from pltz.plt_codec.errors import BundleMismatch, CorruptError, FormatError, LimitError, PltzError
from pltz.plt_codec.limits import MAX_TOKENS

MAX_SEGMENTS = 4096  # segments per tower
BATCH, BATCH_TOKENS = 256, 1 << 20  # records, and tokens that they claim, decoded at once: they bound the memory
LOG_SHARE = 8  # bytes of a log that count as one token: while some are joined to lines, others are decoded
LACKING = -1  # segments of a tower that cannot be read
NOTHING: Tokens = np.zeros(0, np.int64)

T = TypeVar("T")
Answer = Tokens | PltzError
Segments = list[tuple[bytes, Tokens]]  # (id, tokens (T,)) from the root to a leaf
# called with each proved record and all 32 bytes of its segment's digest
Heard = Callable[["Found", bytes], None]


def decodable_groups(rows: Iterable[T], tokens: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield rows in groups that may be decoded at once: at most `BATCH` of them, and of `BATCH_TOKENS` or one alone.

    So memory is bounded by one session and not by what a tenant puts side by side. ``tokens``: those that a row claims.
    """
    group: list[T] = []
    total = 0
    for row in rows:
        size = tokens(row)
        if group and (total + size > BATCH_TOKENS or len(group) == BATCH):
            yield group
            group, total = [], 0
        group.append(row)
        total += size
    if group:
        yield group


@dataclass
class RecordToDecode:
    """A record to decode.

    Attributes:
        above: the context tokens it was coded after, (m,), m at most the reach of its codec; of a codec that carries,
            the segment that it was coded after, if any.
        source: of a log, what it recalls passages from.
        coded: what its codec is given, once it is decoded.
    """

    item: Found
    above: Tokens | Coded
    source: Source | None = None
    coded: Coded | None = None

    def code(self, bits: bytes) -> Coded:
        """Return what its codec is given: its bitstring, and what it was coded after."""
        above, up = (NOTHING, self.above) if isinstance(self.above, Coded) else (self.above, None)
        record = self.item.record
        self.coded = Coded(bits, record.tokens, above, record.mode & CODING, up, source=self.source)
        return self.coded


def decode_records(
    codecs: CodecRegistry, keys: Encryption, wanted: Sequence[RecordToDecode], heard: Heard | None = None
) -> list[Answer]:
    """Return the tokens of each record, (T,), or the error that keeps them from being read.

    The segment id recomputed from the tokens proves each record. ``heard`` is called for each proved record.
    Errors returned: BundleMismatch, CorruptError, Erased, KeyMismatch.
    """
    out: list[Answer] = [NOTHING] * len(wanted)
    groups: dict[int, tuple[SegmentCodec, list[int]]] = {}
    for number, w in enumerate(wanted):
        codec = codecs.for_context(w.item.context, w.item.record.mode)
        if codec is None:
            out[number] = _no_codec(w.item)
        else:
            groups.setdefault(id(codec), (codec, []))[1].append(number)
    for codec, numbers in groups.values():
        tokens = [wanted[number].item.record.tokens for number in numbers]
        share = LOG_SHARE * codec.weight if codec.carries else 1
        sizes = dict(zip(numbers, (size // share for size in tokens), strict=True))
        for part in decodable_groups(numbers, sizes.__getitem__):
            answers = _decode(codec, keys, [wanted[n] for n in part], heard)
            for number, answer in zip(part, answers, strict=True):
                out[number] = answer
    return out


def _decode(
    codec: SegmentCodec, keys: Encryption, wanted: Sequence[RecordToDecode], heard: Heard | None
) -> list[Answer]:
    """Decode one batch. If it fails, decode its records one by one to find the culprit."""
    try:
        runs = [_run(keys, w.item) for w in wanted]
        for (_, bits), w in zip(runs, wanted, strict=True):
            w.code(bits)
        found = codec.decode([w.coded for w in wanted if w.coded])
        for w in wanted:
            if w.coded:
                w.coded.source = None  # it has the chains that have this: only a collector of cycles would free them
    except StoreError:  # of a key file: the store failed, and nothing is damaged
        raise
    except PltzError as exc:
        return [exc] if len(wanted) == 1 else [_decode(codec, keys, [w], heard)[0] for w in wanted]
    rows = zip(wanted, runs, found, strict=True)
    return [_proved(keys, w.item, lengths, tokens, heard) for w, (lengths, _), tokens in rows]


def _run(keys: Encryption, item: Found) -> tuple[list[int], bytes]:
    """Return the tokens of each segment of a record, and the bits of all. Raises CorruptError, Erased."""
    bits = keys.bits(item.context, item.record) if keys.cipher else item.record.bitstring
    if not item.record.mode & RUN:
        return [item.record.tokens], bits
    run = unpack_run(item.record._replace(bitstring=bits))
    return run.lengths, run.data


def _proved(keys: Encryption, item: Found, lengths: Sequence[int], tokens: Tokens, heard: Heard | None) -> Answer:
    """Return the tokens of a record, (T,), if the segment ids recomputed from them end in its id."""
    try:
        ids = identity.checked(tokens)
    except PltzError as exc:
        return CorruptError(f"the record decodes to what are no token ids: {exc}")
    named = _names(keys, item, lengths, ids)
    found = named[-1].id
    if found != item.record.id:
        return CorruptError(f"the record decodes to segment {found.hex()}: damaged, or decoded with another bundle")
    if heard:
        for part in named:
            heard(item, part.digest)
    return ids


class _NamedSegment(NamedTuple):
    """A segment of a record: digest, 32 bytes, its id and that of its parent, and its tokens, (t,)."""

    digest: bytes
    id: bytes
    parent: bytes
    tokens: Tokens


def _names(keys: Encryption, item: Found, lengths: Sequence[int], tokens: Tokens) -> list[_NamedSegment]:
    """Return the segments of a record. ``tokens``: of all of them, (T,)."""
    context, parent, at, named = item.context, item.record.parent, 0, list[_NamedSegment]()
    for length in lengths:
        part = tokens[at : at + length]
        digest = keys.segment_digest(context.domain, context.tokenizer, parent, part)
        named.append(_NamedSegment(digest, identity.segment_of(digest), parent, part))
        parent, at = named[-1].id, at + length
    return named


def _no_codec(item: Found) -> BundleMismatch:
    return BundleMismatch(
        f"frozen with bundle {described(item.context.bundle)}, tokenizer "
        f"{item.context.tokenizer.hex()}, which is not here: {how_to_get(item.context.bundle)}. Where the ids are of a "
        "target's tokenizer, name that with --tokenizer"
    )


def lost_versions(catalog: Catalog, versions: Iterable[Version], bad: Container[bytes] = ()) -> Iterator[Version]:
    """Yield the versions with a segment that is missing or in ``bad``; forgotten ones are left out.

    Nothing is decoded.
    """
    known = {NO_SEGMENT: 0}
    for version in versions:
        if not _is_whole(catalog, version.leaf, bad, known) and not version.forgotten:
            yield version


def deepest(records: Mapping[bytes, Collection[bytes]]) -> set[bytes]:
    """Return the segments that some of their records put into a circle, or too deep to be read.

    ``records``: the parent in each record of a segment. A segment without records counts as a root.
    """
    sizes: dict[bytes, int] = {}  # segments of the longest way up
    astray = set[bytes]()
    for segment in records:
        path, open_ = [segment], set[bytes]()
        while path:
            at = path[-1]
            needs = {parent for parent in records.get(at, ()) if parent != NO_SEGMENT}
            if at not in sizes and at not in open_:
                open_.add(at)
                path += [one for one in needs if one not in sizes]
                continue
            path.pop()
            if at in sizes:
                continue
            size = 1 + max((sizes.get(parent, 0) for parent in needs), default=0)
            if size > MAX_SEGMENTS or any(parent not in sizes for parent in needs) or astray & needs:
                astray.add(at)
            sizes[at] = size
    return astray


def _is_whole(catalog: Catalog, leaf: bytes, bad: Container[bytes], sizes: dict[bytes, int]) -> bool:
    """Return whether no segment of a tower is missing, and it is not too deep.

    ``sizes``: the segments of towers known already, by their last segment; LACKING where one is not whole.
    """
    chain: dict[bytes, None] = {}
    at = leaf
    while at not in sizes:
        chain[at] = None
        places = [] if at in bad else catalog.lookup.find(SEGMENTS, at)
        if not places or places[0].record.parent in chain:
            sizes[at] = LACKING
            break
        at = places[0].record.parent
    size = sizes[at]
    for segment in reversed(chain):
        size = size + 1 if 0 <= size < MAX_SEGMENTS and segment not in sizes else LACKING
        sizes[segment] = size
    return sizes[leaf] != LACKING


@contextmanager
def naming(version: Version) -> Iterator[None]:
    """Name the session in what is raised where its records are damaged or gone."""
    try:
        yield
    except FormatError as exc:
        raise type(exc)(f"session {version.name!r}: {exc}") from exc


class KnownSegment(NamedTuple):
    """A segment that the caller already has, so it is neither read nor decoded.

    ``parent``: id of the segment above it; ``tokens``: (T,).
    """

    parent: bytes
    tokens: Tokens


class Chains:
    """Towers as one reader sees them. Decoded segments are kept for the life of this object.

    A run is preferred to the records of its segments. Where it cannot be read, these are read as long as they
    are there.

    Args:
        known: segments that the caller already has.
        heard: as in `decode_records`.
        runs: whether to read runs at all.
        needed: look no further up than decoding needs: not above a part of a log that was coded alone. For `above` and
            `answers`.
        sources: what logs recall passages from.
    """

    def __init__(
        self,
        catalog: Catalog,
        codecs: CodecRegistry,
        known: Mapping[bytes, KnownSegment] | None = None,
        heard: Heard | None = None,
        *,
        runs: bool = True,
        needed: bool = False,
        sources: Sources | None = None,
    ):
        self._runs, self._needed = runs, needed
        self._given = sources
        self._used_runs = False
        self._above: dict[bytes, bytes] = {}  # parents of the segments of runs
        self.catalog, self.codecs, self._heard = catalog, codecs, heard
        self._known = known or {}
        self._places: dict[bytes, list[Found]] = {}
        self._noted: dict[bytes, Version] = {}  # versions by their leaves, see `note`
        self._alone = set[bytes]()  # segments of which one record was read where others may be
        self._depth: dict[bytes, int] = {NO_SEGMENT: -1}
        self._tokens: dict[bytes, int] = {NO_SEGMENT: 0}  # tokens of the tower that ends in each segment
        self._answers: dict[bytes, Answer] = {segment: k.tokens for segment, k in self._known.items()}
        self._coded: dict[bytes, Coded] = {}  # segments that were decoded, of codecs that carry

    def note(self, versions: Iterable[Version]) -> None:
        """Note the records of sessions that will be read: most have the leaf, so no index is asked for that.

        Its other records are looked up only where that one cannot be used.
        """
        self._noted |= {version.leaf: version for version in versions}

    def load(self, leaves: Sequence[bytes]) -> None:
        """Decode all segments of these towers that are not decoded yet. Errors are kept and raised by `tower`."""
        self.begin(leaves)()

    def begin(self, leaves: Sequence[bytes]) -> Callable[[], None]:
        """Look up what `load` decodes, begin with what other processes do of it, and return the rest."""
        paths = [path[::-1] for path in map(self._look_up, leaves) if path]
        begun = [
            self._begin_chain(codec, items)
            for path in paths
            if len(path) > 1 or self._is_log(path[0])
            for codec, items in self._chains_in(path)
            if codec.carries or len(paths) == 1 < len(items)
        ]
        levels: dict[int, list[bytes]] = {}
        for segment in itertools.chain(*paths):
            levels.setdefault(self._depth[segment], []).append(segment)

        def rest() -> None:
            for prove in filter(None, begun):
                prove()
            for depth in sorted(levels):
                self._decode_level(levels[depth])

        return rest

    def length(self, leaf: bytes) -> int:
        """Return the tokens of a tower, from its records alone; 0 where one of them cannot be read.

        For an object that decodes nothing: `load` takes what was looked up for decoded.
        """
        self._look_up(leaf)
        return self._tokens.get(leaf, 0)

    def tower(self, leaf: bytes) -> Segments:
        """Return (id, tokens of shape (T,)) of each segment from the root to the leaf.

        Raises LostError, MissingPack, CorruptError, BundleMismatch, KeyMismatch, Erased.
        """
        try:
            return self._tower(leaf)
        except (LostError, MissingPack, CorruptError):
            # what stands above a record of its own may be gone where there is a run, and the other way about
            for runs in [True] * bool(self._alone) + [False] * self._used_runs:
                with suppress(PltzError):
                    return Chains(self.catalog, self.codecs, self._known, self._heard, runs=runs)._tower(leaf)
            raise

    def walk(self, path: Sequence[Found]) -> Iterator[tuple[bytes, Tokens]]:
        """Yield id and tokens, (t,), of each segment of records in a row of a `path`, decoded one after the other.

        Only as many are kept as the next ones are decoded after. Raises the errors of `tower`.
        """
        above = path[0].record.parent if path else NO_SEGMENT
        names = (item.record.id or NO_SEGMENT for item in path)
        for name, decode in ahead(((name, self.begin([name])) for name in names), 1):
            done, at = list[tuple[bytes, Tokens]](), name
            decode()
            while at != above:
                if isinstance(answer := self._answers[at], PltzError):
                    raise answer
                done.append((at, answer))
                at = self._parent(at)
            yield from reversed(done)
            above = name
            self._keep_last()

    def path(self, leaf: bytes) -> list[Found]:
        """Return the records of a tower, from the root's on. Raises LostError, MissingPack, CorruptError."""
        path = list[Found]()
        for segment, found in self.catalog.lookup.tower(leaf):
            if not found:
                raise self._absent(segment)
            if len(path) == MAX_SEGMENTS:
                raise CorruptError(f"a tower of more than {MAX_SEGMENTS} segments: damaged")
            path.append(found[0])
        return path[::-1]

    def _keep_last(self) -> None:
        """Forget the tokens of all segments but those decoded last, of `BATCH_TOKENS` or one alone."""
        kept = 0
        for segment in reversed(list(self._answers)):
            answer = self._answers[segment]
            if kept and kept + len(cast("Tokens", answer)) > BATCH_TOKENS:
                if segment in self._coded:
                    self._sources.keep(segment, cast("Tokens", answer))
                for known in (self._answers, self._places, self._coded, self._above):
                    known.pop(segment, None)
            kept += len(cast("Tokens", answer))

    def begin_versions(self, versions: Sequence[Version]) -> Callable[[], list[Segments]]:
        """Begin to decode versions together, and return what returns of each what `version` does. Raises its errors."""
        self.note(versions)
        rest = self.begin([v.leaf for v in versions])

        def segments() -> list[Segments]:
            rest()
            return [self.version(v) for v in versions]

        return segments

    def version(self, version: Version) -> Segments:
        """Return (id, tokens of shape (T,)) of each segment of a version. Raises the errors of `tower`."""
        with naming(version):
            tower = self.tower(version.leaf)
            tower = tower[: len(tower) - version.lacks]
            if tower and tower[-1][0][:LEAF] != version.leaf_prefix:
                raise CorruptError(f"version {version.version} does not end in the segment that it names: damaged")
        return tower

    def _tower(self, leaf: bytes) -> Segments:
        self.load([leaf])
        done: Segments = []
        while leaf != NO_SEGMENT:
            answer = self._answers[leaf]
            if isinstance(answer, PltzError):
                raise answer
            done.append((leaf, answer))
            leaf = self._parent(leaf)
        return done[::-1]

    def above(self, item: Found) -> Answer | Coded:
        """Return the context tokens that a record was coded after, (m,), or the error that hides them.

        They are the last tokens of the tower of its parent, which must be loaded. Of a codec that carries it is the
        parent as it was decoded.
        """
        if not item.record.mode & TOWER:
            return NOTHING
        codec = self.codecs.for_context(item.context, item.record.mode)
        if codec and codec.carries:
            return self._carried(item.record.parent)
        left = codec.reach if codec else 0
        parts: list[Tokens] = []
        at = item.record.parent
        while left > 0 and at != NO_SEGMENT:
            answer = self._answers[at]
            if isinstance(answer, PltzError):
                return answer
            parts.append(answer[-left:])
            left -= len(parts[-1])
            at = self._parent(at)
        return np.concatenate(parts[::-1] or [NOTHING])

    def to_decode(self, item: Found, above: Tokens | Coded) -> RecordToDecode:
        """Return a record of which those above are loaded. ``above``: what it was coded after."""
        is_log = item.context.method == Method.LOG
        return RecordToDecode(item, above, self._sources.of(item.record.parent, self._answer) if is_log else None)

    @cached_property
    def _sources(self) -> Sources:
        return self._given or Sources(self.catalog)

    def _answer(self, segment: bytes) -> Answer:
        """Return the tokens of one segment, (T,), decoded apart where it is not here any more."""
        if (known := self._answers.get(segment)) is not None:
            return known
        chains = Chains(self.catalog, self.codecs, needed=True, sources=self._sources)
        [answer] = chains.answers([segment])
        for name in chains._coded:
            self._sources.keep(name, cast("Tokens", chains._answers[name]))
        return answer

    def _carried(self, at: bytes) -> Answer | Coded:
        """Return the nearest segment from one up that has tokens, as it was decoded."""
        while at != NO_SEGMENT:
            answer = self._answers[at]
            if isinstance(answer, PltzError):
                return answer
            if len(answer):
                return self._coded.get(at) or CorruptError(f"segment {at.hex()} is no part of a log: damaged")
            at = self._parent(at)
        return NOTHING

    def answers(self, segments: Sequence[bytes]) -> list[Answer]:
        """Return the tokens of each segment, (T,), or the error that keeps it from being read."""
        self.load(segments)
        return [self._answers[segment] for segment in segments]

    def _parent(self, segment: bytes) -> bytes:
        if segment in self._known:
            return self._known[segment].parent
        if segment in self._above:
            return self._above[segment]
        return self._places[segment][0].record.parent

    def _look_up(self, leaf: bytes) -> list[bytes]:
        """Return the segments from this one up that were not looked up before."""
        path: list[bytes] = []
        passed = set[bytes]()
        at = leaf
        while at not in self._depth and at not in passed and len(path) <= MAX_SEGMENTS:
            path.append(at)
            passed.add(at)
            if at in self._known or at in self._above:
                at = self._parent(at)
                continue
            places = self._places[at] = self._find(at)
            if not places:
                self._answers[at] = self._absent(at)
                self._depth[at] = 0
                path.pop()
                break
            at = NO_SEGMENT if self._needed and self._stands_alone(places[0]) else places[0].record.parent
        # limits, before anything is decoded
        if path and (at not in self._depth or self._depth[at] + len(path) >= MAX_SEGMENTS):
            self._answers[leaf] = CorruptError(f"a tower of more than {MAX_SEGMENTS} segments: damaged")
            return []
        parent = at
        for number, segment in enumerate(reversed(path)):
            self._depth[segment] = self._depth[at] + 1 + number
            self._tokens[segment] = self._tokens.get(parent, 0) + self._length(segment)
            parent = segment
        tokens = sum(map(self._length, path))
        if tokens > MAX_TOKENS:
            self._answers[leaf] = LimitError(
                f"expected at most {MAX_TOKENS} tokens to decode at once, found {tokens}: read it piece by piece"
            )
            return []
        return path

    def _stands_alone(self, item: Found) -> bool:
        """Return whether a record, and all below it, is decoded without those above it."""
        codec, record = self.codecs.for_context(item.context, item.record.mode), item.record
        return codec is not None and codec.carries and record.tokens > 0 and not record.mode & TOWER

    def _absent(self, segment: bytes) -> PltzError:
        """Return the error for a segment of which no record can be used."""
        error = MissingPack if self.catalog.damage.hides(SEGMENTS, segment) is PackState.MISSING else LostError
        return error(f"segment {segment.hex()} is damaged or gone: see pltz archive repair")

    def _find(self, segment: bytes) -> list[Found]:
        """Return the records of a segment in the order in which they are tried."""
        noted = self._noted.get(segment)
        if noted and self._runs and (own := self.catalog.lookup.own_record(noted)):
            self._alone.add(segment)
            found = [own]
        else:
            found = self.catalog.lookup.find(SEGMENTS, segment)
        if found and found[0].record.mode & RUN:
            self._used_runs |= self._runs
        return found if self._runs else [item for item in found if not item.record.mode & RUN]

    def _expand(self, item: Found, tokens: Tokens) -> Tokens:
        """Note all segments of a run that was proved, and return the tokens of its last one, (t,)."""
        lengths, _ = _run(self.catalog.keys, item)
        named = _names(self.catalog.keys, item, lengths, tokens)
        for _, segment, parent, part in named:
            self._answers[segment], self._above[segment] = part, parent
        return named[-1].tokens

    def _length(self, segment: bytes) -> int:
        """Return the tokens of a segment that was looked up, as its record claims."""
        if segment in self._known:
            return len(self._known[segment].tokens)
        if segment in self._above:
            answer = self._answers[segment]
            return 0 if isinstance(answer, PltzError) else len(answer)
        return self._places[segment][0].record.tokens

    def _is_log(self, segment: bytes) -> bool:
        return any(item.context.method == Method.LOG for item in self._places.get(segment, ()))

    def _chains_in(self, path: Sequence[bytes]) -> Iterator[tuple[SegmentCodec, list[Found]]]:
        """Yield the segments of a path that are not decoded yet, in chains that one codec decodes, each after another.

        Of a codec that carries, a segment that was coded alone begins a chain.
        """
        chain, codec = list[Found](), None
        for segment in path:
            if segment in self._answers:
                continue
            item = self._places[segment][0]
            own = self.codecs.for_context(item.context, item.record.mode)
            alone = own is not None and own.carries and not item.record.mode & TOWER
            if chain and (alone or own is not codec or item.record.parent != chain[-1].record.id):
                if codec:
                    yield codec, chain
                chain = []
            chain.append(item)
            codec = own
        if chain and codec:
            yield codec, chain

    def _begin_chain(self, codec: SegmentCodec, items: Sequence[Found]) -> Callable[[], None] | None:
        """Begin to decode a chain all at once; None: that does not help.

        A segment that is not proven is left to `_decode_level`, and so are all below it.
        """
        first = items[0]
        if first.record.mode & TOWER and first.record.parent not in self._answers:
            return None
        above = self.above(first)
        if isinstance(above, PltzError):
            return None
        wanted = list[RecordToDecode]()
        with suppress(PltzError):
            runs = [_run(self.catalog.keys, item) for item in items]
            for item, (_, bits) in zip(items, runs, strict=True):
                wanted.append(self.to_decode(item, above))
                coded = wanted[-1].code(bits)
                above = coded if codec.carries else NOTHING
            found = codec.begin_chain([w.coded for w in wanted if w.coded])
            return found and partial(self._prove_chain, wanted, runs, found)
        return None

    def _prove_chain(
        self,
        wanted: Sequence[RecordToDecode],
        runs: Sequence[tuple[list[int], bytes]],
        found: Callable[[], Iterable[Tokens]],
    ) -> None:
        """Keep what is proven of a chain; the rest is decoded again, one by one."""
        with suppress(PltzError):
            for w, (lengths, _), tokens in zip(wanted, runs, found(), strict=True):
                answer = _proved(self.catalog.keys, w.item, lengths, tokens, self._heard)
                if isinstance(answer, PltzError):
                    return
                segment = w.item.record.id or NO_SEGMENT
                self._answers[segment] = self._taken(segment, w, answer)
                if w.coded:
                    w.coded.source = None  # as in `_decode`

    def _decode_level(self, level: Sequence[bytes]) -> None:
        """Decode each segment of a level from the first of its records that proves to be it."""
        level = [s for s in level if s not in self._answers]
        above = {s: self.above(self._places[s][0]) for s in level}
        wanted = {s: self.to_decode(self._places[s][0], a) for s, a in above.items() if not isinstance(a, PltzError)}
        found = decode_records(self.codecs, self.catalog.keys, list(wanted.values()), self._heard)
        answers = dict(zip(wanted, found, strict=True))
        for s in level:
            answer = answers[s] if s in answers else cast("PltzError", above[s])
            taken = self._next_place(s, answer) if isinstance(answer, PltzError) else self._taken(s, wanted[s], answer)
            self._answers[s] = taken

    def _taken(self, segment: bytes, wanted: RecordToDecode, tokens: Tokens) -> Tokens:
        """Return the tokens of a segment whose record was proved, (T,), and note what segments below need of it."""
        if wanted.coded and wanted.coded.decoded:
            self._coded[segment] = wanted.coded
        return self._expand(wanted.item, tokens) if wanted.item.record.mode & RUN else tokens

    def _next_place(self, segment: bytes, failure: PltzError) -> Answer:
        """Return the tokens from another record of the segment, or the error that covers all of them."""
        failures = [failure]
        first, *others = self._places[segment]
        if segment in self._alone:
            others = [item for item in self.catalog.lookup.find(SEGMENTS, segment) if item.location != first.location]
        for item in others:
            if (item.record.parent, item.record.mode & RUN) != (first.record.parent, first.record.mode & RUN):
                continue  # an id determines its tower, so one of both is crafted, or one is a run
            if not isinstance(answer := self.above(item), PltzError):
                wanted = self.to_decode(item, answer)
                [answer] = decode_records(self.codecs, self.catalog.keys, [wanted], self._heard)
                if not isinstance(answer, PltzError):
                    return self._taken(segment, wanted, answer)
            failures.append(answer)
        if all(isinstance(f, BundleMismatch | KeyMismatch | Erased) for f in failures):
            return failures[0]
        return LostError(f"segment {segment.hex()} does not decode to what it was: {failures[0]}")
