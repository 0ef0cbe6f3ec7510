"""Chains (archive/catalog/chain.py): shared segments are decoded once, and damage is reported for what it hits."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from pltz.archive.catalog import chain
from pltz.archive.catalog.chain import Chains, KnownSegment
from pltz.archive.errors import LostError
from pltz.archive.format import object_names
from pltz.archive.format.ids import NO_SEGMENT, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import Coded, Plain
from pltz.plt_codec.container.frame import TOWER
from pltz.plt_codec.errors import CorruptError
from tests.archive.kit import DirectoryStore, NewSession, SimDisk, TowerArchive, ZlibCodec, create, reopen
from tests.archive.peek import records
from tests.watch import noted


class Counting(ZlibCodec):
    """A codec that records the size of every batch it decodes, and the ancestors."""

    def __init__(self, mode: int = TOWER):
        super().__init__(mode, b"zlib with tower.")
        self.batches: list[int] = []
        self.above: set[int] = set()

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        self.batches.append(len(batch))
        self.above |= {len(c.above) for c in batch}
        return super().decode(batch)


class Chaining(Counting):
    """A codec that decodes chains at once, and records their lengths."""

    def __init__(self, mode: int = TOWER) -> None:
        super().__init__(mode)
        self.linked: list[int] = []
        self.deaf = b""

    def begin_chain(self, batch: Sequence[Coded]) -> Callable[[], list[Tokens]] | None:
        return partial(self.decode_chain, batch) if len(batch) > 1 else None

    def decode_chain(self, batch: Sequence[Coded]) -> list[Tokens]:
        self.linked.append(len(batch))
        above, out = batch[0].above, list[Tokens]()
        for c in batch:
            if c.data == self.deaf or (len(out) > 2 and self.deaf):
                out.append(np.zeros(c.count, np.int64))  # other tokens than were put: their proof fails
                continue
            known = above[-self.reach :] if c.mode & TOWER else above[:0]
            out += ZlibCodec.decode(self, [Coded(c.data, c.count, known, c.mode)])
            above = np.concatenate([above, out[-1]])
        return out


PROMPT = np.arange(300)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def filled(disk: SimDisk) -> TowerArchive:
    """Put 40 sessions of 3 segments below one prompt of two, coded with their towers."""
    archive = TowerArchive.create(DirectoryStore(disk), [ZlibCodec(1, b"zlib with tower.")])
    archive.put([
        NewSession(
            f"s{n:02}", [PROMPT, PROMPT[::-1], np.arange(n, n + 30), PROMPT[:0], np.arange(n, n + 50)], shared=2
        )
        for n in range(40)
    ])
    return archive


def test_many_sessions_decode_what_they_share_once(filled: TowerArchive, disk: SimDisk) -> None:
    codec = Counting()
    archive = reopen(disk, codec)
    versions = list(archive.ls())
    towers = archive.towers(versions)
    assert codec.batches == [1, 1, 40, 40, 40]  # one batch per level
    assert codec.above == {0, 300, 600, 630}
    for n, tower in enumerate(towers):
        assert tower.tokens.tolist() == [*PROMPT, *PROMPT[::-1], *range(n, n + 30), *range(n, n + 50)]
    codec.batches.clear()
    report = archive.verify(decode=True)
    assert report.sound and report.decoded == 122
    assert sum(codec.batches) <= 122 + 2 + 40 + 40  # each once, and each ancestor once


def test_damage_is_said_of_all_that_needs_it_and_of_nothing_else(filled: TowerArchive) -> None:
    class Deaf(ZlibCodec):
        """A codec that cannot decode the second turn of one session."""

        def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
            if any(c.count == 30 and c.data == damaged for c in batch):
                raise CorruptError("damaged")
            return super().decode(batch)

    versions = list(filled.ls())
    chain = [name for name, _ in filled.tower(versions[7]).segments]
    damaged = bytes(records(filled, chain[2])[0].record.bitstring)
    chains = Chains(filled.catalog, CodecRegistry([Deaf(1, b"zlib with tower.")]))
    chains.load([v.leaf for v in versions])
    for n, version in enumerate(versions):
        if n == 7:
            with pytest.raises(LostError, match="damaged"):
                chains.tower(version.leaf)
        else:
            assert len(chains.tower(version.leaf)) == 5
    with pytest.raises(LostError, match="gone"):
        chains.tower(b"no such segment!")


@pytest.mark.parametrize("defect", ["record", "content"])
def test_a_session_is_read_from_another_record(disk: SimDisk, defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own record is tried first, without a look at an index; that of a condemned pack is tried after it."""
    archive = create(disk)
    for name in "ab":
        archive.put([NewSession(name, [PROMPT + ord(name)])])
    assert archive.collect().condemned == 2
    tokens = (PROMPT + ord("a")).tolist()
    archive.put([NewSession("again", [PROMPT + ord("a")])])  # does not rely on what is condemned
    version, lookup = archive.version("again"), archive.catalog.lookup
    places = lookup.places(SEGMENTS, version.leaf)
    assert len(places) == 2 and version.location._replace(row=0) in places
    asked = noted(monkeypatch, lookup, "find", lambda _, identity: identity)
    assert archive.get("again").tokens.tolist() == tokens and not asked
    own = lookup.at(version.location)
    if defect == "record":
        path = object_names.pack(version.location.pack)
        data = bytearray(disk.seen.files()[path])
        data[data.index(own.record.bitstring)] ^= 1
        disk.overwrite(path, bytes(data))
        archive = reopen(disk)
    else:  # a record that is sound and decodes to other tokens
        (bits,) = ZlibCodec().encode([Plain(PROMPT, PROMPT[:0])])
        wrong = own._replace(record=own.record._replace(bitstring=bits))
        monkeypatch.setattr(lookup, "own_record", lambda _: wrong)
    assert archive.get("again").tokens.tolist() == tokens
    assert defect == "record" or asked == [version.leaf]


