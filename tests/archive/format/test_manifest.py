"""The bytes of a manifest: they come back, and whatever else there is is refused by name."""

from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pltz.archive.format.audit import TAIL, AuditRecord, AuditTail
from pltz.archive.format.clock import ArchiveClock
from pltz.archive.format.hold import Hold
from pltz.archive.format.index_file import KEY_BITS, Entries
from pltz.archive.format.manifest import CLOCK, PERSON, VERSION, LostPack, Manifest, NamedPack
from pltz.archive.format.settings import Settings
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from tests.examples import examples

ID = st.binary(min_size=SIZE, max_size=SIZE)


def entries(size: int) -> st.SearchStrategy[Entries]:
    pairs = st.lists(st.tuples(st.integers(0, (1 << KEY_BITS) - 1), st.integers(0, size - 1)), max_size=3)
    return pairs.map(
        lambda rows: Entries(np.array([k for k, _ in rows], np.uint64), np.array([at for _, at in rows], np.uint64))
    )


def packs() -> st.SearchStrategy[NamedPack]:
    return st.integers(1, 1 << 30).flatmap(
        lambda size: st.builds(NamedPack, st.just(size), st.fixed_dictionaries({n: entries(size) for n in range(3)}))
    )


def manifests() -> st.SearchStrategy[Manifest]:
    times = st.integers(0, (1 << 62) - 1)
    losses = st.builds(LostPack, times, st.none() | st.integers(0, 1 << 22), times, ID)
    return (
        st.builds(
            Manifest, settings=st.builds(Settings, ID, st.booleans()), generation=st.integers(1, (1 << 62) - 1),
            random=ID, indexes=st.frozensets(ID.map(bytes.hex), max_size=3),
            packs=st.dictionaries(ID, packs(), max_size=3), condemned=st.dictionaries(ID, times, max_size=3),
        )
        .flatmap(lambda made: st.dictionaries(ID, times, max_size=3).map(partial(_over, made)))
        .flatmap(lambda made: st.dictionaries(ID, losses, max_size=3).map(made.giving_up))
        .flatmap(lambda made: st.sampled_from([made, replace(made, lists={name: name for name in made.indexes})]))
    )


def _over(manifest: Manifest, gone: dict[bytes, int]) -> Manifest:
    return replace(manifest.taking_out(gone, 0), gone=gone)


def rows(manifest: Manifest) -> dict[bytes, tuple[int, list[list[int]]]]:
    return {
        name: (row.size, [column.tolist() for section in range(3) for column in row.sections[section]])
        for name, row in manifest.packs.items()
    }


@settings(max_examples=examples(60), deadline=None)
@given(manifests())
def test_a_manifest_comes_back(manifest: Manifest) -> None:
    found = Manifest.decode(manifest.encode())
    assert found.state == manifest.state and rows(found) == rows(manifest)
    assert (found.generation, found.random) == (manifest.generation, manifest.random)


def some() -> Manifest:
    sections = {n: Entries(np.array([n, 9], np.uint64), np.array([64, 70], np.uint64)) for n in range(3)}
    row, names = NamedPack(100, sections), frozenset({"00" * 16, "0f" * 16})
    packs, settings = {b"p" * 16: row, b"q" * 16: row}, Settings(bytes(16))
    lists = {"0a" * 16: "00" * 16, "0b" * 16: "00" * 16}
    holds = {hold.id: hold for hold in (Hold(n, bytes(16), n, b"note" * n) for n in range(3))}
    audit = AuditTail().adding(AuditRecord(5, 1, 2, b"{}")).adding(AuditRecord(6, 2, 1, b"note"))
    clock = ArchiveClock(5, 9)
    return Manifest(settings, 7, b"r" * 16, names, packs, lists=lists, holds=holds, audit=audit, clock=clock)


def sealed(body: bytes) -> bytes:
    return body + digest(PERSON, body)


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    data = some().encode()
    for at in range(len(data)):
        for hurt in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            with pytest.raises(CorruptError):
                Manifest.decode(hurt)


def test_crafted_fields_are_refused() -> None:
    """The digest is right, so each field has to be checked: no count, order or place is believed."""
    body = some().encode()[:-SIZE]
    for at in range(24, len(body)):
        for bits in (0x01, 0x80, 0xFF):
            crafted = body[:at] + bytes([body[at] ^ bits]) + body[at + 1 :]
            try:
                found = Manifest.decode(sealed(crafted))
            except FormatError:
                continue
            assert found.encode() == sealed(crafted)


def test_newer_ones_are_refused_by_name() -> None:
    body = some().encode()[:-SIZE]
    with pytest.raises(VersionError, match="newer pltz"):
        Manifest.decode(sealed(body[:4] + bytes([VERSION + 1]) + body[5:]))
    for at in (5, 6, 7):
        with pytest.raises(VersionError):
            Manifest.decode(sealed(body[:at] + b"\x40" + body[at + 1 :]))


def test_a_list_of_an_index_that_is_not_named_is_refused() -> None:
    assert some().indexed(frozenset({"0f" * 16})).lists == {} and some().lists_of("00" * 16) == ["0a" * 16, "0b" * 16]
    with pytest.raises(CorruptError, match="a list of an index"):
        Manifest.decode(replace(some(), lists={"0a" * 16: "0a" * 16}).encode())


def test_what_is_in_another_order_or_twice_is_refused() -> None:
    body = Manifest(Settings(bytes(16)), gone={b"a" * 16: 1, b"b" * 16: 2}).encode()[:-SIZE]
    end = len(body) - 48 - (rest := CLOCK.size + TAIL.size)  # two packs that are gone
    for rows in (body[end + 24 : -rest] + body[end : end + 24], body[end : end + 24] * 2):
        with pytest.raises(CorruptError, match="out of order"):
            Manifest.decode(sealed(body[:end] + rows + body[-rest:]))


@pytest.mark.parametrize("table", ["gone", "lost"])
def test_a_pack_is_named_or_over_and_never_both(table: str) -> None:
    for named in ("packs", "condemned"):
        known = some() if named == "packs" else Manifest(Settings(bytes(16)), condemned={b"p" * 16: 1})
        lost = replace(known, lost={b"p" * 16: LostPack(1, None)})
        over = {"gone": replace(known, gone={b"p" * 16: 1}), "lost": lost}
        with pytest.raises(CorruptError, match="gone or lost"):
            Manifest.decode(over[table].encode())


def test_what_follows_says_the_same_of_a_pack_everywhere() -> None:
    known = some().condemning([b"p" * 16], 5)
    assert known.condemning([b"p" * 16, b"q" * 16], 9).condemned == {b"p" * 16: 5, b"q" * 16: 9}
    gone = known.taking_out([b"p" * 16], 7)
    assert (set(gone.packs), dict(gone.condemned), dict(gone.gone)) == ({b"q" * 16}, {}, {b"p" * 16: 7})
    lost = known.giving_up({b"p" * 16: LostPack(7, 3)})
    assert lost.packs.keys() == {b"q" * 16} and not lost.condemned and not lost.gone
    assert lost.naming({b"p" * 16: known.packs[b"p" * 16]}).state == some().state
