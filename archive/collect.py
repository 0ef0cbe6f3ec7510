"""Collect: free what no session needs, and merge small packs, in two phases. Spec: FORMAT.md, "Collect" and "The fence".

A run first finishes what earlier runs condemned: live records that lie only in condemned packs are copied, every live record is
found by reading it in a pack that stays, and only then condemned packs are deleted. Then it condemns: packs with
enough dead bytes, and small ones, by putting a plan. Between two runs `restore` brings back what was forgotten.

    run 1: condemn A, B            A, B readable, nothing relies on them any more
    run 2: copy live of A, B to C, delete A, B; condemn ...

A crash leaves: copies beside originals, or some condemned packs deleted whose live records are elsewhere. The next run goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pltz.archive.errors import ArchiveError
from pltz.archive.identity import NONE
from pltz.archive.index import key_of_session
from pltz.archive.pack import Context, Damage
from pltz.archive.plan import Plan
from pltz.archive.record import FORGET, Mark, Record
from pltz.archive.view import Found, View, version_of
from pltz.archive.writer import Writer, segment_only, session_only
from pltz.plt_codec.errors import FormatError

DEAD_SHARE = 0.2  # of a pack's bytes, before it is worth copying the rest
SMALL = 16 << 20  # bytes; two packs smaller than this are merged


@dataclass(frozen=True)
class Collected:
    """What a run did. ``freed``: bytes of deleted packs less those of the copies."""

    copied: int
    deleted: int
    freed: int
    condemned: int
    live_segments: int
    live_versions: int


@dataclass
class _Census:
    """Everything that lies in the packs, by reading all of them."""

    segments: dict[bytes, list[Found]] = field(default_factory=dict)
    versions: dict[bytes, list[Found]] = field(default_factory=dict)
    marks: dict[bytes, list[Found]] = field(default_factory=dict)

    def verb(self, version: bytes) -> Mark | None:
        """The mark that holds."""
        marks = [m for item in self.marks.get(version, ()) if (m := item.record.mark)]
        return max(marks, key=lambda m: (m.counter, -m.verb), default=None)

    def holding(self, version: bytes) -> list[Found]:
        """Records of the mark that holds; none where there is none."""
        mark = self.verb(version)
        return [item for item in self.marks.get(version, ()) if item.record.mark == mark]

    def live_versions(self) -> set[bytes]:
        """Versions that are not forgotten."""
        return {v for v in self.versions if not ((m := self.verb(v)) and m.verb == FORGET)}

    def live_segments(self, versions: Iterable[bytes]) -> set[bytes]:
        """All segments of their towers. Raises ArchiveError where one is missing: then nothing may be deleted."""
        live: set[bytes] = set()
        for version in versions:
            at = self.versions[version][0].record.leaf
            while at != NONE and at not in live:
                if at not in self.segments:
                    raise ArchiveError(
                        f"segment {at.hex()} of a live session is missing: collecting stops; see pltz archive verify"
                    )
                live.add(at)
                at = self.segments[at][0].record.parent
        return live


class Collector:
    """One run. Several may go on at once: plans are numbered, and copies do no harm."""

    def __init__(self, view: View, writer: Writer):
        self.view, self.writer = view, writer

    def run(
        self, *, dead_share: float = DEAD_SHARE, small: int = SMALL, grace: int = 0, dry_run: bool = False
    ) -> Collected:
        """See the head of this file. ``grace``: seconds that a condemned pack stays at least; ``dry_run``: only say what would be done.

        Raises ArchiveError where anything is unreadable.
        """
        self.view.refresh()
        condemned = self._present_condemned(self.view.store.now() - grace)
        census = self._census()
        versions = census.live_versions()
        segments = census.live_segments(versions)
        copied = freed = 0
        if condemned:
            rows = list(self._rescue(census, versions, segments))
            copied = len(rows)
            freed = sum(self.view.packs[p] for p in condemned)
            if not dry_run:
                freed -= self._move(rows, condemned)
                census = self._census()
        if not dry_run:
            self._sweep_parity()
        plan = self._choose(census, versions, segments, dead_share, small)
        if plan and not dry_run:
            name = Plan(
                self.view.epoch + 1, self.view.store.random(16), frozenset(plan), self.view.store.now()
            )
            plan = plan if self.view.store.put(name.name, name.encode()) else set()
            if plan:
                self.view.store.put(name.copy, name.encode())
            self.view.read_plans()
        return Collected(copied, len(condemned), freed, len(plan), len(segments), len(versions))

    def _present_condemned(self, time: int) -> set[bytes]:
        return set(self.view.condemned_by(time) & set(self.view.packs))

    def _census(self) -> _Census:
        """Read every pack. Raises ArchiveError where something is damaged, newer or missing."""
        if missing := self.view.missing():
            raise ArchiveError(
                f"pack {min(missing).hex()} is gone and no plan condemned it: collecting stops; see pltz archive verify"
            )
        census = _Census()
        for pack in sorted(self.view.packs):
            try:
                for item in self.view.scan(pack):
                    if isinstance(item, Damage):
                        raise ArchiveError(f"pack {pack.hex()} is damaged ({item.why}): collecting stops")
                    self._count(census, item)
            except FormatError as exc:
                raise ArchiveError(f"pack {pack.hex()} cannot be read ({exc}): collecting stops") from exc
            except FileNotFoundError:
                self.view.read_plans()
                if pack not in self.view.condemned:
                    raise ArchiveError(
                        f"pack {pack.hex()} vanished and no plan condemned it: collecting stops"
                    ) from None
        return census

    def _count(self, census: _Census, item: Found) -> None:
        """Sort a record in. What was erased is in the way and no more: nothing keeps it."""
        r, gone = item.record, self.view.keys.gone
        if r.mark:
            census.marks.setdefault(r.mark.version, []).append(_light(item))
        if r.id is not None and not gone(item.context, r.id):
            census.segments.setdefault(r.id, []).append(_light(item))
        if r.name is not None and not gone(item.context, key_of_session(r, item.context)):
            census.versions.setdefault(version_of(item), []).append(_light(item))

    def _rescue(
        self, census: _Census, versions: set[bytes], segments: set[bytes]
    ) -> Iterator[tuple[Context, Record]]:
        """Live records that lie only in condemned packs, parents first.

        A mark is live as long as its version is in any pack, a condemned one too: packs are deleted one after the other, and a version
        that outlived its mark by a crash would be back.
        """
        todo = {i.location: v for v in versions if (i := self._only_condemned(census.versions[v]))}
        for name in _parents_first(segments, census):
            if item := self._only_condemned(census.segments[name]):
                full = self.view.at(item.location)
                together = todo.pop(item.location, None) is not None  # a session keeps its leaf's record
                yield full.context, full.record if together else segment_only(full.record)
        for name in sorted(todo.values()):
            if item := self._only_condemned(census.versions[name]):
                yield item.context, session_only(item.record)
        for name in sorted(census.versions):
            if item := self._only_condemned(census.holding(name)):
                yield item.context, item.record

    def _only_condemned(self, items: list[Found]) -> Found | None:
        """The first of them, if none lies in a pack that stays."""
        stays = any(i.location.pack not in self.view.condemned for i in items)
        return None if stays or not items else items[0]

    def _move(self, rows: list[tuple[Context, Record]], condemned: set[bytes]) -> int:
        """Copy, prove, delete; bytes of the copies."""
        known = dict(self.view.packs)
        if rows:
            self.writer.copy(rows)
        self.view.refresh()
        census = self._census()
        versions = census.live_versions()
        segments = census.live_segments(versions)
        for kind, found in ((census.segments, segments), (census.versions, versions)):
            for name in found:
                if self._only_condemned(kind[name]):
                    raise ArchiveError(
                        f"{name.hex()} is live and was not found in a pack that stays: nothing was deleted"
                    )
        for name in census.versions:
            if self._only_condemned(census.holding(name)):
                raise ArchiveError(
                    f"the mark of {name.hex()} was not found in a pack that stays: nothing was deleted"
                )
        for pack in sorted(condemned):  # parity first: what is left of it must never bring a pack back
            self.view.store.delete(f"parity/{pack.hex()}")
            self.view.store.delete(f"packs/{pack.hex()}")
        new = sum(size for pack, size in self.view.packs.items() if pack not in known)
        self.view.refresh()
        return new

    def _sweep_parity(self) -> None:
        """Parity of packs that were condemned and are gone: a writer that stood still put it after they were collected. `repair` would bring
        the pack back by it."""
        gone = self.view.condemned - set(self.view.packs)
        for name in sorted({pack.hex() for pack in gone} & set(self.view.store.list("parity"))):
            try:
                self.view.store.read(f"packs/{name}", 0, 1)  # a list that came back short is no evidence
            except FileNotFoundError:
                self.view.store.delete(f"parity/{name}")

    def _choose(
        self, census: _Census, versions: set[bytes], segments: set[bytes], dead_share: float, small: int
    ) -> set[bytes]:
        """Packs worth emptying. A damaged one is not reached: the census stops at it."""
        live = dict.fromkeys(self.view.packs, 0)
        for kind, names in ((census.segments, segments), (census.versions, versions)):
            for name in names:
                for item in kind.get(name, ())[:1]:
                    live[item.location.pack] = live.get(item.location.pack, 0) + _weight(item)
        for name, items in census.marks.items():
            if name in census.versions:
                live[items[0].location.pack] = live.get(items[0].location.pack, 0) + _weight(items[0])
        total = dict.fromkeys(self.view.packs, 0)
        for kind in (census.segments, census.versions, census.marks):
            for items in kind.values():
                for item in items:
                    total[item.location.pack] = total.get(item.location.pack, 0) + _weight(item)
        staying = set(self.view.packs) - self.view.condemned
        dead = {p for p in staying if total[p] - live[p] > dead_share * total[p]}
        little = {p for p in staying if self.view.packs[p] < small}
        return dead | (little if len(little) > 1 else set())


def _light(item: Found) -> Found:
    """Without its bitstring: a census holds every record; the bitstring's size is kept in the token count's place by `_weight`."""
    r = item.record
    lean = Record(
        r.context, r.parent, r.id, len(r.bitstring), b"", r.name, r.number, r.time, r.labels, r.mark, r.veil
    )
    return Found(item.location, lean, item.context)


def _weight(item: Found) -> int:
    """Bytes, about: of a light record, whose ``tokens`` are the bytes of its bitstring."""
    return 32 + item.record.tokens + len(item.record.name or "")


def _parents_first(segments: set[bytes], census: _Census) -> list[bytes]:
    """Segments so that each comes after its parent."""
    order: list[bytes] = []
    done: set[bytes] = set()
    for name in sorted(segments):
        chain: list[bytes] = []
        while name != NONE and name not in done and name in segments:
            done.add(name)
            chain.append(name)
            name = census.segments[name][0].record.parent
        order += reversed(chain)
    return order
