"""The writer takes, of several ways to store a session, the one that adds the fewest bytes, and encodes each once."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.listing import ATTEMPTS
from pltz.archive.errors import Fenced
from pltz.archive.storage.disk import OsDisk
from pltz.archive.writing.writer import ArchiveWriter, Publisher
from pltz.coding.codecs.codec import BytesCodec, Plain
from pltz.plt_codec.errors import CorruptError
from tests.archive.kit import DirectoryStore, NewSession, SimDisk, TowerArchive, ZlibCodec, create, reopen

NOISE = np.random.default_rng(3).integers(0, 256, 300).astype(np.uint8)
AGAIN = np.frombuffer(b"again and again " * 20, np.uint8)
PLAIN = BytesCodec()


class CountingCodec(ZlibCodec):
    """A codec that counts the segments that it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        self.encoded += len(batch)
        return super().encode(batch)


@pytest.fixture
def words() -> CountingCodec:
    return CountingCodec()


@pytest.fixture
def two(disk: SimDisk, words: CountingCodec) -> TowerArchive:
    """Return an archive of two codecs."""
    return TowerArchive.create(DirectoryStore(disk), [words, PLAIN])


def two_ways(name: str, words: np.ndarray, plain: np.ndarray) -> NewSession:
    """Return a session as tokens of the first codec or, otherwise, as bytes for the second."""
    return NewSession(name, [words], otherwise=[NewSession(name, [plain], codec=PLAIN)])


def test_the_way_with_the_fewest_new_bytes_is_taken(two: TowerArchive) -> None:
    few, many = np.arange(4), NOISE.astype(np.int64)
    receipts = two.put([two_ways("few", few, NOISE), two_ways("many", many, AGAIN)])
    assert [receipt.codec for receipt in receipts] == [*two.codecs] and two.get("few").tokens.tolist() == few.tolist()
    assert two.get("many").tokens.tolist() == AGAIN.tolist()
    assert two.stat().segments == 2  # nothing of the other ways is stored


def test_of_equal_ways_the_first_is_taken(two: TowerArchive) -> None:
    one = NewSession("a", [np.arange(9)])
    assert two.put([replace(one, otherwise=[NewSession("a", [NOISE], codec=PLAIN)])])[0].codec is not PLAIN
    same = NewSession("b", [AGAIN], codec=PLAIN)
    assert two.put([replace(same, otherwise=[NewSession("b", [AGAIN[:]], codec=PLAIN, kind="text")])])[0].new == 1
    assert two.get("b").version.kind == same_kind(same)


def same_kind(session: NewSession) -> int:
    """Return the number of a session's kind."""
    return ("chat", "text", "ids").index(session.kind)


def test_each_segment_is_encoded_once(two: TowerArchive, words: CountingCodec) -> None:
    two.put([two_ways("a", np.arange(4), NOISE), two_ways("b", np.arange(4), NOISE)])
    assert words.encoded == 1


def test_a_way_that_adds_nothing_is_taken_before_any_is_coded(two: TowerArchive, words: CountingCodec) -> None:
    two.put([NewSession("a", [NOISE], codec=PLAIN)])
    receipt = two.put([two_ways("b", np.arange(4), NOISE)])[0]
    assert (receipt.codec, receipt.new, words.encoded) == (PLAIN, 0, 0)


def test_a_dry_run_says_what_a_put_stores_and_stores_nothing(two: TowerArchive) -> None:
    session = two_ways("a", np.arange(4), NOISE)
    dry = two.put([session], dry_run=True)
    assert two.stat().packs == 0 and not two.history("a")
    put = two.put([session])
    assert [r._replace(id=b"", moment=0) for r in dry] == [r._replace(id=b"", moment=0) for r in put]


