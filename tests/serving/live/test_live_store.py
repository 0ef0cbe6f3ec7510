"""The live store: no acknowledged entry is lost or comes twice, whatever ends in between and whoever else appends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pltz.archive import Archive, OsDisk, StoreError
from pltz.archive.errors import LostError
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.worker import drain
from pltz.serving.live.batch import LiveBatch, Stream, entry_of, identity_of, line_of
from pltz.serving.live.store import LiveStore
from tests.watch import noted

KEY = {"project_key": "shop", "session_id": "s1"}
AGENT = {**KEY, "subpath": "subagents/agent-1"}
Opener = Callable[..., LiveStore]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load()


@pytest.fixture
def host(tmp_path: Path, bundle: Bundle) -> Iterator[Opener]:
    """Stores of hosts by name, of one archive. They freeze only when they are told to."""
    opened: list[LiveStore] = []

    def open_(name: str = "a", **options: Any) -> LiveStore:
        store = LiveStore.open(tmp_path / name, tmp_path / "cold", idle=1e6, bundle=bundle, **options)
        opened.append(store)
        return store

    yield open_
    for store in opened:
        if not store._ended.is_set():
            store.close()


def entry(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": name, "message": {"role": "user", "content": f"This is {name}."}, **fields}


def append(store: LiveStore, *names: str, key: dict[str, str] = KEY) -> None:
    asyncio.run(store.append(key, [entry(name) for name in names]))


def loaded(store: LiveStore, key: dict[str, str] = KEY) -> list[str] | None:
    found = asyncio.run(store.load(key))
    return None if found is None else [each["uuid"] for each in found]


def crash(store: LiveStore) -> None:
    """End a store as a kill does: nothing is frozen, and its locks are free."""
    store._ended.set()
    store._thread.join()
    store._journal.close()


def stops(*_: object, **__: object) -> None:
    raise OSError("killed here")


ODD: list[dict[str, Any]] = [
    {}, {"type": "tag", "pltz": "0123456789abcdef"}, {"uuid": "u", "pltz": "0123456789abcdef"},
    {"uuid": 7, "n": 1.0, "big": 10**30},
    {"uuid": "v", "text": "\u2028 \ud800 \r\n é \0", "deep": [[{"a": None}], True]},
]


@pytest.mark.parametrize("value", ODD)
def test_an_entry_comes_back_from_its_line_and_has_an_identity(value: dict[str, Any]) -> None:
    first, second = line_of(value, bytes(8)), line_of(value, b"12345678")
    assert entry_of(first) == value and b"\n" not in first
    assert (identity_of(first) == identity_of(second)) == (value.get("uuid") == "v")


def test_entries_come_back_in_order_from_journal_and_archive(host: Opener) -> None:
    store = host()
    asyncio.run(store.append(KEY, ODD))
    assert asyncio.run(store.load(KEY)) == ODD and store.freeze() == 1 and store.freeze() == 0
    tag = dict[str, Any](type="tag")
    asyncio.run(store.append(KEY, [tag, tag, {"uuid": "v", "type": "repeated"}]))  # the uuid is there already
    asyncio.run(store.append(KEY, [tag]))
    for _ in range(2):
        assert asyncio.run(store.load(KEY)) == [*ODD, tag, tag, tag]
        store.freeze()


def test_calls_that_overlap_stay_in_their_order_and_share_syncs(host: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = host()
    syncs = noted(monkeypatch, OsDisk, "sync_file", lambda _, path: path)
    names = [f"u{number}" for number in range(50)]

    async def all_at_once() -> None:
        await asyncio.gather(*(store.append(KEY, [entry(name)]) for name in names))

    asyncio.run(all_at_once())
    assert loaded(store) == names and len(syncs) < 50


def test_a_kill_loses_nothing_acknowledged(tmp_path: Path, host: Opener) -> None:
    program = f"""