def test_the_shorter_of_alone_and_after_the_tower_is_kept(disk: SimDisk) -> None:
    """Share the record of a version's leaf in either mode, and read both back."""
    codec = ZlibCodec(1, b"zlib with tower.")
    archive = create(disk, codec)
    near, far = PROMPT[50:90], np.array([7] * 40)
    receipts = archive.put([NewSession("near", [PROMPT, near]), NewSession("far", [PROMPT, far])])
    found = [records(archive, r.leaf)[0] for r in receipts]
    assert [f.record.mode for f in found] == [1, 0] and [f.record.name for f in found] == ["near", "far"]
    assert len(found[1].record.bitstring) < len(codec.encode([Plain(far, PROMPT)])[0])
    fresh = reopen(disk, codec)
    assert fresh.get("near").tokens.tolist() == [*PROMPT, *near] and fresh.get("far").tokens.tolist() == [*PROMPT, *far]
    assert fresh.verify(decode=True).sound
    again = fresh.put([NewSession("near", [PROMPT, near]), NewSession("far", [PROMPT, far, near])])
    assert [r.new for r in again] == [0, 1] and again[0].unchanged


def test_batches_are_bounded_by_what_they_claim(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Counting()
    archive = create(disk, codec)
    archive.put([NewSession(f"{n}", [np.full(100, n)]) for n in range(9)])
    codec.batches.clear()
    monkeypatch.setattr(chain, "BATCH_TOKENS", 250)
    report = archive.verify(decode=True)
    assert report.sound and report.decoded == 9 and codec.batches == [2, 2, 2, 2, 1]
    codec.batches.clear()
    monkeypatch.setattr(chain, "BATCH_TOKENS", 99)  # a record larger than the bound is decoded alone
    assert archive.verify(decode=True).decoded == 9 and codec.batches == [1] * 9
    codec.batches.clear()
    monkeypatch.setattr(chain, "BATCH_TOKENS", 250)
    fresh = reopen(disk, codec)
    fresh.prepare(list(fresh.ls()))
    assert codec.batches == [2, 2, 2, 2]


def test_a_single_path_goes_by_one_call(filled: TowerArchive, disk: SimDisk) -> None:
    codec = Chaining()
    archive = reopen(disk, codec)
    assert archive.get("s07").tokens.tolist() == [*PROMPT, *PROMPT[::-1], *range(7, 37), *range(7, 57)]
    assert codec.linked == [5] and not codec.batches
    (version,) = [v for v in archive.ls() if v.name == "s07"]
    (first, prompt), (second, turned) = archive.tower(version).segments[:2]
    hot = {first: KnownSegment(NO_SEGMENT, prompt), second: KnownSegment(first, turned)}
    codec.linked.clear()
    assert len(archive.towers([version], hot)[0].segments) == 5
    assert codec.linked == [3] and not codec.batches  # below what is hot
    archive.towers(list(archive.ls()))
    assert codec.linked == [3]  # many sessions go level by level


def test_a_run_is_a_link_of_a_path(disk: SimDisk) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [ZlibCodec(1, b"zlib with tower.")])
    rows = [PROMPT, *(PROMPT[n : n + 40] for n in range(5))]
    for n in range(2, 7):
        archive.put([NewSession("s", rows[:n], shared=1)])
    assert archive.join() == 1
    archive.put([NewSession("s", [*rows, PROMPT[7:60]], shared=1)])
    archive.before(archive.version("s", version=3))
    archive.put([NewSession("fork", [*rows[:4], PROMPT[8:70]], shared=1)])
    codec = Chaining()
    reader = reopen(disk, codec)
    assert reader.get("s").tokens.tolist() == np.concatenate([*rows, PROMPT[7:60]]).tolist()
    assert reader.get("s", version=2).tokens.tolist() == np.concatenate(rows[:3]).tolist()
    assert codec.linked == [3, 2] and not codec.batches
    assert reader.get("fork").tokens.tolist() == np.concatenate([*rows[:4], PROMPT[8:70]]).tolist()
    assert codec.linked == [3, 2, 5] and not codec.batches  # what it has of the run was written again


def test_a_chain_that_does_not_prove_itself_is_decoded_level_by_level(filled: TowerArchive, disk: SimDisk) -> None:
    codec = Chaining()
    archive = reopen(disk, codec)
    (version,) = [v for v in archive.ls() if v.name == "s07"]
    third = archive.tower(version).segments[2][0]
    codec.deaf = bytes(records(archive, third)[0].record.bitstring)
    codec.linked.clear()
    assert len(archive.get("s07").tokens) == 680
    assert codec.linked == [5] and codec.batches == [1, 1, 1]  # two were proven
