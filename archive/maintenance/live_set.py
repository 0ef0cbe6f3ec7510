"""LiveSet: all records of the packs and which of them are live, in a temporary database on disk.

    census.add(pack, offset, record...)     every record of every pack, as the collector reads them
    census.settle(condemned)                settle the live set; ArchiveError where a live session lacks a segment
    census.grown(going)                     of sessions with several live records in some packs one each, to be joined
    census.stranded()                       live records that lie in condemned packs alone, parents first

Records stay when the live set is settled, so that it can be settled again after a few packs came and went.

SQLite keeps it in a temporary file without a name, which goes with the process however that ends. Memory is
bounded by the cache, a few MB, for any number of sessions; their ids alone would take 100 bytes each. The
database holds ids and places, no names and no tokens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import Location
from pltz.archive.format.record import FORGET, RUN, Record
from pltz.plt_codec.varint import MAX_VALUE

BATCH = 512  # rows per transaction
CACHE = 2048  # KiB; SQLite takes about twice that with its temporary tables
PLACE_BITS = 37  # low bits of ``at`` that hold the offset of the block and the row; the pack's number is above them
ROW_BITS = 7
SEGMENT, SESSION, MARK = 1, 2, 4  # parts of a record
A_RUN, PLAIN = 0, 1  # kinds of segments
OLDER = -1  # kind of a version that its record has beside that in its fields

COLUMNS = {
    "segments": "at INTEGER PRIMARY KEY, id BLOB, parent BLOB, size INTEGER, kind INTEGER, bits INTEGER, root INTEGER",
    "versions": "at INTEGER, id BLOB, leaf BLOB, size INTEGER, kind INTEGER, tokens INTEGER, root INTEGER",
    "marks": "at INTEGER PRIMARY KEY, id BLOB, counter INTEGER, verb INTEGER, size INTEGER",
    "held": "at INTEGER, id BLOB",
}
READ = "".join(f"CREATE TABLE read_{table} ({columns});" for table, columns in COLUMNS.items())
OWN = "grace", "packs", *COLUMNS, "passed_over", "aged", "choice", "segment", "version", "mark", "live_version", "live"
TABLES = (
    "".join(f"DROP TABLE IF EXISTS {table};" for table in (*OWN, "live_segment"))
    + """
CREATE TABLE grace (time INTEGER);
CREATE TABLE packs (number INTEGER PRIMARY KEY, name BLOB, stays INTEGER);
CREATE TABLE passed_over (at INTEGER PRIMARY KEY, size INTEGER);
CREATE TABLE aged (at INTEGER, size INTEGER);
"""
    + "".join(f"CREATE TABLE {table} ({columns});" for table, columns in COLUMNS.items())
)
TAKEN = "".join(
    f"INSERT INTO {table} SELECT * FROM read_{table} WHERE at >> {PLACE_BITS} IN (SELECT number FROM packs);"
    for table in COLUMNS
)
# Packs that stay and have a record of what a condemned one has a record of too
SHARING = " UNION ".join(
    f"""SELECT name FROM read_{table} JOIN packs ON number = at >> {PLACE_BITS} WHERE stays AND id IN (
        SELECT id FROM read_{table} JOIN packs ON number = at >> {PLACE_BITS} WHERE NOT stays)"""
    for table in COLUMNS
)
# Each id once: its first record, and whether any record of it lies in a pack that stays. In a query with one min,
# SQLite takes the other columns from that row.
# Only the mark in force of a version counts. A version that was forgotten later than `grace` is live.
ONCE = (
    "SELECT *, min(at) AS first, sum(stays) > 0 AS stay "
    f"FROM {{}} JOIN packs ON number = at >> {PLACE_BITS} {{}} GROUP BY id"
)
# A record under an older root of keys does not count beside one under a newer: those keys may be destroyed any moment.
NEWER = "".join(
    f"""
