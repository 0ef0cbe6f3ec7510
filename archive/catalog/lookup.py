"""The look-up: from the identity of a segment, session or version to the places where its records lie.

    digest --indexes--> blocks, which are hints --read--> records, which decide

A damaged index is dropped and its packs are scanned, so a look-up misses nothing that can be read. Damaged
records are noted as problems and left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from pltz.archive.catalog.listing import ATTEMPTS, Found, Listing
from pltz.archive.catalog.problems import Problems
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import ArchiveError, MissingKeys
from pltz.archive.format import object_names
from pltz.archive.format.block import Block
from pltz.archive.format.ids import LEAF, NO_SEGMENT, version_id
from pltz.archive.format.index_file import (
    MARKS,
    SEGMENTS,
    SESSIONS,
    U64,
    UNIT,
    FileIndex,
    Location,
    Lookup,
    key_of,
    key_of_session,
    keys_in,
    keys_of,
)
from pltz.archive.format.pack import AHEAD, FIRST_READ, Damage, Pack
from pltz.archive.format.record import CLEAR, FORGET, NOTHING, RUN, UNDELETE, ContentFacts, Context, unpack_about
from pltz.archive.format.run import OlderVersion, unpack_run
from pltz.archive.format.session_list import Row, decoded, key_in_list, listed
from pltz.plt_codec.errors import CorruptError, FormatError

T = TypeVar("T")

READ = 1 << 14  # sessions of blocks kept in memory
BLOCKS = 256  # blocks that `histories`, or one read, keeps in memory
PACK_BITS, ROW_BITS = 30, 7  # bits of an offset and of a row in an address

Blocks = dict[tuple[bytes, int], Block]  # parsed, by pack and offset
VersionName = int | bytes  # a version of a session: its number, or its id, of which the first bytes are enough


@dataclass(frozen=True)
class Version:
    """One version of a part of a session as the catalogue has it, or of the whole session (`as_sessions`).

    Attributes:
        moment: when it was put, in ticks since 1970. A session's versions are ordered by it.
        time: its own, in seconds since 1970.
        version: number of the session's version that it is of: its rank among those that were found, the oldest is 1.
            All that was put at one moment is one version.
        leaf: id of the last segment of the tower that it is in. It is its own last one where ``lacks`` is 0.
        kind: 0 chat, 1 text, 2 ids.
        lacks: number of the last segments of that tower that it does not have: it ends within a run.
        leaf_prefix: first 4 bytes of the id of its own last segment.
        hides_older: whether its record is a run whose older versions cannot be read.
        part: path of the part, empty for the main one. ``content``: what is known of it.
        parts: of a whole session with several parts, the newest version of each, by path.
    """

    id: bytes
    tenant: str
    name: str
    moment: int
    time: int
    tags: dict[str, str]
    leaf: bytes
    kind: int
    target: bytes
    tokenizer: bytes
    forgotten: bool
    location: Location
    leaf_prefix: bytes
    lacks: int = 0
    hides_older: bool = False
    version: int = 1
    part: str = ""
    content: ContentFacts = NOTHING
    parts: tuple[Version, ...] = ()

    def is_named(self, wanted: VersionName) -> bool:
        """Return whether a number or the first bytes of an id name it."""
        if not isinstance(wanted, bytes):
            return self.version == wanted
        return any(v.id.startswith(wanted) for v in self.each if v.version == self.version)

    @property
    def each(self) -> tuple[Version, ...]:
        """Return the newest version of each part of a whole session."""
        return self.parts or (self,)


def in_order(versions: Iterable[Version]) -> list[Version]:
    """Return versions by tenant and name, the oldest of each session first, with their numbers."""
    found: list[Version] = []
    session, number, moment, met = ("", ""), 0, -1, set[str]()
    for v in sorted(versions, key=lambda v: (v.tenant, v.name, v.moment, v.id)):
        if (v.tenant, v.name) != session:
            session, number, moment = (v.tenant, v.name), 0, -1
        if v.moment != moment or v.part in met:  # of two writers at one moment each has its own
            number, moment, met = number + 1, v.moment, set[str]()
        met.add(v.part)
        found.append(v if v.version == number else replace(v, version=number))
    return found


def as_sessions(versions: Iterable[Version]) -> Iterator[Version]:
    """Yield each version of each session as a whole: the newest version of each part up to it, in that of the main one.

    ``versions``: as `in_order` returns them. One is forgotten if what it changed is. Then what it had of older ones may
    be forgotten too, else not.
    """
    for _, session in itertools.groupby(versions, key=lambda v: (v.tenant, v.name)):
        there, staying = dict[str, Version](), dict[str, Version]()
        for _, rows in itertools.groupby(session, key=lambda v: v.version):
            own = {v.part: v for v in rows}
            there |= own
            staying |= {part: v for part, v in own.items() if not v.forgotten}
            forgotten = any(v.forgotten for v in own.values())
            parts = tuple(v for _, v in sorted((there if forgotten else staying).items()))
            if len(parts) == 1:
                yield parts[0]
                continue
            changed = own[min(own)]
            yield replace(
                parts[0],
                id=changed.id,
                moment=changed.moment,
                time=changed.time,
                version=changed.version,
                forgotten=forgotten,
                content=parts[0].content._replace(size=sum(v.content.size for v in parts)),
                parts=parts,
            )


def forgettable(versions: Sequence[Version], going: Collection[int]) -> list[Version]:
    """Return what is forgotten with some versions of a session: all that no version that stays has.

    ``versions``: of one session, as `in_order` returns them; ``going``: numbers of those that go.
    """
    kept = (v for v in as_sessions(versions) if not v.forgotten and v.version not in going)
    needed = {v.id for whole in kept for v in whole.each}
    gone = {v.version for v in versions if v.forgotten} | set(going)
    return [v for v in versions if v.version in gone and not v.forgotten and v.id not in needed]


def version_of(item: Found, key: bytes | None = None) -> bytes:
    """Return the id, 16 bytes, of the version in the fields of a session's record.

    ``key``: of the session, 16 bytes, where the caller has it.
    """
    r = item.record
    return version_id(key or key_of_session(r, item.context), r.moment, r.leaf, r.time, r.part)


def older_versions(item: Found, key: bytes | None = None) -> dict[bytes, OlderVersion]:
    """Return the versions of a session that a record has beside that in its fields, by their ids.

    ``key``: as in `version_of`. Raises CorruptError.
    """
    if not item.record.mode & RUN or item.record.name is None:
        return {}
    key = key or key_of_session(item.record, item.context)
    part = item.record.part
    return {version_id(key, v.moment, v.leaf, v.time, part): v for v in unpack_run(item.record).versions}


def _cut_short(item: Found) -> bool:
    """Return whether a record is a run of a session that lacks its bitstring, and so its older versions."""
    return bool(item.record.mode & RUN) and item.record.name is not None and not item.record.bitstring


def _address(number: int, location: Location) -> int:
    """Return the address of a record in the pack of this number."""
    return number << PACK_BITS + ROW_BITS | location.offset << ROW_BITS | location.row


def _parts(address: int) -> tuple[int, int, int]:
    """Return the number of the pack, the offset of the block and the row at an address."""
    place, row = divmod(address, 1 << ROW_BITS)
    return *divmod(place, 1 << PACK_BITS), row


class RecordLookup:
    """Looks up records in the packs that a listing has."""

    def __init__(self, listing: Listing, keys: Encryption, problems: Problems) -> None:
        self._listing, self._keys, self._problems = listing, keys, problems
        # records of sessions without their bitstrings, by block and session key, for `versions`
        self._read: dict[tuple[Location, bytes], list[Found]] = {}
        self._blocks: Blocks | None = None  # those parsed inside of `keeping_blocks`

    def find(self, section: int, identity: bytes) -> list[Found]:
        """Return the records whose full segment id, session key or version id matches, sorted by location.

        Runs come first: other records of their last segment may be about to be collected. Damaged records are noted as
        problems and left out. Raises StoreError.
        """
        found = []
        for place in self.places(section, identity):
            for item in self._in_block(place, section, identity):
                if section == MARKS or not self._is_gone(item.context, identity):
                    found.append(item)
        return sorted(found, key=lambda item: not item.record.mode & RUN) if len(found) > 1 else found

    def _is_gone(self, context: Context, identity: bytes) -> bool:
        """Return whether the key of a segment or session of a sealed archive was destroyed."""
        gone = self._keys.cipher != CLEAR and self._keys.gone(context, identity)
        self._listing.gone += gone
        return gone

    def tower(self, leaf: bytes) -> Iterator[tuple[bytes, list[Found]]]:
        """Yield each segment of a tower with its records, from the leaf up. It ends with one that has none, if any.

        Segments within runs have none of their own, and are left out. Raises StoreError.
        """
        seen = set[bytes]()
        while leaf != NO_SEGMENT:
            found = [] if leaf in seen else self.find(SEGMENTS, leaf)  # in a circle none is above the others
            yield leaf, found
            if not found:
                return
            seen.add(leaf)
            leaf = found[0].record.parent

    def chain(self, version: Version) -> list[bytes]:
        """Return the ids of the segments of a version from the last one up, as `tower` finds those that are there."""
        return [segment for segment, found in self.tower(version.leaf) if found]

    def own_record(self, version: Version) -> Found | None:
        """Return the record of a version where that has its last segment too; None where it has not, or is damaged.

        Raises StoreError.
        """
        place = version.location
        if place.pack not in self._listing.packs:  # a list has it, or a collector took it out
            return None
        opened = self._maybe(partial(self.block, place, ahead=AHEAD), place.pack)
        if opened is None or place.row not in opened[1].rows_of(version.leaf):
            return None
        pack, block = opened
        record = self._maybe(partial(pack.of_block, block, place.row), place.pack)
        if record is None:
            return None
        context = pack.head.contexts[record.context]
        return None if self._is_gone(context, version.leaf) else Found(place, record, context)

    def at(self, location: Location) -> Found:
        """Return the record at a location. Raises FormatError, FileNotFoundError, StoreError."""
        pack, block = self.block(location, ahead=AHEAD)
        record = pack.of_block(block, location.row)
        return Found(location, record, pack.head.contexts[record.context])

    def head(self, location: Location) -> Found:
        """Return the record at a location without its bitstring, which may be damaged.

        A run of a session has its bitstring, which has its older versions. Where that is damaged, it is noted as a
        problem and left out. Raises the errors of `at`.
        """
        pack, block = self.block(location)
        return self._of_block(pack, block, location)

    def block(self, place: Location, *, ahead: int = FIRST_READ) -> tuple[Pack, Block]:
        """Return the block at a place, and its pack. ``ahead``: as in `Pack.block`.

        Raises FormatError, FileNotFoundError, StoreError.
        """
        pack = self._listing.opened(place.pack, place.offset)
        if self._blocks is None:
            return pack, pack.block(place.offset, ahead=ahead)
        at = place.pack, place.offset
        if at not in self._blocks:
            if len(self._blocks) >= BLOCKS:
                self._blocks.clear()
            self._blocks[at] = pack.block(place.offset, ahead=AHEAD)  # its records are wanted next
        return pack, self._blocks[at]

    @contextmanager
    def keeping_blocks(self, blocks: Blocks | None = None) -> Iterator[None]:
        """Read and parse each block once for all look-ups inside, which are parts of one read.

        ``blocks``: those parsed before, for a read in several steps; others are added.
        """
        outer = self._blocks
        self._blocks = blocks if blocks is not None else {} if outer is None else outer
        try:
            yield
        finally:
            self._blocks = outer

    def want_key(self, place: Location, section: int, key: int) -> None:
        """Check that the block at a place has a record of a key, 36 bits, by which an index or a manifest names it.

        Where no record has the identity that was looked for, another one has its key by chance, or the place has not
        what was written there. Raises CorruptError then, and the errors of `block`.
        """
        pack, block = self.block(place)
        if pack.nameless:
            raise CorruptError(pack.nameless)
        named = (one for r in block.heads() for one in keys_of(r, pack.head.contexts[r.context]))
        if all(its != section or key_of(identity) != key for its, identity in named):
            raise CorruptError(f"the block at byte {place.offset} has not the record that is named there: damaged")

    def is_sound(self, location: Location) -> bool:
        """Return whether a record reads now. `versions` may remember one that was damaged since. Raises StoreError."""
        try:
            self.at(location)
        except (FormatError, FileNotFoundError):
            return False
        return True

    def places(self, section: int, identity: bytes) -> list[Location]:
        """Return the sorted places of blocks, in packs that are there, that may have records of this identity.

        Only indexes are read.
        """
        packs = self._listing.packs
        places = [at for at in self.named(section, identity) if at.pack in packs]
        return sorted(places) if len(places) > 1 else places

    def named(self, section: int, identity: bytes) -> set[Location]:
        """Return the places of blocks that the indexes name for an identity, including those in absent packs."""
        answers = self._asked(lambda index: index.find(section, identity))
        return set(self._listing.tail.find(section, identity)).union(*answers)

    def known(self, section: int, identities: Sequence[bytes]) -> set[bytes]:
        """Return those identities that some index may hold.

        The others are not in the archive. Only indexes are read.
        """
        if not identities:
            return set()
        keys = keys_in(identities)
        here = self._listing.tail.has(section, keys)
        hit = np.logical_or.reduce([here, *self._asked(lambda index: index.has(section, keys))])
        return {identities[n] for n in np.flatnonzero(hit).tolist()}

    def versions(self, domain: bytes, name: str) -> list[Version]:
        """Return the versions of a session, oldest first, forgotten ones included.

        Raises:
            CorruptError: there are versions, and none of them is sound.
            ArchiveError: a collector kept moving the records.
            StoreError: the store failed.
        """
        return self._listing.stable(partial(self.read_versions, domain, name))

    def all_versions(self, domain: bytes | None = None, *, listed: bool = False) -> list[Version]:
        """Return all versions of all sessions, sorted by tenant and name. Raises ArchiveError, StoreError.

        Args:
            domain: of the tenant whose sessions are returned alone. Packs without it are not read.
            listed: lists are read where there are some, in place of packs. What a list has lies in no pack.
        """
        return self._listing.stable(lambda: self._all_versions(domain, listed))

    def histories(self) -> Iterator[list[Version]]:
        """Yield the list of versions of each session, oldest first, in the order of session keys.

        Memory stays small for a large catalogue because one session is decoded at a time. Raises StoreError.
        """
        packs = sorted(self._listing.packs)
        keys, places = self._session_places(packs)
        bounds = [*np.flatnonzero(np.diff(keys, prepend=keys[:1] - np.uint64(1))).tolist(), len(keys)]
        blocks: Blocks = {}
        for begin, end in itertools.pairwise(bounds):
            with self.keeping_blocks(blocks):
                found = [
                    self._maybe(partial(self.head, Location(packs[number], offset, row)), packs[number])
                    for number, offset, row in map(_parts, places[begin:end].tolist())
                ]
            versions = self._distinct((item for item in found if item), [])
            for _, rows in itertools.groupby(versions, key=lambda v: (v.tenant, v.name)):
                yield list(rows)

    def _session_places(self, packs: Sequence[bytes]) -> tuple[U64, U64]:
        """Return the first 64 bits of the key of each session's record, (N,), sorted, and its address, (N,)."""
        parts = [np.zeros((0, 2), np.uint64)]
        for number, pack in enumerate(packs):
            rows = [
                (int.from_bytes(key_of_session(item.record, item.context)[:8], "big"), _address(number, item.location))
                for item in self._session_heads(pack)
            ]
            parts.append(np.array(rows, np.uint64).reshape(-1, 2))
        both = np.concatenate(parts)
        both = both[np.lexsort((both[:, 1], both[:, 0]))]
        return both[:, 0], both[:, 1]

    def _session_heads(self, pack: bytes, domain: bytes | None = None, *, marks: bool = False) -> Iterator[Found]:
        """Yield the records of sessions in a pack, without bitstrings, and its ``marks``. Damage is noted as a problem.

        ``domain``: that of the tenant whose records are yielded; None for all.
        """
        try:
            if domain and all(context.domain != domain for context in self._listing.opened(pack).head.contexts):
                return
            for item in self._listing.scan(pack, bodies=False):
                if isinstance(item, Damage):
                    what = f"{item.size} bytes at {item.offset}: {item.why}"
                    self._problems.note("pack", pack.hex(), what, pack=pack, blind=item.rows is None)
                elif domain in (None, item.context.domain) and (
                    item.record.name is not None or (marks and item.record.mark)
                ):
                    yield item
        except FormatError as exc:
            self._problems.note("pack", pack.hex(), str(exc), pack=pack, blind=True)
        except FileNotFoundError:
            self._listing.note_stale()

    def _of_block(self, pack: Pack, block: Block, location: Location) -> Found:
        """Return a record as `head` does."""
        record = block.record(location.row)
        context = pack.head.contexts[record.context]
        if record.mode & RUN and record.name is not None:
            try:
                record = pack.of_block(block, location.row)
            except FormatError as exc:
                self._problems.note("record", location.pack.hex(), str(exc), pack=location.pack)
        return Found(location, record, context)

    def marked(self) -> bool:
        """Return whether any version was ever forgotten or undeleted."""
        listing = self._listing
        return listing.tail.holds(MARKS) or any(index.holds(MARKS) for index in listing.indexes.values())

    def mark(self, version: bytes) -> tuple[int, int]:
        """Return (verb, counter) of the mark in force for a version; (UNDELETE, 0) without a mark."""
        if not self.marked():
            return UNDELETE, 0
        marks = [item.record.mark for item in self.find(MARKS, version) if item.record.mark]
        counter, verb = max(((m.counter, -m.verb) for m in marks), default=(0, UNDELETE))
        return -verb, counter

    def read_versions(self, domain: bytes, name: str) -> list[Version]:
        """Return what `versions` does, of one attempt."""
        key = self._keys.session_key(domain, name)
        if not (found := self._sessions(key, name)):
            return []
        failures: list[CorruptError] = []
        sound = self._distinct(iter(found), failures, key)
        if failures and not sound:
            raise failures[0]
        return [v for v in sound if v.name == name]

    def _sessions(self, key: bytes, name: str) -> list[Found]:
        """Return the records of a session, without their bitstrings.

        Each is read once: a session grows by a version per turn. A record at a place of a pack never changes, but
        may be damaged later. A caller that relies on one reads it again.
        """
        found: list[Found] = []
        stored = key[:UNIT] if self._keys.cipher else name.encode()
        for place in self.places(SESSIONS, key):
            items = self._read.get((place, key))
            if items is None:
                items = self._maybe(partial(self._named, place, key, stored), place.pack)
                if items is None:  # not remembered: repair may bring the pack back
                    continue
                if len(self._read) >= READ:
                    self._read.clear()
                if not any(map(_cut_short, items)):
                    self._read[place, key] = items
            found += items
        return found

    def seen_records(self, key: bytes) -> list[Found]:
        """Return the records of a session, without their bitstrings, that `versions` has read. No pack is read."""
        return [item for place in self.places(SESSIONS, key) for item in self._read.get((place, key), ())]

    def _named(self, place: Location, key: bytes, stored: bytes) -> list[Found]:
        """Return the records of a session in a block, without bitstrings. ``stored``: its name as stored."""
        pack, block = self.block(place)
        found = [self._of_block(pack, block, place._replace(row=row)) for row in block.rows_named(stored)]
        items = [item for item in found if key_of_session(item.record, item.context) == key]
        if not items:
            self.want_key(place, SESSIONS, key_of(key))
        return items

    def _all_versions(self, domain: bytes | None, listed: bool) -> list[Version]:
        items, packs = list[Iterable[Found]](), set(self._listing.packs)
        for name in sorted(self._listing.indexes) if listed else ():
            if (found := self._listed(name)) is not None:
                items.append(item for item in found if domain in (None, item.context.domain))
                packs -= self._listing.indexes[name].packs.keys()
        items += (self._session_heads(pack, domain, marks=True) for pack in sorted(packs))
        marks = dict[bytes, tuple[int, int]]()

        def sessions() -> Iterator[Found]:
            for item in itertools.chain.from_iterable(items):
                if mark := item.record.mark:
                    marks[mark.version] = max(marks.get(mark.version, (0, UNDELETE)), (mark.counter, -mark.verb))
                else:
                    yield item

        return self._distinct(sessions(), [], marks=marks)

    def _listed(self, index: str) -> list[Found] | None:
        """Return what `in_lists` yields; None where an index has no lists or they cannot be used: packs tell then."""
        try:
            return [*self.in_lists(index)] if self._listing.present.lists_of(index) else None
        except FormatError as exc:
            self._problems.note("list", index, f"{exc}; its packs are read instead")
        except FileNotFoundError:  # a collector took a pack out, or another replaced the index
            pass
        return None

    def in_lists(self, index: str) -> Iterator[Found]:
        """Yield the records of sessions and the marks that the lists of an index have, of packs that are there.

        Raises FormatError where one is damaged or gone, FileNotFoundError, StoreError.
        """
        listing = self._listing
        stale, places = self._stale(listing.indexes[index])
        for name in listing.present.lists_of(index):
            try:
                data = listing.store.view(object_names.session_list(name))
            except FileNotFoundError as exc:
                raise CorruptError(f"list {name} is gone") from exc
            for item in decoded(data, bytes.fromhex(name), listing.archive):
                if not (stale and key_in_list(*item[1:]) in stale):
                    yield Found(*item)
        for place in places:  # what collectors moved has other records, perhaps there
            pack, block = self.block(place)
            for row, record in enumerate(block.heads()):
                context = pack.head.contexts[record.context]
                if (record.mark or record.name is not None) and key_in_list(record, context) in stale:
                    yield self._of_block(pack, block, place._replace(row=row))

    def _stale(self, index: FileIndex) -> tuple[set[tuple[int, int]], list[Location]]:
        """Return (section, key) of what an index names in packs that are gone, and the places of these in others.

        Raises CorruptError, FileNotFoundError, StoreError.
        """
        gone, stale, places = np.array([name not in self._listing.packs for name in index.names], bool), set(), set()
        for section in (SESSIONS, MARKS) if gone.any() else ():
            keys, numbers, offsets = index.columns(section)
            out = gone[numbers.astype(np.int64)]
            stale |= {(section, key) for key in keys[out].tolist()}
            left = np.isin(keys, keys[out]) & ~out
            places |= {
                Location(index.names[n], at)
                for n, at in zip(numbers[left].tolist(), offsets[left].tolist(), strict=True)
            }
        return stale, sorted(places)

    def rows_for_lists(self, packs: AbstractSet[bytes], indexes: Iterable[str]) -> Iterator[Row]:
        """Yield what lists have of packs: from the lists of these indexes where they have some, else of packs.

        Raises FormatError where a list or a pack is damaged, FileNotFoundError where a pack is gone, StoreError.
        """
        left, listing = set(packs), self._listing
        for name in filter(listing.present.lists_of, indexes):
            left -= listing.indexes[name].packs.keys()
            yield from (row for item in self.in_lists(name) if (row := listed(item.context, item.record)))
        for pack in sorted(left):
            if (own := listing.own_rows.get(pack)) is not None:
                yield from own
                continue
            for item in listing.scan(pack, bodies=False):
                if isinstance(item, Damage):
                    raise CorruptError(item.why)
                if row := listed(item.context, item.record):
                    yield row

    def _in_record(self, item: Found, key: bytes) -> Iterator[Version]:
        """Yield the versions that the record of a session with this key has: of a run cut short, its own only.

        Neither marks nor numbers are looked at. Raises CorruptError where its part or tags are damaged, or its older
        versions although their bytes are sound, Erased.
        """
        r, c = item.record, item.context
        keys = self._keys
        tenant, name, packed = keys.session(c, r) if keys.cipher else (c.domain_name, r.name or "", r.about)
        (part, content, tags), leaf = unpack_about(packed), r.leaf
        if r.part != (self._keys.part_key(c.domain, key, part) if part else 0):
            raise CorruptError(f"a record of {name!r} is not of the part that it names: damaged")
        own = OlderVersion(0, r.moment, r.time, leaf[:LEAF])
        older = older_versions(item, key) if r.mode & RUN and not _cut_short(item) else {}
        newest = version_id(key, r.moment, leaf, r.time, r.part)
        for identity, v in ({newest: own} | older).items():
            yield Version(
                identity,
                tenant,
                name,
                v.moment,
                v.time,
                tags,
                leaf,
                c.kind,
                c.target,
                c.tokenizer,
                False,
                item.location,
                v.leaf,
                v.lacks,
                part=part,
                content=content if identity == newest else ContentFacts(content.title),
            )

    def _distinct(
        self,
        items: Iterator[Found],
        failures: list[CorruptError],
        session: bytes | None = None,
        marks: Mapping[bytes, tuple[int, int]] | None = None,
    ) -> list[Version]:
        """Return each version once, however many records it has.

        A record in a pack that is named and not condemned is preferred, and the longest run. Erased sessions are left
        out. A version hides older ones where its run is cut short and no copy of that run is whole.
        ``session``: key of the session that all records are of, where they are of one. ``marks``: counter and negated
        verb of the mark in force, by version, once all items came; None: they are looked up.
        """
        found: dict[bytes, Version] = {}
        ranks: dict[bytes, tuple[bool, bool, bool, int]] = {}
        runs: set[tuple[bytes, bytes, int]] = set()  # whole ones: version, segment, tokens
        short: dict[tuple[bytes, bytes, int], bytes] = {}  # of those cut short the version
        for item in items:
            if item.record.name is None:
                continue
            # records of erased sessions, and those that cannot be read, are left out
            key = session or key_of_session(item.record, item.context)
            if self._is_gone(item.context, key):
                continue
            try:
                versions = list(self._in_record(item, key))
            except MissingKeys as exc:
                self._problems.note("keys", item.context.domain.hex(), str(exc))
                failures.append(exc)
                continue
            except CorruptError as exc:
                self._problems.note("session", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))
                failures.append(exc)
                continue
            # of several records of one version the best counts: whole, in a pack that stays, the longest run
            cut, tokens = _cut_short(item), item.record.tokens if len(versions) > 1 else 0
            if item.record.mode & RUN:
                run = versions[0].id, versions[0].leaf, item.record.tokens
                if cut:
                    short[run] = versions[0].id
                else:
                    runs.add(run)
            pack, listing = item.location.pack, self._listing
            # readers see no unnamed pack: an erase that went by its record would destroy the keys of theirs
            rank = cut, pack in listing.unnamed, pack in listing.condemned, -tokens
            for version in versions:
                if version.id not in found or rank < ranks[version.id]:
                    found[version.id], ranks[version.id] = version, rank
        # a run of which no copy is whole hides its older versions
        for run in short.keys() - runs:
            found[short[run]] = replace(found[short[run]], hides_older=True)
        if marks is None:
            over = self._forgotten([*found])
        else:
            over = [v for v in found if marks.get(v, (0, UNDELETE))[1] == -FORGET]
        for name in over:
            found[name] = replace(found[name], forgotten=True)
        return in_order(found.values())

    def _forgotten(self, versions: Sequence[bytes]) -> list[bytes]:
        """Return those versions whose mark in force forgets them, by id. One look-up tells which have marks."""
        marked = self.known(MARKS, versions) if self.marked() else set[bytes]()
        return [version for version in marked if self.mark(version)[0] == FORGET]

    def _in_block(self, place: Location, section: int, identity: bytes) -> list[Found]:
        """Return the records of a block that have an identity. Damaged ones are noted as problems."""
        ahead = AHEAD if section == SEGMENTS else FIRST_READ
        opened = self._maybe(partial(self.block, place, ahead=ahead), place.pack)
        if opened is None:
            return []
        pack, block = opened
        contexts = pack.head.contexts
        if section == SEGMENTS:
            rows = block.rows_of(identity)
        else:
            heads = enumerate(block.heads())
            rows = [row for row, r in heads if (section, identity) in keys_of(r, contexts[r.context])]
        found: list[Found] = []
        if not rows:
            self._maybe(partial(self.want_key, place, section, key_of(identity)), place.pack)
        for row in rows:
            record = self._maybe(partial(pack.of_block, block, row), place.pack)
            if record is not None:
                found.append(Found(Location(place.pack, place.offset, row), record, contexts[record.context]))
        return found

    def _maybe(self, read: Callable[[], T], pack: bytes) -> T | None:
        """Return the result of ``read``, None where it meets damage or its pack was deleted."""
        try:
            return read()
        except FormatError as exc:
            self._problems.note("record", pack.hex(), str(exc), pack=pack)
        except FileNotFoundError:
            self._listing.note_stale()
        return None

    def _asked(self, question: Callable[[Lookup], T]) -> list[T]:
        """Return the answers of all indexes, of those that are there now. Raises ArchiveError, StoreError."""
        for _ in range(ATTEMPTS):
            try:
                return [self._ask(index, question) for index in list(self._listing.indexes.values())]
            except FileNotFoundError:  # another replaced one of which only ranges are read
                self._listing.read_again()
        raise ArchiveError("indexes are replaced all the time: try again")

    def _ask(self, index: Lookup, question: Callable[[Lookup], T]) -> T:
        """Ask an index. If it turns out to be damaged, drop it, scan its packs and ask the tail."""
        try:
            return question(index)
        except FormatError as exc:
            self._listing.drop_index(index, str(exc))
            return question(self._listing.tail)
