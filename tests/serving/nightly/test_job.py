"""A night and the nights after it: new sessions are frozen, known ones cost nothing, bad ones are named and skipped."""

import errno
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pltz.archive.archive import Archive
from pltz.archive.errors import Fenced, FullError, StoreError
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.put_request import PutRequest
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import BundleCodec, BytesCodec, PpmdCodec
from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import PltzError, UsageError, VersionError
from pltz.plt_codec.limits import MAX_BYTES
from pltz.serving.nightly import config, freeze, job
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.sources import jsonl
from tests.archive.maintenance.test_shrink import log
from tests.archive.towers import SessionArchive, TowerArchive
from tests.failing import raising
from tests.serving.nightly.conftest import Nightly, chat, lines
from tests.watch import noted


def test_what_is_known_costs_no_coding(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(10))))
    nightly.write("chats/deep/b.jsonl.gz", gzip.compress(lines(map(chat, range(10, 15)))))
    nightly.write("chats/c.ndjson.zst", zstandard.compress(lines(map(chat, range(15, 20)))))
    nightly.write("chats/notes.txt", b"no sessions here")
    assert nightly.counts() == (20, 0, 0, 0)
    assert nightly.content() == {("default", f"chat-{n}"): [json.dumps(chat(n))] for n in range(20)}
    refuse = raising(AssertionError("encoded or decoded"))
    for codec in (BundleCodec, BytesCodec):
        monkeypatch.setattr(codec, "encode", refuse)
        monkeypatch.setattr(codec, "decode", refuse)
    assert nightly.counts() == (0, 20, 0, 0)


def test_what_changed_is_a_new_version_and_what_moved_is_known(nightly: Nightly) -> None:
    path = nightly.write("chats/a.jsonl", lines(map(chat, range(4))))
    nightly.counts()
    path.write_bytes(lines([chat(9), chat(0), chat(1, 2), chat(3), chat(2)]))
    path.rename(path.with_name("z.jsonl"))
    assert nightly.counts() == (2, 3, 0, 0)
    assert nightly.content()["default", "chat-1"] == [json.dumps(chat(1)), json.dumps(chat(1, 2))]
    assert nightly.content()["default", "chat-9"] == [json.dumps(chat(9))]


def test_one_bad_session_is_named_and_the_others_go_on(nightly: Nightly) -> None:
    image = {"id": "i", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    bad: list[Any] = [image, {"messages": []}, {"id": "n" * 100_000}, {"id": "\ud800", "messages": []}]
    good = list(map(chat, range(6)))
    ascii_lines = b"".join(json.dumps(b).encode() + b"\n" for b in bad)
    nightly.write("chats/a.jsonl", lines(good[:3]) + b"{half\n\xff\xfe\n" + ascii_lines + lines(good[3:]))
    nightly.write("chats/b.jsonl.gz", gzip.compress(lines(map(chat, range(6, 2000))))[:-100])
    report = nightly.run()
    assert report["exit_code"] == 5 and not report["failures"]
    wheres = [r["where"] for r in report["refused"]]
    assert sorted(wheres)[:6] == [f"a.jsonl:{n}" for n in range(4, 10)]
    assert len(wheres) == 7 and any("b.jsonl.gz" in where for where in wheres)
    reasons = {r["where"]: r["reason"] for r in report["refused"]}
    assert "JSON" in reasons["a.jsonl:4"] and "UTF-8" in reasons["a.jsonl:5"] and "image" in reasons["a.jsonl:6"]
    assert "'id'" in reasons["a.jsonl:7"]
    content = nightly.content()
    assert {("default", f"chat-{n}") for n in range(6)} <= set(content)
    assert report["totals"]["frozen"] == len(content) > 6
    files = sorted(p.name for p in (nightly.root / "state/quarantine").iterdir())
    assert files == sorted(r["id"] for r in report["refused"]) and nightly.counts() == (0, len(content), 7, 5)
    nightly.write("chats/a.jsonl", lines(good))
    (nightly.root / "chats/b.jsonl.gz").unlink()
    assert nightly.counts() == (0, 6, 0, 0) and not list((nightly.root / "state/quarantine").iterdir())


def test_a_session_over_the_limit_is_counted_with_its_reason(nightly: Nightly) -> None:
    long = json.dumps({"id": "long", "text": "x" * MAX_BYTES}).encode() + b"\n"
    nightly.write("chats/a.jsonl", lines([chat(1)]) + long + lines([chat(3)]))
    [refused] = nightly.run()["refused"]
    assert refused["where"] == "a.jsonl:2" and f"at most {MAX_BYTES} bytes, found more: split it" in refused["reason"]
    assert set(nightly.content()) == {("default", "chat-1"), ("default", "chat-3")}


def test_a_source_that_is_not_there_does_not_stop_the_others(nightly: Nightly) -> None:
    nightly.sources = '[[source]]\nkind = "sqlite"\npath = "no.db"\nquery = "SELECT 1"\n' + nightly.sources
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    report = nightly.run()
    assert report["exit_code"] == 7 and "no.db" in report["failures"][0] and report["totals"]["frozen"] == 1


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(3))) + b"no\n")
    nightly.rest = "[collect]\n[[retention]]\nkeep_last = 1\n[verify]\n"
    before = files(nightly.root / "cold")
    assert nightly.counts(dry_run=True) == (3, 0, 1, 5)
    assert files(nightly.root / "cold") == before and not (nightly.root / "state").exists()
    nightly.run()
    assert nightly.counts(dry_run=True) == (0, 3, 1, 5)