CREATE TEMP TABLE going_by AS SELECT {table}.rowid AS place FROM {table} JOIN (
    SELECT id AS name, max(root) AS newest FROM {table} GROUP BY id HAVING min(root) < max(root)) ON id = name
    WHERE root < newest;
INSERT INTO aged SELECT at, size FROM {table} WHERE rowid IN (SELECT place FROM going_by);
DELETE FROM {table} WHERE rowid IN (SELECT place FROM going_by);
DROP TABLE going_by;
"""
    for table in ("segments", "versions")
)
# Of a segment's records those with the shortest bitstring count: `shrink` coded it again. Their versions count, too.
SMALLER = f"""
INSERT INTO passed_over SELECT at, size FROM segments JOIN (
    SELECT id AS name, parent AS above, min(bits) AS least FROM segments WHERE kind = {PLAIN}
    GROUP BY id, parent HAVING least < max(bits)) ON name = id AND above = parent
    WHERE kind = {PLAIN} AND bits > least;
"""
ANY_SMALLER = "SELECT 1 FROM passed_over LIMIT 1"
PASSED_OVER = f"""
DELETE FROM segments WHERE at IN (SELECT at FROM passed_over);
UPDATE passed_over SET size = 2 * size WHERE at IN (SELECT at FROM versions WHERE kind = {PLAIN});
DELETE FROM versions WHERE kind = {PLAIN} AND at IN (SELECT at FROM passed_over)
    AND id IN (SELECT id FROM versions WHERE at NOT IN (SELECT at FROM passed_over));
"""
# Of the last segment of a run the run counts. Its other records differ in their parent, so all that count are of one
# kind and have one parent.
CHOSEN = f"""
CREATE TABLE choice AS
    SELECT id AS name, kind AS chosen, parent AS above, min(kind << 60 | at) FROM segments
    WHERE id IN (SELECT id FROM segments WHERE kind <> {PLAIN}) GROUP BY id;
CREATE INDEX choices ON choice (name);
INSERT INTO passed_over SELECT at, size FROM segments JOIN choice ON name = id
    WHERE (kind, parent) <> (chosen, above);
DELETE FROM segments WHERE at IN (SELECT at FROM passed_over);
DELETE FROM versions WHERE rowid IN (SELECT place FROM (
    SELECT rowid AS place, rank() OVER (PARTITION BY id ORDER BY tokens DESC) AS place_by_tokens
    FROM versions WHERE kind = {OLDER}) WHERE place_by_tokens > 1);
"""
ANY_CHOICE = f"SELECT 1 FROM segments WHERE kind <> {PLAIN} LIMIT 1"
SETTLED = f"""
CREATE TABLE segment (
    id BLOB PRIMARY KEY, parent BLOB, first INTEGER, size INTEGER, stays INTEGER) WITHOUT ROWID;
INSERT INTO segment SELECT id, parent, first, size, stay FROM ({ONCE.format("segments", "")});
CREATE TABLE version (id BLOB PRIMARY KEY, leaf BLOB, first INTEGER, size INTEGER, stays INTEGER) WITHOUT ROWID;
INSERT INTO version SELECT id, leaf, at, size, stay FROM (
    SELECT *, min(kind << 60 | at), sum(stays) > 0 AS stay
    FROM versions JOIN packs ON number = at >> {PLACE_BITS} GROUP BY id);
CREATE TABLE mark (id BLOB PRIMARY KEY, verb INTEGER, time INTEGER, first INTEGER, stays INTEGER) WITHOUT ROWID;
INSERT INTO mark SELECT id, verb, counter, first, stay FROM ({
    ONCE.format(
        "(SELECT *, rank() OVER (PARTITION BY id ORDER BY counter DESC, verb) AS rank FROM marks)", "WHERE rank = 1"
    )
}) WHERE id IN (SELECT id FROM version);
CREATE TABLE live_version AS SELECT * FROM version WHERE id NOT IN (
    SELECT id FROM mark JOIN grace WHERE verb = {FORGET} AND mark.time <= grace.time) OR id IN (SELECT id FROM held);
