"""Cluster: choose for each tenant the sessions that its new ones are coded after. Spec: FORMAT.md, "Candidates".

    newest versions of a tenant --sketch--> groups of sessions that share most --code lengths--> a medoid of each

The distance is d_T, the code length of one session given another. Coding each after each takes too long, so sketches
form the groups, and real code lengths choose the medoid. It is the one of the most central sessions after which the
others of its group take the fewest bytes. A medoid that has a neighbour itself is put again without one. Where fewer
groups are found than are wanted, the newest sessions that are coded alone are candidates too.

The sketches of the medoids go into a candidate file, which writers read when they open the archive. A candidate takes
about 300 bytes there and 600 in memory, whatever the length of its session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains, context_after
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.codecs.codec import Plain, SegmentCodec, codec_of
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import CandidateGroup, pack_candidates
from pltz.archive.format.context import Context
from pltz.archive.format.ids import NONE, TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.maintenance.recode import Recoder
from pltz.archive.writing.candidates import LEAST_GRAMS, seal_sketch, tower_sketch
from pltz.models.session.sketch import Sketch
from pltz.plt_codec.errors import PltzError

MEDOIDS = 64  # per tenant
SAMPLE = 1024  # sessions of a tenant that are looked at, the newest
CENTRAL = 3  # sessions of a group that are tried as its medoid
MEMBERS = 8  # sessions of a group that are coded after each of these


@dataclass(frozen=True)
class Clustered:
    """The result of a clustering so far.

    Attributes:
        tenants, sessions: number of tenants and of their sessions looked at.
        medoids: number of candidates chosen.
        recoded: number of segments put again, as a neighbour has none itself.
        file_bytes: bytes of the candidate file.
    """

    tenants: int = 0
    sessions: int = 0
    medoids: int = 0
    recoded: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, eq=False)
class _Session:
    """A session as the clustering sees it. ``tower``: up to the segment worth reading; ``sketch``: of its tokens."""

    tower: Segments
    sketch: Sketch
    codec: SegmentCodec
    context: Context


class Clusterer:
    """One clustering. Writers that opened the archive before go on with the candidates that they read."""

    def __init__(self, catalog: Catalog, codecs: list[SegmentCodec], recoder: Recoder, archive: bytes) -> None:
        self.catalog, self.codecs, self.recoder, self.archive = catalog, codecs, recoder, archive

    def run(
        self, *, medoids: int = MEDOIDS, dry_run: bool = False, progress: Callable[[Clustered], None] | None = None
    ) -> Clustered:
        """Choose candidates of every tenant and put the candidate file.

        Args:
            medoids: most candidates per tenant.
            dry_run: put nothing.
            progress: called with the result so far, after each tenant.

        Raises ArchiveError where a segment cannot be put again, StoreError, WriterFailed.
        """
        self.catalog.refresh()
        done, groups = Clustered(), dict[CandidateGroup, list[tuple[bytes, bytes]]]()
        for versions in self._tenants():
            sessions = self._sessions(versions)
            chosen = _medoids(sessions, medoids)
            others = [s for s in sessions if s not in chosen and not self._with_neighbours([s])]
            chosen += others[: medoids - len(chosen)]
            recoded = 0 if dry_run else self.recoder.run(self._with_neighbours(chosen))
            for session in chosen:
                group, box = seal_sketch(self.catalog.keys, session.context, session.tower[-1][0], session.sketch)
                groups.setdefault(group, []).append((session.tower[-1][0], box))
            done = replace(
                done,
                tenants=done.tenants + 1,
                sessions=done.sessions + len(sessions),
                medoids=done.medoids + len(chosen),
                recoded=done.recoded + recoded,
            )
            if progress:
                progress(done)
        data = pack_candidates(self.archive, groups)
        if not dry_run:
            self._put(data)
        return replace(done, file_bytes=len(data))

    def _put(self, data: bytes) -> None:
        """Put the candidate file and delete the older ones, which it replaces."""
        store, digest = self.catalog.store, data[-16:].hex()
        store.put(object_names.candidates(digest), data)
        for other in object_names.candidates_among(store.list(object_names.INDEXES)) - {digest}:
            store.delete(object_names.candidates(other))

    def _tenants(self) -> Iterator[list[Version]]:
        """Yield the newest version of each session that is not forgotten, tenant by tenant, newest first."""
        versions = [v for v in self.catalog.lookup.all_versions() if not v.forgotten and v.leaf != NONE]
        for _, rows in groupby(versions, key=lambda v: v.tenant):
            newest = {v.name: v for v in rows}
            yield sorted(newest.values(), key=lambda v: (-v.time, v.name))[:SAMPLE]

    def _sessions(self, versions: Sequence[Version]) -> list[_Session]:
        """Return the sessions that may be candidates. What cannot be read or is too short is left out."""
        chains, found = Chains(self.catalog, self.codecs), list[_Session]()
        chains.load([v.leaf for v in versions])
        for version in versions:
            places = self.catalog.lookup.find(SEGMENTS, version.leaf)
            codec = codec_of(self.codecs, places[0].context) if places else None
            if codec is None or not codec.reach or places[0].context.domain_kind != TENANT:
                continue
            try:
                tower = chains.version(version)
            except PltzError:  # verify reports it
                continue
            last, sketch = tower_sketch(tower, codec.reach)
            names = [name for name, _ in tower]
            own = self.catalog.lookup.find(SEGMENTS, last)
            if sketch.grams >= LEAST_GRAMS and own and own[0].context.domain_kind == TENANT:
                found.append(_Session(tower[: names.index(last) + 1], sketch, codec, own[0].context))
        return found

    def _with_neighbours(self, sessions: Sequence[_Session]) -> set[bytes]:
        """Return the segments of these towers that have no record without a neighbour."""
        names = {name for session in sessions for name, _ in session.tower}
        return {name for name in names if self._near(name)}

    def _near(self, segment: bytes) -> bool:
        places = self.catalog.lookup.find(SEGMENTS, segment)
        return bool(places) and places[0].record.neighbour != NONE


def _medoids(sessions: Sequence[_Session], count: int) -> list[_Session]:
    """Return at most ``count`` sessions after which the others of a tenant take few bytes."""
    chosen: list[_Session] = []
    for codec in {id(s.codec): s.codec for s in sessions}.values():
        mine = [s for s in sessions if s.codec is codec]
        shared = _shared(mine)
        centres = _centres(shared, count - len(chosen))
        owner = centres[np.argmax(shared[:, centres], axis=1)] if len(centres) else np.zeros(0, np.int64)
        for centre in centres.tolist():
            members = np.flatnonzero(owner == centre)
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


def _centres(shared: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the columns that together serve all rows best, chosen one after the other."""
    best, chosen = np.zeros(len(shared)), list[int]()
    gains = shared.copy()
    np.fill_diagonal(gains, 0)  # a session is no neighbour of itself
    while len(chosen) < min(count, len(shared)):
        total = np.maximum(gains, best[:, None]).sum(axis=0) - best.sum()
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
    """Return the session of a group after which some others of it take the fewest bytes, by real code lengths."""
    central = members[np.argsort(-shared[np.ix_(members, members)].sum(axis=1), kind="stable")]
    others: list[int] = central[: MEMBERS + 1].tolist()
    tried = others[:CENTRAL]
    if len(members) < 3:
        return sessions[tried[0]]
    pairs = [(a, b) for a in tried for b in others if a != b]
    tokens = {n: context_after(sessions[n].tower, set(), NOTHING, codec.reach) for n in {*tried, *others}}
    plain = [Plain(tokens[b], tokens[a]) for a, b in pairs]
    sizes = dict.fromkeys(tried, 0.0)
    for (a, _), data in zip(pairs, codec.encode(plain), strict=True):
        sizes[a] += len(data) / sum(one == a for one, _ in pairs)
    return sessions[min(tried, key=lambda n: (sizes[n], n))]