def files(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_the_index_of_words_is_up_to_date_in_the_morning(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(3))))
    assert nightly.run()["words"] is None
    nightly.head += "words = true\n"
    words = nightly.run()["words"]
    assert words["left_out"] == 0 and words["bytes"] > 0
    told: list[tuple[int, int]] = []
    with Archive.open(nightly.root / "cold", bundle=nightly.bundle) as cold:
        assert [hit.name for hit in cold.search("4", progress=lambda *counts: told.append(counts))] == ["chat-2"]
    assert not told


def test_retention_collects_and_verifies(nightly: Nightly) -> None:
    nightly.rest = '[[retention]]\nkeep_last = 1\ntenant = "default"\n[collect]\ngrace = "0s"\n[verify]\nruns = 1\n'
    for turns in (1, 2, 3):
        nightly.write("chats/a.jsonl", lines(chat(n, turns) for n in range(5)))
        report = nightly.run()
    assert report["retention"] == {"versions": 15 - 5, "forgotten": 5} or report["retention"]["forgotten"] == 5
    assert report["collect"]["condemned"] and report["verify"]["sound"] and report["verify"]["decoded"]
    report = nightly.run()
    assert report["collect"]["deleted"] and report["exit_code"] == 0
    assert nightly.content() == {("default", f"chat-{n}"): [json.dumps(chat(n, 3))] for n in range(5)}


@pytest.mark.parametrize("rest", ["", '[collect]\ngrace = "0s"\n', '[shrink]\nbudget = "0s"\n'])
def test_what_was_put_the_fast_way_is_shrunk(nightly: Nightly, rest: str) -> None:
    nightly.rest, nightly.head = rest, nightly.head.replace(nightly.bundle, "nano")
    (nightly.root / "logs").mkdir()
    (nightly.root / "logs" / "a.jsonl").write_bytes(log(50))
    nightly.sources = '[[source]]\nkind = "agent-logs"\npath = "logs"\n'
    report = nightly.run()
    assert report["exit_code"] == 0 and report["totals"]["frozen"] == 1
    if "shrink" in rest:
        assert report["shrink"] is report["collect"] is None
        return
    assert (report["shrink"]["fresh"], report["shrink"]["shrunk"], report["shrink"]["left"]) == (1, 1, 0)
    assert report["collect"]["condemned"]
    report = nightly.run(dry_run=True)
    assert report["shrink"]["shrunk"] == 0 and report["collect"]  # which is to free what it condemned