import asyncio, os, signal
from pltz.serving.live.store import LiveStore
store = LiveStore.open({str(tmp_path / "a")!r}, {str(tmp_path / "cold")!r})
asyncio.run(store.append({KEY!r}, [{entry("u1")!r}]))
store.freeze()
asyncio.run(store.append({KEY!r}, [{entry("u2")!r}, {entry("u3")!r}]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    with host() as store:
        assert loaded(store) == ["u1", "u2", "u3"]
    assert not [name for name in os.listdir(tmp_path / "a") if name.endswith((".journal", ".damaged", ".lost"))]
    assert loaded(host("b")) == ["u1", "u2", "u3"]  # closing froze it for all hosts


@pytest.mark.parametrize("step", ["put_many", "mark", "finish"])
def test_a_kill_while_it_freezes_repeats_and_doubles_nothing(
    step: str, host: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tag = host(), dict[str, Any](type="tag")
    asyncio.run(store.append(KEY, [entry("u1"), tag, tag]))
    asyncio.run(store.append(AGENT, [tag]))
    target: Any = store._writing if step == "put_many" else store._backlog
    monkeypatch.setattr(target, step, stops)
    with pytest.raises(OSError, match="killed here"):
        store.freeze()
    crash(store)
    monkeypatch.undo()
    again = host()
    for _ in range(2):
        assert asyncio.run(again.load(KEY)) == [entry("u1"), tag, tag] and asyncio.run(again.load(AGENT)) == [tag]
        again.freeze()


def test_a_failed_sync_is_told_and_the_next_batch_is_kept(host: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = host()
    append(store, "u1")
    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "sync_file", stops)
        with pytest.raises(StoreError, match="cannot be written"):
            append(store, "u2")
    append(store, "u2", "u3")
    assert loaded(store) == ["u1", "u2", "u3"]


def test_hosts_that_append_at_once_lose_nothing(host: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = host("a"), host("b")
    append(a, "base")
    a.freeze()
    append(a, "of a")
    append(b, "of b")
    assert loaded(b) == ["base", "of b"]  # what waits on another host is not seen
    put = a._put
    monkeypatch.setattr(a, "_put", lambda *group: (b.freeze(), put(*group))[1])
    a.freeze()  # it cut its version before that of b was there
    assert loaded(a) == loaded(b) == ["base", "of b", "of a"]
    monkeypatch.undo()
    append(b, "later")
    b.freeze()
    versions = a._versions(a._reading, Stream("shop", "s1"))
    assert len(versions) == 4 and len(versions[-1].tags["pltz.live"].split()) == 2
    assert loaded(a) == loaded(b) == ["base", "of b", "of a", "later"]


def test_a_session_that_froze_often_has_one_head(host: Opener) -> None:
    store, names = host(), [f"u{number}" for number in range(9)]
    for name in names:
        append(store, name)
        store.freeze()
    store._writing.collect(small=1 << 30)
    stream = Stream("shop", "s1")
    found = store._merged(store._reading, store._versions(store._reading, stream), [], stream)
    assert len(found.heads) == 1 and loaded(store) == names


def test_after_a_failure_the_archive_is_opened_anew(host: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = host()
    append(store, "u1")
    monkeypatch.setattr(store._writing, "put_many", stops)
    with pytest.raises(OSError, match="killed here"):
        store.freeze()
    assert store.freeze() == 1 and loaded(store) == ["u1"]


def test_a_deletion_is_kept_as_long_as_what_it_deletes(host: Opener) -> None:
    first, second, other = host("a"), host("a"), {**KEY, "session_id": "s2"}
    append(first, "v1", key=other)
    append(first, "u1")
    asyncio.run(second.delete(KEY))
    for _ in range(2):
        second.freeze(1000)
        assert loaded(first) is None and loaded(first, other) == ["v1"]


def test_summaries_are_those_of_the_sdk_and_nothing_is_decoded(host: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(before: dict[str, Any], key: dict[str, str], entries: list[Any]) -> dict[str, Any]:
        return {**before, "data": {"seen": [*before["data"].get("seen", ()), *(one["uuid"] for one in entries)]}}

    def summaries(store: LiveStore) -> list[Any]:
        with monkeypatch.context() as patched:
            patched.setattr(type(store._reading.sessions), "read_many", None)
            found = asyncio.run(store.list_session_summaries("shop"))
        assert [{k: v for k, v in one.items() if k != "data"} for one in found] == (
            asyncio.run(store.list_sessions("shop")) if found else []
        )
        return [one["data"] for one in found]

    a, b = host("a"), host("b")
    append(a, "u0")
    assert not summaries(a)  # the SDK is not here
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", SimpleNamespace(fold_session_summary=fold))
    append(a, "of an agent", key=AGENT)
    assert summaries(a) == [{"seen": ["u0"]}]
    a.freeze()
    append(a, "of another", key={**AGENT, "subpath": "subagents/agent-2"})
    a.freeze()
    append(a, "u1")
    assert summaries(a) == [{"seen": ["u0", "u1"]}] and summaries(b) == [{"seen": ["u0"]}]
    append(b, "u2")
    a.freeze()
    b.freeze()
    assert summaries(a) == [{"seen": ["u0", "u1", "u2"]}]
    asyncio.run(a.delete(KEY))
    assert not summaries(a)
    append(a, "x" * 2000)
    a.freeze()
    assert not summaries(a)  # too long to go with each version


def test_processes_of_one_host_see_what_waits(host: Opener) -> None:
    first, second = host("a"), host("a")
    append(first, "u1")
    append(second, "u2")
    append(first, "u3")
    assert loaded(first) == loaded(second) == ["u1", "u2", "u3"]
    second.freeze()
    append(first, "u4")
    assert loaded(first) == loaded(second) == ["u1", "u2", "u3", "u4"]


def test_only_idle_sessions_freeze(host: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = host(), {**KEY, "session_id": "s2"}
    append(store, "u1")
    append(store, "v1", key=other)
    append(store, "u2")
    now = store._disk.ticks()
    assert store.freeze(1000) == 0
    monkeypatch.setattr(store._disk, "ticks", lambda: now + (2000 << 20))
    append(store, "v2", key=other)
    assert store.freeze(1000) == 1 and [found.name for found in store._reading.list()] == ["s1"]
    assert (loaded(store), loaded(store, other)) == (["u1", "u2"], ["v1", "v2"])
    assert {each["session_id"] for each in asyncio.run(store.list_sessions("shop"))} == {"s1", "s2"}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_deleted_session_is_gone_and_may_begin_again(
    frozen: bool, sealed: bool, host: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)
    store = host(**{"key_file": tmp_path / "key"} if sealed else {})
    append(store, "u1")
    append(store, "a1", key=AGENT)
    if frozen:
        store.freeze()
    append(store, "u2")
    with monkeypatch.context() as patched:
        patched.setattr(store, "_forget", stops)  # killed between journal and archive
        with pytest.raises(OSError, match="killed here"):
            asyncio.run(store.delete(KEY))
    for _ in range(2):
        assert loaded(store) is None and loaded(store, AGENT) is None
        assert asyncio.run(store.list_sessions("shop")) == [] == asyncio.run(store.list_subkeys(KEY))
        store.freeze()
    assert store._reading.was_erased("s1", tenant="shop") == (sealed and frozen)
    append(store, "u3")
    for _ in range(2):
        assert loaded(store) == ["u3"] and loaded(store, AGENT) is None
        store.freeze()


@pytest.mark.parametrize("whole", [False, True], ids=["session", "tenant"])
def test_what_waits_of_an_erased_session_does_not_come_back(
    whole: bool, host: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)

    def erase(*_: object) -> int:
        with Archive.open(tmp_path / "cold", key_file=tmp_path / "key") as cold:
            cold.erase(*([] if whole else ["s1"]), tenant="shop", everything=whole)
        return 0

    store, other = host(key_file=tmp_path / "key"), host("b", key_file=tmp_path / "key")
    append(store, "u1")
    store.freeze()
    append(store, "quokka")
    append(other, "wombat")
    erase()
    assert loaded(store) is None and not asyncio.run(store.list_sessions("shop"))
    append(store, "u4")
    with monkeypatch.context() as patched:
        patched.setattr(store._backlog, "mark", stops)  # killed between archive and journal
        with pytest.raises(OSError, match="killed here"):
            store.freeze()
    crash(store)
    store = host(key_file=tmp_path / "key")
    assert loaded(store) == ["u4"] == loaded(other)
    append(store, "u5")
    with monkeypatch.context() as patched:
        patched.setattr(store, "_put", lambda group, refused: erase() or LiveStore._put(store, group, refused))
        with pytest.raises(StoreError, match="stays in the journal"):  # erased while it was put
            store.freeze()
    for one in (store, other):
        one.freeze()
        assert loaded(one) is None
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(word in data for data in files for word in (b"quokka", b"wombat", b"u5"))
    append(other, "u6")
    other.freeze()
    assert loaded(store) == ["u6"]


def test_no_word_of_a_deleted_session_stays_in_a_file(host: Opener, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    store, other = (host(key_file=tmp_path / "key") for _ in range(2))  # two processes of one host
    for one in (store, other):
        append(one, "quokka", key=KEY)
        append(one, "of an agent, quokka", key=AGENT)
        append(one, "wombat", key={**KEY, "session_id": "s2"})
    assert b"quokka" in files()
    asyncio.run(store.delete(KEY))
    assert loaded(store) is None and loaded(store, {**KEY, "session_id": "s2"}) == ["wombat"]
    other.freeze(1e6)  # as it does within half a minute
    assert b"quokka" not in files()
    append(store, "more")
    assert loaded(store) == loaded(other) == ["more"]
    store.freeze()
    asyncio.run(store.delete(KEY))
    assert b"more" not in files() and list(store._reading.list("shop"))


def test_a_deleted_sub_agent_is_gone_alone(host: Opener) -> None:
    store, other = host(), {**KEY, "subpath": "subagents/agent-2"}
    append(store, "u1")
    append(store, "a1", key=AGENT)
    append(store, "b1", key=other)
    store.freeze()
    asyncio.run(store.delete(AGENT))
    for _ in range(2):
        assert (loaded(store), loaded(store, AGENT), loaded(store, other)) == (["u1"], None, ["b1"])
        assert asyncio.run(store.list_subkeys(KEY)) == ["subagents/agent-2"]
        store.freeze()


@pytest.mark.parametrize("key", [
    {"project_key": "", "session_id": "s"}, {"project_key": "p", "session_id": "s" * 2000},
    {"project_key": "p", "session_id": "\ud800"}, {"project_key": "p", "session_id": "s", "subpath": "../other"},
])
def test_key_that_archive_cannot_have_is_refused_before_it_is_acknowledged(key: dict[str, str], host: Opener) -> None:
    with pytest.raises(UsageError):
        append(host(), "u1", key=key)


def test_what_is_no_json_and_what_comes_after_the_end_is_refused(host: Opener) -> None:
    store = host()
    with pytest.raises(UsageError, match="of JSON"):
        asyncio.run(store.append(KEY, [{"n": {1, 2}}]))
    store.close()
    with pytest.raises(UsageError, match="closed"):
        append(store, "u1")


def test_a_worker_of_the_hook_leaves_the_journal_alone(host: Opener, tmp_path: Path) -> None:
    store = host()
    append(store, "u1")
    crash(store)
    done = drain(tmp_path / "a", tmp_path / "cold")
    assert done.left and "kind 1" in done.failure and loaded(host()) == ["u1"]


def test_damage_of_the_journal_is_laid_aside_and_the_others_freeze(host: Opener, tmp_path: Path) -> None:
    store = host()
    append(store, "u1")
    append(store, "u2")
    append(store, "u3")
    crash(store)
    [file] = (tmp_path / "a").glob("*.journal")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"This is u2", b"That is u2"))
    again = host()
    again.freeze()
    assert loaded(again) == ["u1", "u3"] and list((tmp_path / "a").glob("*.damaged"))


def test_a_lost_pack_is_an_error_and_no_empty_session(host: Opener, tmp_path: Path) -> None:
    store = host()
    append(store, "u1")
    store.close()
    for pack in [path for path in (tmp_path / "cold" / "packs").rglob("*") if path.is_file()]:
        pack.unlink()
    with pytest.raises(LostError):
        loaded(host("b"))


def test_a_batch_is_its_body_again() -> None:
    batch = LiveBatch(Stream("p", "s", "a"), 5, [], ends={"x": 7}, versions=frozenset({"ab"}))
    assert LiveBatch.decode(batch.encode()) == batch
