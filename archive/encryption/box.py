"""Boxes: authenticated encryption of a record's fields, under keys that can be destroyed one by one.

Spec: FORMAT.md, "Encryption".

    root --16 children--> ... --16 levels--> key of a unit (64 bits of an id) --AES-SIV--> box

A unit is a segment or a session. Its key is a leaf of a tree in which each node derives its children by a
hash. The root alone stands for 2^64 keys, and a put writes none. To destroy one key, the tree is *punctured*:
the nodes on the path to it are replaced by the siblings beside the path. Every other key can still be derived
from these, and this one never again (Goldreich, Goldwasser, Micali 1986; punctured as in Boneh and Waters
2013). `Tree.without` leaves fewer nodes, for records that are put again under another root.

    >>> tree = Tree.root(bytes(32))
    >>> holed = tree.puncture(7)
    >>> holed.key(7) is None, holed.key(8) == tree.key(8)
    (True, True)

AES-SIV (RFC 5297) is deterministic: there is no nonce to repeat. The same fields under the same key give the
same box, which reveals nothing that the id beside it does not. So a collector may copy a box from pack to
pack without a key. The identity of the record is the associated data: a box moved to another record does not
open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from pltz.plt_codec.errors import CorruptError

KEY = 32  # bytes
UNIT = 8  # leading bytes of an id, which name its unit
LEVELS, BITS = 16, 4  # levels of the tree below the root, and bits of the unit per level
DEEPEST = 3  # level of the nodes that `Tree.without` leaves, at most 4096


@dataclass(frozen=True)
class Tree:
    """The remaining nodes of a tree; none for a destroyed one.

    ``nodes``: (depth, the first ``depth`` * 4 bits of the units below) -> key, 32 bytes.
    """

    nodes: Mapping[tuple[int, int], bytes]

    @classmethod
    def root(cls, key: bytes) -> Tree:
        """Return a whole tree from 32 random bytes."""
        return cls({(0, 0): key})

    def key(self, unit: int) -> bytes | None:
        """Return the key of a unit, 32 bytes; None if it was destroyed."""
        above = self._above(unit)
        if above is None:
            return None
        depth, key = above
        while depth < LEVELS:
            depth += 1
            key = _child(key, unit >> BITS * (LEVELS - depth) & (1 << BITS) - 1)
        return key

    def has(self, unit: int) -> bool:
        """Return whether the key of a unit is there."""
        return self._above(unit) is not None

    def puncture(self, unit: int) -> Tree:
        """Return the tree without the key of a unit."""
        above = self._above(unit)
        if above is None:
            return self
        depth, key = above
        nodes = dict(self.nodes)
        del nodes[depth, unit >> BITS * (LEVELS - depth)]
        while depth < LEVELS:
            depth += 1
            prefix = unit >> BITS * (LEVELS - depth)
            first = prefix & ~((1 << BITS) - 1)
            nodes |= {
                (depth, n): _child(key, n - first) for n in range(first, first + (1 << BITS)) if n != prefix
            }
            key = _child(key, prefix - first)
        return Tree(nodes)

    def without(self, units: Iterable[int], live: Collection[int]) -> tuple[Tree, set[int]]:
        """Return the tree without the keys of some units, and the live units whose keys went with them.

        A hole of one unit takes nodes of all 16 levels. This one is cut no deeper than `DEEPEST`: live units beside it
        in the same node lose their keys too, so their records are to be put again before. Nodes under which nothing is
        live are left out.

        Args:
            live: all units that have a record and are to keep a key; none of ``units``.

        >>> tree, moved = Tree.root(bytes(32)).without([7], [8, 1 << 60, 1 << 52])
        >>> sorted(tree.nodes), moved
        ([(1, 1), (3, 1)], {8})
        """
        there = [{_prefix(unit, depth) for unit in live} for depth in range(DEEPEST + 1)]
        nodes, cut = dict(self.nodes), dict[int, set[int]]()
        for unit in units:
            if (above := Tree(nodes)._above(unit)) is None:
                continue
            depth, key = above
            del nodes[depth, prefix := _prefix(unit, depth)]
            while depth < DEEPEST and prefix in there[depth]:
                depth += 1
                prefix = _prefix(unit, depth)
                first = prefix & ~((1 << BITS) - 1)
                siblings = {n for n in range(first, first + (1 << BITS)) if n != prefix} & there[depth]
                nodes |= {(depth, n): _child(key, n - first) for n in siblings}
                key = _child(key, prefix - first)
            cut.setdefault(depth, set()).add(prefix)
        moved = {unit for unit in live if any(_prefix(unit, depth) in gone for depth, gone in cut.items())}
        kept = {
            (depth, prefix): key
            for (depth, prefix), key in nodes.items()
            if prefix >> BITS * max(0, depth - DEEPEST) in there[min(depth, DEEPEST)]
        }
        return Tree(kept), moved

    def _above(self, unit: int) -> tuple[int, bytes] | None:
        """Return depth and key of the node from which a unit's key is derived."""
        for depth in range(LEVELS + 1):
            if key := self.nodes.get((depth, unit >> BITS * (LEVELS - depth))):
                return depth, key
        return None


def _prefix(unit: int, depth: int) -> int:
    """Return the first bits of a unit, as many as ``depth`` levels have."""
    return unit >> BITS * (LEVELS - depth)


def unit_of(identity: bytes) -> int:
    """Return the unit of a segment id or session key: its first 64 bits.

    >>> unit_of(bytes(7) + bytes([5]) + bytes(8))
    5
    """
    return int.from_bytes(identity[:UNIT], "big")


def seal(key: bytes, plain: bytes, about: Sequence[bytes]) -> bytes:
    """Return a box, 16 bytes longer than ``plain``.

    ``about``: associated data, authenticated but not contained; the pieces are kept apart.
    """
    return AESSIV(_wide(key)).encrypt(plain, list(about))


def unseal(key: bytes, box: bytes, about: Sequence[bytes], what: str) -> bytes:
    """Undo `seal`.

    Raises CorruptError where box, key or ``about`` differs; ``what`` names it in the message.
    """
    try:
        return AESSIV(_wide(key)).decrypt(box, list(about))
    except InvalidTag as exc:
        raise CorruptError(f"{what} does not open: damaged, changed, or moved from another place") from exc


def subkey(key: bytes, purpose: bytes) -> bytes:
    """Return a key, 32 bytes, for one purpose (at most 16 bytes)."""
    return hashlib.blake2b(key=key, digest_size=KEY, person=purpose).digest()


def keyed(key: bytes, person: bytes, parts: Iterable[bytes], size: int) -> bytes:
    """Return a keyed hash of ``size`` bytes. Its input cannot be guessed without the key."""
    state = hashlib.blake2b(key=key, digest_size=size, person=person)
    for part in parts:
        state.update(part)
    return state.digest()


def _child(key: bytes, number: int) -> bytes:
    return hashlib.blake2b(bytes([number]), key=key, digest_size=KEY, person=b"pltz tree").digest()


def _wide(key: bytes) -> bytes:
    """Return the two keys of 32 bytes that AES-256-SIV takes."""
    return hashlib.blake2b(key=key, digest_size=2 * KEY, person=b"pltz box").digest()