def test_damage_in_the_sample_is_said(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(5))))
    nightly.run()
    [pack] = (nightly.root / "cold/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    nightly.rest = "[verify]\n"
    report = nightly.run()
    assert report["exit_code"] == 3 and report["verify"]["problems"]


def test_a_full_disk_of_the_state_folder_is_named_and_what_was_done_is_told(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "_staged", full(DirectoryStore._staged, ("receipts/", "reports/")))
        report = nightly.run()
    assert report["exit_code"] == 7 and report["totals"]["frozen"] == 1 and "report" not in report
    for told, what in zip(report["failures"], ("receipts/", "reports/"), strict=True):
        assert f"cannot write {what}" in told and f"in the state folder {nightly.root / 'state'}" in told
        assert "the disk is full" in told and "the archive is as it was" not in told
    assert nightly.counts() == (1, 0, 0, 0), "the next run sees it again"
    assert nightly.run()["told"] == []
    (nightly.root / "chats/a.jsonl").unlink()
    assert "no session was found" in nightly.run()["told"][0]


def full(staged: Callable[..., Any], folders: tuple[str, ...]) -> Callable[..., Any]:
    """Return a way to stage files on a disk that has no room for those of some folders."""

    def stage(store: DirectoryStore, name: str, data: bytes) -> Any:
        if name.startswith(folders):
            exc = OSError(errno.ENOSPC, "No space left on device")
            raise FullError(f"cannot write {name}: the disk is full; the archive is as it was") from exc
        return staged(store, name, data)

    return stage


def test_a_sealed_archive(nightly: Nightly) -> None:
    from pltz.archive.encryption.keys import Secret

    key = nightly.write("key", bytes(range(32)))
    key.chmod(0o600)
    nightly.head = nightly.head.replace('"cold"', '"sealed"') + 'key_file = "key"\n'
    SessionArchive.create(nightly.root / "sealed", nightly.bundles, key=Secret.file(key))
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    nightly.rest = "[verify]\n"
    assert nightly.counts() == (1, 0, 0, 0)
    sealed = SessionArchive.open(nightly.root / "sealed", nightly.bundles, key=Secret.file(key))
    assert sealed.get("chat-1").value == chat(1)
    # what was erased stays erased, also where it grew, and is said
    sealed.archive.erase("default", "chat-1")
    nightly.write("chats/a.jsonl", lines([chat(1, turns=3), chat(2)]))
    assert nightly.run()["totals"]["left_out"] == {"erased before": 1}
    later = SessionArchive.open(nightly.root / "sealed", nightly.bundles, key=Secret.file(key))
    assert [v.name for v in later.archive.ls()] == ["chat-2"]


def test_another_archive_with_the_same_state_gets_everything(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    nightly.run()
    SessionArchive.create(nightly.root / "new", nightly.bundles)
    nightly.head = nightly.head.replace('"cold"', '"new"')
    assert nightly.counts() == (1, 0, 0, 0)


def test_a_lost_state_folder_changes_nothing_in_the_archive(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines([chat(1), chat(2)]))
    nightly.run()
    before = nightly.content()
    (nightly.root / "state").rename(nightly.root / "elsewhere")
    report = nightly.run()
    assert report["totals"]["frozen"] == report["totals"]["unchanged"] == 2 and nightly.content() == before


@pytest.mark.parametrize("error", [StoreError("the disk is full"), VersionError("a newer pack: the disk is full")])
def test_what_is_no_fault_of_a_session_ends_a_shard_and_the_next_run_goes_on(
    error: PltzError, nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(9))))
    monkeypatch.setattr(freeze, "BATCH_SESSIONS", 3)
    real, calls = ArchiveWriter.put, []

    def full(self: ArchiveWriter, sessions: Any, **options: Any) -> Any:
        calls.append(len(sessions))
        if len(calls) == 2:
            raise error
        return real(self, sessions, **options)

    monkeypatch.setattr(ArchiveWriter, "put", full)
    report = nightly.run()
    assert report["exit_code"] == 7 and "the disk is full" in report["failures"][0]
    assert (report["totals"]["frozen"], report["refused"]) == (3, []) and nightly.counts() == (6, 3, 0, 0)


def test_a_commit_that_a_collector_overtook_is_put_again(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(4))))
    real, calls = ArchiveWriter.put, []

    def overtaken(self: ArchiveWriter, sessions: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) <= patience:
            raise Fenced("a collector went on without this writer")
        return real(self, sessions, **options)

    monkeypatch.setattr(ArchiveWriter, "put", overtaken)
    patience = 100
    report = nightly.run()
    assert report["exit_code"] == 7 and "Fenced" in report["failures"][0] and len(calls) == freeze.TRIES
    calls.clear()
    patience = 2
    assert nightly.counts() == (4, 0, 0, 0) and len(calls) == 3


