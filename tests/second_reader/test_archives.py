"""The second reader reads golden archives, open and sealed, and what the product puts, to the same sessions."""

import itertools
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pltz
from pltz.archive.format.pack import name_in
from pltz.archive.format.parity import Parity
from pltz.archive.format.run import OlderVersion, Run, pack_run
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing import commits, cut, segments
from pltz.coding.codecs.codec import BytesCodec
from pltz.coding.log import above
from pltz.models.session.session import Session
from pltz.plt_codec import limits
from tests.archive.format.test_pack import pack_of
from tests.archive.test_hostile import crafted
from tests.archive.test_long_logs import pictured, recalling
from tests.archive.towers import TowerArchive
from tests.golden.archives.make import FORGOTTEN, GREW, KEY, LOGS, PARTS, SESSIONS, TOLD, TURNS, disk_of, lines, turn
from tests.models import target_tokenizers as targets
from tests.second_reader.archive import Archive, records_of, run_of
from tests.second_reader.bridge import Bridge
from tests.second_reader.fields import Damaged, Newer
from tests.second_reader.model import Bundle, digest
from tests.second_reader.state import Files, files_of, restored
from tests.second_reader.test_second_reader import hugging_face

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = {path.stem: path for path in sorted((ROOT / "tests/golden/archives").glob("*.zip"))}
PLAIN = [name for name in GOLDEN if not name.startswith(("good-grown", "good-logs", "good-parts"))]
ALL = frozenset((name, tuple(tokens)) for (name, _), tokens in SESSIONS.items())
A, B = (FORGOTTEN[0], tuple(SESSIONS[FORGOTTEN])), ("b", tuple(SESSIONS["b", 1]))
LEFT = {"good-deleted-by-collector": ALL - {A}, "good-loss-acknowledged": ALL - {B}, "bad-loss-recorded": ALL - {B}}
BEYOND = {  # what parity does not restore, and what is left
    "bad-pack-and-parity-missing": ALL - {B},
    "bad-record-flipped-and-parity-gone": ALL - {B},
    "bad-footer-and-parity-gone": ALL - {B},
    "bad-shared-prompt-and-parity-missing": frozenset(),
    "bad-pack-of-a-newer-version": ALL - {("a", tuple(SESSIONS["a", 2]))},
}
REFUSED = {
    "bad-manifest-missing": Damaged, "bad-manifest-bit-flipped": Damaged,
    "bad-manifest-and-the-one-before-missing": Damaged, "bad-manifest-of-a-newer-version": Newer,
    "bad-sealed-keys-of-a-newer-version": Newer, "bad-sealed-archive-key-missing": Damaged,
    "bad-sealed-keys-missing": Damaged,
}


@cache
def bundle(name: str) -> Bundle:
    """Return the second reader's bundle of a name."""
    return Bundle(ROOT / "models/bundles" / name)


def golden(name: str) -> dict[str, bytes]:
    """Return the files of a golden archive."""
    with zipfile.ZipFile(GOLDEN[name]) as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def opened(name: str, files: Files, *bundles: str) -> Archive:
    return Archive(files, [bundle(one) for one in bundles], KEY.material if "sealed" in name else b"")


def readable(archive: Archive) -> frozenset[tuple[str, tuple[int, ...]]]:
    """Return name and tokens of the versions that can be read."""
    found = set()
    for session in {session for session, _ in SESSIONS}:
        for version in archive.history(session):
            try:
                found.add((session, tuple(archive.tokens(version))))
            except Damaged:
                assert archive.damage
    return frozenset(found)


@pytest.mark.parametrize("name", PLAIN)
def test_golden_archives(name: str) -> None:
    """Where parity is there, damage of packs takes nothing."""
    files = golden(name)
    if name in REFUSED:
        with pytest.raises(REFUSED[name]):
            readable(opened(name, files))
        return
    archive = opened(name, files)
    assert readable(archive) == {**LEFT, **BEYOND}.get(name, ALL)
    assert bool(archive.damage) == (name in BEYOND or name == "bad-loss-recorded")
    for session in {session for session, _ in SESSIONS}:
        for version in archive.history(session):
            with suppress(Damaged):
                assert archive.forgotten(version) == ((session, tuple(archive.tokens(version))) == A)


@pytest.mark.parametrize("name", ["good", "good-sealed"])
def test_versions_are_those_of_the_product(name: str) -> None:
    files = golden(name)
    archive, key = opened(name, files), KEY if "sealed" in name else None
    product = TowerArchive.open(DirectoryStore(disk_of(files)), [BytesCodec()], key=key)
    for session in {session for session, _ in SESSIONS}:
        found = [
            (v.id, n, v.moment, v.time, v.record.about.tags, archive.forgotten(v))
            for n, v in enumerate(archive.history(session), 1)
        ]
        want = [v for v in product.ls(history=True, forgotten=True) if v.name == session]
        assert found == [(v.id, v.version, v.moment, v.time, dict(v.tags), v.forgotten) for v in want]


@pytest.mark.parametrize("name", ["good-parts", "good-parts-sealed"])
def test_parts(name: str) -> None:
    archive = opened(name, golden(name))
    history, wanted = archive.history("log"), dict[str, list[int]]()
    for moment, each in zip(sorted({version.moment for version in history}), PARTS, strict=True):
        wanted |= each
        state = archive.state(history, moment)
        assert {part: archive.tokens(version) for part, version in state.items()} == wanted
        told = state[""].record.about
        assert (told.title, told.numbers) == (TOLD.title, [*TOLD[1:5], TOLD.last - TOLD.first])