def test_a_way_that_no_record_holds_is_not_taken(two: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.writing.writer.tokens_fit", lambda tokens, size: tokens > 4)
    assert two.put([two_ways("a", np.arange(4), NOISE)])[0].codec is PLAIN


# ---- a short turn

TEXT = np.frombuffer(bytes(range(32, 127)) * 40, np.uint8)  # 3800 bytes


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of bytes that each call of `BytesCodec.encode` is given."""
    counts: list[int] = []
    encode = BytesCodec.encode

    def count(self: BytesCodec, batch: Sequence[Plain]) -> list[bytes]:
        counts.append(sum(len(plain.tokens) for plain in batch))
        return encode(self, batch)

    monkeypatch.setattr(BytesCodec, "encode", count)
    return counts


def ways(plain: np.ndarray, *segments: np.ndarray) -> NewSession:
    """Return a session in two ways: segments of the first codec, or plain bytes."""
    return NewSession("a", segments, otherwise=[NewSession("a", [plain], codec=PLAIN)])


def test_plain_bytes_are_not_coded_again_for_a_short_turn(archive: TowerArchive, coded: list[int]) -> None:
    archive.codecs.register(PLAIN)
    first = np.random.default_rng(1).integers(0, 9000, 4)
    archive.put([NewSession("a", [first])])
    turn = np.full(3, 7)
    receipt = archive.put([ways(TEXT, first, turn)])[0]
    assert (receipt.codec, receipt.new, coded) == (archive.codecs[0], 1, [])


def test_plain_bytes_that_cannot_win_are_looked_at_and_not_coded(archive: TowerArchive, coded: list[int]) -> None:
    archive.codecs.register(PLAIN)
    noise = np.random.default_rng(1).integers(0, 256, 4000, np.uint8)
    assert archive.put([ways(noise, np.arange(4))])[0].codec is archive.codecs[0] and coded == []


def test_plain_bytes_are_coded_where_they_may_win(archive: TowerArchive, coded: list[int]) -> None:
    archive.codecs.register(PLAIN)
    first = np.arange(4)
    archive.put([NewSession("a", [first])])
    long = np.random.default_rng(1).integers(0, 1 << 20, 4000)
    receipt = archive.put([ways(TEXT, first, long)])[0]
    assert coded and receipt.codec is PLAIN, "the other way is shorter, and taken"


def test_a_session_whose_bitstring_is_damaged_is_put_again(archive: TowerArchive, disk: SimDisk) -> None:
    """Its head is sound, so a put that looked there alone would say that nothing changed."""
    new = NewSession("s", [np.arange(30), np.arange(50) % 7])
    archive.put([new])
    item = archive.catalog.lookup.at(archive.version("s").location)
    [path] = (path for path in disk.seen.files() if path.startswith("packs/"))
    data = disk.seen.data[disk.seen.names[path]]
    at = data.index(item.record.bitstring) + 2
    disk.seen.data[disk.seen.names[path]] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    [receipt] = reopen(disk).put([new])
    assert not receipt.unchanged and receipt.new
    found = reopen(disk)
    assert np.array_equal(found.get("s").tokens, np.concatenate([np.arange(30), np.arange(50) % 7]))


def _remove(path: Path) -> None:
    path.unlink()


def _cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _zero(path: Path) -> None:
    """Damage a file in place, as a shred or a stray write does."""
    path.write_bytes(bytes(path.stat().st_size))


def _replace(path: Path) -> None:
    """Replace a file under its old time, as a copy by a broken backup does."""
    old = path.stat()
    (other := path.with_name("other")).write_bytes(bytes(old.st_size))
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("read", [False, True], ids=["put", "read"])
@pytest.mark.parametrize("damage", [_remove, _cut_off, _zero, _replace])
def test_a_segment_whose_pack_changed_since_it_was_proved_is_put_again(
    tmp_path: Path, codec: ZlibCodec, damage: Callable[[Path], None], read: bool
) -> None:
    """The writer knew its tokens, and acknowledged what stood on them."""
    store = DirectoryStore(OsDisk(tmp_path))
    first, second = np.arange(40), np.arange(60) % 7
    archive = TowerArchive.create(store, [codec])
    archive.put([NewSession("s", [first])])
    if read:
        archive = TowerArchive.open(store, [codec])
        archive.before(archive.version("s"))
    [path] = (tmp_path / "packs").iterdir()
    damage(path)
    [receipt] = archive.put([NewSession("s", [first, second])])
    assert not receipt.unchanged
    found = reopen(OsDisk(tmp_path))
    assert np.array_equal(found.get("s", version=receipt.id).tokens, np.concatenate([first, second]))


def test_a_pack_that_was_touched_is_proved_again_and_relied_on(tmp_path: Path) -> None:
    archive = create(OsDisk(tmp_path))
    archive.put([NewSession("s", [np.arange(40)])])
    [path] = (tmp_path / "packs").iterdir()
    changes: list[Callable[[Path], object]] = [Path.touch, lambda path: os.replace(shutil.copy(path, other), path)]
    other = tmp_path / "other"
    for number, change in enumerate(changes, 1):
        change(path)
        [receipt] = archive.put([NewSession("s", [np.arange(40), *[np.arange(9)] * number])])
        assert receipt.new == 1 and archive.stat().segments == number + 1


def test_two_segments_of_one_id_are_refused(archive: TowerArchive) -> None:
    """An id has a part of the digest; 32 bytes of it tell two segments apart."""
    archive.put([NewSession("s", [np.arange(30)])])
    known = archive.parts.writer.proved._known
    known |= {segment: (at, digest[:16] + bytes(16)) for segment, (at, digest) in known.items()}
    with pytest.raises(CorruptError, match="two different segments"):
        archive.put([NewSession("t", [np.arange(30)])])


def test_what_another_writer_has_not_synced_yet_outlives_a_power_cut_once_a_put_relies_on_it(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that changes nothing writes no pack, whose sync would be that of the others too."""
    new, sync = NewSession("s", [np.arange(30)]), disk.sync_directory
    archive = create(disk)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_directory", lambda path: None if path == "manifest" else sync(path))
        archive.put([new])
    [receipt] = reopen(disk).put([new])
    assert receipt.unchanged
    for state in disk.crashes("tmp"):
        left = reopen(SimDisk(state))
        assert np.array_equal(left.get("s").tokens, np.arange(30))


@pytest.mark.parametrize(("before", "undelete"), [(0, False), (1, False), (1, True)])
def test_what_a_collector_deletes_during_a_put_that_relies_on_it_is_put_again(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, before: int, undelete: bool
) -> None:
    """Nothing live needs it when the collector looks. ``before``: runs before the put, of the two that delete."""
    prompt, collector = np.arange(30), create(disk)
    collector.put([NewSession("old", [prompt, np.array([1])])])
    collector.forget(collector.history("old"))
    for _ in range(before):
        collector.collect()
    put = Publisher.put

    def late(publisher: Publisher, *args: Any, **options: Any) -> None:
        monkeypatch.undo()
        for _ in range(2 - before):
            collector.collect()
        put(publisher, *args, **options)

    writer = reopen(disk)
    monkeypatch.setattr(Publisher, "put", late)
    if undelete:
        writer.undelete(writer.history("old"))
    else:
        writer.put([NewSession("new", [prompt, np.array([2])])])
    left = reopen(disk)
    wanted = {"old": 1} if undelete else {"new": 2}
    assert {v.name: left.tower(v).tokens.tolist() for v in left.ls()} == {n: [*range(30), t] for n, t in wanted.items()}
    assert left.verify(decode=True).sound


def test_a_put_looks_again_where_a_pack_was_deleted(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    within, gone = ArchiveWriter._take_out_of_runs, list[str]()

    def beside_a_collector(self: ArchiveWriter, *args: Any) -> Any:
        if gone:
            raise FileNotFoundError(2, "no longer listed", gone.pop())
        return within(self, *args)

    monkeypatch.setattr(ArchiveWriter, "_take_out_of_runs", beside_a_collector)
    new = NewSession("a", [np.arange(9)])
    gone[:] = ["packs/a"]
    assert archive.put([new])[0].version == 1 and len(archive.history("a")) == 1
    gone[:] = ["packs/a"] * (1 + ATTEMPTS)
    with pytest.raises(Fenced):
        archive.put([NewSession("b", [np.arange(7)])])
    assert not archive.history("b")