def test_what_is_no_archive_is_said_before_anything_is_done(nightly: Nightly) -> None:
    nightly.head = nightly.head.replace('"cold"', '"nowhere"')
    with pytest.raises(UsageError, match="no archive at"):
        nightly.run()
    assert not (nightly.root / "state").exists()


def test_the_bundle_that_ships_freezes_a_sample(tmp_path: Path) -> None:
    """With the real model, once: the ratio is what it is for, and the sessions come back."""
    from pltz.datasets import sample_sessions
    from pltz.serving.nightly import config, job

    chats = [session.value for session in sample_sessions()[:2]]
    (tmp_path / "a.jsonl").write_bytes(lines(chats))
    cold = SessionArchive.create(tmp_path / "cold", [Bundle.load()])
    (tmp_path / "n.toml").write_text('archive = "cold"\nstate = "s"\n[[source]]\nkind = "jsonl"\npath = "a.jsonl"\n')
    total = job.run(config.load(tmp_path / "n.toml"))["totals"]
    assert (total["frozen"], total["by_model"]) == (2, 2) and total["ratio"] > 4
    cold = SessionArchive.open(tmp_path / "cold", [Bundle.load()])
    assert [cold.get(f"a/{n}").value for n in (1, 2)] == chats


def test_retention_forgets_nothing_where_an_older_manifest_came_back(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another night of this machine put a version after the look, and then the manifest of before it came back."""
    shutil.rmtree(nightly.root / "cold")
    TowerArchive.create(nightly.root / "cold", [])
    manifest, kept, forgotten = nightly.root / "cold/manifest", nightly.root / "kept", job._NightlyRun._forgotten

    def freeze(turns: int) -> dict[str, Any]:
        nightly.write("chats/a.jsonl", lines([chat(0, turns)]))
        return nightly.run()

    for turns in (1, 2):
        freeze(turns)
    todo = [True]

    def delayed(*args: Any) -> int:
        if todo:
            todo.clear()
            shutil.copytree(manifest, kept)
            cold = SessionArchive.open(nightly.root / "cold", nightly.bundles)
            assert list(cold.put([PutRequest("chat-0", chat(0, 5))]))
            shutil.rmtree(manifest)
            shutil.copytree(kept, manifest)
        return forgotten(*args)

    monkeypatch.setattr(job._NightlyRun, "_forgotten", delayed)
    nightly.rest = "[[retention]]\nkeep_last = 1\n"
    assert freeze(3)["retention"] is None
    Repairer(DirectoryStore(OsDisk(nightly.root / "cold"))).run()
    assert nightly.content()["default", "chat-0"][-1] == json.dumps(chat(0, 5))


def test_sessions_of_one_shard_grow_in_the_next_without_being_decoded(
    trained_nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [session.value for session in sample_sessions() if session.kind == "chat"]
    long = [one["messages"] for one in values if isinstance(one, dict) and len(one.get("messages", ())) > 8][:4]

    def chats(turns: int) -> bytes:
        return lines({"id": f"chat-{n}", "messages": one[:turns]} for n, one in enumerate(long))

    for turns in (6, 7):
        trained_nightly.write(f"chats/{turns}.jsonl", chats(turns))
    monkeypatch.setattr(jsonl, "SHARD_SESSIONS", 1)
    settings = config.load(trained_nightly.file)
    [source] = settings.source
    first, second = source.shards(0)
    monkeypatch.setattr("pltz.coding.log.log_look.LEAST", 1 << 40)  # a chat of short turns looks like a log
    decoded = noted(monkeypatch, PpmdCodec, "decode", lambda _, batch: [coded.count for coded in batch], flat=True)
    freezer, another = Freezer(settings), Freezer(settings)
    freezer.state.make()
    assert freezer.freeze(first).frozen == 4 and another.freeze(second).frozen == 4
    trained_nightly.write("chats/8.jsonl", chats(8))
    *_, third = source.shards(0)
    decoded.clear()
    assert another.freeze(third).frozen == 4
    assert 0 < sum(decoded) < 1000  # what is new, decoded back
    assert [(v.name, v.version) for v in another.open().directory.ls()] == [(f"chat-{n}", 3) for n in range(4)]
