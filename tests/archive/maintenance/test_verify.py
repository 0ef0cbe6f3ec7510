"""Verify: damage is named, and what others do meanwhile is no damage."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.chain import Chains
from pltz.archive.catalog.freshness import Token
from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import LostError
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.maintenance import verify
from pltz.archive.maintenance.verify import Report, Verifier
from pltz.archive.storage.store import DirectoryStore
from pltz.coding.codecs.codec import Plain
from pltz.plt_codec.errors import PltzError, UsageError
from tests.archive.kit import RAW, NewSession, SimDisk, TowerArchive, ZlibCodec, create, reopen, repaired
from tests.archive.peek import peek


def test_a_long_run_says_how_far_it_is(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are decoded some at a time, of a pack and of several."""
    monkeypatch.setattr(verify, "DECODE_RECORDS", 2)
    archive.put([NewSession(f"s{n}", [np.array([n, n + 1])]) for n in range(11)])
    archive.put([NewSession("last", [np.arange(3)])])
    told: list[int] = []
    archive.verify(decode=True, progress=lambda report: told.append(report.decoded))
    assert {2, 4, 6, 8, 10} <= set(told) and archive.verify(decode=True).decoded == 12


def test_a_damaged_session_is_named_or_counted(archive: TowerArchive, disk: SimDisk) -> None:
    """Damage the bitstring of a last segment: the head of its block still names the session."""
    archive.put([NewSession("gone", [np.arange(50)])])
    place = archive.version("gone").location
    pack = f"packs/{place.pack.hex()}"
    data = bytearray(disk.read(pack, 0, 1 << 20))
    bits = ZlibCodec().encode([Plain(np.arange(50), np.arange(0))])[0]
    data[data.index(bits) + 3] ^= 1
    disk.overwrite(pack, bytes(data))
    report = reopen(disk).verify()
    assert [v.name for v in report.lost] == ["gone"] and report.unreadable == 1 and not report.sound
    data[place.offset + 8] ^= 1
    disk.overwrite(pack, bytes(data))
    report = reopen(disk).verify()
    assert not report.lost and report.unreadable == 1 and not report.sound


@pytest.mark.parametrize("key", [None, RAW])
def test_lost_redundancy_is_told_of_and_repair_puts_it_back(disk: SimDisk, key: Secret | None) -> None:
    """Verify said "sound" and nothing else."""
    archive = create(disk, key=key)
    for n in range(4):
        archive.put([NewSession(f"s{n}", [np.array([n, n + 1])])])
        if n == 2:
            archive.collect()
            archive.collect()
            archive.collect()
    archive.collect()
    paths = [p for p in disk.seen.files() if p.startswith("parity/") or p.endswith("-1") or p == "archive.json"]
    listing = archive.catalog.listing
    condemned = {f"parity/{pack.hex()}" for pack in listing.condemned & set(listing.packs)}
    assert condemned & set(paths) and "parity/archive.json" in paths
    assert any(p.startswith("keys/") for p in paths) == (key is not None) and not archive.verify().missing_copies
    for path in paths:
        disk.unlink(path)
        assert archive.verify().missing_copies == [path], path
        report = reopen(disk, key=key).verify()
        assert report.sound and report.missing_copies == [path] and repaired(disk).whole
        report = archive.verify(decode=True)
        assert report.sound and not report.missing_copies and path in disk.seen.files(), path
    copies = sorted(p for p in paths if p != "archive.json")
    for path in copies:
        disk.unlink(path)
    assert archive.verify().missing_copies == copies and repaired(disk).whole
    report = archive.verify(decode=True)
    assert report.sound and not report.missing_copies


def fresh(disk: SimDisk, token: str) -> Report:
    return reopen(disk).verify(expect=token)


def test_a_token_holds_after_a_collection_and_a_repair(archive: TowerArchive, disk: SimDisk) -> None:
    for n in range(4):
        archive.put([NewSession(f"s{n}", [np.array([n, n + 1])])])
    tokens = [archive.token()]
    for _ in range(3):
        archive.collect()
        tokens.append(archive.token())
    repaired(disk)
    tokens.append(archive.verify().token)
    for token in tokens:
        assert fresh(disk, token).sound, token
    generations = [Token.parse(token).generation for token in tokens]
    assert generations == sorted(generations)


