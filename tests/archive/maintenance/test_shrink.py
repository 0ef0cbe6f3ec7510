"""Shrink: what was put in a fast form comes to the bytes that the model makes of it, and stays what it was."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from pltz import PutRequest
from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.catalog.listing import Found, Listing
from pltz.archive.errors import KeyMismatch, NotFound
from pltz.archive.format.pack import Damage
from pltz.archive.work_part import WorkPart
from pltz.archive.writing.writer import Publisher
from pltz.coding.codecs.logs import method_of
from pltz.models.session.session import Session
from pltz.plt_codec import limits
from pltz.plt_codec.container.frame import Method
from pltz.plt_codec.engines.native.coder import NativeCoder
from tests.archive.kit import RAW, DirectoryStore, Secret, SimDisk

KEY = "a long passphrase"


DOCS = Path(__file__).parents[3] / "docs"
PAGES = "limits", "operations", "concepts"
PROSE = "".join((DOCS / f"{page}.md").read_text() for page in PAGES).replace("\n", " ").split(". ")


def log(count: int, seed: int = 0) -> bytes:
    """Return the lines of a log, which says what people say."""
    said = PROSE[seed * 10 :]
    rows = [{"n": n, "text": said[n % len(said)]} for n in range(count)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def request(count: int, name: str = "log", seed: int = 0) -> PutRequest:
    return PutRequest(name, Session("text", log(count, seed)))


class Place:
    """An archive, opened to put by the fast way or by the model."""

    def __init__(self, root: Path, key: str | None) -> None:
        self._options: dict[str, Any] = {"passphrase": key}
        self.root = root
        Archive.open(root, create=True, **self._options)

    def open(self, *, fast: bool = False, **options: Any) -> Archive:
        return Archive.open(self.root, model_logs=not fast, model_ids=not fast, **self._options, **options)

    def put(self, *requests: PutRequest, fast: bool) -> None:
        list(self.open(fast=fast).put_many(requests))

    def bitstrings(self) -> dict[bytes, tuple[str, bytes]]:
        """Return the shortest bitstring of each segment, with its method."""
        parts = self.open().parts
        parts.catalog.refresh()
        found: dict[bytes, tuple[str, bytes]] = {}
        for pack in parts.catalog.listing.packs:
            for item in parts.catalog.listing.scan(pack):
                assert isinstance(item, Found)
                if item.record.id is None:
                    continue
                bits = parts.keys.bits(item.context, item.record)
                known = found.get(item.record.id)
                if known is None or len(bits) < len(known[1]):
                    found[item.record.id] = method_of(bits)[0] if item.context.method == Method.LOG else "no log", bits
        return found

    def pack_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.root / "packs").rglob("*") if file.is_file())


@pytest.fixture(params=[None, KEY], ids=["open", "sealed"])
def key(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def place(tmp_path: Path, key: str | None) -> Place:
    return Place(tmp_path / "cold", key)


def test_it_comes_to_what_a_put_by_the_model_takes(place: Place, tmp_path: Path, key: str | None) -> None:
    other = Place(tmp_path / "other", key)
    for count in (40, 60):  # the second stands below the first
        place.put(request(count), request(30, "another", 1), fast=True)
        other.put(request(count), request(30, "another", 1), fast=False)
    assert "log + model" not in {method for method, _ in place.bitstrings().values()}
    told = place.open().shrink(dry_run=True)
    assert (told.fresh, told.shrunk, told.left) == (3, 0, 3) and 0 < told.expected < told.fresh_bytes
    done = place.open().shrink()
    assert (done.fresh, done.shrunk, done.kept, done.left, done.unread) == (3, 3, 0, 0, 0)
    found, wanted = place.bitstrings(), other.bitstrings()
    assert {method for method, _ in found.values()} == {"log + model"}
    assert sorted(found.values()) == sorted(wanted.values())
    assert done.after == sum(len(bits) for _, bits in found.values()) < done.before
    again = place.open().shrink()
    assert (again.fresh, again.shrunk) == (0, 0)


def test_collect_frees_the_old_form_and_all_reads_back(place: Place) -> None:
    for count in (40, 60):
        place.put(request(count), fast=True)
    before = place.pack_bytes()
    place.open().shrink()
    small = place.bitstrings()
    for _ in range(3):
        place.open().collect()
    assert place.bitstrings() == small and place.open().shrink(dry_run=True).fresh == 0 and place.pack_bytes() < before
    place.put(request(80), fast=True)  # below what was shrunk
    place.put(request(120), fast=True)
    assert place.open().shrink().shrunk == 2
    assert {method for method, _ in place.bitstrings().values()} == {"log + model"}
    for version, count in enumerate((40, 60, 80, 120), 1):
        assert place.open().get("log", version=version).value == log(count)
    assert place.open().verify(decode=True).sound


def test_a_log_too_long_for_a_put_by_the_model_is_shrunk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 1000)
    place.put(request(40), fast=False)
    assert "log + model" not in {method for method, _ in place.bitstrings().values()}
    assert place.open().shrink().shrunk == 1 and place.open().get("log").value == log(40)


def test_ids_put_in_a_fast_form_are_shrunk(place: Place, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    theirs = tiny_tokenizer_json()
    ids = Tokenizer.from_str(theirs.decode()).encode(" ".join(PROSE[:60])).ids
    for count in (1000, len(ids)):
        request = PutRequest("ids", Session("ids", ids[:count]), tokenizer=theirs)
        [receipt] = place.open(fast=True).put_many([request])
        assert not receipt.by_model and receipt.method == "ppmd"
    assert place.open().shrink().fresh == 0  # their tokenizer is not here
    told = place.open(tokenizers=[theirs]).shrink()
    assert told.shrunk == told.fresh > 0
    for version, count in ((1, 1000), (2, len(ids))):
        assert place.open(tokenizers=[theirs]).get("ids", version=version).value.tolist() == ids[:count]
    assert place.open(tokenizers=[theirs]).shrink().fresh == 0
    assert place.open(tokenizers=[theirs]).verify(decode=True).sound


def test_chats_come_to_what_a_put_by_the_model_takes(place: Place, tmp_path: Path, key: str | None) -> None:
    other = Place(tmp_path / "other", key)
    said = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(PROSE[:40])]
    prompt = {"role": "system", "content": " ".join(PROSE[40:60])}
    grows = [{"messages": [prompt, *said[:count]]} for count in (4, 8, 40)]
    shares, text = {"messages": [prompt, *said[20:]]}, ". ".join(PROSE[60:])
    requests = [PutRequest("grows", value) for value in grows]
    requests += [PutRequest("shares", shares), PutRequest("text", text)]
    for one in requests:
        [receipt] = place.open(fast=True).put_many([one])
        assert (receipt.method, receipt.by_model) == ("ppmd", False)
        other.put(one, fast=False)
    whole = place.open()
    assert [whole.get("grows", version=n).value for n in (1, 2, 3)] == grows
    fast, small = (sum(len(bits) for _, bits in each.bitstrings().values()) for each in (place, other))
    assert small < fast < 2 * small
    done = place.open().shrink()
    assert done.shrunk == done.fresh == len(place.bitstrings())
    assert sorted(place.bitstrings().values()) == sorted(other.bitstrings().values())
    for one in requests:
        place.put(one, fast=True)  # nothing new, whatever coded it
    assert place.open().shrink().fresh == 0 and place.open().verify(decode=True).sound
    assert place.open().get("text").value == text.encode() and place.open().get("shares").value == shares


def test_the_model_codes_a_small_put_at_once_and_ppmd_a_large_one(tmp_path: Path) -> None:
    cold = Archive.open(tmp_path / "cold", create=True, bundle="nano")
    said = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(PROSE * 4)]
    small, large = said[:9], said[:400]
    assert cold.put("small", small).method == "model"
    many = [PutRequest(f"{n}", said[n : n + 3]) for n in range(150)]
    assert {one.method for one in cold.put_many(iter(many))} == {"ppmd"}
    assert all(one.unchanged for one in cold.put_many(many[:9]))
    assert {cold.put(name, large).method for name in ("small", "large")} == {"ppmd"}
    assert cold.put("log", log(400)).method == "log + ppmd" and cold.put("after it", small).method == "model"
    assert {cold.put(f"ids {n}", [9] * n, prefixes=[4]).method for n in (8192, 8193)} == {"model", "ppmd"}
    for bundled, ways in ((True, {"model"}), (False, {"ppmd"})):
        other = Archive.open(tmp_path / "cold", bundle="nano", model_ids=bundled)
        assert {other.put(f"{bundled}", session).method for session in (small, large)} == ways
    assert cold.get("small").value == large and cold.shrink().fresh > 150
    assert cold.shrink().shrunk == 0 and cold.verify(decode=True).sound and cold.get("small").value == large


def test_the_budget_ends_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(request(40), fast=True)
    told = place.open().shrink(budget=0)
    assert (told.fresh, told.shrunk, told.waiting) == (0, 0, 1)
    with monkeypatch.context() as patch:  # time ends once the pack was looked at
        patch.setattr("pltz.archive.maintenance.shrink.time", SimpleNamespace(monotonic=itertools.count().__next__))
        told = place.open().shrink(budget=1.5)
    assert (told.fresh, told.shrunk, told.left, told.waiting) == (1, 0, 1, 0) and place.open().shrink().shrunk == 1


def test_a_pack_without_work_is_not_read_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(request(40), fast=False)
    before = set(place.open().parts.catalog.listing.packs)
    assert place.open().shrink().fresh == 0
    place.put(request(40, "another", 1), fast=True)
    read, scan = set[bytes](), Listing.scan

    def told(self: Listing, pack: bytes) -> Iterator[Found | Damage]:
        read.add(pack)
        return scan(self, pack)

    monkeypatch.setattr(Listing, "scan", told)
    assert place.open().shrink().shrunk == 1 and len(read) == 1 and not read & before
    assert place.open(bundle="mini").shrink(dry_run=True).fresh == 0 and before < read  # which looks itself


def test_parts_do_all_of_it(place: Place) -> None:
    for seed in range(4):
        place.put(request(50, f"log {seed}", seed), fast=True)
    done = [place.open().shrink(part=WorkPart(number, 2)).shrunk for number in (1, 2)]
    assert sum(done) == 4 and place.open().shrink().fresh == 0


def test_what_was_erased_or_forgotten_stays_so(tmp_path: Path) -> None:
    place = Place(tmp_path / "cold", KEY)
    for seed in range(3):
        place.put(request(50, f"log {seed}", seed), fast=True)
    place.open().erase("log 0", tenant="default")
    place.open().forget("log 1")
    assert place.open().shrink().fresh == 2 and [found.name for found in place.open().list()] == ["log 2"]
    with pytest.raises(NotFound):
        place.open().get("log 0")
    for _ in range(2):
        place.open().collect()
    assert len(place.bitstrings()) == 1
    with pytest.raises(NotFound):
        place.open().undelete("log 1")


def test_without_the_key_it_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path / "cold", KEY)
    place.put(request(40), fast=True)
    with pytest.raises(KeyMismatch):
        Archive.open(place.root).shrink()


@pytest.mark.parametrize("erased", [False, True], ids=["forgotten and freed", "erased"])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "one segment"])
def test_what_goes_meanwhile_does_not_come_back(
    tmp_path: Path, erased: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, copying = Place(tmp_path / "cold", KEY), Publisher.put
    place.put(request(40, "going", 1), fast=True)
    place.put(request(40, "staying", int(shared)), fast=True)
    todo = [1]

    def meanwhile(self: Publisher, *rows: Any, **options: Any) -> None:
        if todo and todo.pop():
            if erased:
                place.open().erase("going", tenant="default")
            else:
                place.open().forget("going")
                for _ in range(2):
                    place.open().collect()
        copying(self, *rows, **options)

    cold = place.open()
    monkeypatch.setattr(Publisher, "put", meanwhile)
    done = cold.shrink()
    monkeypatch.undo()
    assert not todo and done.shrunk + done.left == done.fresh == 2 - shared
    assert [found.name for found in place.open().list()] == ["staying"]
    with pytest.raises(NotFound):
        place.open().undelete("going")
    assert place.open().get("staying").value == log(40, int(shared)) and place.open().verify(decode=True).sound


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_collector_or_a_put_beside_it(place: Place, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(request(40), fast=True)
    copying, beside = Publisher.put, [True]

    def meanwhile(self: Publisher, *rows: Any, **options: Any) -> None:
        first = beside.pop() if beside else False
        if step == "after" or not first:
            copying(self, *rows, **options)
        if first:
            place.put(request(60), request(50, "other", 2), fast=True)
            place.open().collect()
        if step == "before" and first:
            copying(self, *rows, **options)

    cold = place.open()
    monkeypatch.setattr(Publisher, "put", meanwhile)
    done = cold.shrink()
    monkeypatch.undo()
    assert done.shrunk + done.left == done.fresh == 1
    for _ in range(3):
        place.open().collect()
        place.open().shrink()
    assert place.open().shrink().fresh == 0 and {method for method, _ in place.bitstrings().values()} == {"log + model"}
    for version, count in enumerate((40, 60), 1):
        assert place.open().get("log", version=version).value == log(count)
    assert place.open().verify(decode=True).sound


@pytest.mark.parametrize("secret", [None, RAW], ids=["open", "sealed"])
def test_a_crash_leaves_either_form(secret: Secret | None) -> None:
    disk = SimDisk()

    def opened(on: SimDisk) -> Archive:
        return Archive(opener.open_at(DirectoryStore(on), [], key=secret))

    Archive(opener.create(DirectoryStore(disk), [], key=secret))
    for count in (40, 50):
        list(opened(disk).put_many([request(count)]))
    left, outcomes = disk.left_by(opened(disk).shrink), set[int]()
    for state in left:
        cold = opened(SimDisk(state, seed=1))
        for version, count in enumerate((40, 50), 1):
            assert cold.get("log", version=version).value == log(count)
        assert cold.verify(decode=True).sound
        outcomes.add(cold.shrink(dry_run=True).fresh)
    assert outcomes == {0, 2} and len(left) > 5


@pytest.mark.parametrize("fault", [False, True])
def test_what_a_gpu_codes_is_proved_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: bool) -> None:
    place, threads, again = Place(tmp_path / "cold", None), list[str](), list[int]()
    place.put(*(request(60 + n, str(n), n) for n in range(5)), fast=True)
    wanted = Place(tmp_path / "other", None)
    wanted.put(*(request(60 + n, str(n), n) for n in range(5)), fast=False)

    class Twin(NativeCoder):
        def twin(self, *, urgent: bool = False) -> "Twin":
            return self

        def decode(self, items: Any, **options: Any) -> Any:
            threads.append(threading.current_thread().name)
            found = super().decode(items, **options)
            return [ids[::-1] for ids in found] if fault and "Pool" in threads[-1] else found

    proves = Publisher._prove_decoding

    def proving(self: Publisher, rows: Any, new: Any) -> None:
        before = len(threads)
        proves(self, rows, new)
        again.append(len(threads) - before)

    monkeypatch.setattr(Publisher, "_prove_decoding", proving)
    archive = place.open()
    archive.codecs.log._coder.coder.__class__ = Twin
    assert archive.shrink().shrunk == 5
    assert any("Pool" in name for name in threads), (threads, again)
    assert [n > 0 for n in again] == [fault]
    assert {name: bits for name, (_, bits) in place.bitstrings().items()} == {
        name: bits for name, (_, bits) in wanted.bitstrings().items()
    }
