"""Domain keys: the key of a domain's ids, and the keys of its 4,096 slots.

Spec: FORMAT.md, "Keys".

    root --until the first erase--> keys of all slots --begin, finish--> other keys of a few slots

A record names its root, which tells the generation in which it was sealed. The key of a slot counts for records from
the generation in which it began. So an erase replaces the keys of a few slots, and records from before do not open.

    >>> keys = DomainKeys(bytes(16), 0, TENANT, "acme", bytes(KEY), ((0, bytes(KEY)),), lineages=(b"line",))
    >>> begun = keys.begin(lambda size: bytes([1]) * size, units=[7], live=[7, 8, 9 << 52])
    >>> done = begun.finish([7, 8, 9 << 52])
    >>> [[k.has(keys.newest, unit) for unit in (7, 8, 9 << 52)] for k in (keys, begun, done)]
    [[True, True, True], [True, True, True], [False, False, True]]
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from pltz.archive.encryption.box import KEY, UNIT, slot_key, slot_of, unit_of
from pltz.archive.encryption.key_files import MAX_LINEAGES, generation_of, governs, root_id
from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import BASE, TENANT
from pltz.archive.format.record import MAX_NAME
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

ROW = struct.Struct("<HI32s")  # slot, generation in which the key began, key
ROOT = 0xFFFF  # in the place of a slot: a key from which those of the slots without rows are derived
WHOLE = (1 << 64) - 1  # in the place of a unit that was erased: the whole domain
AGAIN = 1  # bit of the moment of an erase: the session may be put again
MAX_ROWS = 1 << 20

Since = tuple[int, bytes]  # the generation in which a key began, and the key


@dataclass(frozen=True)
class DomainKeys:
    """All keys of a domain in one generation.

    Attributes:
        roots: the oldest first; more than one while an erase goes on. Without any the domain was erased.
        slots: the keys of each slot that has keys of its own, the oldest first. The others have those of the roots.
        doomed: units whose erasure has begun, in records from before the newest root.
        lineages: those of its roots, 4 bytes each; new roots are of the last (`key_files`).
        buried: units of sessions that were erased, and when, in ticks since 1970; with the bit `AGAIN` once the user
            let them be put again.
    """

    domain: bytes
    generation: int
    kind: int
    name: str
    id_key: bytes
    roots: tuple[Since, ...]
    slots: Mapping[int, tuple[Since, ...]] = field(default_factory=dict)
    doomed: frozenset[int] = frozenset()
    lineages: tuple[bytes, ...] = ()
    buried: Mapping[int, int] = field(default_factory=dict)

    @property
    def erased(self) -> bool:
        """Return whether the whole domain was erased."""
        return not self.roots

    @property
    def since(self) -> int:
        """Return the generation in which the newest root began."""
        return self.roots[-1][0] if self.roots else self.generation

    @property
    def newest(self) -> bytes:
        """Return the id of the root that new records name."""
        return root_id(self.lineages[-1], self.since)

    @property
    def rows(self) -> int:
        """Return the number of keys."""
        return len(self.roots) + sum(map(len, self.slots.values()))

    def governs(self, root: bytes) -> bool:
        """Return whether these keys have those of a root, or had them and destroyed them (`key_files.governs`)."""
        return governs(self.lineages, self.generation, root)

    def key(self, root: bytes, unit: int) -> bytes | None:
        """Return the key of a unit's records that name a root, 32 bytes; None where it was destroyed or never was."""
        slot, sealed = slot_of(unit), generation_of(root)
        if not self.governs(root):
            return None
        if keys := self.slots.get(slot):
            return next((key for since, key in reversed(keys) if since <= sealed), None)
        return next((slot_key(key, slot) for since, key in reversed(self.roots) if since <= sealed), None)

    def has(self, root: bytes, unit: int) -> bool:
        """Return whether there is a key of a unit's records that name a root."""
        keys = self.slots.get(slot_of(unit)) or self.roots
        return self.governs(root) and bool(keys) and keys[0][0] <= generation_of(root)

    def following(self, **changes: object) -> DomainKeys:
        """Return the next generation, with these fields changed."""
        return dataclasses.replace(self, generation=self.generation + 1, **changes)  # type: ignore[arg-type]

    def begin(self, random: Callable[[int], bytes], units: Iterable[int] = (), live: Iterable[int] = ()) -> DomainKeys:
        """Return the next generation, in which some units are doomed. Their slots get another key for new records.

        No key is lost. ``random``: returns so many bytes. ``live``: units with records: their slots keep a key of
        their own, which the end of the erase does not touch.
        """
        doomed, since = frozenset(units), self.generation + 1
        slots = self._with(live) | self._with(doomed)
        slots |= {slot: (*slots[slot], (since, random(KEY))) for slot in sorted(set(map(slot_of, doomed)))}
        return self.following(roots=(*self.roots, (since, random(KEY))), slots=slots, doomed=doomed)

    def finish(self, live: Iterable[int] = (), buried: Mapping[int, int] = MappingProxyType({})) -> DomainKeys:
        """Return the next generation, without the older roots and the older keys of slots with doomed units.

        ``live``: units with records: the keys of other slots that have any stay. ``buried``: what is erased.
        """
        slots, going = self._with(live), set(map(slot_of, self.doomed))
        kept = {slot: keys[-1:] if slot in going else keys for slot, keys in slots.items()}
        more = {**self.buried, **buried}
        return self.following(roots=self.roots[-1:], slots=kept, doomed=frozenset[int](), buried=more)

    def renewing(self, random: Callable[[int], bytes]) -> DomainKeys:
        """Return the next generation, with another root for new records of all slots. No key is lost."""
        since, root = self.generation + 1, random(KEY)
        slots = {slot: (*keys, (since, slot_key(root, slot))) for slot, keys in self.slots.items()}
        return self.following(roots=(*self.roots, (since, root)), slots=slots)

    def renewed(self) -> DomainKeys:
        """Return the next generation, with the newest root alone, and its keys of all slots."""
        return self.following(roots=self.roots[-1:], slots={}, doomed=frozenset[int]())

    def moves(
        self, done: DomainKeys, units: AbstractSet[int], records: Mapping[bytes, AbstractSet[int]]
    ) -> dict[bytes, set[int]]:
        """Return, by root, the units that lose a key in a later generation beside those that are erased.

        Args:
            done: the later generation.
            units: those that are erased.
            records: the units that have a record under each root.
        """
        going = set(map(slot_of, self.doomed))
        return {
            root: {
                unit
                for unit in some - units
                if slot_of(unit) in going and self.has(root, unit) and not done.has(root, unit)
            }
            for root, some in records.items()
        }

    def _with(self, units: Iterable[int]) -> dict[int, tuple[Since, ...]]:
        """Return the keys of the slots that have keys of their own and of the slots of these units."""
        fresh = set(map(slot_of, units)) - self.slots.keys()
        made = {slot: tuple((since, slot_key(key, slot)) for since, key in self.roots) for slot in fresh}
        return {**self.slots, **made}

    def encode(self) -> bytes:
        """Return the bytes to wrap. Raises ArchiveError where they exceed the limits of `decode`."""
        if max(self.rows, len(self.doomed), len(self.buried)) > MAX_ROWS or len(self.lineages) > MAX_LINEAGES:
            raise ArchiveError(
                f"this domain has {self.rows:,} keys, at most {MAX_ROWS:,} are allowed: copy it to a new archive"
            )
        name = self.name.encode()
        rows = [(slot, *key) for slot, keys in sorted(self.slots.items()) for key in keys]
        rows += [(ROOT, *key) for key in self.roots]
        out = [bytes([self.kind]), write_varint(len(name)), name, self.id_key, write_varint(len(rows))]
        out += [ROW.pack(*row) for row in rows]
        out += [write_varint(len(self.doomed)), *(unit.to_bytes(UNIT, "big") for unit in sorted(self.doomed))]
        out.append(write_varint(len(self.buried)))
        out += [unit.to_bytes(UNIT, "big") + at.to_bytes(8, "little") for unit, at in sorted(self.buried.items())]
        return b"".join(out)

    @classmethod
    def decode(cls, domain: bytes, generation: int, data: bytes, lineages: tuple[bytes, ...] = ()) -> DomainKeys:
        """Undo `encode`. ``lineages``: those in the clear beside it. Raises CorruptError."""
        reader = KeyReader(data)
        kind = reader.take(1)[0]
        name = reader.name()
        id_key = reader.take(KEY)
        keys = dict[int, tuple[Since, ...]]()
        for slot, since, key in ROW.iter_unpack(reader.take(reader.count(MAX_ROWS) * ROW.size)):
            keys[slot] = (*keys.get(slot, ()), (since, key))
        doomed = frozenset(unit_of(reader.take(UNIT)) for _ in range(reader.count(MAX_ROWS)))
        rows = (reader.take(UNIT + 8) for _ in range(reader.count(MAX_ROWS)))
        buried = {unit_of(row): int.from_bytes(row[UNIT:], "little") for row in rows}
        reader.end()
        if kind not in (TENANT, BASE):
            raise CorruptError("the keys of a domain are of no kind: damaged")
        roots = keys.pop(ROOT, ())
        return cls(domain, generation, kind, name, id_key, roots, keys, doomed, lineages, buried)


class KeyReader:
    """Reads fields one after the other, each checked against the bytes left."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes. Raises CorruptError."""
        if self.at + size > len(self.data):
            raise CorruptError("keys end before their fields do: damaged")
        self.at += size
        return self.data[self.at - size : self.at]

    def count(self, most: int) -> int:
        """Return the next varint, at most ``most``. Raises CorruptError."""
        value, self.at = read_varint(self.data, self.at)
        if value > most:
            raise CorruptError(f"a count of {value} where at most {most} are allowed: damaged")
        return value

    def name(self) -> str:
        """Return UTF-8 text preceded by its size as a varint. Raises CorruptError."""
        try:
            return self.take(self.count(MAX_NAME)).decode()
        except UnicodeDecodeError as exc:
            raise CorruptError("a sealed name is not UTF-8: damaged") from exc

    def rest(self) -> bytes:
        """Return the remaining bytes."""
        return self.take(len(self.data) - self.at)

    def end(self) -> None:
        """Raise CorruptError where bytes remain."""
        if self.at != len(self.data):
            raise CorruptError("keys go on after their last field: damaged")
