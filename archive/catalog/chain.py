"""Chains: towers of stored segments back to tokens, level by level, each segment once.

    leaves --look up--> their parents, up to the roots
    roots, then their children, ... --decode, prove--> tokens

A single path goes by one call of a codec that decodes chains; otherwise the segments go level by level.
Each level is one batch, so a segment that many sessions share is decoded once. A segment that cannot be read
has an error as its answer. Segments that need it as context get the same error.

A record may name a neighbour, another segment whose tower comes first in its context (FORMAT.md, "Neighbours"). These
towers are read first, each once. Records in them may have neighbours too, at most `LAST` in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.ledger import PackState
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.recent_towers import RecentTowers, Segments
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import Erased, KeyMismatch, LostError, MissingPack, StoreError
from pltz.archive.format import ids as identity
from pltz.archive.format.context import RUN, WITHIN, coding
from pltz.archive.format.ids import BASE, LEAF, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.run import unpack_run
from pltz.coding.codecs.codec import Chained, Coded, SegmentCodec
from pltz.coding.codecs.modes import TOWER
from pltz.coding.codecs.registry import CodecRegistry
from pltz.models.bundle.releases import described, how_to_get
from pltz.plt_codec.errors import BundleMismatch, CorruptError, PltzError
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.limits import MAX_TOKENS

MAX_SEGMENTS = 4096  # segments per tower
BATCH, BATCH_TOKENS = 256, 1 << 20  # records, and tokens that they claim, decoded at once: they bound the memory
LAST = 3  # hops from a record over neighbours; those at the last have none
LACKING = -1  # segments of a tower that cannot be read
NOTHING: Tokens = np.zeros(0, np.int64)

T = TypeVar("T")
Answer = Tokens | PltzError
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


@dataclass(frozen=True)
class RecordToDecode:
    """A record to decode.

    ``above``: the context tokens it was coded after, (m,), m at most the reach of its codec.
    """

    item: Found
    above: Tokens


def decode_records(
    codecs: CodecRegistry,
    keys: Encryption,
    wanted: Sequence[RecordToDecode],
    heard: Heard | None = None,
) -> list[Answer]:
    """Return the tokens of each record, (T,), or the error that keeps them from being read.

    The segment id recomputed from the tokens proves each record. ``heard`` is called for each proved record.
    Errors returned: BundleMismatch, CorruptError, Erased, KeyMismatch.
    """
    out: list[Answer] = [NOTHING] * len(wanted)
    groups: dict[int, tuple[SegmentCodec, list[int]]] = {}
    for number, w in enumerate(wanted):
        codec = codecs.for_context(w.item.context)
        if codec is None:
            out[number] = _no_codec(w.item)
        else:
            groups.setdefault(id(codec), (codec, []))[1].append(number)
    for codec, numbers in groups.values():
        for part in decodable_groups(numbers, lambda number: wanted[number].item.record.tokens):
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
        coded = [
            Coded(bits, w.item.record.tokens, w.above, coding(codec, w.item.context, w.item.record))
            for (_, bits), w in zip(runs, wanted, strict=True)
        ]
        found = codec.decode(coded)
    except StoreError:  # of a key file: the store failed, and nothing is damaged
        raise
    except PltzError as exc:
        return [exc] if len(wanted) == 1 else [_decode(codec, keys, [w], heard)[0] for w in wanted]
    rows = zip(wanted, runs, found, strict=True)
    return [_proved(keys, w, lengths, tokens, heard) for w, (lengths, _), tokens in rows]


def _run(keys: Encryption, item: Found) -> tuple[list[int], bytes]:
    """Return the tokens of each segment of a record, and the bits of all. Raises CorruptError, Erased."""
    bits = keys.bits(item.context, item.record)
    if not item.context.mode & RUN:
        return [item.record.tokens], bits
    run = unpack_run(item.record._replace(bitstring=bits))
    return run.lengths, run.data


def _proved(
    keys: Encryption, wanted: RecordToDecode, lengths: Sequence[int], tokens: Tokens, heard: Heard | None
) -> Answer:
    """Return the tokens of a record, (T,), if the segment ids recomputed from them end in its id."""
    try:
        ids = identity.checked(tokens)
    except PltzError as exc:
        return CorruptError(f"the record decodes to what are no token ids: {exc}")
    digests = [digest for digest, _, _ in _names(keys, wanted.item, lengths, ids)]
    found = identity.segment_of(digests[-1])
    if found != wanted.item.record.id:
        return CorruptError(
            f"the record decodes to segment {found.hex()}: damaged, or decoded with another bundle"
        )
    if heard:
        for digest in digests:
            heard(wanted.item, digest)
    return ids


def _names(
    keys: Encryption, item: Found, lengths: Sequence[int], tokens: Tokens
) -> Iterator[tuple[bytes, bytes, Tokens]]:
    """Yield digest, 32 bytes, parent and tokens of each segment of a record. ``tokens``: of all of them, (T,)."""
    context, parent, at = item.context, item.record.parent, 0
    for length in lengths:
        part = tokens[at : at + length]
        digest = keys.segment_digest(context.domain, context.tokenizer, parent, part)
        yield digest, parent, part
        parent, at = identity.segment_of(digest), at + length


def context_after(neighbour: Segments, above: Collection[bytes], own: Tokens, codec: SegmentCodec) -> Tokens:
    """Return the context tokens, (m,), m at most the reach of the codec, of a segment that has a neighbour.

    Args:
        neighbour: the tower that ends in the neighbour.
        above: ids of the segments above this one; those that are in both towers come once.
        own: the last tokens above this segment that its mode lets count, (n,), n at most the reach.
        codec: that of the segment; its mark stands between both.
    """
    mark, parts = codec.lane_mark, [NOTHING]
    room = codec.reach - len(own) - len(mark)
    for name, tokens in neighbour:
        if name not in above and room > 0:
            parts.append(tokens[:room])
            room -= len(parts[-1])
    before = np.concatenate(parts)
    return np.concatenate([before, mark, own]) if len(before) else own


def _no_codec(item: Found) -> BundleMismatch:
    return BundleMismatch(
        f"frozen with bundle {described(item.context.bundle)}, contract {item.context.contract}, tokenizer "
        f"{item.context.tokenizer.hex()}, which is not here: {how_to_get(item.context.bundle)}. Where the ids are of a "
        "target's tokenizer, name that with --tokenizer"
    )


def lost_versions(catalog: Catalog, versions: Iterable[Version], bad: Container[bytes] = ()) -> Iterator[Version]:
    """Yield the versions with a segment that is missing or in ``bad``; forgotten ones are left out.

    Nothing is decoded.
    """
    known = _known()
    for version in versions:
        if not _is_whole(catalog, version.leaf, bad, known) and not version.forgotten:
            yield version


def deepest(records: Mapping[bytes, Collection[tuple[bytes, bytes]]]) -> set[bytes]:
    """Return the segments that some of their records put into a circle, or too deep to be read.

    ``records``: parent and neighbour in each record of a segment. A segment without records counts as a root.
    """
    sizes: dict[bytes, tuple[int, int]] = {}  # segments, and neighbours in a row, of the longest way up
    astray = set[bytes]()
    for segment in records:
        path, open_ = [segment], set[bytes]()
        while path:
            at = path[-1]
            needs = {one for row in records.get(at, ()) for one in row if one != NONE}
            if at not in sizes and at not in open_:
                open_.add(at)
                path += [one for one in needs if one not in sizes]
                continue
            path.pop()
            if at in sizes:
                continue
            ways = [(sizes.get(up, (0, 0)), sizes.get(near, (0, 0)), near) for up, near in records.get(at, ())]
            long = 1 + max((up[0] for up, _, _ in ways), default=0)
            hops = max((max(up[1], (1 + after[1]) * (near != NONE)) for up, after, near in ways), default=0)
            if long > MAX_SEGMENTS or hops > LAST or any(one not in sizes for one in needs) or astray & needs:
                astray.add(at)
            sizes[at] = long, hops
    return astray


def _known() -> list[dict[bytes, int]]:
    """Return what `_is_whole` knows at first, by the neighbours that lead to a tower."""
    return [{NONE: 0} for _ in range(LAST + 1)]


def _is_whole(
    catalog: Catalog, leaf: bytes, bad: Container[bytes], known: Sequence[dict[bytes, int]], hops: int = 0
) -> bool:
    """Return whether no segment of a tower is missing, nor any of the towers of its neighbours, and none is too deep.

    ``known``: the segments of towers known already, by ``hops`` and their last segment; LACKING where one is not whole.
    ``hops``: as in `Chains`.
    """
    sizes = known[hops]
    chain: dict[bytes, None] = {}
    at = leaf
    while at not in sizes:
        chain[at] = None
        places = [] if at in bad else catalog.lookup.find(SEGMENTS, at)
        neighbours = {place.record.neighbour for place in places if may_serve(place, hops)}
        lacks = not neighbours or places[0].record.parent in chain
        if lacks or not any(one == NONE or _is_whole(catalog, one, bad, known, hops + 1) for one in neighbours):
            sizes[at] = LACKING
            break
        at = places[0].record.parent
    size = sizes[at]
    for segment in reversed(chain):
        size = size + 1 if 0 <= size < MAX_SEGMENTS and segment not in sizes else LACKING
        sizes[segment] = size
    return sizes[leaf] != LACKING


def may_serve(item: Found, hops: int) -> bool:
    """Return whether a record counts in the tower of a neighbour. ``hops``: as in `Chains`."""
    return item.record.neighbour == NONE or hops < LAST


def depth_of(catalog: Catalog, leaf: bytes) -> int | None:
    """Return the fewest neighbours in a row with which a tower is read, as its records tell; nothing is decoded.

    None where a segment is missing or more than `LAST` are needed.
    """
    known = _known()
    return next((n for n in range(LAST + 1) if _is_whole(catalog, leaf, (), known, LAST - n)), None)


def reading_of(catalog: Catalog, leaf: bytes) -> int | None:
    """Return the tokens that are decoded to read a tower, those of its neighbours included, as its records tell.

    None where a segment is missing.
    """
    seen, todo, total = {NONE}, [leaf], 0
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        places = catalog.lookup.find(SEGMENTS, at)
        if not places:
            return None
        total += places[0].record.tokens
        todo += [places[0].record.parent, places[0].record.neighbour]
    return total


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
        recent: towers of neighbours that are remembered; those decoded are added.
        runs: whether to read runs at all.
        hops: number of neighbours that led here. With `LAST` no record may have a neighbour.
    """

    def __init__(
        self,
        catalog: Catalog,
        codecs: CodecRegistry,
        known: Mapping[bytes, KnownSegment] | None = None,
        heard: Heard | None = None,
        *,
        recent: RecentTowers | None = None,
        runs: bool = True,
        hops: int = 0,
    ):
        self._runs, self._hops, self._recent = runs, hops, recent
        self._neighbours: dict[bytes, Segments | PltzError] = {}  # towers of neighbours
        self._domains: dict[bytes, set[tuple[int, bytes]]] = {}  # kinds and ids of the domains of neighbours
        self._neighbour_chains: Chains | None = None
        self._used_runs = False
        self._above: dict[bytes, bytes] = {}  # parents of the segments of runs
        self.catalog, self.codecs, self._heard = catalog, codecs, heard
        self._known = known or {}
        self._places: dict[bytes, list[Found]] = {}
        self._noted: dict[bytes, Version] = {}  # versions by their leaves, see `note`
        self._alone = set[bytes]()  # segments of which one record was read where others may be
        self._depth: dict[bytes, int] = {NONE: -1}
        self._tokens: dict[bytes, int] = {NONE: 0}  # tokens of the tower that ends in each segment
        self._answers: dict[bytes, Answer] = {segment: k.tokens for segment, k in self._known.items()}

    def note(self, versions: Iterable[Version]) -> None:
        """Note the records of sessions that will be read: most have the leaf, so no index is asked for that.

        Its other records are looked up only where that one cannot be used.
        """
        self._noted |= {version.leaf: version for version in versions}

    def load(self, leaves: Sequence[bytes]) -> None:
        """Decode all segments of these towers that are not decoded yet.

        Errors are kept and raised by `tower`.
        """
        levels: dict[int, list[bytes]] = {}
        fresh: list[bytes] = []
        for leaf in leaves:
            fresh += self._look_up(leaf)
        if not fresh:
            return
        for segment in fresh:
            levels.setdefault(self._depth[segment], []).append(segment)
        self.load_neighbours([self._places[segment][0] for segment in fresh if segment in self._places])
        if self._neighbour_chains:
            self._answers |= self._neighbour_chains.decoded([s for s in fresh if s not in self._answers])
        ordered = [levels[depth] for depth in sorted(levels)]
        if all(len(level) == 1 for level in ordered):
            self._decode_path([segment for (segment,) in ordered if segment not in self._answers])
        for level in ordered:
            self._decode_level(level)

    def decoded(self, segments: Collection[bytes]) -> dict[bytes, Answer]:
        """Return the tokens, (T,), of those of these segments that were decoded already and are not in runs."""
        found = self._neighbour_chains.decoded(segments) if self._neighbour_chains else {}
        for s in segments:
            answer, places = self._answers.get(s), self._places.get(s, ())
            if isinstance(answer, np.ndarray) and places and not any(i.context.mode >= RUN for i in places):
                found[s] = answer
        return found

    def length(self, leaf: bytes) -> int:
        """Return the tokens of a tower, from its records alone; 0 where one of them cannot be read.

        For an object that decodes nothing: `load` takes what was looked up for decoded.
        """
        self._look_up(leaf)
        return self._tokens.get(leaf, 0)

    def tower(self, leaf: bytes) -> list[tuple[bytes, Tokens]]:
        """Return (id, tokens of shape (T,)) of each segment from the root to the leaf.

        Raises LostError, MissingPack, CorruptError, BundleMismatch, KeyMismatch, Erased.
        """
        try:
            return self._tower(leaf)
        except (LostError, MissingPack, CorruptError):
            if not self._used_runs:
                raise
            try:
                return self._like_this(self._hops, runs=False)._tower(leaf)
            except PltzError:
                pass
            raise

    def _like_this(self, hops: int, *, runs: bool = True) -> Chains:
        """Return chains with nothing decoded, that know and tell the same, but for tokens that are still decoded."""
        return Chains(
            self.catalog, self.codecs, self._known, self._heard, recent=self._recent, runs=runs, hops=hops
        )

    def version(self, version: Version) -> list[tuple[bytes, Tokens]]:
        """Return (id, tokens of shape (T,)) of each segment of a version. Raises the errors of `tower`."""
        tower = self.tower(version.leaf)
        tower = tower[: len(tower) - version.lacks]
        if tower and tower[-1][0][:LEAF] != version.leaf_prefix:
            raise CorruptError(
                f"version {version.version} of {version.name!r} does not end in the segment that it names: damaged"
            )
        return tower

    def _tower(self, leaf: bytes) -> list[tuple[bytes, Tokens]]:
        self.load([leaf])
        done: list[tuple[bytes, Tokens]] = []
        while leaf != NONE:
            answer = self._answers[leaf]
            if isinstance(answer, PltzError):
                raise answer
            done.append((leaf, answer))
            leaf = self._parent(leaf)
        return done[::-1]

    def above(self, item: Found) -> Answer:
        """Return the context tokens that a record was coded after, (m,), or the error that hides them.

        They are the last tokens of the tower of its parent, which must be loaded, behind the first ones of the tower
        of its neighbour (`load_neighbours`).
        """
        codec = self.codecs.for_context(item.context)
        reach = codec.reach if codec else 0
        own = self._own_above(item, reach if item.context.mode & TOWER else 0)
        if item.record.neighbour == NONE or isinstance(own, PltzError):
            return own
        neighbour = self._neighbours[item.record.neighbour]
        if isinstance(neighbour, PltzError):
            return neighbour
        if not self._may_name(item):
            return CorruptError(
                f"segment {(item.record.id or NONE).hex()} is coded after a segment of another tenant: crafted"
            )
        return context_after(neighbour, self._ancestors(item.record.parent), own, codec) if codec else own

    def _own_above(self, item: Found, left: int) -> Answer:
        """Return the last ``left`` tokens of the tower of a record's parent, or the error that hides them."""
        parts: list[Tokens] = []
        at = item.record.parent
        while left > 0 and at != NONE:
            answer = self._answers[at]
            if isinstance(answer, PltzError):
                return answer
            parts.append(answer[-left:])
            left -= len(parts[-1])
            at = self._parent(at)
        return np.concatenate(parts[::-1] or [NOTHING])

    def _may_name(self, item: Found) -> bool:
        """Return whether the neighbour of a record is of the same domain, or of a base that a tenant's may name."""
        leaf, own = item.record.neighbour, (item.context.domain_kind, item.context.domain)
        if leaf not in self._domains:
            found = self.catalog.lookup.find(SEGMENTS, leaf)
            self._domains[leaf] = {(place.context.domain_kind, place.context.domain) for place in found}
        return all(one == own or own[0] != BASE == one[0] for one in self._domains[leaf])

    def _ancestors(self, parent: bytes) -> set[bytes]:
        """Return the ids of a segment and of all above it."""
        names: set[bytes] = set()
        while parent != NONE:
            names.add(parent)
            parent = self._parent(parent)
        return names

    def load_neighbours(self, items: Iterable[Found]) -> None:
        """Read the towers of the neighbours of records that are not read yet, each once.

        Errors are kept, and returned by `above`.
        """
        wanted = {item.record.neighbour for item in items} - self._neighbours.keys() - {NONE}
        for leaf in sorted(wanted):
            if self._recent and (known := self._recent.get(leaf)):
                self._neighbours[leaf] = known
        if missing := sorted(wanted - self._neighbours.keys()):
            if self._neighbour_chains is None:
                self._neighbour_chains = self._like_this(self._hops + 1)
            self._neighbour_chains.load(missing)
            for leaf in missing:
                try:
                    self._neighbours[leaf] = found = self._neighbour_chains.tower(leaf)
                except PltzError as exc:
                    self._neighbours[leaf] = exc
                else:
                    if self._recent:
                        self._recent.add(found)

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
        at = leaf
        while at not in self._depth and len(path) <= MAX_SEGMENTS:
            path.append(at)
            if at in self._known or at in self._above:
                at = self._parent(at)
                continue
            places = self._places[at] = self._find(at)
            if not places:
                self._answers[at] = self._absent(at)
                self._depth[at] = 0
                path.pop()
                break
            at = places[0].record.parent
        # limits, before anything is decoded
        if path and (len(path) > MAX_SEGMENTS or self._depth[at] + len(path) >= MAX_SEGMENTS):
            self._answers[leaf] = CorruptError(f"a tower of more than {MAX_SEGMENTS} segments: damaged")
            return []
        tokens = self._tokens.get(at, 0) + sum(map(self._length, path))
        if tokens > MAX_TOKENS:
            self._answers[leaf] = CorruptError(
                f"a tower that claims {tokens} tokens, at most {MAX_TOKENS} are allowed: damaged"
            )
            return []
        parent = at
        for number, segment in enumerate(reversed(path)):
            self._depth[segment] = self._depth[at] + 1 + number
            self._tokens[segment] = self._tokens.get(parent, 0) + self._length(segment)
            parent = segment
        return path

    def _absent(self, segment: bytes) -> PltzError:
        """Return the error for a segment of which no record can be used."""
        found = self.catalog.lookup.find(SEGMENTS, segment)
        if found and not any(may_serve(item, self._hops) for item in found):
            return LostError(f"segment {segment.hex()} is read after more than {LAST} neighbours in a row: damaged")
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
        if found and found[0].context.mode >= RUN:
            self._used_runs |= self._runs
        found = [item for item in found if may_serve(item, self._hops)]
        return found if self._runs else [item for item in found if item.context.mode < RUN]

    def _expand(self, item: Found, tokens: Tokens) -> Tokens:
        """Note all segments of a run that was proved, and return the tokens of its last one, (t,)."""
        lengths, _ = _run(self.catalog.keys, item)
        for digest, parent, part in _names(self.catalog.keys, item, lengths, tokens):
            segment = identity.segment_of(digest)
            self._answers[segment], self._above[segment] = part, parent
        return part

    def _length(self, segment: bytes) -> int:
        """Return the tokens of a segment that was looked up, as its record claims."""
        if segment in self._known:
            return len(self._known[segment].tokens)
        if segment in self._above:
            answer = self._answers[segment]
            return 0 if isinstance(answer, PltzError) else len(answer)
        return self._places[segment][0].record.tokens

    def _decode_path(self, path: Sequence[bytes]) -> None:
        """Decode segments that each stand behind the one before, by one call of a codec that is faster so.

        A segment that is not proven is left to `_decode_level`, and so are all below it.
        """
        if path and self._places[path[-1]][0].context.mode == WITHIN:  # it comes with its run
            path = path[:-1]
        items = [self._places[segment][0] for segment in path]
        codec = self.codecs.for_context(items[0].context) if len(items) > 1 else None
        if not isinstance(codec, Chained) or not codec.chains:
            return
        # each segment stands directly behind the one before, with the same codec and nothing beside it
        for number, item in enumerate(items[1:], 1):
            if item.record.parent != path[number - 1] or self.codecs.for_context(item.context) is not codec:
                return
            if item.context.mode == WITHIN:  # what is below it was not coded after all of the run
                return
        if any(item.record.neighbour != NONE or item.record.copied for item in items):
            return  # a neighbour comes before the first link alone, and a chain has no literals
        # one call decodes all of them
        above, keys = self.above(items[0]), self.catalog.keys
        if isinstance(above, PltzError):
            return
        try:
            runs = [_run(keys, item) for item in items]
            coded = [
                Coded(bits, i.record.tokens, NOTHING if n else above, coding(codec, i.context, i.record))
                for n, (i, (_, bits)) in enumerate(zip(items, runs, strict=True))
            ]
            found = codec.decode_chain(coded)
        except PltzError:
            return
        # what is proven is kept; the rest is decoded again, one by one
        for segment, item, (lengths, _), tokens in zip(path, items, runs, found, strict=True):
            answer = _proved(keys, self._wanted(item, NOTHING), lengths, tokens, self._heard)
            if isinstance(answer, PltzError):
                return
            self._answers[segment] = self._expand(item, answer) if item.context.mode & RUN else answer

    def _decode_level(self, level: Sequence[bytes]) -> None:
        """Decode each segment of a level from the first of its records that proves to be it."""
        level = [s for s in level if s not in self._answers]
        for segment in [s for s in level if self._places[s][0].context.mode == WITHIN]:
            self._answers[segment] = self._outside(self._places[segment][0])
        level = [s for s in level if self._places[s][0].context.mode != WITHIN]
        above = [self.above(self._places[s][0]) for s in level]
        ready = [n for n in range(len(level)) if not isinstance(above[n], PltzError)]
        wanted = [self._wanted(self._places[level[n]][0], above[n]) for n in ready]
        answers = dict(
            zip(ready, decode_records(self.codecs, self.catalog.keys, wanted, self._heard), strict=True)
        )
        for number, segment in enumerate(level):
            answer, item = answers.get(number, above[number]), self._places[segment][0]
            if isinstance(answer, PltzError):
                self._answers[segment] = self._next_place(segment, answer)
            else:
                self._answers[segment] = self._expand(item, answer) if item.context.mode & RUN else answer

    def _outside(self, item: Found) -> PltzError:
        """Return the error for a record whose segment is not in the run that it names."""
        answer = self._answers[item.record.parent]
        if isinstance(answer, PltzError):
            return answer
        return CorruptError(f"segment {(item.record.id or NONE).hex()} is not in the run that it names: damaged")

    def _next_place(self, segment: bytes, failure: PltzError) -> Answer:
        """Return the tokens from another record of the segment, or the error that covers all of them."""
        failures = [failure]
        first, *others = self._places[segment]
        if segment in self._alone:
            others = [item for item in self.catalog.lookup.find(SEGMENTS, segment) if item.location != first.location]
        for item in others:
            if (item.record.parent, item.context.mode & RUN) != (first.record.parent, first.context.mode & RUN):
                continue  # an id determines its tower, so one of both is crafted, or one is a run
            self.load_neighbours([item])
            above = self.above(item)
            answer = above if isinstance(above, PltzError) else self._single(item, above)
            if not isinstance(answer, PltzError):
                return self._expand(item, answer) if item.context.mode & RUN else answer
            failures.append(answer)
        if all(isinstance(f, BundleMismatch | KeyMismatch | Erased) for f in failures):
            return failures[0]
        return LostError(f"segment {segment.hex()} does not decode to what it was: {failures[0]}")

    def _single(self, item: Found, above: Tokens) -> Answer:
        return decode_records(self.codecs, self.catalog.keys, [self._wanted(item, above)], self._heard)[0]

    def _wanted(self, item: Found, above: Answer) -> RecordToDecode:
        assert not isinstance(above, PltzError)
        return RecordToDecode(item, above)
