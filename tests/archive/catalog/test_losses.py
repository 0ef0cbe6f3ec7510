"""Losses: a pack that repair gave up is told until a person acknowledges it, and after that of what it had."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.catalog.losses import Losses, LostKeys
from pltz.archive.errors import ArchiveError, LostError, NotFound
from pltz.archive.format.manifest import LostPack
from pltz.archive.format.object_names import lost_keys
from pltz.plt_codec.errors import CorruptError, PltzError
from tests.archive.kit import DirectoryStore, NewSession, SegmentCodec, SimDisk, TowerArchive, create, reopen, repaired
from tests.examples import examples

NAMES = ("a", "b", "c")


def tokens(name: str) -> list[int]:
    return list(range(ord(name), ord(name) + 40))


def three(codec: SegmentCodec, *, condemned: bool = True, indexed: bool = False) -> SimDisk:
    """Put three sessions in three packs."""
    disk = SimDisk()
    archive = create(disk)
    for name in NAMES:
        archive.put([NewSession(name, [np.array(tokens(name))])])
    if indexed:
        archive.write_index()
    if condemned:
        assert archive.collect().condemned == 3
    return disk


def pack_of(archive: TowerArchive, name: str) -> str:
    return f"packs/{archive.version(name).location.pack.hex()}"


def lost(codec: SegmentCodec, *, indexed: bool) -> SimDisk:
    disk = three(codec, condemned=False, indexed=indexed)
    path = pack_of(reopen(disk), "b")
    for name in (path, path.replace("packs", "parity")):
        disk.unlink(name)
    report = repaired(disk)
    assert not report.whole and report.uncounted == 1
    return disk


@pytest.mark.parametrize("indexed", [False, True])
def test_a_loss_is_known_until_it_is_acknowledged(codec: SegmentCodec, indexed: bool) -> None:
    disk = lost(codec, indexed=indexed)
    for _ in range(2):
        archive = reopen(disk)
        with pytest.raises(LostError, match="repair"):
            archive.get("b")
        with pytest.raises(NotFound):
            archive.get("nobody")  # the loss names all that it had
        assert [v.name for v in archive.ls()] == ["a", "c"]
        with pytest.raises(ArchiveError, match="1 pack that repair gave up"):
            archive.want_whole("listed")
        assert archive.stat().losses == 1 and archive.stat().missing == 0
        report = archive.verify()
        assert [p.kind for p in report.problems] == ["loss"] and not report.sound
        archive.rebuild()
        archive.collect()
        again = repaired(disk)
        assert not again.whole and len(again.recorded) == 1 and not again.aside
        disk.clock += 1000
    archive = reopen(disk)
    [loss] = archive.losses()
    assert archive.acknowledge() == [loss] and not archive.losses() and not archive.acknowledge()
    fresh = reopen(disk)
    fresh.want_whole("listed")
    assert fresh.verify(decode=True).sound and repaired(disk).whole and fresh.stat().losses == 0
    with pytest.raises(NotFound, match=r"was lost.*acknowledged"):
        fresh.get("b")
    fresh.put([NewSession("b", [np.array([1, 2])])])
    assert reopen(disk).get("b").tokens.tolist() == [1, 2]


def test_every_crash_of_giving_up_ends_in_a_loss_that_is_known(codec: SegmentCodec) -> None:
    disk = three(codec, condemned=False, indexed=True)
    path = pack_of(reopen(disk), "b")
    disk.unlink(path.replace("packs", "parity"))
    disk.overwrite(path, b"rot")
    disk = SimDisk(disk.seen)
    for state in disk.left_by(lambda: repaired(disk)):
        left = SimDisk(state, seed=5)
        for _ in range(2):
            archive = reopen(left)
            with pytest.raises(PltzError) as told:
                archive.get("b")
            assert told.value.exit_code in (3, 7) and not archive.verify().sound
            with pytest.raises(ArchiveError):
                archive.want_whole("listed")
            repaired(left)
        assert len(reopen(left).losses()) == 1


# What a lost pack had

KEYS = st.builds(LostKeys, *[st.frozensets(st.integers(0, (1 << 36) - 1), max_size=5)] * 2)


@settings(max_examples=examples(100))
@given(KEYS, st.data())
def test_keys_come_back_and_anything_else_is_refused(keys: LostKeys, data: st.DataObject) -> None:
    known = keys.encode()
    assert LostKeys.decode(known, known[-16:]) == keys
    hurt = bytearray(known)
    at = data.draw(st.integers(0, len(hurt) - 1))
    hurt[at] ^= data.draw(st.integers(1, 255))
    for other in (bytes(hurt), known[:at], known + b"x"):
        with pytest.raises(CorruptError):
            LostKeys.decode(other, known[-16:])


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_where_the_keys_are_lost_too_any_session_may_have_been_in_the_pack(how: str) -> None:
    store = DirectoryStore(disk := SimDisk())
    store.make()
    row = Losses(store).put(3, True, [1, 2], [3])
    assert Losses(store).of({b"p" * 16: row})[0].sessions == {1, 2}
    path = lost_keys(row.keys)
    disk.vanish(path) if how == "gone" else disk.overwrite(path, b"rot")
    [loss] = Losses(store).of({b"p" * 16: row})
    assert (loss.complete, loss.sessions, loss.missing) == (False, frozenset(), 3)
    assert not Losses(store).of({b"p" * 16: LostPack(5, None)})[0].complete


def test_absent_is_not_said_where_a_lost_pack_may_have_had_it(archive: TowerArchive, disk: SimDisk) -> None:
    for name in "ab":
        archive.put([NewSession(name, [np.array(tokens(name))])])
    gone = archive.version("b").location.pack.hex()
    for folder in ("packs", "parity"):
        disk.vanish(f"{folder}/{gone}")
    repaired(disk)
    [path] = [path for path in disk.seen.names if path.startswith("lost/")]
    disk.vanish(path)
    for name in ("b", "nobody"):
        with pytest.raises(ArchiveError, match="1 pack damaged or gone may have had it"):
            reopen(disk).get(name)
