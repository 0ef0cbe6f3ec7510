"""Cluster: choose the sessions that new ones of a tenant are coded after. Spec: FORMAT.md, "Candidates".

    newest sessions of a tenant --sketches--> central ones --code lengths--> bytes saved --k-medoids--> medoids

The distance is d_T, the code length of one session given another. Coding each after each takes too long. So sketches
tell which sessions share most with all others, and each session is coded after the nearest of these, where a put would
try it. Medoids are chosen one after the other, each the one that saves most bytes beside those before. Then one is
swapped for another as long as that saves more. Where fewer save anything than are wanted, the newest other sessions
are candidates too. A tenant that has no more sessions than are wanted needs no code lengths: all are candidates. The
prompts of a base domain are clustered in the same way, each once, whoever stands on them.

A session is no medoid where those coded after it would have too many neighbours in a row. It counts as one that others
may serve. No record is put again.

Medoids are pinned. A tenant is looked at again when the number of its sessions has changed by an eighth, or as many
began since, as where others were forgotten. Then an old medoid stays unless another one saves more by `GAIN`. So those
that many others need stay in memory.

The newest logs of a tenant are candidates of logs (`LogNeighbours`), by sketches of their passages. A put tells whether
one pays, so they need no code lengths. Those that were chosen before are not read again.

The sketches of the medoids go into a candidate file, which writers read when they open the archive. A candidate takes
281 bytes there (297 sealed), whatever the length of its session, and 570 more in memory where its tenant is used. All
tenants together have `TOTAL` at most, 300 MB, so that 10 million sessions of 100,000 tenants have ten per tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import BATCH, NOTHING, Chains, context_after, depth_of, reading_of
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import CandidateGroup, pack_candidates
from pltz.archive.format.context import NO_ROOT, RUN, WITHIN, Context
from pltz.archive.format.ids import BASE, TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.writing.candidates import RULE, read_groups, seal_sketch, tower_sketch
from pltz.archive.writing.neighbours import NEIGHBOUR_BYTES
from pltz.coding.codecs.codec import Plain, SegmentCodec
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.codecs.registry import CodecRegistry
from pltz.coding.log.passages import PASSAGES, passages_of
from pltz.coding.neighbour_rule import LONGEST
from pltz.coding.sketch import Sketch, least_shared
from pltz.plt_codec.errors import FormatError, PltzError
from pltz.plt_codec.identity import NONE

MEDOIDS = 64  # per tenant
TOTAL = 1 << 20  # of all tenants; where these are so many that each would have fewer than `FEWEST`, it has that
FEWEST = 4
SAMPLE = 1024  # sessions of a tenant that are looked at, the newest
CENTRAL = 4  # times as many of those that share most with the others are tried as medoids
NEAREST = 3  # of these that each session is coded after
LOG_BYTES = 16 << 20  # of logs that are read per tenant
SWAPS = 64  # of one medoid for another, at most
CHANGE = 8  # part of its sessions by which a tenant has to change before it is looked at again
GAIN = 0.1  # share of the bytes saved that another medoid has to save more to replace one

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Groups = dict[CandidateGroup, list[tuple[bytes, bytes]]]


@dataclass(frozen=True)
class Clustered:
    """The result of a clustering so far.

    Attributes:
        tenants, sessions: number of tenants and of their sessions looked at.
        kept: number of tenants that have hardly changed, and keep their candidates.
        prompts: number of prompts of base domains looked at.
        medoids: number of candidates in all.
        file_bytes: bytes of the candidate file.
    """

    tenants: int = 0
    sessions: int = 0
    kept: int = 0
    prompts: int = 0
    medoids: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, eq=False)
class _Session:
    """A session as the clustering sees it, or a prompt of a base domain.

    Attributes:
        tower: up to the segment worth reading.
        sketch: of its tokens.
        context: of its last segment.
        pinned: whether it was chosen before.
        serves: whether a put may code others after it.
    """

    tower: Segments
    sketch: Sketch
    codec: SegmentCodec
    context: Context
    pinned: bool
    serves: bool

    @property
    def leaf(self) -> bytes:
        """Return the id of its last segment."""
        return self.tower[-1][0]

    @property
    def weight(self) -> float:
        """Return the factor of the bytes that it saves when it is compared with others."""
        return (1 + GAIN * self.pinned) * self.serves


class Choice(NamedTuple):
    """A domain whose candidates are to be chosen.

    Attributes:
        kind, domain: as in `CandidateGroup`.
        leaves: of the towers that may be candidates, the newest first.
        begun: times at which all sessions began.
        old: candidates that it has.
        most: number of candidates, at most.
    """

    kind: int
    domain: bytes
    leaves: list[bytes]
    begun: list[int]
    old: Groups
    most: int


Elsewhere = Callable[[Sequence[Choice]], Iterable[Groups | None]]  # as `Clusterer.chosen`, in order


class Clusterer:
    """One clustering. Writers that opened the archive before go on with the candidates that they read."""

    def __init__(self, catalog: Catalog, codecs: CodecRegistry, archive: bytes) -> None:
        self.catalog, self.codecs, self.archive = catalog, codecs, archive

    def run(
        self,
        *,
        medoids: int = MEDOIDS,
        dry_run: bool = False,
        progress: Callable[[Clustered], None] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> Clustered:
        """Choose candidates of every tenant and base domain, and put the candidate file.

        Args:
            medoids: most candidates per tenant, and per base domain.
            dry_run: put nothing.
            progress: called with the result so far, after each tenant.
            elsewhere: chooses as `chosen` does, on other machines.

        Raises StoreError, WriterFailed.
        """
        self.catalog.refresh()
        choose = elsewhere or partial(map, self.chosen)
        # candidates of the file that is there, by domain
        done, groups, known = Clustered(), Groups(), dict[bytes, Groups]()
        for group, boxes in read_groups(self.catalog, self.archive):
            with suppress(FormatError):
                known.setdefault(group.domain, {})[group] = list(boxes.read())
        # every tenant, within what the file may hold
        tenants = list(self._tenants())
        most = min(medoids, max(FEWEST, TOTAL // max(1, len(tenants))))
        choices = list[Choice]()
        for versions, begun in tenants:
            domain = self.catalog.keys.domain(TENANT, versions[0].tenant)
            leaves = [v.leaf for v in versions[:SAMPLE] if not v.lacks]
            choices.append(Choice(TENANT, domain, leaves, begun, known.get(domain, {}), most))
        for choice, found in zip(choices, choose(choices), strict=True):
            groups |= choice.old if found is None else found
            done = replace(
                done,
                tenants=done.tenants + 1,
                kept=done.kept + (found is None),
                sessions=done.sessions + (len(choice.leaves) if found is not None else 0),
                medoids=sum(map(len, groups.values())),
            )
            if progress:
                progress(done)
        # every base domain, where prompts are the candidates
        bases = sorted(self.catalog.listing.stable(self._prompts).items())
        choices = [
            Choice(BASE, domain, prompts[:SAMPLE], [0] * len(prompts), known.get(domain, {}), medoids)
            for domain, prompts in bases
        ]
        for choice, found in zip(choices, choose(choices), strict=True):
            groups |= found or choice.old
            done = replace(done, prompts=done.prompts + len(choice.begun))
        data = pack_candidates(self.archive, groups)
        if not dry_run:
            self._put(data)
        return replace(done, medoids=sum(map(len, groups.values())), file_bytes=len(data))

    def _put(self, data: bytes) -> None:
        """Put the candidate file and delete the older ones, which it replaces."""
        store, digest = self.catalog.store, data[-16:].hex()
        store.put(object_names.candidates(digest), data)
        for other in object_names.candidates_among(store.list(object_names.INDEXES)) - {digest}:
            store.delete(object_names.candidates(other))

    def _tenants(self) -> Iterator[tuple[list[Version], list[int]]]:
        """Yield the newest version of each session that is not forgotten, newest first, and the time each began.

        One pair per tenant. Times are those of the oldest versions that are not forgotten, in no order.
        """
        versions = [v for v in self.catalog.lookup.all_versions() if not v.forgotten and v.leaf != NONE]
        for _, rows in groupby(versions, key=lambda v: v.tenant):
            histories = [list(one) for _, one in groupby(rows, key=lambda v: v.name)]
            newest = sorted((one[-1] for one in histories), key=lambda v: (-v.time, v.name))
            yield newest, [min(v.time for v in one) for one in histories]

    def _prompts(self) -> dict[bytes, list[bytes]]:
        """Return the segments of each base domain that have none of it below, sorted.

        Raises FileNotFoundError where a collector deleted a pack meanwhile.
        """
        found: dict[bytes, list[bytes]] = {}
        packs = [self.catalog.listing.opened(pack) for pack in sorted(self.catalog.listing.packs)]
        for domain in {c.domain for pack in packs for c in pack.head.contexts if c.domain_kind == BASE}:
            records = DomainRecords(self.catalog, domain)
            records.read()
            places = {name: self.catalog.lookup.find(SEGMENTS, name) for name in records.segments}
            above = {found[0].record.parent for found in places.values() if found}
            found[domain] = sorted(name for name, there in places.items() if there and name not in above)
        return found

    def chosen(self, choice: Choice) -> Groups | None:
        """Return the candidates of a domain, from packs that no collector deleted meanwhile. None: those it has stay.

        Raises ArchiveError, StoreError.
        """
        return self.catalog.listing.stable(lambda: self._chosen(*choice))

    def _chosen(
        self, kind: int, domain: bytes, leaves: list[bytes], begun: list[int], old: Groups, most: int
    ) -> Groups | None:
        """Do the work of `chosen`. Arguments as the fields of `Choice`."""
        pinned = [name for group, boxes in old.items() if group.tokenizer != PASSAGES for name, _ in boxes]
        count, seen = len(begun), max((group.sessions for group in old), default=0)
        last = max((group.newest for group in old), default=0)
        changed = max(abs(count - seen), sum(time > last for time in begun))
        if seen and CHANGE * changed <= seen and all(map(self._places, pinned)):
            return None
        last = max(begun, default=0)
        sessions = self._sessions(kind, leaves, pinned)
        serving = [s for s in sessions if s.serves]
        chosen = _medoids(sessions, most) if len(serving) > most else []
        others = [s for s in serving if s not in chosen]
        chosen += sorted(others, key=lambda s: not s.pinned)[: most - len(chosen)]
        groups = Groups()
        for session in chosen:
            context = session.context
            group = CandidateGroup(kind, domain, context.tokenizer, context.root, count, last)
            box = seal_sketch(self.catalog.keys, context, session.leaf, session.sketch)
            groups.setdefault(group, []).append((session.leaf, box))
        if kind == TENANT:
            groups |= self._logs(domain, leaves, old, (count, last), most)
        for group, boxes in old.items():  # a codec that the archive was not opened with
            if unread := [box for box in boxes if (at := self._places(box[0])) and self._codec(at) is None]:
                groups.setdefault(group._replace(sessions=count, newest=last), []).extend(unread)
        return groups or {CandidateGroup(kind, domain, NONE, NO_ROOT, count, last): []}

    def _logs(
        self, domain: bytes, leaves: Sequence[bytes], old: Groups, about: tuple[int, int], most: int
    ) -> Groups:
        """Return the newest logs among some leaves as candidates, at most ``most``.

        Only those that were none are read, the newest, up to `LOG_BYTES`. ``about``: sessions and newest of the groups.
        """
        known = {name: (group, box) for group, rows in old.items() if group.tokenizer == PASSAGES for name, box in rows}
        (sessions, newest), groups, left, chosen = about, Groups(), LOG_BYTES, 0
        for leaf in leaves:
            places, deep = self._places(leaf), depth_of(self.catalog, leaf)
            serves = deep is not None and deep <= RULE.most_behind()
            if chosen == most or not isinstance(self._codec(places), LogCodec) or not serves:
                continue
            if leaf in known:
                group, box = known[leaf]
                group = group._replace(sessions=sessions, newest=newest)
            else:
                read = reading_of(self.catalog, leaf)
                if read is None or read > left:
                    continue
                left -= read
                try:
                    tower = Chains(self.catalog, self.codecs).tower(leaf)
                except PltzError:  # verify reports it
                    continue
                hashes = passages_of(b"".join(tokens.astype(np.uint8).tobytes() for _, tokens in tower))
                if len(hashes) < RULE.least_grams:
                    continue
                context = replace(places[0].context, tokenizer=PASSAGES)
                group = CandidateGroup(TENANT, domain, PASSAGES, context.root, sessions, newest)
                box = seal_sketch(self.catalog.keys, context, leaf, Sketch.of(hashes))
            groups.setdefault(group, []).append((leaf, box))
            chosen += 1
        return groups

    def _codec(self, places: Sequence[Found]) -> SegmentCodec | None:
        return self.codecs.for_context(places[0].context) if places else None

    def _places(self, segment: bytes) -> list[Found]:
        return self.catalog.lookup.find(SEGMENTS, segment)

    def _sessions(self, kind: int, leaves: Sequence[bytes], pinned: Sequence[bytes]) -> list[_Session]:
        """Return the towers that may be candidates. What cannot be read or is too short or long is left out."""
        chains, found = Chains(self.catalog, self.codecs), dict[bytes, _Session]()
        wanted = dict(one for leaf in (*leaves, *pinned) if (one := self._worth_reading(leaf)))
        chains.load(list(wanted))
        for end, codec in wanted.items():
            try:
                tower = chains.tower(end)
            except PltzError:  # verify reports it
                continue
            last, sketch = tower_sketch(tower, codec.reach)
            names = [name for name, _ in tower]
            own = self._places(last)
            if sketch.grams >= RULE.least_grams and own and own[0].context.domain_kind == kind:
                tower, serves = tower[: names.index(last) + 1], self._serves(kind, last, codec.fast)
                found[last] = _Session(tower, sketch, codec, own[0].context, last in pinned, serves)
        return list(found.values())

    def _worth_reading(self, leaf: bytes) -> tuple[bytes, SegmentCodec] | None:
        """Return the segment up to which a tower is worth reading (`tower_sketch`) and its leaf's codec.

        Its records tell. Where a run hides the lengths it is the leaf. None where nothing of it can be a candidate.
        """
        path, at = dict[bytes, Found](), leaf
        while at != NONE and at not in path:
            if not (places := self._places(at)):
                return None
            path[at] = places[0]
            at = places[0].record.parent
        codec, read = self._codec(list(path.values())), 0
        if codec is None or not codec.reach or isinstance(codec, LogCodec):
            return None
        if any(item.context.mode & (RUN | WITHIN) for item in path.values()):
            return leaf, codec
        for end, item in reversed(path.items()):
            read += item.record.tokens
            if read >= codec.reach:
                return (end, codec) if read <= LONGEST else None
        return (leaf, codec) if read <= LONGEST else None

    def _serves(self, kind: int, segment: bytes, fast: bool) -> bool:
        """Return whether a put codes segments of a domain of this kind, in this layout, after a stored one."""
        deep = depth_of(self.catalog, segment)
        return deep is not None and deep <= RULE.most_behind(fast=fast, shared=kind == BASE)


def _medoids(sessions: Sequence[_Session], count: int) -> list[_Session]:
    """Return at most ``count`` sessions after which the others of a tenant take few bytes."""
    chosen: list[_Session] = []
    for codec in {id(s.codec): s.codec for s in sessions}.values():
        mine = [s for s in sessions if s.codec is codec]
        left, gain = count - len(chosen), np.array([s.weight for s in mine])
        shared = _shared(mine)
        np.fill_diagonal(shared, 0)  # a session is no neighbour of itself
        pinned = {n for n, s in enumerate(mine) if s.pinned and s.serves}
        central = np.array(sorted(pinned.union(_greedy(shared * gain, CENTRAL * left))), np.int64)
        saved = _saved(codec, mine, central, shared[:, central]) * gain[central]
        chosen += [mine[central[n]] for n in _k_medoids(saved, left)]
    return chosen


def _saved(codec: SegmentCodec, sessions: Sequence[_Session], central: Ints, shared: Floats) -> Floats:
    """Return the bytes by which each session gets shorter after the nearest of the central ones, (n, m).

    Zeros where it does not, and where a put would not try. ``central``: numbers of m sessions; ``shared``: 4-grams that
    each session shares with each of these, (n, m).
    """
    tokens = [np.concatenate([NOTHING, *(part for _, part in s.tower)])[: codec.reach] for s in sessions]
    contexts = {a: context_after(sessions[a].tower, set(), NOTHING, codec) for a in central.tolist()}
    least = [max(1.0, least_shared(one)) for one in tokens]
    nearest = np.argsort(-shared, axis=1, kind="stable")[:, :NEAREST].tolist()
    pairs = sorted((a, b) for b, row in enumerate(nearest) for a in row if shared[b, a] >= least[b])
    rows = sorted({b for _, b in pairs})
    alone = dict(zip(rows, _sizes(codec, [Plain(tokens[b], NOTHING) for b in rows]), strict=True))
    after = _sizes(codec, [Plain(tokens[b], contexts[int(central[a])]) for a, b in pairs])
    saved = np.zeros(shared.shape)
    for (a, b), size in zip(pairs, after, strict=True):
        saved[b, a] = max(0, alone[b] - size - NEIGHBOUR_BYTES)
    return saved


def _sizes(codec: SegmentCodec, plain: Sequence[Plain]) -> Iterator[int]:
    """Yield the bytes of each segment, coded in batches."""
    for begin in range(0, len(plain), BATCH):
        yield from map(len, codec.encode(plain[begin : begin + BATCH]))


def _shared(sessions: Sequence[_Session]) -> Floats:
    """Return the estimated number of 4-grams that each session (rows) shares with each (columns), (n, n)."""
    owners = np.repeat(np.arange(len(sessions)), [len(s.sketch.hashes) for s in sessions])
    hashes = np.concatenate([s.sketch.hashes for s in sessions]) if sessions else np.zeros(0, np.uint32)
    values, number = np.unique(hashes, return_inverse=True)
    there = np.zeros((len(sessions), len(values)), np.float32)
    there[owners, number] = 1
    scale = np.array([s.sketch.grams / max(1, len(s.sketch.hashes)) for s in sessions])
    shared: Floats = (there @ there.T) * np.sqrt(scale[:, None] * scale[None, :])
    return shared


def _greedy(saved: Floats, count: int) -> list[int]:
    """Return at most ``count`` columns, each the one that adds most to the sum of the largest of each row, (n, m)."""
    chosen, best = list[int](), np.zeros(len(saved))
    while len(chosen) < min(count, saved.shape[1]):
        total = np.maximum(saved, best[:, None]).sum(axis=0) - best.sum()
        column = int(np.argmax(total))
        if total[column] <= 1e-6 * best.sum():  # rounding
            break
        chosen.append(column)
        best = np.maximum(best, saved[:, column])
    return chosen


def _k_medoids(saved: Floats, count: int) -> list[int]:
    """Return at most ``count`` columns of which the largest of each row, (n, m), add up to most: `_greedy`, then swaps.

    Each swap of one for another is the best one.
    """
    chosen = _greedy(saved, count)
    for _ in range(SWAPS if chosen else 0):
        now, swaps = saved[:, chosen].max(axis=1).sum(), list[tuple[float, int, int]]()
        for place in range(len(chosen)):
            others = saved[:, chosen[:place] + chosen[place + 1 :]].max(axis=1, initial=0)
            total = np.maximum(saved, others[:, None]).sum(axis=0)
            swaps.append((float(total.max()), place, int(np.argmax(total))))
        most, place, column = max(swaps)
        if most <= now * (1 + 1e-6):
            break
        chosen[place] = column
    return chosen
