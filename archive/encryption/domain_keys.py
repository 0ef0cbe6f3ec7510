"""Domain keys: the key of a domain's ids, and one tree of unit keys per root (`box.Tree`).

Spec: FORMAT.md, "Encryption".

{root: Tree} + id key + name + units whose erasure has begun --encode--> content of a key file
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass

from pltz.archive.encryption.box import KEY, UNIT, Tree, unit_of
from pltz.archive.encryption.key_files import MAX_LINEAGES, governs, root_id
from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import BASE, TENANT
from pltz.archive.format.record import MAX_NAME
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

NODE = struct.Struct("<BQ32s")  # depth, prefix, key
MAX_ROOTS, MAX_NODES = 1 << 16, 1 << 20


@dataclass(frozen=True)
class DomainKeys:
    """All keys of a domain in one generation.

    Attributes:
        roots: root id -> tree. New records use the last. An empty tree was erased.
        doomed: units whose erasure has begun, under all roots but the last.
        lineages: those of its roots, 4 bytes each; new roots are of the last (`key_files`).
    """

    domain: bytes
    generation: int
    kind: int
    name: str
    id_key: bytes
    roots: dict[bytes, Tree]
    doomed: frozenset[int] = frozenset()
    lineages: tuple[bytes, ...] = ()

    @property
    def erased(self) -> bool:
        """Return whether the whole domain was erased: only the ids of its roots are left."""
        return not any(tree.nodes for tree in self.roots.values())

    @property
    def older(self) -> frozenset[bytes]:
        """Return the ids of the roots before the newest that are not empty."""
        return frozenset(root for root, tree in self.roots.items() if tree.nodes and root != self.newest)

    @property
    def nodes(self) -> int:
        """Return the number of nodes of all trees."""
        return sum(len(tree.nodes) for tree in self.roots.values())

    @property
    def newest(self) -> bytes:
        """Return the id of the root that new records use."""
        return list(self.roots)[-1]

    def governs(self, root: bytes) -> bool:
        """Return whether these keys have a root, or had it and destroyed it (`key_files.governs`)."""
        return root in self.roots or governs(self.lineages, self.generation, root)

    @property
    def next_root(self) -> bytes:
        """Return the id of a root that begins in the next generation."""
        return root_id(self.lineages[-1], self.generation + 1)

    def following(self, **changes: object) -> DomainKeys:
        """Return the next generation, with these fields changed."""
        return dataclasses.replace(self, generation=self.generation + 1, **changes)  # type: ignore[arg-type]

    def encode(self) -> bytes:
        """Return the bytes to wrap. Raises ArchiveError where they exceed the limits of `decode`."""
        most = max([len(self.doomed), *(len(tree.nodes) for tree in self.roots.values())])
        if len(self.roots) > MAX_ROOTS or most > MAX_NODES or len(self.lineages) > MAX_LINEAGES:
            raise ArchiveError(
                f"this domain's keys have {len(self.roots):,} roots and {most:,} nodes; "
                f"at most {MAX_ROOTS:,} and {MAX_NODES:,} "
                "are allowed: copy what is left to a new archive"
            )
        name = self.name.encode()
        out = [bytes([self.kind]), write_varint(len(name)), name, self.id_key, write_varint(len(self.roots))]
        for root, tree in self.roots.items():
            out += [root, write_varint(len(tree.nodes))]
            out += [NODE.pack(*at, key) for at, key in sorted(tree.nodes.items())]
        out.append(write_varint(len(self.doomed)))
        out += [unit.to_bytes(UNIT, "big") for unit in sorted(self.doomed)]
        return b"".join(out)

    @classmethod
    def decode(cls, domain: bytes, generation: int, data: bytes, lineages: tuple[bytes, ...] = ()) -> DomainKeys:
        """Undo `encode`. ``lineages``: those in the clear beside it. Raises CorruptError."""
        reader = KeyReader(data)
        kind = reader.take(1)[0]
        name = reader.name()
        id_key = reader.take(KEY)
        roots: dict[bytes, Tree] = {}
        for _ in range(reader.count(MAX_ROOTS)):
            root = reader.take(UNIT)
            rows = [NODE.unpack(reader.take(NODE.size)) for _ in range(reader.count(MAX_NODES))]
            roots[root] = Tree({(depth, prefix): key for depth, prefix, key in rows})
        doomed = frozenset(unit_of(reader.take(UNIT)) for _ in range(reader.count(MAX_NODES)))
        reader.end()
        if not roots or kind not in (TENANT, BASE):
            raise CorruptError("the keys of a domain have no root: damaged")
        return cls(domain, generation, kind, name, id_key, roots, doomed, lineages)


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
