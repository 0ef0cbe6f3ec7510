"""A policy keeps what any of its rules keeps, and never the less for a rule more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pltz.archive.index import Location
from pltz.archive.retention import Policy
from pltz.archive.view import Version
from pltz.plt_codec.errors import UsageError

NOW = 1_000_000


def version(name: str, number: int, age: int, forgotten: bool = False) -> Version:
    key = f"{name}{number}".encode().ljust(16)
    place = Location(bytes(16), 0)
    return Version(key, "t", name, number, NOW - age, {}, key, 0, bytes(16), bytes(16), forgotten, place)


@st.composite
def catalogues(draw: st.DrawFn) -> list[Version]:
    found = []
    for name in draw(st.sets(st.sampled_from("abcd"))):
        ages = sorted(draw(st.lists(st.integers(0, 1000), min_size=1, max_size=5)), reverse=True)
        found += [version(name, i + 1, age, draw(st.booleans())) for i, age in enumerate(ages)]
    return sorted(found, key=lambda v: (v.name, v.number))


rules = st.one_of(st.none(), st.integers(0, 6)), st.one_of(st.none(), st.integers(0, 1000))


@given(catalogues(), *rules, st.booleans())
def test_what_is_kept_is_what_some_rule_keeps(
    known: list[Version], last: int | None, within: int | None, whole: bool
) -> None:
    if last is None and within is None:
        return
    gone = Policy(last, within, whole).forgets(known, NOW)
    ids = {v.id for v in gone}
    for name in {v.name for v in known}:
        live = [v for v in known if v.name == name and not v.forgotten]
        newest = {v.id for v in live[-(last or 0) :]} if last else set()
        young = {v.id for v in live if within is not None and v.time >= NOW - within}
        kept = {v.id for v in live} - ids
        ruled = newest | young
        assert kept == ruled or (not ruled and not whole and kept == {v.id for v in live[-1:]})
    assert not any(v.forgotten for v in gone)


def test_a_forgotten_version_does_not_count_as_the_last() -> None:
    known = [version("a", 1, 50), version("a", 2, 20), replace(version("a", 3, 10), forgotten=True)]
    assert [v.number for v in Policy(keep_last=1).forgets(known, NOW)] == [1]


def test_no_rule_is_refused() -> None:
    with pytest.raises(UsageError):
        Policy()
    with pytest.raises(UsageError):
        Policy(keep_last=-1)
