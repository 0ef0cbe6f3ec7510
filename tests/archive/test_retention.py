"""Retention: a policy takes the versions it may, and leaves the others."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pltz.archive.catalog.lookup import Version
from pltz.archive.format.index_file import Location
from pltz.archive.format.record import ContentFacts
from pltz.archive.retention import Policy, expired, seconds
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.plt_codec.errors import UsageError

NOW = 1000
PLACE = Location(bytes(16), 0)
AGES = st.integers(0, NOW)


@st.composite
def histories(draw: st.DrawFn) -> list[Version]:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, NOW),
                st.sampled_from([{}, {"k": "1"}, {"k": "2"}]), st.booleans(),
            ),
            max_size=20,
        )
    )
    found, numbers = [], dict[tuple[str, str], int]()
    for at, (tenant, name, time, tags, forgotten) in enumerate(rows):
        number = numbers[tenant, name] = numbers.get((tenant, name), 0) + 1
        identity = at.to_bytes(16, "little")
        found.append(
            Version(
                identity, tenant, name, number, time, tags, identity, 0, bytes(16), bytes(16), forgotten,
                Location(bytes(16), at), identity[:4],
            )
        )
    return sorted(found, key=lambda v: (v.tenant, v.name, v.moment))  # as the directory lists them


def test_the_only_version_of_a_session_stays_however_old_it_is() -> None:
    only = Version(bytes(16), "a", "x", 1, 0, {}, bytes(16), 0, bytes(16), bytes(16), False, PLACE, bytes(4))
    assert expired([only], Policy(keep_within=0), NOW) == []
    assert expired([only], Policy(keep_within=0, drop_last=True), NOW) == [only]


def test_what_was_said_counts_and_not_when_it_was_put() -> None:
    """Logs of a year that are put at once are not all young."""
    put = Version(bytes(16), "a", "x", 1, NOW, {}, bytes(16), 0, bytes(16), bytes(16), False, PLACE, bytes(4))
    for last, gone in ((NOW - 11, True), (NOW - 10, False), (0, False)):
        told = replace(put, content=ContentFacts(first=1, last=last))
        assert bool(expired([told], Policy(keep_within=10, drop_last=True), NOW)) is gone
    claims = replace(put, content=ContentFacts(first=1, last=1 << 40))  # a time to come
    assert expired([claims], Policy(keep_at_most=10), NOW + 11) == [claims]
    assert not expired([claims], Policy(keep_at_most=10), NOW + 10)


LAST = st.integers(1, 5)
WITHIN = st.integers(0, NOW)


def ids(versions: list[Version]) -> set[bytes]:
    return {v.id for v in versions}


def newest(versions: list[Version]) -> set[bytes]:
    best: dict[tuple[str, str], Version] = {}
    for v in versions:
        if not v.forgotten and ((v.tenant, v.name) not in best or best[v.tenant, v.name].moment < v.moment):
            best[v.tenant, v.name] = v
    return {v.id for v in best.values()}


@given(histories(), st.none() | LAST, st.none() | WITHIN, st.sampled_from([{}, {"k": "1"}]))
def test_never_the_newest_unless_told(
    versions: list[Version], last: int | None, within: int | None, tags: dict[str, str]
) -> None:
    if last is None and within is None:
        with pytest.raises(UsageError):
            Policy(last, within)
        return
    gone = ids(expired(versions, Policy(last, within, tags), NOW))
    assert not gone & newest(versions)
    assert gone <= ids([v for v in versions if not v.forgotten and tags.items() <= v.tags.items()])
    assert gone <= ids(expired(versions, Policy(last, within, tags, drop_last=True), NOW))


@given(histories(), LAST, WITHIN, st.booleans())
def test_both_rules_keep_what_either_keeps(versions: list[Version], last: int, within: int, drop_last: bool) -> None:
    by_last = ids(expired(versions, Policy(last, drop_last=drop_last), NOW))
    by_time = ids(expired(versions, Policy(None, within, drop_last=drop_last), NOW))
    assert ids(expired(versions, Policy(last, within, drop_last=drop_last), NOW)) == by_last & by_time


@given(histories(), LAST)
def test_keep_last_keeps_so_many(versions: list[Version], last: int) -> None:
    gone = ids(expired(versions, Policy(last), NOW))
    for key in {(v.tenant, v.name) for v in versions}:
        known = [v for v in versions if (v.tenant, v.name) == key and not v.forgotten]
        stay = [v for v in known if v.id not in gone]
        assert len(stay) == min(last, len(known))
        assert all(a.moment > b.moment for a in stay for b in known if b.id in gone)


@given(histories(), WITHIN)
def test_drop_last_leaves_only_the_young(versions: list[Version], within: int) -> None:
    gone = ids(expired(versions, Policy(keep_within=within, drop_last=True), NOW))
    assert gone == ids([v for v in versions if not v.forgotten and v.time < NOW - within])


def test_versions_of_the_same_content_count_once() -> None:
    """Repair names the pack of a put that was cut off: what it had may have been put again since."""
    only = Version(bytes(16), "a", "x", 1, 0, {}, bytes(16), 0, bytes(16), bytes(16), False, PLACE, b"leaf")
    rows = [replace(only, moment=n, leaf_prefix=leaf) for n, leaf in enumerate((b"one.", b"two.", b"two."))]
    assert expired(rows, Policy(keep_last=2), NOW) == [] and expired(rows, Policy(keep_last=1), NOW) == rows[:1]


def test_the_fullest_version_outlives_newer_ones() -> None:
    only = Version(bytes(16), "a", "x", 1, 0, {}, bytes(16), 0, bytes(16), bytes(16), False, PLACE, bytes(4))
    sizes = 10, 50, 30, 50, 20, 20
    rows = [
        replace(only, id=bytes([n]), moment=n, leaf_prefix=bytes([n]), content=ContentFacts(size=size))
        for n, size in enumerate(sizes)
    ]
    assert ids(expired(rows, Policy(keep_last=1), NOW)) == ids([rows[n] for n in (0, 1, 2, 4)])
    assert ids(expired(rows, Policy(keep_last=3), NOW)) == ids(rows[:3])
    assert ids(expired(rows, Policy(keep_last=1, drop_last=True), NOW)) == ids(rows[:5])


def test_a_version_of_a_log_that_is_no_beginning_of_a_newer_one_stays() -> None:
    only = Version(bytes(16), "a", "x", 1, 0, {}, bytes(16), 1, bytes(16), LOG_TOKENIZER, False, PLACE, bytes(4))
    leaves = {b"a1": [b"a1"], b"a2": [b"a2", b"a1"], b"b1": [b"b1"], b"b2": [b"b2", b"b1"], b"c1": [b"c1"]}
    rows = [replace(only, id=leaf, leaf=leaf, moment=n, leaf_prefix=leaf) for n, leaf in enumerate(leaves)]

    def chain(version: Version) -> list[bytes]:
        return leaves[version.leaf]

    assert ids(expired(rows, Policy(keep_last=1), NOW, chain)) == {b"a1", b"b1"}
    assert ids(expired(rows, Policy(keep_within=0), NOW, chain)) == {b"a1", b"b1"}
    assert ids(expired(rows, Policy(keep_last=1, drop_last=True), NOW, chain)) == {b"a1", b"a2", b"b1", b"b2"}


def test_durations() -> None:
    assert [seconds(d) for d in ("90s", "15min", "12h", "30d", "2w", "1y", "0s")] == [
        90, 900, 43200, 2592000, 1209600, 31536000, 0,
    ]  # fmt: skip
    for wrong in ("", "5", "d", "-1d", "1m", "1d ", "1.5h", "9" * 12 + "y", "1dx", "x1d", "1d\n", "\uff11d"):
        with pytest.raises(UsageError):
            seconds(wrong)


@pytest.mark.parametrize("last", [None, 1])
@pytest.mark.parametrize("within", [None, 0])
@given(versions=histories(), one=AGES, other=AGES)
def test_a_floor_stays_and_what_is_over_an_age_goes(
    versions: list[Version], last: int | None, within: int | None, one: int, other: int
) -> None:
    """Whatever other rules say, of the versions with the tags alone; and what neither takes, the other rules do."""
    least, most, tags = min(one, other), max(one, other), {"k": "1"}
    policy = Policy(last, within, tags, keep_at_least=least, keep_at_most=most)
    gone = ids(expired(versions, policy, NOW))
    for v in (v for v in versions if not v.forgotten):
        tagged, age = v.tags == tags, NOW - v.time
        assert v.id not in gone or tagged
        assert v.id not in gone or age > least
        assert v.id in gone or not (tagged and age > most)
    if last is None is within:
        assert gone == {v.id for v in versions if not v.forgotten and v.tags == tags and NOW - v.time > most}
    else:
        rest = ids(expired(versions, Policy(last, within, tags), NOW))
        assert {v.id for v in versions if v.id in rest and NOW - v.time > least} <= gone


@pytest.mark.parametrize("ages", [(5, 4), (-1, None), (None, -1)])
def test_ages_that_make_no_sense_are_refused(ages: tuple[int | None, int | None]) -> None:
    with pytest.raises(UsageError):
        Policy(1, keep_at_least=ages[0], keep_at_most=ages[1])
