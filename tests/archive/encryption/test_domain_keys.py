"""Domain keys: what is erased has no key, what stays keeps one or is named to move, and keys come back from bytes."""

from hypothesis import given, settings, strategies as st

from pltz.archive.encryption.box import KEY, slot_of
from pltz.archive.encryption.domain_keys import DomainKeys
from pltz.archive.encryption.key_files import root_id
from tests.examples import examples

# units that share slots, and others
units = st.one_of(
    st.integers(0, 2**64 - 1), st.builds(lambda slot, low: slot << 52 | low, st.integers(0, 20), st.integers(0, 9))
)


class Dice:
    """Different keys, one after the other."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, size: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(size, "big")


def keys_of(dice: Dice, name: str = "acme") -> DomainKeys:
    return DomainKeys(bytes(16), 0, 0, name, bytes(KEY), ((0, dice(KEY)),), lineages=(b"line",))


some = st.sets(units, max_size=9)


@given(st.lists(st.tuples(some, some, st.booleans()), max_size=6), st.data())
@settings(max_examples=examples(200))
def test_what_is_erased_is_gone_and_what_stays_keeps_its_key_or_moves(
    rounds: list[tuple[set[int], set[int], bool]], data: st.DataObject
) -> None:
    """Records are put before and during erases, some of which are cut off. Each opens by the key that sealed it."""
    dice = Dice()
    keys, records = keys_of(dice), dict[tuple[bytes, int], bytes | None]()

    def put(units: set[int]) -> None:
        records.update({(keys.newest, unit): keys.key(keys.newest, unit) for unit in units})

    def by_root() -> dict[bytes, set[int]]:
        found = dict[bytes, set[int]]()
        for root, unit in records:
            found.setdefault(root, set()).add(unit)
        return found

    for before, during, whole in rounds:
        put(before)
        live = {unit for _, unit in records}
        going = data.draw(st.sets(st.sampled_from(sorted(live)), max_size=3)) if live else set[int]()
        old, keys = keys, keys.begin(dice, going, live)
        assert all(keys.key(*record) == key is not None for record, key in records.items()), "nothing is lost yet"
        put(during)
        if not whole:
            continue
        done = keys.finish({unit for _, unit in records})
        moves = keys.moves(done, going, by_root())
        for root, unit in list(records):
            late = root == keys.newest
            if unit in going and not late:
                assert not done.has(root, unit) and done.key(root, unit) is None
            else:
                assert done.has(root, unit) != (unit in moves[root])
            if not done.has(root, unit):
                del records[root, unit]
        moved = set[int]().union(*moves.values())
        assert {slot_of(unit) for unit in moved} <= {slot_of(unit) for unit in going}
        old, keys = keys, done
        put(moved)
        assert all(keys.key(*record) == key is not None for record, key in records.items())
        kept = {key for _, key in keys.roots} | {key for some in keys.slots.values() for _, key in some}
        assert len(keys.roots) == 1 and not kept & {key for _, key in old.roots[:-1]}, "an older root derives what went"
    assert DomainKeys.decode(keys.domain, keys.generation, keys.encode(), keys.lineages) == keys


def test_a_record_from_before_the_erase_of_its_slot_does_not_open_whichever_root_it_names() -> None:
    """So a writer that began before, and is refused, leaves nothing of what was erased."""
    dice = Dice()
    keys = keys_of(dice)
    for _ in range(3):
        keys = keys.begin(dice, [5], [5, 6 << 52]).finish([6 << 52])
    roots = [root_id(b"line", n) for n in range(keys.since)]
    assert not any(keys.has(root, 5) for root in roots) and all(keys.has(root, 6 << 52) for root in roots)
    assert keys.has(keys.newest, 5) and not keys.has(root_id(b"line", keys.generation + 1), 5)
