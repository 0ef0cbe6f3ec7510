"""Files of KV of a sealed archive serve whoever has the tenant's key, tell nobody else, and end with an erasure."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pltz import PutRequest
from pltz.archive import TENANT
from pltz.archive.encryption.keys import Secret
from pltz.kv.errors import ForeignFile
from pltz.kv.store import kv_file
from pltz.kv.store.kv_folder import IDS, clear_all
from pltz.kv.store.snapshots import Snapshots
from pltz.kv.store.store import KVStore
from pltz.kv.store.trie import names_of, root_of
from pltz.kv.thaw.cache_kv import cut
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError
from tests.archive.towers import SessionArchive, thawer_of
from tests.kv.thaw.test_thawer import DISK, Counted, as_if_new

WORDS = {"one": range(100, 200), "two": range(300, 420)}  # the ids of its sessions
KEY = Secret(b"k" * 32, 0)

Make = Callable[..., SessionArchive]


@pytest.fixture
def make(tmp_path: Path, bundle: Bundle) -> Make:
    def made(name: str = "sealed", key: Secret | None = KEY) -> SessionArchive:
        """Return an archive with two sessions of the tenant "acme", and one of them as "blue" has it."""
        archive = SessionArchive.create(tmp_path / name, [bundle], key=key)
        puts = [PutRequest(one, Session("ids", np.array(ids)), tenant="acme") for one, ids in WORDS.items()]
        list(archive.put([*puts, PutRequest("one", Session("ids", np.array(WORDS["one"])), tenant="blue")]))
        return archive

    return made


@pytest.fixture
def sealed(make: Make) -> SessionArchive:
    return make()


@pytest.fixture
def warm(kin: Target, tmp_path: Path) -> Callable[[], KVStore]:
    return lambda: KVStore.open(kin, **DISK, folder=tmp_path / "warm")


def files(tmp_path: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (tmp_path / "warm").glob("*/*.safetensors")}


def thaw(archive: SessionArchive, target: Target, store: KVStore, name: str, tenant: str = "acme") -> int:
    """Return how many ids a thaw found hot. It is right in any case, and the store has written what it kept."""
    before = store._stats.hit_tokens
    as_if_new(thawer_of(archive, target, store).thaw(name, tenant), target, WORDS[name])
    store.close()
    return store._stats.hit_tokens - before


def test_files_serve_the_next_process_and_tell_nobody_else(
    sealed: SessionArchive, kin: Target, warm: Callable[[], KVStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (thaw(sealed, kin, warm(), "one"), thaw(sealed, kin, warm(), "one", "blue")) == (0, 0)
    found = files(tmp_path)
    assert len(found) == 2 and not any(f".{IDS}." in path.name for path in found)
    names = names_of(root_of("acme"), WORDS["one"], 16)
    kv = kin.prefill(np.array(WORDS["one"]))[0].layers[0].values.numpy()
    said = [np.array(WORDS["one"][:8], "<i4").tobytes(), kv[0, 0, 5].tobytes(), root_of("acme"), *names]
    for path, data in found.items():
        text = data + path.name.encode()
        assert not any(one in text or one.hex().encode() in text for one in said)
    counted = Counted(sealed, kin, monkeypatch)
    assert thaw(sealed, kin, warm(), "one") == 96 and counted.decoded == 100, "so that an erased one is refused"
    assert files(tmp_path).keys() == found.keys()


def by_the_format(data: bytes, key: bytes) -> dict[str, bytes]:
    """Return the tensors of a sealed file, read as FORMAT.md says, with nothing of the product."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    meta = header.pop("__metadata__")
    own = blake2b(bytes.fromhex(meta["salt"]), key=key, digest_size=32, person=b"pltz kv file").digest()
    places = {name: tuple(entry["data_offsets"]) for name, entry in header.items()}
    at = places.pop("checksums")[1]
    rows = [data[end + 16 * n : end + 16 * n + 16] for n in range(at // 16)]
    AESGCM(own).decrypt(bytes(12), rows[0], data[:end])
    head = sum(stop - start for name, (start, stop) in places.items() if not name.startswith("kv"))
    sizes = [1 << 20 if n < size >> 20 else size % (1 << 20) for size in (head, len(data) - end - at - head)
             for n in range(-(-size >> 20))]  # fmt: skip
    plain = bytes(at)
    for number, size in enumerate(sizes, 1):
        chunk = data[end + len(plain) : end + len(plain) + size]
        plain += AESGCM(own).decrypt(number.to_bytes(12, "little"), chunk + rows[number], b"")
    return {name: plain[start:stop] for name, (start, stop) in places.items()}


def test_a_file_is_as_the_format_says(
    sealed: SessionArchive, kin: Target, warm: Callable[[], KVStore], tmp_path: Path
) -> None:
    thaw(sealed, kin, warm(), "one")
    keys = sealed.cold.parts.keys
    owner = keys.domain(TENANT, "acme")
    key, *_ = keys.cache_keys(owner)
    [(path, data)] = files(tmp_path).items()
    tensors = by_the_format(data, key)
    names = names_of(root_of("acme"), WORDS["one"], 16)
    named = blake2b(names[-1], key=key, digest_size=32, person=b"pltz kv name").hexdigest()
    assert path.name == f"{named}.raw.safetensors"
    assert tensors["ids"] == np.arange(100, 196, dtype="<i4").tobytes() and tensors["parent"] == root_of("acme")
    exact = kin.prefill(np.array(WORDS["one"]))[0].layers[0].values[0, :, 7].flatten().tolist()
    stored = torch.frombuffer(bytearray(tensors["kv"]), dtype=torch.float32)
    assert set(exact) <= set(stored.tolist()) and kv_file.owner_of(path) == owner


PLACES: dict[str, Callable[[int], int]] = {  # by the end of the header, which three tags follow
    "header": lambda end: 9,
    "tag of the header": lambda end: end + 3,
    "tag of the ids": lambda end: end + 16 + 3,
    "ids": lambda end: end + 48 + 5,
    "KV": lambda end: -1,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_changed_byte_is_a_miss(
    sealed: SessionArchive, kin: Target, warm: Callable[[], KVStore], tmp_path: Path, place: Callable[[int], int]
) -> None:
    thaw(sealed, kin, warm(), "one")
    [(path, data)] = files(tmp_path).items()
    at = place(8 + int.from_bytes(data[:8], "little"))
    path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at:][1:])
    store = warm()
    assert thaw(sealed, kin, store, "one") == 0 and store.stats().tiers["disk"].damaged == 1
    assert thaw(sealed, kin, warm(), "one") == 96, "written again"


def test_files_of_others_are_not_there_and_stay(
    make: Make, kin: Target, warm: Callable[[], KVStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pass over files of another archive of the same names and ids, and those that were renamed; tell it once."""
    caplog.set_level(logging.INFO, "pltz.kv")
    archives = [make("sealed"), make("other", Secret(b"other" * 9, 0)), make("open", None)]
    for archive in archives:
        assert [thaw(archive, kin, warm(), name) for name in WORDS] == [0, 0]
        told = [row for row in caplog.records if "not used" in row.message]
        assert len(told) == 2 * (archive is not archives[0]), "once per store"
        caplog.clear()
    assert [thaw(archive, kin, warm(), "one") for archive in archives] == [96, 96, 96]
    before = files(tmp_path)
    assert len(before) == 8, "two of each, and the tokens of the open one"
    runs = [path for path in before if path.name.endswith(".raw.safetensors")]
    with pytest.raises(ForeignFile):
        kv_file.peek(next(path for path in runs if kv_file.owner_of(path) != root_of("acme")))
    assert not any(row.levelno >= logging.WARNING for row in caplog.records)
    store = warm()
    thawer_of(archives[0], kin, store)
    for other in archives[1:]:
        with pytest.raises(UsageError, match="another archive"):
            thawer_of(other, kin, store)


def test_an_erasure_ends_the_files_of_its_tenant(
    sealed: SessionArchive, kin: Target, bundle: Bundle, warm: Callable[[], KVStore], tmp_path: Path
) -> None:
    """Reach the files of this process and of others, though the erase is not told of the folder."""
    running = warm()
    for name, tenant in (("one", "acme"), ("two", "acme"), ("one", "blue")):
        thaw(sealed, kin, running, name, tenant)
    copies = files(tmp_path)
    key, *_ = sealed.cold.parts.keys.cache_keys(sealed.cold.parts.keys.domain(TENANT, "acme"))
    SessionArchive.open(tmp_path / "sealed", [bundle], key=KEY).cold.erase("one", tenant="acme")
    again = SessionArchive.open(tmp_path / "sealed", [bundle], key=KEY)
    assert key not in again.cold.parts.keys.cache_keys(again.cold.parts.keys.domain(TENANT, "acme"))
    assert thaw(sealed, kin, running, "two") == 0
    assert thaw(sealed, kin, running, "two") == 120, "by the new key, and its end from memory"
    assert len(files(tmp_path)) == 2 and thaw(sealed, kin, running, "one", "blue") == 96
    for path, data in copies.items():
        path.write_bytes(data)
    assert thaw(again, kin, warm(), "two") == 112 and thaw(again, kin, warm(), "one", "blue") == 96
    assert len(files(tmp_path)) == 2, "what came back does not open"


def test_what_was_read_before_an_erasure_is_not_written_after_it(
    sealed: SessionArchive, kin: Target, bundle: Bundle, warm: Callable[[], KVStore], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    store, own = warm(), SessionArchive.open(tmp_path / "sealed", [bundle], key=KEY)
    thawer, prefill = thawer_of(sealed, kin, store), kin.prefill

    def erased(*args: Any, **options: Any) -> Any:
        own.cold.erase("two", tenant="acme")
        store.admit(own.cold, ["acme"])  # as another thaw does
        return prefill(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(kin, "prefill", erased)
        thawer.thaw("two", "acme")
    store.close()
    assert not files(tmp_path) and store.folder is not None and store.folder.keys is not None
    go, write = Event(), store.folder.write
    monkeypatch.setattr(store.folder, "write", lambda *given: go.wait(60) and write(*given))
    assert store.keep("acme", WORDS["two"], partial(cut, prefill(np.array(WORDS["two"]))[0])) == 7
    monkeypatch.setattr(store.folder.keys, "found", lambda archive, tenants: {b"an owner": None})
    store.admit(sealed.cold, ["acme"])
    go.set()
    store.close()
    assert not files(tmp_path)


def test_a_tenant_is_cleared_from_a_folder_of_many(
    make: Make, kin: Target, warm: Callable[[], KVStore], tmp_path: Path
) -> None:
    sealed, other = make(), make("open", None)
    for archive in (sealed, other):
        for name, tenant in (("one", "acme"), ("one", "blue")):
            thaw(archive, kin, warm(), name, tenant)
    owners = {tenant: sealed.cold.parts.keys.domain(TENANT, tenant) for tenant in ("acme", "blue")}
    clear_all(tmp_path / "warm", ["acme"], sealed.cold)
    left = {kv_file.owner_of(path) for path in files(tmp_path)}
    assert left == {owners["blue"], root_of("blue")}, "what is in the clear may have come from here"
    clear_all(tmp_path / "warm", ["blue"], other.cold)
    assert {kv_file.owner_of(path) for path in files(tmp_path)} == {owners["blue"]}
    clear_all(tmp_path / "warm")
    assert not files(tmp_path)


def test_whole_caches_are_sealed_too(sealed: SessionArchive, kin: Target, tmp_path: Path) -> None:
    ids = np.array(WORDS["one"])
    cache, logits = kin.prefill(ids)

    def opened(*tenants: str) -> Snapshots:
        store = Snapshots(kin, 0, 1 << 26, folder=tmp_path / "warm")
        store.admit(sealed.cold, tenants)
        return store

    opened("acme").keep("acme", ids, cache, logits)
    [(_, data)] = files(tmp_path).items()
    assert b"DynamicLayer" not in data and logits.numpy().tobytes()[:64] not in data
    found = opened("acme", "blue").read("acme", ids, kin.device)
    assert found.tokens == 100 and torch.equal(found.logits, logits)  # type: ignore[arg-type]
    assert opened("acme", "blue").read("blue", ids, kin.device).tokens == 0
    assert opened("blue").read("acme", ids, kin.device).tokens == 0
    opened("blue").keep("acme", ids[:20], cache, logits)
    assert len(files(tmp_path)) == 1, "a tenant without a key keeps none"
    store = opened("acme")
    store.discard("acme", ids)
    assert not files(tmp_path)
