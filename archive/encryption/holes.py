"""Holes: destroy the keys of single units of a domain, so that its key file stays small however many are destroyed.

    roots, units that have records --without--> roots with fewer nodes, units whose records are to be put again before

Three rules bound the nodes. A root under which no record is goes as a whole, and so does a node. A hole is cut no
deeper than three levels, and live units beside it move to the newest root (`Tree.without`). Where all roots have more
than `MOST_NODES` nodes, whole roots move, those with the fewest records per node first. So an erase costs no more for
the erases before it. Spec: FORMAT.md, "Erase a session".
"""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet
from typing import NamedTuple

from pltz.archive.encryption.box import Tree
from pltz.archive.encryption.domain_keys import DomainKeys

MOST_NODES = 8192  # of all trees of a domain: its key file has 41 bytes for each


class Holed(NamedTuple):
    """Roots without some keys, and the units, by root, whose records are to be put again before."""

    roots: dict[bytes, Tree]
    moves: dict[bytes, set[int]]


def without(
    keys: DomainKeys, records: Mapping[bytes, AbstractSet[int]], units: AbstractSet[int], most: int = MOST_NODES
) -> Holed:
    """Return the roots of a domain without the keys of some units under all roots but the last.

    Args:
        records: the units that have a record under each root, all of them.
        units: those whose keys are destroyed.
        most: nodes of all roots but the last from which whole roots move.
    """
    *older, newest = keys.roots
    live = {root: {u for u in records.get(root, ()) if keys.roots[root].has(u)} - units for root in older}
    roots, moves = dict(keys.roots), dict[bytes, set[int]]()
    for number, root in enumerate(older, 1):
        tree, is_last = keys.roots[root], number == len(older)  # writers that are about to be refused use the last one
        if not live[root]:
            del roots[root]
        elif is_last or units & records[root] or len(tree.nodes) > len(live[root]):
            roots[root], moves[root] = tree.without(units, live[root])
    nodes = {root: len(tree.nodes) for root, tree in roots.items() if root != newest}
    count = sum(nodes.values())
    for root in sorted(nodes, key=lambda root: len(live[root]) / max(1, nodes[root])) if count > most else ():
        if count <= most * 3 // 4:
            break
        moves[root] = live[root]
        count -= nodes[root]
        del roots[root]
    return Holed(roots, moves)


def punctured(keys: DomainKeys, units: AbstractSet[int]) -> dict[bytes, Tree]:
    """Return the roots with a hole of its own for each unit under all but the last: no other key goes."""
    *older, _ = keys.roots
    roots = dict(keys.roots)
    for root in older:
        for unit in units:
            roots[root] = roots[root].puncture(unit)
    return roots
