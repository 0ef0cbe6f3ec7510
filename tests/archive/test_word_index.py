"""The index of words says what a scan says, forgets what an archive forgets, and is never needed."""

import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pltz.archive import word_index
from pltz.archive.archive import Archive
from pltz.archive.errors import ArchiveError, NotFound, StoreError
from pltz.archive.word_index import STATE, SUFFIX, Shard, WordIndex
from pltz.plt_codec.errors import CorruptError

KEY: dict[str, Any] = {"passphrase": "correct horse battery"}
SECRET = "\u017eluva"  # no other word begins so: a database leaves out what two words have in common


def chat(*said: str) -> list[dict[str, Any]]:
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(said)]


@pytest.fixture(params=[False, True], ids=["open", "sealed"])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    key: dict[str, Any] = KEY if request.param else {}
    with Archive.open(tmp_path / "cold", create=True, **key) as cold:
        cold.put("a", chat("the bell", "rings quietly"), tenant="acme", time=1)
        cold.put("b", chat("the bell", f"is {SECRET}"), tenant="acme", time=2)
        cold.put("c", chat("a horn", "and a bell"), tenant="zeta", time=3)
        yield cold


def names(cold: Archive, words: str, **how: Any) -> list[str]:
    return [hit.name for hit in cold.search(words, **how)]


def decoded(cold: Archive, words: str) -> int:
    """Return the parts of sessions that a search had to put into the index."""
    counts = [0]
    list(cold.search(words, progress=lambda done, total: counts.append(done)))
    return counts[-1]


def images(index: WordIndex) -> bytes:
    """Return the bytes of all databases of an index, as they were before they were packed and sealed."""
    index.load()
    assert sorted(index.shards) == [path.name for path in files(index)]
    return b"".join(shard.db.serialize() for shard in index.shards.values())


def files(index: WordIndex) -> list[Path]:
    return sorted(index.folder.glob(f"*{SUFFIX}"))


def test_an_index_answers_as_a_scan(tmp_path: Path) -> None:
    rng = random.Random(7)
    words = ["bell", "Bell", "bells", "horn's", "a_horn", "Stra\u00dfe", "\u0130", "\u4e2d\u6587", "7.5"]
    words += ["caf\u00e9", "\x1b[1mcaf\u00e9", "w" * 40, "w" * 41]
    asking = [*words, "strasse", "be*", "\u4e2d", "BELL CAFE\u0301", '"bell horn"', '"7.5 bell"', "nowhere", "5"]
    with Archive.open(tmp_path / "cold", create=True) as cold:
        for n in range(20):
            said = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 5))]
            cold.put(f"{n}", chat(*said), time=n)
        for asked in asking:
            how: dict[str, Any]
            for how in ({}, {"role": "user"}, {"since": 9, "project": "1"}):
                both = (cold.search(asked, scan=scan, **how) for scan in (False, True))
                [one, other] = (sorted((hit.name, hit.turn, hit.line) for hit in hits) for hits in both)
                assert one == other, asked
    with Archive.open(tmp_path / "cold") as cold:
        cold.put("most", chat(*[" ".join(f"bell {n} {word}" for word in range(300)) for n in range(9)]), time=0)
        assert names(cold, "bell")[0] == "most" and len(names(cold, "bell", limit=1)) == 9


def test_only_what_is_new_is_decoded(cold: Archive) -> None:
    assert decoded(cold, "bell") == 3 and decoded(cold, "bell") == 0
    cold.put("b", chat("no more"), tenant="acme")
    cold.put("d", chat("a bell"), tenant="acme")
    assert decoded(cold, "bell") == 2 and sorted(names(cold, "bell")) == ["a", "c", "d"] and names(cold, SECRET) == []


def test_tenants_never_see_each_other(cold: Archive) -> None:
    assert set(names(cold, "bell")) == {"a", "b", "c"}
    assert names(cold, "bell", tenant="zeta") == ["c"] and names(cold, "horn", tenant="acme") == []
    groups = {path.name.split("-")[0] for path in files(cold.word_index())}
    assert len(groups) == (2 if cold.parts.settings.sealed else 1)


def test_files_say_nothing_and_are_their_users_alone(cold: Archive) -> None:
    list(cold.search("bell"))
    index = cold.word_index()
    assert SECRET.encode()[2:] in images(index) and stat.S_IMODE(index.folder.stat().st_mode) == 0o700
    for path in index.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for word in (SECRET, "bell", "acme"):
            assert word.encode() not in path.read_bytes()


def test_nothing_is_left_of_what_is_collected(cold: Archive) -> None:
    list(cold.search("bell"))
    cold.forget("b", tenant="acme")
    assert names(cold, SECRET) == []
    index = cold.word_index()
    (index.folder / f"x{SUFFIX}.new").write_bytes(b"of a process that was killed")
    cold.undelete("b", tenant="acme")
    assert names(cold, SECRET) == ["b"]
    cold.forget("b", tenant="acme")
    cold.collect()
    data = images(index)
    assert SECRET.encode()[2:] not in data and b"quietly" in data and not [*index.folder.glob("*.new")]
    assert sorted(names(cold, "bell")) == ["a", "c"]


