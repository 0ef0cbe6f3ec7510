"""Lists of sessions: what a reader of all sessions of a bucket reads in place of packs. Spec: FORMAT.md.

    listed(context, record)             what a list has of a record: no segment; None where it has nothing of it
    for data in encoded(rows, ...)      lists of such records, each a pack in ``list/``
    for item in decoded(data, name)     the records of a list, with their places and contexts

A list is made of packs and may be gone at any time. Boxes of a sealed archive are copied as they are, so whoever
destroys the key of a record destroys it here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from pltz.archive.errors import MisplacedPack
from pltz.archive.format.index_file import MARKS, SESSIONS, Location, key_of, keys_of
from pltz.archive.format.pack import SALT, Builder, Damage, Pack, name_in
from pltz.archive.format.record import RUN, Context, Record
from pltz.archive.format.run import unpack_run
from pltz.plt_codec.container.frame import ALONE
from pltz.plt_codec.errors import CorruptError

Row = tuple[Context, Record]
AT_ONCE = 1 << 18  # rows in memory while lists are written


def listed(context: Context, record: Record) -> Row | None:
    """Return what a list has of a record: of a run all but its data. Raises CorruptError where a run is damaged."""
    if record.mark:
        return context, record._replace(context=0)
    if record.name is None:
        return None
    if record.mode & RUN:
        size = len(record.bitstring) - len(unpack_run(record).data)
        return context, record._replace(context=0, bitstring=record.bitstring[:size])
    return context, record._replace(context=0, parent=record.leaf, id=None, tokens=0, bitstring=b"", mode=ALONE)


def key_in_list(record: Record, context: Context) -> tuple[int, int]:
    """Return section and key, 36 bits, by which an index names a record of a list."""
    section, identity = next(row for row in keys_of(record, context) if row[0] in (SESSIONS, MARKS))
    return section, key_of(identity)


def encoded(rows: Iterable[Row], archive: bytes, random: Callable[[int], bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield digests and bytes of lists that have these rows, as `listed` returned them. Some are in memory at a time.

    ``archive``: its id; ``random``: returns so many random bytes.
    """
    coming = iter(rows)
    while some := [*dict.fromkeys(islice(coming, AT_ONCE))]:
        while some:
            builder = Builder(min((r.moment for _, r in some if not r.mark), default=0), random(SALT), archive)
            count = builder.fill(*zip(*some, strict=True))
            data = builder.finish()
            yield name_in(data), data
            some = some[count:]


def decoded(data: bytes | memoryview, name: bytes, archive: bytes) -> list[tuple[Location, Record, Context]]:
    """Return the records of the list of this name. Raises CorruptError, VersionError."""
    pack = Pack.of(data, archive)
    if pack.seal()[0] != name:
        raise MisplacedPack(f"these are not the bytes of list {name.hex()}")
    found = list[tuple[Location, Record, Context]]()
    for item in pack.blocks():
        if isinstance(item, Damage):
            raise CorruptError(item.why)
        block, rows = item
        found += [(Location(name, block.offset, n), record, pack.head.contexts[record.context]) for n, record in rows]
    return found
