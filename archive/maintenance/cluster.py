"""Cluster: choose the sessions that new ones of a tenant are coded after. Spec: FORMAT.md, "Candidates".

    newest sessions of a tenant --sketch--> groups of those that share most --code lengths--> a medoid of each

The distance is d_T, the code length of one session given another. Coding each after each takes too long, so sketches
form the groups, and real code lengths choose the medoid. It is the one of the most central sessions after which the
others of its group take the fewest bytes. A medoid that has a neighbour itself is put again without one. Where fewer
groups are found than are wanted, the newest sessions that are coded alone are candidates too. The prompts of a
base domain are clustered in the same way, each once, whoever stands on them.

Medoids are pinned. A tenant is looked at again when the number of its sessions has changed by an eighth, or as many
began since, as where others were forgotten. Then an old medoid stays that of its group unless another one takes `GAIN`
less. Sessions that are coded alone have that advantage too. So few sessions are coded anew, and those that many others
need stay in memory.

The sketches of the medoids go into a candidate file, which writers read when they open the archive. A candidate takes
281 bytes there (297 sealed), whatever the length of its session, and 570 more in memory where its tenant is used. All
tenants together have `TOTAL` at most, 300 MB, so that 10 million sessions of 100,000 tenants have ten per tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains, context_after
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.codecs.codec import Plain, SegmentCodec, codec_of
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import CandidateGroup, pack_candidates
from pltz.archive.format.context import NO_ROOT, Context
from pltz.archive.format.ids import BASE, NONE, TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.maintenance.recode import Recoder
from pltz.archive.writing.candidates import LEAST_GRAMS, read_groups, seal_sketch, tower_sketch
from pltz.models.session.sketch import Sketch
from pltz.plt_codec.errors import FormatError, PltzError

MEDOIDS = 64  # per tenant
TOTAL = 1 << 20  # of all tenants; where these are so many that each would have fewer than `FEWEST`, it has that
FEWEST = 4
SAMPLE = 1024  # sessions of a tenant that are looked at, the newest
CENTRAL = 3  # sessions of a group that are tried as its medoid
MEMBERS = 8  # sessions of a group that are coded after each of these
CHANGE = 8  # part of its sessions by which a tenant has to change before it is looked at again
GAIN = 0.02  # share of the bytes that another medoid has to save to replace one

Groups = dict[CandidateGroup, list[tuple[bytes, bytes]]]


@dataclass(frozen=True)
class Clustered:
    """The result of a clustering so far.

    Attributes:
        tenants, sessions: number of tenants and of their sessions looked at.
        kept: number of tenants that have hardly changed, and keep their candidates.
        prompts: number of prompts of base domains looked at.
        medoids: number of candidates in all.
        recoded: number of segments put again, as a neighbour has none itself.
        file_bytes: bytes of the candidate file.
    """

    tenants: int = 0
    sessions: int = 0
    kept: int = 0
    prompts: int = 0
    medoids: int = 0
    recoded: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, eq=False)
class _Session:
    """A session as the clustering sees it, or a prompt of a base domain.

    Attributes:
        tower: up to the segment worth reading.
        sketch: of its tokens.
        context: of its last segment.
        pinned: whether it was chosen before.
        alone: whether it need not be put again to serve.
    """

    tower: Segments
    sketch: Sketch
    codec: SegmentCodec
    context: Context
    pinned: bool
    alone: bool

    @property
    def leaf(self) -> bytes:
        return self.tower[-1][0]

    @property
    def bonus(self) -> float:
        """Return the share by which another session has to be better to take its place."""
        return GAIN * (self.pinned + self.alone)


class Clusterer:
    """One clustering. Writers that opened the archive before go on with the candidates that they read."""

    def __init__(self, catalog: Catalog, codecs: list[SegmentCodec], recoder: Recoder, archive: bytes) -> None:
        self.catalog, self.codecs, self.recoder, self.archive = catalog, codecs, recoder, archive

    def run(
        self, *, medoids: int = MEDOIDS, dry_run: bool = False, progress: Callable[[Clustered], None] | None = None
    ) -> Clustered:
        """Choose candidates of every tenant and base domain, and put the candidate file.

        Args:
            medoids: most candidates per tenant, and per base domain.
            dry_run: put nothing.
            progress: called with the result so far, after each tenant.

        Raises ArchiveError where a segment cannot be put again, StoreError, WriterFailed.
        """
        self.catalog.refresh()
        done, groups, known = Clustered(), Groups(), dict[bytes, Groups]()
        for group, boxes in read_groups(self.catalog, self.archive):
            with suppress(FormatError):
                known.setdefault(group.domain, {})[group] = list(boxes.read())
        tenants = list(self._tenants())
        most = min(medoids, max(FEWEST, TOTAL // max(1, len(tenants))))
        for versions, begun in tenants:
            domain = self.catalog.keys.domain(TENANT, versions[0].tenant)
            leaves = [v.leaf for v in versions[:SAMPLE] if not v.lacks]
            found, recoded = self._chosen(TENANT, domain, leaves, begun, known.get(domain, {}), most, dry_run)
            groups |= found or known[domain]
            done = replace(
                done,
                tenants=done.tenants + 1,
                kept=done.kept + (found is None),
                sessions=done.sessions + (len(leaves) if found is not None else 0),
                medoids=sum(map(len, groups.values())),
                recoded=done.recoded + recoded,
            )
            if progress:
                progress(done)
        for domain, prompts in sorted(self._prompts().items()):
            old = known.get(domain, {})
            begun = [0] * len(prompts)
            found, recoded = self._chosen(BASE, domain, prompts[:SAMPLE], begun, old, medoids, dry_run)
            groups |= found or old
            done = replace(done, prompts=done.prompts + len(prompts), recoded=done.recoded + recoded)
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
        """Return the segments of each base domain that have none of it below, sorted."""
        found: dict[bytes, list[bytes]] = {}
        packs = [self.catalog.listing.opened(pack) for pack in sorted(self.catalog.listing.packs)]
        for domain in {c.domain for pack in packs for c in pack.head.contexts if c.domain_kind == BASE}:
            records = DomainRecords(self.catalog, domain)
            self.catalog.listing.stable(records.read)
            places = {name: self.catalog.lookup.find(SEGMENTS, name) for name in records.segments}
            above = {found[0].record.parent for found in places.values() if found}
            found[domain] = sorted(name for name, there in places.items() if there and name not in above)
        return found

    def _chosen(
        self, kind: int, domain: bytes, leaves: list[bytes], begun: list[int], old: Groups, most: int, dry_run: bool
    ) -> tuple[Groups | None, int]:
        """Return the candidates of a domain, and the number of segments put again. None: those it has stay.

        ``leaves``: of the towers that may be candidates, the newest first; ``begun``: times at which all began.
        """
        pinned = [name for boxes in old.values() for name, _ in boxes]
        count, seen = len(begun), max((group.sessions for group in old), default=0)
        last = max((group.newest for group in old), default=0)
        changed = max(abs(count - seen), sum(time > last for time in begun))
        if seen and CHANGE * changed <= seen and all(map(self._places, pinned)):
            return None, 0
        last = max(begun, default=0)
        sessions = self._sessions(kind, leaves, pinned)
        chosen = _medoids(sessions, most)
        others = [s for s in sessions if s not in chosen and s.alone]
        chosen += sorted(others, key=lambda s: not s.pinned)[: most - len(chosen)]
        again = [] if dry_run else [self._with_neighbours(kind, s.tower) for s in chosen if not s.alone]
        recoded = self.recoder.run(set[bytes]().union(*again))
        groups = Groups()
        for session in chosen:
            context = session.context
            group = CandidateGroup(kind, domain, context.tokenizer, context.root, count, last)
            box = seal_sketch(self.catalog.keys, context, session.leaf, session.sketch)
            groups.setdefault(group, []).append((session.leaf, box))
        for group, boxes in old.items():  # a codec that the archive was not opened with
            if unread := [box for box in boxes if (at := self._places(box[0])) and self._codec(at) is None]:
                groups.setdefault(group._replace(sessions=count, newest=last), []).extend(unread)
        return groups or {CandidateGroup(kind, domain, NONE, NO_ROOT, count, last): []}, recoded

    def _codec(self, places: Sequence[Found]) -> SegmentCodec | None:
        return codec_of(self.codecs, places[0].context) if places else None

    def _places(self, segment: bytes) -> list[Found]:
        return self.catalog.lookup.find(SEGMENTS, segment)

    def _sessions(self, kind: int, leaves: Sequence[bytes], pinned: Sequence[bytes]) -> list[_Session]:
        """Return the towers that may be candidates. What cannot be read or is too short is left out."""
        chains, found = Chains(self.catalog, self.codecs), dict[bytes, _Session]()
        leaves = [*leaves, *pinned]
        chains.load(leaves)
        for leaf in leaves:
            places = self._places(leaf)
            codec = self._codec(places)
            if codec is None or not codec.reach or places[0].context.domain_kind != kind:
                continue
            try:
                tower = chains.tower(leaf)
            except PltzError:  # verify reports it
                continue
            last, sketch = tower_sketch(tower, codec.reach)
            names = [name for name, _ in tower]
            own = self._places(last)
            if sketch.grams >= LEAST_GRAMS and own and own[0].context.domain_kind == kind:
                tower = tower[: names.index(last) + 1]
                alone = not self._with_neighbours(kind, tower)
                found[last] = _Session(tower, sketch, codec, own[0].context, last in pinned, alone)
        return list(found.values())

    def _with_neighbours(self, kind: int, tower: Segments) -> set[bytes]:
        """Return the segments of a tower that would have to be put again for it to serve in a domain of this kind."""
        found = [places[0] for name, _ in tower if (places := self._places(name))]
        return {i.record.id or NONE for i in found if i.record.neighbour != NONE and i.context.domain_kind == kind}


def _medoids(sessions: Sequence[_Session], count: int) -> list[_Session]:
    """Return at most ``count`` sessions after which the others of a tenant take few bytes."""
    chosen: list[_Session] = []
    for codec in {id(s.codec): s.codec for s in sessions}.values():
        mine = [s for s in sessions if s.codec is codec]
        shared = _shared(mine)
        centres = _centres(shared, count - len(chosen), np.array([s.bonus for s in mine]))
        owner = centres[np.argmax(shared[:, centres], axis=1)] if len(centres) else np.zeros(0, np.int64)
        for centre in centres.tolist():
            members = np.flatnonzero(owner == centre)
            if len(members):  # later centres may serve all its members better, and another one itself
                chosen.append(_nearest_to_all(codec, mine, members, shared))
    return chosen


def _shared(sessions: Sequence[_Session]) -> npt.NDArray[np.float64]:
    """Return the estimated number of 4-grams that each session (rows) shares with each (columns), (n, n)."""
    owners = np.repeat(np.arange(len(sessions)), [len(s.sketch.hashes) for s in sessions])
    hashes = np.concatenate([s.sketch.hashes for s in sessions]) if sessions else np.zeros(0, np.uint32)
    values, number = np.unique(hashes, return_inverse=True)
    there = np.zeros((len(sessions), len(values)), np.float32)
    there[owners, number] = 1
    scale = np.array([s.sketch.grams / max(1, len(s.sketch.hashes)) for s in sessions])
    shared: npt.NDArray[np.float64] = (there @ there.T) * np.sqrt(scale[:, None] * scale[None, :])
    return shared


def _centres(
    shared: npt.NDArray[np.float64], count: int, bonus: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """Return the columns that together serve all rows best, chosen one after the other.

    ``shared``: (n, n); ``bonus``: share by which each column counts for more than it serves, (n,).
    """
    best, chosen = np.zeros(len(shared)), list[int]()
    gains = shared.copy()
    np.fill_diagonal(gains, 0)  # a session is no neighbour of itself
    while len(chosen) < min(count, len(shared)):
        total = (np.maximum(gains, best[:, None]).sum(axis=0) - best.sum()) * (1 + bonus)
        total[chosen] = -1
        centre = int(np.argmax(total))
        if total[centre] <= 0:
            break
        chosen.append(centre)
        best = np.maximum(best, gains[:, centre])
    return np.array(chosen, np.int64)


def _nearest_to_all(
    codec: SegmentCodec, sessions: Sequence[_Session], members: npt.NDArray[np.int64], shared: npt.NDArray[np.float64]
) -> _Session:
    """Return the session of a group after which some others of it take the fewest bytes, by real code lengths.

    One that was chosen before stays unless another takes `GAIN` less, and so does one that is coded alone.
    """
    central = members[np.argsort(-shared[np.ix_(members, members)].sum(axis=1), kind="stable")]
    others: list[int] = central[: MEMBERS + 1].tolist()
    pinned: list[int] = [n for n in central.tolist() if sessions[n].pinned][:1]
    alone: list[int] = [n for n in central.tolist() if sessions[n].alone][:1]
    tried: list[int] = list(dict.fromkeys([*others[:CENTRAL], *pinned, *alone]))
    if len(members) < 3:
        return sessions[min(pinned or alone or tried[:1])]
    pairs = [(a, b) for a in tried for b in others if a != b]
    tokens = {n: context_after(sessions[n].tower, set(), NOTHING, codec) for n in {*tried, *others}}
    plain = [Plain(tokens[b], tokens[a]) for a, b in pairs]
    sizes = dict.fromkeys(tried, 0.0)
    for (a, _), data in zip(pairs, codec.encode(plain), strict=True):
        sizes[a] += len(data) / sum(one == a for one, _ in pairs)
    for n in tried:
        sizes[n] *= 1 - sessions[n].bonus
    return sessions[min(tried, key=lambda n: (sizes[n], n))]