CREATE TABLE live (id BLOB PRIMARY KEY) WITHOUT ROWID;
"""
LIVE = f"""
DELETE FROM live;
INSERT INTO live
    WITH RECURSIVE tower (id) AS (
        SELECT leaf FROM (SELECT leaf FROM live_version WHERE leaf <> x'{NO_SEGMENT.hex()}' ORDER BY leaf)
        UNION SELECT parent FROM tower JOIN segment USING (id) WHERE parent <> x'{NO_SEGMENT.hex()}')
    SELECT id FROM tower ORDER BY id;
"""
LACKING = "SELECT id FROM live WHERE id NOT IN (SELECT id FROM segment) LIMIT 1"
# A collector without grace may have freed a part of a version that was forgotten, and it cannot be brought back.
BY_ABOVE = "CREATE INDEX above ON segment (parent)"
BROKEN = f"""
DELETE FROM live_version WHERE id IN (SELECT id FROM mark WHERE verb = {FORGET}) AND leaf IN (
    WITH RECURSIVE broken (id) AS (
        SELECT id FROM live WHERE id NOT IN (SELECT id FROM segment)
        UNION SELECT segment.id FROM broken JOIN segment ON segment.parent = broken.id)
    SELECT id FROM broken)
"""
LIVE_SEGMENTS = "CREATE TABLE live_segment AS SELECT segment.* FROM live JOIN segment USING (id)"
# Depth first: a tower's segments come together, parents first. Those of one parent come in the order of their places,
# so that records of one commit, with one time, stay together. A version in its leaf's record goes with the leaf.
CHILDREN = "CREATE INDEX IF NOT EXISTS child ON live_segment (parent)"
SEGMENTS = f"""
WITH RECURSIVE tree (id, first, stays, depth) AS (
    SELECT id, first, stays, 0 FROM live_segment WHERE parent = x'{NO_SEGMENT.hex()}'
    UNION ALL SELECT child.id, child.first, child.stays, depth + 1
    FROM tree JOIN live_segment AS child ON child.parent = tree.id ORDER BY 4 DESC, 2)
SELECT first, {SEGMENT} | {SESSION} * (first IN (SELECT first FROM live_version WHERE NOT stays))
FROM tree WHERE NOT stays
"""
VERSIONS = f"""
SELECT first, {SESSION} FROM live_version
WHERE NOT stays AND first NOT IN (SELECT first FROM live_segment WHERE NOT stays) GROUP BY first ORDER BY first
"""
# Of the records that have a live segment and a version, those below another of them and above none.
GOING = "DROP TABLE IF EXISTS going; CREATE TABLE going (number INTEGER PRIMARY KEY)"
GROWN = f"""
WITH own AS MATERIALIZED (SELECT id, parent, first FROM live_segment
    WHERE first >> {PLACE_BITS} IN (SELECT number FROM going) AND first IN (SELECT first FROM version))
