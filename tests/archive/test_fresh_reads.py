"""Every read sees what another process had acknowledged before it, within the bound that the caller set."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pltz import Archive, KVStore, Thawer, Wanted
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.errors import NotFound
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError
from tests.archive.towers import inside
from tests.watch import noted

OTHER = """
import sys, pltz
archive = pltz.Archive.open(sys.argv[1])
for line in sys.stdin:
    verb, name, *ids = line.split()
    archive.put(name, list(map(int, ids))) if verb == "put" else archive.forget(name)
    print(flush=True)
"""

Tell = Callable[[str], None]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Archive.open(tmp_path / "a", create=True).put("chat", [100, 200, 300])
    return tmp_path / "a"


@pytest.fixture
def tell(place: Path) -> Iterator[Tell]:
    """Tell another process what to do; it is acknowledged when this returns."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        into, out = child.stdin, child.stdout

        def say(line: str) -> None:
            into.write(line + "\n")
            into.flush()
            assert out.readline() == "\n"

        yield say
        into.close()


def test_a_thawer_built_once_serves_the_newest_version(place: Path, tell: Tell) -> None:
    target = Target.load("mini-llama")
    thawer = Thawer(Archive.open(place), target, KVStore.open(target, 1024))
    assert thawer.thaw("chat").token_ids.tolist() == [100, 200, 300]
    tell("put chat 100 200 300 400 500")
    assert thawer.token_ids("chat").tolist() == [100, 200, 300, 400, 500]
    assert thawer.thaw("chat").token_ids.tolist() == [100, 200, 300, 400, 500]
    tell("put new 7 8")
    _, new = thawer.thaw_many([Wanted("chat"), Wanted("new")])
    assert not isinstance(new, Exception) and new.token_ids.tolist() == [7, 8]
    tell("forget chat")
    for call in (thawer.thaw, thawer.token_ids):
        with pytest.raises(NotFound):
            call("chat")


def test_every_read_of_an_archive_sees_what_another_process_did(place: Path, tell: Tell) -> None:
    archive = Archive.open(place)
    archive.get("chat")
    tell("put chat 1 2")
    assert archive.get("chat").ids.tolist() == [1, 2] and len(archive.history("chat")) == 2
    tell("put chat 3 4")
    assert [found.ids.tolist() for found in archive.get_many(["chat"])] == [[3, 4]]
    tell("put chat 5 6")
    assert inside(archive).get("chat").tokens.tolist() == [5, 6]
    tell("put two 9")
    assert [found.name for found in archive.list()] == ["chat", "two"] and archive.stat().sessions > 4
    tell("forget chat")
    for call in (archive.get, inside(archive).get, archive.directory.version):
        with pytest.raises(NotFound):
            call("chat")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one at each look at the store."""
    return noted(monkeypatch, Catalog, "look_now", lambda: 1)


def test_a_read_relies_on_a_sight_so_old_alone(place: Path, monkeypatch: pytest.MonkeyPatch, looks: list[int]) -> None:
    now = [1000.0]
    monkeypatch.setattr("pltz.archive.catalog.catalog.time.monotonic", lambda: now[0])
    archive, target = Archive.open(place, max_age=10), Target.load("mini-llama")
    thawer = Thawer(archive, target, max_age=5)
    assert thawer.token_ids("chat").tolist() == [100, 200, 300]
    other = Archive.open(place)
    other.put("chat", [1, 2])
    looks.clear()
    assert archive.get("chat").version == 1 and thawer.token_ids("chat").tolist() == [100, 200, 300] and not looks
    other.put("new", [8])
    looks.clear()
    assert archive.get("new").ids.tolist() == [8] and len(looks) == 1  # absence is never said by an old sight
    other.put("chat", [3, 4])
    now[0] += 6
    looks.clear()
    assert archive.get("chat").version == 2 and not looks
    assert thawer.token_ids("chat").tolist() == [3, 4] and len(looks) == 1
    other.put("chat", [5, 6])
    now[0] += 10
    assert archive.get("chat").version == 4


def test_reads_of_one_call_look_once(place: Path, looks: list[int]) -> None:
    archive = Archive.open(place)
    for n in range(4):
        archive.put(f"s{n}", [n])
    thawer = Thawer(archive, "mini-llama")
    looks.clear()
    names = [f"s{n}" for n in range(4)]
    assert len(list(archive.get_many(names))) == 4 and len(looks) == 1
    assert len(thawer.thaw_many([Wanted(name) for name in names])) == 4 and len(looks) == 2


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", True])
def test_an_age_is_a_number_of_seconds(place: Path, wrong: object) -> None:
    with pytest.raises(UsageError, match="max_age"):
        Archive.open(place, max_age=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_age"):
        Thawer(Archive.open(place), "mini-llama", max_age=wrong)  # type: ignore[arg-type]
