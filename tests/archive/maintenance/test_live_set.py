"""The live set equals one that keeps everything in dictionaries, and its memory is bounded."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import NO_SEGMENT, SEGMENT_SIZE
from pltz.archive.format.index_file import Location
from pltz.archive.format.record import FORGET, UNDELETE, Context, Mark, Record
from pltz.archive.maintenance.live_set import MARK, SEGMENT, SESSION, LiveSet
from pltz.plt_codec.identity import NONE, digest
from tests.archive.kit import TowerArchive

PARENTS = [NO_SEGMENT] + [bytes([n // 2 + 1]) * 10 for n in range(9)]  # a tree: of segment n + 1
IDS = [bytes([n + 1]) * 10 for n in range(10)]


def version_of(record: Record) -> bytes | None:
    return digest(b"test", f"{record.name}".encode() + record.leaf) if record.name is not None else None


segments = st.builds(
    lambda n, size: Record(0, PARENTS[n], IDS[n], 5, bytes(size)), st.integers(0, 9), st.integers(0, 9)
)
sessions = st.builds(
    lambda n, name: Record(0, (NO_SEGMENT, *IDS)[n], name=name), st.integers(0, 10), st.sampled_from("abc")
)
both = st.builds(lambda s, name: s._replace(name=name), segments, st.sampled_from("abc"))
marks = st.builds(
    lambda session, counter, verb: Record(0, mark=Mark(version_of(session) or NONE, counter, verb)), sessions,
    st.integers(0, 3), st.integers(0, 1),
)
packs = st.lists(st.lists(st.one_of(segments, sessions, both, marks), max_size=8), max_size=5)
tree = [Record(0, PARENTS[n], IDS[n]) for n in range(10)]
Rows = list[tuple[Location, Record]]


def laid_out(packs: list[list[Record]]) -> Rows:
    return [
        (Location(bytes([number]) * 16, 100 * at), record) for number, pack in enumerate(packs)
        for at, record in enumerate(pack)
    ]


def taken(rows: Rows) -> LiveSet:
    census = LiveSet()
    for location, record in rows:
        census.add(location, record, version_of(record), record.id)
    return census


def weigh(record: Record) -> int:
    return 32 + len(record.bitstring) + len(record.name or "")


class Plain:
    """The same, in memory."""

    def __init__(self, rows: Rows, condemned: set[bytes], before: int) -> None:
        self.condemned = condemned
        self.segments: dict[bytes, Rows] = {}
        self.versions: dict[bytes, Rows] = {}
        self.marks: dict[bytes, Rows] = {}
        for row in rows:
            if row[1].mark:
                self.marks.setdefault(row[1].mark.version, []).append(row)
            if row[1].id is not None:
                self.segments.setdefault(row[1].id, []).append(row)
            if (version := version_of(row[1])) is not None:
                self.versions.setdefault(version, []).append(row)
        self.dead = list[tuple[Location, int]]()
        self.pass_over_longer()
        self.live_versions = {v for v in self.versions if not ((m := self.mark(v)) and m.verb == FORGET)}
        self.live = {segment for version in self.live_versions for segment in self.tower(version)}
        for version in self.versions.keys() - self.live_versions:
            if (m := self.mark(version)) and m.counter > before:
                with suppress(KeyError):  # a part was freed, so it cannot be brought back
                    self.live |= self.tower(version)
                    self.live_versions.add(version)

    def pass_over_longer(self) -> None:
        """Leave out the records of a segment of which another has a shorter bitstring, and versions in them alone."""
        longer = set[Location]()
        for name, rows in self.segments.items():
            least = min(len(record.bitstring) for _, record in rows)
            over = [row for row in rows if len(row[1].bitstring) > least]
            longer |= {location for location, _ in over}
            self.dead += [(at, weigh(record) * (1 + (record.name is not None))) for at, record in over]
            self.segments[name] = [row for row in rows if row not in over]
        for name, rows in self.versions.items():
            self.versions[name] = [row for row in rows if row[0] not in longer] or rows

    def tower(self, version: bytes) -> set[bytes]:
        """Return the segments of a version. Raises KeyError where one is missing."""
        found, at = set[bytes](), self.versions[version][0][1].leaf
        while at != NO_SEGMENT:
            found.add(at)
            at = self.segments[at][0][1].parent
        return found

    def mark(self, version: bytes) -> Mark | None:
        found = [record.mark for _, record in self.marks.get(version, ()) if record.mark]
        return max(found, key=lambda m: (m.counter, -m.verb), default=None)

    def stranded(self) -> Iterator[tuple[Location, int]]:
        places: dict[Location, int] = {}
        for kind, names, part in ((self.segments, self.live, SEGMENT), (self.versions, self.live_versions, SESSION)):
            for name in names:
                if all(location.pack in self.condemned for location, _ in kind[name]):
                    places[kind[name][0][0]] = places.get(kind[name][0][0], 0) | part
        yield from places.items()
        for version in self.versions:
            held = [row for row in self.marks.get(version, ()) if row[1].mark == self.mark(version)]
            if held and all(location.pack in self.condemned for location, _ in held):
                yield held[0][0], MARK

    def weights(self) -> dict[bytes, tuple[int, int]]:
        found: dict[bytes, tuple[int, int]] = {}
        for location, size in self.dead:
            total, kept = found.get(location.pack, (0, 0))
            found[location.pack] = total + size, kept
        kinds = ((self.segments, self.live), (self.versions, self.live_versions), (self.marks, set(self.versions)))
        for kind, live in kinds:
            for name, rows in kind.items():
                for n, (location, record) in enumerate(rows):
                    size = weigh(record)
                    total, kept = found.get(location.pack, (0, 0))
                    found[location.pack] = total + size, kept + size * (name in live and not n)
        return found


@given(packs, st.sets(st.integers(0, 5)), st.booleans(), st.integers(0, 3))
def test_it_finds_what_one_in_memory_finds(
    packs: list[list[Record]], condemned: set[int], whole: bool, before: int
) -> None:
    rows = laid_out([*packs, tree] if whole else packs)
    away = {bytes([n]) * 16 for n in condemned}
    with taken(rows) as census:
        try:
            wanted = Plain(rows, away, before)
        except KeyError:
            with pytest.raises(ArchiveError, match="missing"):
                census.settle(away, before)
            return
        census.settle(away, before)
        assert (census.live_versions, census.live_segments) == (len(wanted.live_versions), len(wanted.live))
        assert census.weights() == wanted.weights()
        found = list(census.stranded())
        last = rows[-1][0].pack if rows else b""  # a pack that came, went and came back
        census.drop([last])
        for location, one in rows:
            if location.pack == last:
                census.add(location, one, version_of(one), one.id)
        for _ in range(2):
            census.settle(away, before)
            assert census.weights() == wanted.weights() and set(census.stranded()) == set(wanted.stranded())
    assert len(found) == len(set(found)) and set(found) == set(wanted.stranded())
    record = dict(rows)
    order = [record[location].id for location, parts in found if parts & SEGMENT]
    for n, name in enumerate(order):
        assert PARENTS[IDS.index(name or b"")] not in order[n:]
    assert [parts for _, parts in found if parts in (SESSION, MARK)] == sorted(
        parts for _, parts in found if parts in (SESSION, MARK)
    )


@pytest.mark.parametrize(("before", "verb", "live"), [(3, FORGET, 0), (5, FORGET, 0), (3, UNDELETE, None)])
def test_what_was_forgotten_and_lacks_a_parent_is_not_live(before: int, verb: int, live: int | None) -> None:
    last = Record(0, IDS[0], IDS[2], name="a")
    mark = Mark(version_of(last) or NONE, 5, verb)
    rows = laid_out([[Record(0, IDS[9], IDS[0]), last, Record(0, mark=mark)]])
    with taken(rows) as census:
        if live is None:
            with pytest.raises(ArchiveError, match="missing"):
                census.settle((), before)
        else:
            census.settle((), before)
            assert census.live_versions == census.live_segments == live


def test_a_disk_that_is_full_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    census = taken(laid_out([tree]))
    census._db.execute("PRAGMA max_page_count = 5")
    with pytest.raises(ArchiveError, match="TMPDIR"):
        for n in range(10_000):
            census.add(Location(b"p" * 16, n), tree[0], None, tree[0].id)


MEASURE = """
import sys
from pathlib import Path
from tests.archive.towers import TowerArchive
def peak():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])
TowerArchive.open(sys.argv[1], []).collect(dry_run=True)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
before = peak()
done = TowerArchive.open(sys.argv[2], []).collect(dry_run=True)
assert done.live_versions == done.live_segments == int(sys.argv[3]) and done.condemned > 100
print((peak() - before) / int(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux: peak memory that starts again")
def test_a_hundred_thousand_sessions_take_no_hundred_bytes_each(tmp_path: Path) -> None:
    """Bound the memory per session during a collection.

    Measured: 82 bytes, 50 of them caches. It was 1,179 when the live set was a dictionary.
    """
    for count in (1_000, 100_000):
        archive = TowerArchive.create(tmp_path / str(count), [])
        context = Context(0, NONE, "default", NONE, NONE)
        for begin in range(0, count, 256):
            ids = [
                digest(b"test", n.to_bytes(8, "little"))[:SEGMENT_SIZE] for n in range(begin, min(begin + 256, count))
            ]
            rows = [(context, Record(0, id=i, tokens=9, bitstring=bytes(100), name=f"chat-{i.hex()}")) for i in ids]
            archive.parts.writer.publisher.put(rows)
        archive.write_index()
    places = [str(tmp_path / "1000"), str(tmp_path / "100000"), "100000"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *places], capture_output=True, text=True, check=True, timeout=300
    )
    print(f"{float(done.stdout):.0f} bytes per session")
    assert float(done.stdout) < 100