@pytest.mark.parametrize("name", ["good-grown", "good-grown-merged", "good-grown-merged-sealed", "good-grown-ppmd"])
def test_turns_and_runs(name: str) -> None:
    archive = opened(name, golden(name), "mini")
    history = archive.history(GREW)
    assert len(history) == TURNS
    assert [v.lacks for v in history][1:] == ([*range(TURNS - 1)][::-1] if "merged" in name else [0] * (TURNS - 1))
    for number in (2, TURNS - 1) if "merged" in name else (1, 3):
        assert archive.tokens(history[number]) == [token for n in range(number + 1) for token in turn(n)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good-logs", "good-logs-sealed"])
def test_logs(name: str) -> None:
    archive = opened(name, golden(name), "mini")
    for session, steps in LOGS.items() if "sealed" not in name else [("shop/first", LOGS["shop/first"])]:
        for version, (_, end) in zip(archive.history(session), itertools.pairwise(steps), strict=True):
            assert archive.value(version) == lines(steps[0], end)


@pytest.mark.parametrize("lacks", [[2], [1, -1]])
def test_versions_outside_their_run_are_refused(lacks: list[int]) -> None:
    data = pack_run(Run([3, 200], [OlderVersion(n, 5, 5, b"leaf") for n in lacks], b"bits"), 9, 9)
    with pytest.raises(Damaged, match="outside its run"):
        run_of(data, 203, 9)


def test_a_second_header_that_differs_is_damage() -> None:
    """Readers use the first: records are given before it is told."""
    data = crafted(pack_of(200), second_table=9)
    records = records_of(data, bytes(16), name_in(data), None)
    assert [record.name for record in itertools.islice(records, 200)] == [b"s%d" % n for n in range(200)]
    with pytest.raises(Damaged, match="second table or header"):
        next(records)


# ---- parity


@pytest.mark.parametrize("size", [1, 4097, 70_000])
def test_parity_restores_what_it_can(size: int) -> None:
    body = np.random.default_rng(size).bytes(size)
    name = digest("pltz pack", body)
    pack = body + name + bytes(8)
    parity = Parity.of(name, pack).encode()
    gone = {1: len(pack), 4097: 1500, 70_000: 2500}[size]
    assert restored(parity, name, bytes(gone) + pack[gone:]) == pack
    assert restored(parity, name, pack[: len(pack) - gone]) == pack
    if size > 1:
        with pytest.raises(Damaged, match="beyond"):
            restored(parity, name, b"")


# ---- what the product puts

TALK = [{"role": role, "content": text} for role, text in (("system", "You sell bells."), ("user", "Good morning."))]
PUT: dict[str, Any] = {
    "chat": {"messages": TALK, "topic": ["bells", 1.5, None]},
    "list": [*TALK, {"role": "assistant", "content": "\ud800 and \U0001f514", "n": {"": ""}}],
    "text": "The tower keeps what every session has in common.",
    "bytes": b"\0\xff\xfe",
    "ids": np.array([5, 700, 31, 700], np.int32),
}


@pytest.mark.parametrize("secret", [None, "correct horse"], ids=["open", "sealed"])
@pytest.mark.parametrize("long", [False, True], ids=["model", "too long for it"])
def test_what_the_product_puts(secret: str | None, long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "cold"
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 0 if long else limits.ZSTD_ABOVE)
    with pltz.Archive.open(place, create=True, bundle="nano", passphrase=secret) as cold:
        for name, session in PUT.items():
            cold.put(name, session, tenant="acme", tags={"of": name}, base="prompts" if name == "list" else None)
        for count in (3, 4):
            cold.put("chat", {**PUT["chat"], "messages": [*TALK, *TALK][:count]}, tenant="acme", time=count)
        cold.forget("chat", tenant="acme", version=2)
        want = {name: cold.get(name, tenant="acme") for name in PUT}
    archive = Archive(files_of(place), [bundle("nano")], (secret or "").encode())
    assert not archive.damage
    assert [archive.forgotten(version) for version in archive.history("chat", "acme")] == [False, True, False]
    for name, session in want.items():
        last = archive.history(name, "acme")[-1]
        assert (last.id, last.record.about.tags) == (session.id, session.tags)
        assert archive.value(last) == (session.value.tolist() if name == "ids" else session.value)


def test_passages_that_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (above, cut, segments):
        monkeypatch.setattr(module, "REACH", 1 << 12)
    for module in (cut, commits):
        monkeypatch.setattr(module, "LOG_PART", 1 << 11)
    content = pictured(40)
    with pltz.Archive.open(tmp_path / "cold", create=True, bundle="nano") as cold:
        assert cold.put("log", Session("text", content)).tower > 9 and recalling(cold) > 3
    archive = Archive(files_of(tmp_path / "cold"), [bundle("nano")])
    assert archive.value(archive.history("log")[-1]) == content and not archive.damage


def test_ids_of_another_tokenizer(tmp_path: Path) -> None:
    target, second = targets.target("llama2"), bundle("nano")
    page = targets.encode("llama2", targets.PAGE)
    ids = [*page[:100], *page[20:90], *page[30:70]]
    with pltz.Archive.open(tmp_path / "cold", create=True, bundle="nano", merge_turns=False) as cold:
        for end in (100, 170, 210):
            cold.put("ids", np.array(ids[:end], np.int32), tokenizer=target.to_str().encode())
    bridge = Bridge(target.to_str(), second, hugging_face)
    fingerprint = targets.bridge("llama2").fingerprint
    archive = Archive(files_of(tmp_path / "cold"), [second], bridges={fingerprint: bridge})
    history = archive.history("ids")
    assert [archive.value(version) for version in history] == [ids[:end] for end in (100, 170, 210)]
    assert not archive.damage