def test_a_token_of_another_archive_and_one_that_is_none(archive: TowerArchive) -> None:
    other = create(SimDisk(seed=9))
    report = archive.verify(expect=other.token())
    assert not report.sound and "the token is of archive" in report.problems[0].what
    with pytest.raises(UsageError, match="expected a token"):
        archive.verify(expect="yesterday")


def test_a_forgotten_record_whose_parent_was_collected_is_no_damage(disk: SimDisk, tower_codec: ZlibCodec) -> None:
    """Its pack is worth keeping for the sake of others; the pack of its parent is not."""
    archive = TowerArchive.create(DirectoryStore(disk), [tower_codec])
    prompt, noise = np.arange(300), np.random.default_rng(0).integers(0, 1 << 30, 2000)
    archive.put([NewSession("prompt", [prompt]), NewSession("other", [np.arange(5)])])
    archive.put([NewSession("child", [prompt, prompt + 1]), NewSession("large", [noise])])
    archive.forget([v for v in archive.ls() if v.name in ("prompt", "child")])
    for _ in range(3):
        archive.collect(small=4000)
    report = archive.verify(decode=True)
    assert len(archive.catalog.listing.packs) == 2 and report.records == 5
    assert report.sound, report


def crafted(archive: TowerArchive, rows: Sequence[tuple[bytes, bytes]], leaf: bytes) -> TowerArchive:
    """Put records of segments (id, parent) that no session has, and a session of one of them."""
    archive.put([NewSession("sound", [np.arange(9)])])
    [first] = peek(archive, "sound")
    bare = first.record._replace(name=None, about=b"", time=0, moment=0)
    session = first.record._replace(id=None, parent=leaf, name="crafted", tokens=0, bitstring=b"")
    new = [bare._replace(id=id_, parent=parent) for id_, parent in rows]
    archive.parts.writer.publisher.put([(first.context, record) for record in new])
    archive.parts.writer.publisher.put([(first.context, session)])
    archive.write_index()
    return archive


def named(number: int) -> bytes:
    return number.to_bytes(10, "big")


CIRCLES = {
    "parents": [(named(1), named(2)), (named(2), named(3)), (named(3), named(1))],
    "itself": [(named(1), named(1))],
    "too many segments": [(named(n), named(n + 1) if n < 60 else NO_SEGMENT) for n in range(60, 0, -1)],
}


@pytest.mark.parametrize("shape", CIRCLES)
def test_circles_and_deep_towers_are_found(archive: TowerArchive, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.catalog.chain.MAX_SEGMENTS", 50)
    report = crafted(archive, CIRCLES[shape], named(1)).verify()
    assert not report.sound and [v.name for v in report.lost] == ["crafted"]
    with pytest.raises(PltzError):
        archive.get("crafted")
    assert archive.get("sound").tokens.tolist() == [*range(9)]


def test_circles_that_no_session_has_are_no_damage(archive: TowerArchive) -> None:
    """After an erase of a joined session its dead records made one, and plain verify called the archive damaged."""
    assert crafted(archive, CIRCLES["parents"], NO_SEGMENT).verify().sound


@pytest.mark.parametrize("readable", [True, False])
def test_a_version_is_lost_only_where_no_record_of_a_segment_can_be_read(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """An old record whose parent was merged away failed, a later one decoded, and the version was called lost.

    The torture found it (seed 22, sealed, with a manifest). Here one record fails without damage, as that one did.
    """
    cold = create(disk)
    cold.put([NewSession("a", [np.arange(9)]), NewSession("b", [np.arange(5)])])
    leaf = next(v.leaf for v in cold.ls() if v.name == "a")
    fails, answers = LostError("a segment above it is absent"), Verifier._answers

    def some_fail(self: Verifier, items: Sequence[Any]) -> list[Any]:
        found = zip(items, answers(self, items), strict=True)
        return [fails if item.record.id == leaf else answer for item, answer in found]

    monkeypatch.setattr(Verifier, "_answers", some_fail)
    monkeypatch.setattr(Verifier, "_is_orphan", lambda self, item, rooted: True)
    if not readable:
        monkeypatch.setattr(Chains, "answers", lambda self, segments: [fails for _ in segments])
    report = cold.verify(decode=True)
    assert [v.name for v in report.lost] == ([] if readable else ["a"])
    assert report.sound == readable and report.decoded == 1