SELECT first FROM own
WHERE parent IN (SELECT id FROM own) AND id NOT IN (SELECT parent FROM own) ORDER BY first
"""
# A mark is live as long as its version is in any pack. Packs are deleted one after the other, and a forgotten
# version that outlived its mark would be back.
MARKS = f"SELECT first, {MARK} FROM mark WHERE NOT stays ORDER BY id"
WEIGHTS = f"""
SELECT name, sum(total), sum(live) FROM (
    SELECT at, size AS total, 0 AS live FROM segments UNION ALL SELECT at, size, 0 FROM passed_over
    UNION ALL SELECT at, size, 0 FROM aged
    UNION ALL SELECT first, 0, size FROM live_segment
    UNION ALL SELECT at, size, 0 FROM versions UNION ALL SELECT first, 0, size FROM live_version
    UNION ALL SELECT at, size, 0 FROM marks
    UNION ALL SELECT min(at), 0, size FROM marks WHERE id IN (SELECT id FROM version) GROUP BY id
) JOIN packs ON number = at >> {PLACE_BITS} GROUP BY number
"""


class Stranded(NamedTuple):
    """A live record that lies in condemned packs alone.

    ``parts``: its live parts: SEGMENT, SESSION or both, or MARK.
    """

    location: Location
    parts: int


class LiveSet:
    """The records of an archive and its live set. All methods raise ArchiveError where the temporary disk fails."""

    def __init__(self) -> None:
        self.live_versions = self.live_segments = 0
        self._rooted = False  # whether keys of a domain have several roots
        # Packs whose records were added, by number. One that is dropped keeps it: which records of a segment count
        # depends on their order, and has to be the same when they were read again.
        self._packs: dict[bytes, int] = {}
        self._there: dict[bytes, int] = {}  # those that were not dropped
        self._rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in COLUMNS}
        with _named():
            self._db = sqlite3.connect("", isolation_level=None)
            for name, value in (("journal_mode", "OFF"), ("synchronous", "OFF"), ("temp_store", "FILE")):
                self._db.execute(f"PRAGMA {name} = {value}")
            self._db.execute(f"PRAGMA cache_size = -{CACHE}")
            self._db.executescript(READ)

    @property
    def packs(self) -> Collection[bytes]:
        """Return the packs whose records were added and not dropped."""
        return self._there.keys()

    def begin(self, pack: bytes) -> None:
        """Let the records of a pack come next, which may have none."""
        if pack not in self._there:
            self._there[pack] = self._packs.setdefault(pack, len(self._packs))

    def drop(self, packs: Iterable[bytes]) -> None:
        """Forget the records of some packs, so that they can be added again."""
        going = [(self._there.pop(pack),) for pack in set(packs) & self._there.keys()]
        if going:
            with _named():
                for table in COLUMNS:
                    self._write(table)
                    self._db.executemany(f"DELETE FROM read_{table} WHERE at >> {PLACE_BITS} = ?", going)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, which deletes its file."""
        self._db.close()

    def add(
        self,
        location: Location,
        record: Record,
        version: bytes | None,
        segment: bytes | None,
        older: Collection[bytes] = (),
        *,
        root: int = 0,
        held: bool = False,
    ) -> None:
        """Add a record.

        ``version``, ``segment``: ids of the version and the segment that it holds, None where it holds none.
        ``older``: ids of the older versions of a run. ``root``: generation of keys in which its root began.
        ``held``: its versions are live, whatever marks say.
        """
        kind = A_RUN if record.mode & RUN else PLAIN
        self.begin(location.pack)
        self._rooted |= root > 0
        place = location.offset << ROW_BITS | location.row
        at, mark = self._there[location.pack] << PLACE_BITS | place, record.mark
        size = weight(record)
        if mark:
            self._row("marks", at, mark.version, mark.counter, mark.verb, size)
        if segment is not None:
            self._row("segments", at, segment, record.parent, size, kind, len(record.bitstring), root)
        if version is not None:
            own = 0 if kind == A_RUN else size  # a run is copied whole as long as its segment is live
            self._row("versions", at, version, record.leaf, own, kind, 0, root)
        for one in older:
            self._row("versions", at, one, record.leaf, 0, OLDER, record.tokens, root)
        for one in (version, *older) if held and version is not None else ():
            self._row("held", at, one)

    def settle(
        self, condemned: Collection[bytes], before: int = MAX_VALUE, packs: Collection[bytes] | None = None
    ) -> None:
        """Find the live records, after the last one was added.

        Args:
            condemned: packs that do not stay.
            before: seconds since 1970; a version that was forgotten later is live, unless a part of it is gone.
            packs: those that count, of the ones added; None for all.

        Raises ArchiveError where a segment of a live session is missing: nothing may be deleted then.
        """
        with _named():
            self._begin(condemned, packs)
            self._db.executescript(TAKEN)
            self._db.execute("INSERT INTO grace VALUES (?)", (before,))
            if self._rooted:
                self._db.executescript(NEWER)
            self._db.execute(SMALLER)
            if self._db.execute(ANY_SMALLER).fetchone():
                self._db.executescript(PASSED_OVER)
            if self._db.execute(ANY_CHOICE).fetchone():
                self._db.executescript(CHOSEN)
            self._db.executescript(SETTLED + LIVE)
            lacking = self._db.execute(LACKING).fetchone()
            if lacking:
                # forgotten versions of which a part was freed are not live: look again without them
                self._db.executescript(BY_ABOVE)
                self._db.execute(BROKEN)
                self._db.executescript(LIVE)
                lacking = self._db.execute(LACKING).fetchone()
            self._db.execute(LIVE_SEGMENTS)
            self.live_versions, self.live_segments = (
                self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("live_version", "live")
            )
        if lacking:
            raise ArchiveError(
                f"segment {lacking[0].hex()} of a live session is missing: collecting stops; see pltz archive verify"
            )

    def sharing(self, condemned: Collection[bytes]) -> set[bytes]:
        """Return the packs that stay and have a record of what a condemned one has too. The live set is unsettled."""
        with _named():
            self._begin(condemned, None)
            return {name for (name,) in self._db.execute(SHARING)}

    def _begin(self, condemned: Collection[bytes], packs: Collection[bytes] | None) -> None:
        """Make all tables but those of the records that were read anew. Arguments as of `settle`."""
        rows = [(n, name, name not in condemned) for name, n in self._there.items() if packs is None or name in packs]
        for table in COLUMNS:
            self._write(table)
        self._db.executescript(TABLES)
        self._db.executemany("INSERT INTO packs VALUES (?, ?, ?)", rows)

    def stranded(self) -> Iterator[Stranded]:
        """Yield live records that lie in condemned packs alone.

        Segments come first, parents before children, then versions, then marks.
        """
        with _named():
            self._db.execute(CHILDREN)
            packs = list(self._packs)
            for query in (SEGMENTS, VERSIONS, MARKS):
                for at, parts in self._db.execute(query):
                    yield Stranded(_location(packs, at), parts)

    def grown(self, going: Collection[bytes]) -> Iterator[Location]:
        """Yield a record of each session that has several live records in some packs."""
        with _named():
            self._db.executescript(GOING)
            numbers = ((n,) for name, n in self._there.items() if name in going)
            self._db.executemany("INSERT INTO going VALUES (?)", numbers)
            packs = list(self._packs)
            for (at,) in self._db.execute(GROWN):
                yield _location(packs, at)

    def weights(self) -> dict[bytes, tuple[int, int]]:
        """Return for each pack the approximate bytes of all its records and of its live ones.

        A live record counts only in the first pack that has it.
        """
        with _named():
            return {name: (total, live) for name, total, live in self._db.execute(WEIGHTS)}

    def _row(self, table: str, *row: object) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) >= BATCH:
            with _named():
                self._write(table)

    def _write(self, table: str) -> None:
        rows = self._rows[table]
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._db.execute("BEGIN")
            self._db.executemany(f"INSERT INTO read_{table} VALUES ({marks})", rows)
            self._db.execute("COMMIT")
            rows.clear()


def _location(packs: Sequence[bytes], at: int) -> Location:
    """Return the place of a record in one of these packs, as ``at`` tells."""
    offset, row = divmod(at & (1 << PLACE_BITS) - 1, 1 << ROW_BITS)
    return Location(packs[at >> PLACE_BITS], offset, row)


def weight(record: Record) -> int:
    """Return the approximate bytes of a record in a pack."""
    return 32 + len(record.bitstring) + len(record.name or "")


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise ArchiveError(
            f"the census of the archive cannot be kept in the folder for temporary files ({exc}): "
            "name another in TMPDIR; nothing was deleted"
        ) from exc
