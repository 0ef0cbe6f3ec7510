"""Holes: what is destroyed has no key, what is live keeps one or is named to move, and the nodes stay few."""

from __future__ import annotations

import random

from hypothesis import given, settings, strategies as st

from pltz.archive.encryption.box import DEEPEST, KEY, Tree
from pltz.archive.encryption.domain_keys import DomainKeys
from pltz.archive.encryption.holes import without
from pltz.archive.encryption.key_files import root_id
from tests.examples import examples

# units that share long beginnings, and others
units = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(lambda high, low: high << 48 | low, st.integers(0, 40), st.integers(0, 40)),
)


def keys_of(roots: int) -> DomainKeys:
    made = {root_id(b"line", n): Tree.root(bytes([n + 1]) * KEY) for n in range(roots)}
    return DomainKeys(bytes(16), roots, 0, "acme", bytes(KEY), made, lineages=(b"line",))


@given(st.sets(units, max_size=30), st.sets(units, max_size=5), st.lists(units, max_size=2))
@settings(max_examples=examples(200))
def test_a_tree_without_units_keeps_every_other_live_key(live: set[int], going: set[int], holes: list[int]) -> None:
    whole = Tree.root(b"k" * KEY)
    for hole in holes:  # as keys are punctured where a pack was given up
        whole = whole.puncture(hole)
    live = {unit for unit in live - going if whole.has(unit)}
    tree, moved = whole.without(going, live)
    assert moved <= live and not any(tree.has(unit) for unit in going | moved)
    assert all(tree.key(unit) == whole.key(unit) is not None for unit in live - moved)
    assert len(tree.nodes) <= len(live - moved) or holes
    assert all(depth <= DEEPEST for depth, _ in tree.nodes) or holes


@given(st.lists(st.sets(units, max_size=20), min_size=1, max_size=4), st.sets(units, max_size=4), st.integers(0, 30))
@settings(max_examples=examples(200))
def test_what_is_destroyed_under_all_roots_is_gone_and_the_rest_is_there_or_moves(
    records: list[set[int]], going: set[int], most: int
) -> None:
    keys = keys_of(len(records) + 1)
    *older, newest = keys.roots
    there = dict(zip(older, records, strict=True))
    roots, moves = without(keys, there, going, most)
    assert list(roots)[-1] == newest and roots[newest] == keys.roots[newest]
    for root, found in there.items():
        gone = roots.get(root, Tree({}))
        assert not any(gone.has(unit) for unit in found & going)
        assert all(gone.has(unit) or unit in moves.get(root, ()) for unit in found - going)
        if not found - going:
            assert root not in roots
    last = roots.get(older[-1], Tree({}))  # the one that writers about to be refused may use
    assert not any(last.has(unit) for unit in going)
    assert sum(len(roots[root].nodes) for root in older if root in roots) <= most


def test_a_thousand_holes_in_one_large_root_take_few_nodes_and_move_few_records() -> None:
    dice, most = random.Random(3), 1000
    keys, moved = keys_of(1), 0
    live = {dice.getrandbits(64) for _ in range(3000)}
    records = {keys.newest: set(live)}
    for number in range(1, 41):
        going = set(dice.sample(sorted(live), 25))
        live -= going
        begun = keys.following(roots=keys.roots | {root_id(b"line", number): Tree.root(bytes([number]) * KEY)})
        roots, moves = without(begun, records, going, most)
        keys = begun.following(roots=roots)
        for some in moves.values():
            records.setdefault(keys.newest, set()).update(some)
            moved += len(some)
        records = {root: found for root, found in records.items() if root in keys.roots}
        assert keys.nodes <= most + 1
    there = {unit for root, found in records.items() for unit in found if keys.roots[root].has(unit)}
    assert there == live and moved < 20_000