@pytest.mark.parametrize("everything", [False, True])
def test_nothing_is_left_of_what_is_erased_nor_opens_a_copy(tmp_path: Path, *, everything: bool) -> None:
    with Archive.open(tmp_path / "cold", create=True, **KEY) as cold:
        for name, text in (("a", "the bell rings quietly"), ("b", f"is {SECRET}")):
            cold.put(name, chat(text), tenant="acme")
        cold.put("c", chat("a gong bell"), tenant="zeta")
        list(cold.search("bell"))
        index = cold.word_index()
        shutil.copytree(index.folder, tmp_path / "copy")
        assert SECRET.encode()[2:] in images(index)
        cold.erase(None if everything else "b", tenant="acme", everything=everything)
        data = images(index)
        assert SECRET.encode()[2:] not in data and (b"quietly" in data) != everything and b"gong" in data
        assert decoded(cold, "bell") == 0 and sorted(names(cold, "bell")) == ["c"] if everything else ["a", "c"]
        index.folder = tmp_path / "copy"  # and of the copy only the other tenant's opens
        index.load()
        assert len(files(index)) == 2 and [s.ids for s in index.shards.values()] == [{v.id for v in cold.list("zeta")}]
        with pytest.raises(NotFound):
            cold.erase("b", tenant="acme")


@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "empty", "foreign", "state", "odd state", "no state"])
def test_a_damaged_index_is_made_again(cold: Archive, harm: str) -> None:
    wanted, index = sorted(names(cold, "bell")), cold.word_index()
    path = files(index)[0]
    data = path.read_bytes()
    if harm == "flip":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
    elif harm == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "gone":
        path.unlink()
    elif harm == "foreign":  # a sound one, of another name
        shutil.copy(path, path.with_name(path.name.replace("000000", "000001")))
    elif harm == "state":
        (index.folder / STATE).write_bytes(b'["7", ')
    elif harm == "odd state":
        (index.folder / STATE).write_bytes(b"7")
    else:
        (index.folder / STATE).unlink()
    assert sorted(names(cold, "bell")) == wanted and decoded(cold, "bell") == 0


def test_who_is_killed_has_written_what_was_decoded(cold: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_index, "BATCH", 1)
    entry_of, left = word_index.entry_of, [2]

    def killed(*about: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return entry_of(*about)

    with monkeypatch.context() as patch:
        patch.setattr(word_index, "entry_of", killed)
        with pytest.raises(KeyboardInterrupt):
            list(cold.search("bell"))
    assert decoded(cold, "bell") == 1 and sorted(names(cold, "bell")) == ["a", "b", "c"]


def test_a_second_process_answers_from_what_is_there(cold: Archive, tmp_path: Path) -> None:
    list(cold.search("bell"))
    cold.put("d", chat("a bell"), tenant="acme")
    with cold.word_index()._locked("update.lock"):
        hits = cold.search("bell")
        assert sorted(next(hits).name for _ in range(3)) == ["a", "b", "c"]
        with pytest.raises(ArchiveError, match="1 part of sessions cannot be read, or another process adds them now"):
            next(hits)
    assert len(names(cold, "bell")) == 4


def test_what_others_take_out_is_not_put_in(cold: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_of = word_index.entry_of

    def forgetting(version: Any, session: Any) -> Any:
        if version.name == "b":
            other = Archive.open(tmp_path / "cold", **(KEY if cold.parts.settings.sealed else {}))
            if other.parts.settings.sealed:
                other.erase("b", tenant="acme")
            else:
                other.forget("b", tenant="acme")
                other.collect()
        return entry_of(version, session)

    with monkeypatch.context() as patch:
        patch.setattr(word_index, "entry_of", forgetting)
        assert names(cold, SECRET) == []
    index = cold.word_index()
    index.load()  # a file that does not open any more is left
    assert not any(SECRET.encode()[2:] in shard.db.serialize() for shard in index.shards.values())
    assert sorted(names(cold, "bell")) == ["a", "c"] and SECRET.encode()[2:] not in images(index)


def test_what_cannot_be_read_is_counted_each_time(cold: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(cold.sessions).read

    def broken(self: Any, version: Any) -> Any:
        if version.name == "b":
            raise CorruptError("gone")
        return read(self, version)

    monkeypatch.setattr(type(cold.sessions), "read", broken)
    monkeypatch.setattr(type(cold.sessions), "read_many", lambda self, some, **_: map(self.read, some))
    for _ in range(2):
        hits = cold.search("bell")
        assert {next(hits).name for _ in range(2)} == {"a", "c"}
        with pytest.raises(ArchiveError, match="1 part of sessions cannot be read"):
            next(hits)


def test_a_folder_that_is_not_written_is_named(cold: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="search with --scan"):
        list(cold.search("bell"))
    assert len(names(cold, "bell", scan=True)) == 3


def test_a_full_shard_is_followed_by_another(cold: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_index, "SHARD", 1)
    monkeypatch.setattr(word_index, "BATCH", 1)
    assert sorted(names(cold, "bell")) == ["a", "b", "c"] and len(files(cold.word_index())) == 3
    assert sorted(names(cold, "bell")) == ["a", "b", "c"]
    cold.word_index().clear()
    assert decoded(cold, "bell") == 3


def test_what_is_taken_out_leaves_no_bytes_and_the_others_their_words() -> None:
    shard = Shard()
    shard.db.executemany("insert into said(rowid, words) values(?, ?)", [(1, f"bell {SECRET}"), (2, "bell horn")])
    for first in (1, 2):
        row = (first, 1, bytes([first]), "t", "n", "", "chat", "", 0, "[]", "[]")
        shard.db.execute("insert into part values(?,?,?,?,?,?,?,?,?,?,?)", row)
    assert SECRET.encode()[2:] in shard.image(tidy=False)
    shard.remove([bytes([1])])
    image = shard.image(tidy=True)
    assert SECRET.encode()[2:] not in image
    again = Shard(zstandard.decompress(zstandard.compress(image)))
    assert again.db.execute("select rowid from said where said match 'bell AND horn'").fetchall() == [(2,)]
    assert again.db.execute("select rowid from said where said match 'bell'").fetchall() == [(2,)]
