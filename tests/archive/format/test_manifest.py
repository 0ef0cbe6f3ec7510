"""The bytes of a manifest: they come back, and whatever else there is is refused by name."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pltz.archive.format.index_file import KEY_BITS, Entries
from pltz.archive.format.manifest import MOST_HEADS, PERSON, IndexHead, Manifest, NamedPack
from pltz.archive.format.plan import MAX_EPOCH
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
    return st.builds(
        Manifest,
        settings=st.builds(
            Settings, ID, st.booleans(), st.tuples(st.sampled_from([0, 50, 1000]), st.integers(0, 1000)), st.just(True)
        ),
        generation=st.integers(1, (1 << 62) - 1),
        random=ID,
        epoch=st.just(1 << 40),
        indexes=st.frozensets(ID.map(bytes.hex), max_size=3),
        packs=st.dictionaries(ID, packs(), max_size=3),
        plans=st.frozensets(st.integers(1, 1 << 40), max_size=3),
        losses=st.frozensets(ID.map(bytes.hex), max_size=3),
        late=st.frozensets(ID, max_size=3),
        gaps=st.booleans(),
        rolled_back=st.booleans(),
    ).flatmap(lambda made: st.sampled_from([*_with_marks(made), *_with_heads(made)]))


def _with_marks(manifest: Manifest) -> list[Manifest]:
    marked = [] if manifest.settings.parity[0] else [dataclasses.replace(manifest, marked=True)]
    return [manifest, *marked]


def _with_heads(manifest: Manifest) -> list[Manifest]:
    heads = {name: IndexHead(1 << 20, name.encode()) for name in sorted(manifest.indexes)[:2]}
    return [dataclasses.replace(manifest, heads=heads)]


def rows(manifest: Manifest) -> dict[bytes, tuple[int, list[list[int]]]]:
    return {
        name: (row.size, [column.tolist() for section in range(3) for column in row.sections[section]])
        for name, row in manifest.packs.items()
    }


@settings(max_examples=examples(60), deadline=None)
@given(manifests())
def test_a_manifest_comes_back(manifest: Manifest) -> None:
    found = Manifest.decode(manifest.encode())
    assert found.state == manifest.state and rows(found) == rows(manifest) and found.heads == manifest.heads
    assert (found.generation, found.random) == (manifest.generation, manifest.random)


def some() -> Manifest:
    sections = {n: Entries(np.array([n, 9], np.uint64), np.array([64, 70], np.uint64)) for n in range(3)}
    row = NamedPack(100, sections)
    names = frozenset({"00" * 16, "0f" * 16})
    packs, settings = {b"p" * 16: row, b"q" * 16: row}, Settings(bytes(16), manifest=True)
    heads = {name: IndexHead(99, b"head") for name in names}
    return Manifest(settings, 7, b"r" * 16, 2, names, packs, frozenset({1, 2}), names, heads=heads)


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


def test_an_epoch_that_no_plan_has_is_refused() -> None:
    assert Manifest.decode(dataclasses.replace(some(), epoch=MAX_EPOCH).encode()).epoch == MAX_EPOCH
    with pytest.raises(CorruptError, match="more than its format allows"):
        Manifest.decode(dataclasses.replace(some(), epoch=MAX_EPOCH + 1).encode())


def test_newer_ones_are_refused_by_name() -> None:
    body = some().encode()[:-SIZE]
    with pytest.raises(VersionError, match="newer pltz"):
        Manifest.decode(sealed(body[:4] + b"\x04" + body[5:]))
    for at in (5, 6, 7):
        with pytest.raises(VersionError):
            Manifest.decode(sealed(body[:at] + b"\x40" + body[at + 1 :]))


@pytest.mark.parametrize(
    "heads",
    [
        {"aa" * 16: IndexHead(9, b"head")},  # of an index that is not named
        {"00" * 16: IndexHead(4, b"head")},
        {"00" * 16: IndexHead(9, b"")},
        {"00" * 16: IndexHead((4 << 16) + 1, b"head")},  # for whose pieces a reader makes room
        {"00" * 16: IndexHead(1 << 40, bytes(1000))},
        {"00" * 16: IndexHead(1 << 20, bytes(MOST_HEADS + 1))},
    ],
)
def test_heads_that_no_index_has_are_refused(heads: dict[str, IndexHead]) -> None:
    Manifest.decode(dataclasses.replace(some(), heads={"00" * 16: IndexHead(1 << 20, bytes(MOST_HEADS))}).encode())
    with pytest.raises(CorruptError, match="head"):
        Manifest.decode(dataclasses.replace(some(), heads=heads).encode())


def test_markers_beside_parity_are_refused() -> None:
    """A manifest of an archive without parity tells of them; one with parity and the flag is no manifest of ours."""
    bare = dataclasses.replace(some(), settings=Settings(bytes(16), parity=(0, 0), manifest=True), marked=True)
    assert Manifest.decode(bare.encode()).tells_orphans
    assert not Manifest.decode(dataclasses.replace(bare, marked=False).encode()).tells_orphans
    assert Manifest.decode(some().encode()).tells_orphans
    with pytest.raises(CorruptError, match="markers"):
        Manifest.decode(dataclasses.replace(some(), marked=True).encode())


def test_what_is_in_another_order_or_twice_is_refused() -> None:
    manifest = dataclasses.replace(some(), packs={}, plans=frozenset(), heads={})
    body = manifest.encode()[:-SIZE]
    end = len(body) - 32  # two losses
    for names in (body[end + 16 :] + body[end : end + 16], body[end : end + 16] * 2):
        with pytest.raises(CorruptError):
            Manifest.decode(sealed(body[:end] + names))
