"""The store: KV is found under its ids alone, in the tier where it is, and leaves in one order."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import Span
from pltz.kv.port.receipt import Receipt
from pltz.kv.store import kv_folder
from pltz.kv.store.kv_folder import KVFolder
from pltz.kv.store.store import ANY, FoundKV, KVStore
from pltz.plt_codec.errors import UsageError
from tests.failing import raising
from tests.kv.pool.pages import form, random_kv
from tests.kv.store.conftest import SPACE, Clock, cut_of, kv_of, store_of

CPU = torch.device("cpu")
IDS = list(range(1000, 1200))
KINDS = pytest.mark.parametrize("kind", ["raw", "q8", "q4"])


def keep(store: KVStore, ids: list[int], tenant: str = "acme") -> int:
    return store.keep(tenant, ids, cut_of(ids))


def read(store: KVStore, ids: list[int], tenant: str = "acme") -> FoundKV:
    """Read the KV of ids, and check it."""
    found = store.read(tenant, ids, CPU)
    if found.tokens:
        assert torch.equal(torch.cat(found.pieces, 3), kv_of(ids)[:, :, :, : found.tokens])
    return found


def tiers(store: KVStore, ids: list[int]) -> dict[str, int]:
    """Return tokens of ids by tier, as they lie."""
    nodes = store.trie.path(store._names("acme", ids, "", 0))
    return dict(Counter("host" if node.spilled else "device" for node in nodes))


def lossy(kind: str, blocks: int = 24, folder: Path | None = None) -> KVStore:
    pages = form(kind)
    files = None if folder is None else KVFolder(folder, SPACE, 1 << 24)
    return KVStore(pages, BlockPool(pages, blocks * 16, host_tokens=blocks * 16), files)


@pytest.mark.parametrize(("known", "asked", "found"), [(32, 32, 16), (32, 33, 32), (32, 31, 16), (16, 16, 0)])
def test_a_match_leaves_the_last_id_to_run(known: int, asked: int, found: int) -> None:
    """Its logits are wanted, and no KV has them."""
    store = store_of()
    assert keep(store, IDS[:known]) == known // 16 and read(store, IDS[:asked]).tokens == found
    match = store.match("acme", IDS[:asked])
    assert (0 if match is None else match.tokens) == found
    assert match is None or torch.equal(match.kv(), kv_of(IDS)[:, :, :, :found])


def test_a_tenant_finds_its_own_alone_and_a_session_what_is_kept_apart(tmp_path: Path) -> None:
    store = store_of()
    keep(store, IDS[:64])
    assert not read(store, IDS[:65], "other").tokens and not read(store, IDS[1:66]).tokens
    assert read(store, [*IDS[:50], 7, 7]).tokens == 48
    store.keep("acme", IDS[:32], cut_of(IDS[:32]), apart="one")
    assert store.match("acme", IDS, apart="two") is None
    own = store.match("acme", IDS, apart="one")
    assert own is not None and own.tokens == 32
    store = store_of(tmp_path, blocks=0)
    store.keep("acme", IDS[:32], cut_of(IDS[:32]), apart="one")
    store.close()
    store = store_of(tmp_path, blocks=0)
    assert store.read("acme", IDS, CPU, apart="one").tokens == 32 and not store.read("acme", IDS, CPU).tokens


@KINDS
def test_blocks_are_shared_and_held(kind: str) -> None:
    store = lossy(kind)
    ours = store._pool()
    session = PackedSession.of(random_kv(100), ours, keep=10)  # 5 full blocks and 10 tokens
    assert store.insert("acme", IDS[:100], session) == 5 and store.insert("acme", IDS[:100], session) == 0
    found = store.match("acme", [*IDS[:50], 7, 7, 7], bound=ANY)
    assert found is not None and (found.tokens, found.blocks) == (48, session.blocks[:3])
    before = session.kv()
    assert torch.equal(found.kv(), before[:, :, :, :48])
    assert (store.match("acme", IDS) is None) == (kind != "raw"), "pages that lose something want a bound"
    session.release()
    store.clear()
    assert torch.equal(found.kv(), before[:, :, :, :48])
    with pytest.raises(UsageError, match="ids of all its packed"):
        store.insert("acme", IDS[:20], found)


@KINDS
def test_rows_are_the_same_in_every_tier(kind: str, tmp_path: Path) -> None:
    """Device, host and file, and back."""
    store = lossy(kind, folder=tmp_path)
    session = PackedSession.of(random_kv(96), store._pool(), keep=0)
    store.insert("acme", IDS[:96], session)
    before = session.kv()
    session.release()
    blocker = store._pool().device.allocate(24)
    assert tiers(store, IDS[:96]) == {"host": 6}
    away = store.read("acme", IDS[:97], CPU, bound=ANY)
    assert away.tiers == {"host": 96} and torch.equal(torch.cat(away.pieces, 3), before)
    store._pool().device.release(blocker)
    assert store.read("acme", IDS[:97], CPU, bound=ANY).tiers == {"host": 96}, "where it was, though it moved"
    assert store.read("acme", IDS[:97], CPU, bound=ANY).tiers == {"device": 96} and store.save("acme", IDS[:96])
    store.close()
    for again in (store, lossy(kind, folder=tmp_path)):
        found = again.read("acme", IDS[:97], CPU, bound=ANY)
        assert torch.equal(torch.cat(found.pieces, 3), before)
    assert found.tiers == {"disk": 96} and again.fetch("acme", IDS[:97], bound=ANY) == 96
    assert again.fetch("acme", IDS[:97], bound=ANY) == 0
    match = again.match("acme", IDS[:97], bound=ANY)
    assert match is not None and torch.equal(match.kv(), before)


def test_a_full_device_gives_up_what_was_used_least_ends_first() -> None:
    store = store_of(blocks=8)
    for n in range(2):
        keep(store, [n, *IDS[:63]])
    assert read(store, [0, *IDS[:64]]).tokens == 64  # used last
    held = store.match("acme", [0, *IDS[:31]])  # and a part of it in use
    keep(store, [9, *IDS[:31]])
    assert [read(store, [n, *IDS[:64]]).tokens for n in (1, 0, 9)] == [32, 64, 32]
    with pytest.raises(PoolFull):
        store._pool().device.allocate(8)
    assert held is not None and store.trie.get(store.name("acme", [0, *IDS[:15]])) is not None, "what is in use stays"
    assert torch.equal(held.kv(), kv_of([0, *IDS])[:, :, :, :16]) and store.stats().dropped > 0


def test_a_rank_decides_what_leaves_first() -> None:
    ranks: dict[bytes, float] = {}
    store = store_of(blocks=8, rank=lambda name: ranks.get(name, 0.0))
    for n in range(2):
        keep(store, [n, *IDS[:63]])
    ranks |= dict.fromkeys(store._names("acme", [0, *IDS[:63]], "", 0), 1.0)
    keep(store, [9, *IDS[:63]])
    assert [read(store, [n, *IDS[:64]]).tokens for n in (0, 1, 9)] == [64, 0, 64]


def test_pinned_prefixes_stay_in_memory(tmp_path: Path) -> None:
    store = store_of(tmp_path, blocks=6, host=4)
    keep(store, IDS[:48])
    name = store.name("acme", IDS[:48])
    store.pin(name)
    for seed in range(4):
        keep(store, [seed, *IDS[:63]])
    assert tiers(store, IDS[:48]).get("device") == 3
    store.unpin(name)
    with pytest.raises(UsageError, match="not pinned"):
        store.unpin(name)
    store._pool().device.allocate(6)
    assert not tiers(store, IDS[:48]).get("device")


def test_a_prefix_of_more_blocks_than_python_has_frames_is_forgotten() -> None:
    store, ids = store_of(blocks=1200), list(range(1100 * 16))
    assert keep(store, ids) == 1100
    store.discard("acme", ids)
    assert len(store.trie) == 0 and store._pool().device.free == 1200


# ---- the folder


def test_a_session_of_which_a_part_is_in_host_memory_is_saved_as_it_is(tmp_path: Path) -> None:
    store = store_of(tmp_path, blocks=6, host=6)
    keep(store, IDS[:96])
    store._pool().device.release(store._pool().device.allocate(2))
    assert tiers(store, IDS[:96]) == {"device": 4, "host": 2} and store.save("acme", IDS[:96])
    store.close()
    assert read(store_of(tmp_path, blocks=0), IDS[:97]).tiers == {"disk": 96}


def test_a_store_without_a_pool_keeps_files_and_writes_each_block_once(tmp_path: Path) -> None:
    store = store_of(tmp_path, blocks=0)
    assert keep(store, IDS[:64]) == 4
    store.drain()
    size = store.stats().tiers["disk"].used
    assert keep(store, IDS[:64]) == 0 and keep(store, IDS[:96]) == 2
    store.drain()
    assert read(store, IDS[:97]).tiers == {"disk": 96} and store.stats().tiers["disk"].used < 1.7 * size
    assert read(store, [*IDS[:40], 1]).tokens == 32, "a run serves those who share its beginning"
    with pytest.raises(UsageError, match="no pool"):
        store.match("acme", IDS)


@pytest.mark.parametrize("at", [0, 300, -1])
def test_a_damaged_file_is_a_miss_and_goes(tmp_path: Path, at: int) -> None:
    store = store_of(tmp_path, blocks=0)
    keep(store, IDS[:64])
    store.drain()
    [path] = tmp_path.glob("*/*.safetensors")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()
    path.write_bytes(data)
    for again in (store, store_of(tmp_path, blocks=0)):
        assert not read(again, IDS[:65]).tokens
    assert not path.exists() and keep(store, IDS[:64]) == 4


def forge(paths: Sequence[Path], files: Sequence[Any]) -> None:
    """Put the contents of each of two files under the name of the other, their checksums right."""
    for path, file, mine in zip(paths, reversed(files), files, strict=True):
        path.unlink()
        assert KVFolder(path.parents[1], SPACE, 1 << 20).write(replace(file, name=mine.name))


def test_file_of_other_ids_under_name_of_a_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path, blocks=0)
    for ids in (IDS[:32], IDS[100:132]):
        keep(store, ids)
    store.drain()
    one, other = tmp_path.glob("*/*.safetensors")
    known, again = store_of(tmp_path, blocks=0), store_of(tmp_path, blocks=0)
    assert read(known, IDS[:33]).tokens == 32  # it knows what the files had
    files = [store.folder.read(bytes.fromhex(p.name[:64]), "raw") for p in (one, other)]  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        patch.setattr(KVFolder, "_learn", lambda self, path: None)  # which would find it out at once
        forge((one, other), files)
    for reader in (known, again):
        assert not read(reader, IDS[:33]).tokens and not read(reader, IDS[100:133]).tokens


class Gate(RowForm):
    """Raw rows, whose file waits until it is let go."""

    def __init__(self, store: KVStore) -> None:
        super().__init__(store.pages)
        self.begun, self.go = Event(), Event()
        self.failure: Exception | None = None
        write = store.folder.write  # type: ignore[union-attr]

        def waits(*args: Any) -> bool:
            self.begun.set()
            assert self.go.wait(180)
            if self.failure is not None:
                raise self.failure
            return write(*args)

        store.folder.write = waits  # type: ignore[method-assign, union-attr]


def test_nobody_waits_for_a_file_and_a_full_queue_drops(tmp_path: Path) -> None:
    store = store_of(tmp_path, blocks=0, queue_bytes=3 * kv_of(IDS[:64]).nbytes)
    gate = Gate(store)
    for n in range(5):
        keep(store, [n, *IDS[:63]])
    assert gate.begun.wait(180)
    assert store.stats().dropped == 8, "two of them"
    store.discard("acme", [1, *IDS[:63]])
    gate.go.set()
    store.close()
    assert [read(store, [n, *IDS[:64]]).tokens for n in range(5)] == [64, 0, 64, 0, 0]
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2


@pytest.mark.parametrize("when", ["waits", "is written"])
def test_what_is_discarded_on_its_way_never_reaches_the_disk(tmp_path: Path, when: str) -> None:
    store = store_of(tmp_path, blocks=0)
    gate = Gate(store)
    keep(store, IDS[:64])
    assert gate.begun.wait(180)
    keep(store, IDS[100:164])
    gone = IDS[:64] if when == "is written" else IDS[100:164]
    if when == "is written":
        store.discard("acme", gone)
    else:
        store.clear()
        gone = [*gone, *IDS[:64]]
    gate.go.set()
    store.close()
    assert len(list(tmp_path.glob("*/*.safetensors"))) == (when == "is written")
    assert store.stats().dropped == 0, "what nobody wants is not counted as lost"


def test_an_error_in_the_background_is_counted_and_costs_one_run(tmp_path: Path) -> None:
    store = store_of(tmp_path, blocks=0)
    gate = Gate(store)
    gate.failure = ValueError("a bug")
    gate.go.set()
    keep(store, IDS[:64])
    store.drain()
    found = store.stats()
    assert (found.failed, found.dropped, found.failure) == (4, 4, "ValueError: a bug")
    gate.failure = None
    keep(store, IDS[:64])
    store.drain()
    assert read(store, IDS[:65]).tokens == 64


def test_an_erasure_reaches_every_tier_but_what_others_go_on_from(tmp_path: Path) -> None:
    store = store_of(tmp_path, blocks=12, host=12)
    one, other = [*IDS[:32], *range(32)], [*IDS[:32], *range(100, 132)]
    for ids in (one, other):
        keep(store, ids)
        store.save("acme", ids)
    store.drain()
    store.discard("acme", one)
    assert read(store, [*one, 1]).tokens == 32 and read(store, [*other, 1]).tokens == 64
    for path in tmp_path.glob("*/*.safetensors"):
        assert np.arange(32, dtype=np.int32).tobytes() not in path.read_bytes()
    store.discard("acme", other)
    store.discard("acme", one)
    assert not list(tmp_path.glob("*/*.safetensors")) and not len(store.trie)


def test_a_session_is_erased_by_the_name_of_its_last_block_too(tmp_path: Path) -> None:
    """All files that lead to it go, though its ids are known to nobody."""
    store = store_of(tmp_path, blocks=12)
    one, other = IDS[:96], [*IDS[:32], *range(32)]
    for ids in (one[:48], one, other):
        keep(store, ids)
        store.save("acme", ids)
    store.drain()
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 3
    store.erase(store.name("acme", one))
    assert read(store, [*one, 1]).tokens == 32 and read(store, [*other, 1]).tokens == 64
    [left] = tmp_path.glob("*/*.safetensors")
    own = np.asarray(IDS[32:48], np.int32).tobytes()
    assert own not in left.read_bytes()
    for ids in (one[:48], one):
        keep(store, ids)
        store.save("acme", ids)
    store.drain()
    again = store_of(tmp_path)
    again.erase(again.name("acme", one))
    assert not any(own in path.read_bytes() for path in tmp_path.glob("*/*.safetensors"))


def test_what_is_erased_while_it_is_read_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path)
    keep(store, IDS[:64])
    store.save("acme", IDS[:64])
    store.close()
    again = store_of(tmp_path)
    load = again._load

    def erased(run: Any) -> Any:
        found = load(run)
        again.discard("acme", IDS[:64])
        return found

    monkeypatch.setattr(again, "_load", erased)
    assert again.fetch("acme", IDS[:65]) == 0 and not len(again.trie)


def test_age_and_tenants_end_everywhere(tmp_path: Path) -> None:
    clock = Clock()
    store = store_of(tmp_path, blocks=24, clock=clock)
    for tenant in ("acme", "bolt"):
        keep(store, IDS[:32], tenant)
        store.save(tenant, IDS[:32])
    store.drain()
    store.clear("bolt")
    assert not read(store, IDS[:33], "bolt").tokens and read(store, IDS[:33]).tokens == 32
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 1
    clock.now += 100
    store.expire(101)
    assert read(store, IDS[:33]).tokens == 32
    clock.now += 102
    store.expire(101)
    assert not len(store.trie)
    store._clock = lambda: 1e11  # files have the times of the machine
    store.expire(5)
    assert not list(tmp_path.glob("*/*.safetensors"))


# ---- forms that lose something


class Rounded(RowForm):
    """A form of raw pages that is not exact, measured to lose 0.01 bits, and that codes by attention."""

    def __init__(self) -> None:
        receipt = Receipt("rounded", 0, 64, 8, 64, 8.0, 0.01, 0.0, 0.01, 0.01, 1.0, 0.0, 0.01, 0.03)
        super().__init__(form("raw", 4), receipt)
        self.name, self.exact = "rounded", False

    def encode(self, kv: torch.Tensor, span: Span) -> Any:
        span.observed()
        return super().encode((kv / 4).round() * 4, span)


def test_a_small_form_is_for_those_who_allow_its_loss_and_is_never_coded_again(tmp_path: Path) -> None:
    rounded, bound, mass = Rounded(), Bound.of(0.01), np.ones(97, np.float32)
    store = store_of(tmp_path, form=rounded)
    keep(store, IDS[:64])
    assert not store.save("acme", IDS[:64]), "it codes by the attention, which nobody saw"
    assert store.save("acme", IDS[:64], mass)
    store.close()
    again = store_of(tmp_path, form=rounded)
    assert not read(again, IDS[:65]).tokens, "asked for exact KV it has none"
    assert not again.read("acme", IDS[:65], CPU, bound=Bound.of(0.009)).tokens
    found = again.read("acme", IDS[:65], CPU, bound=bound)
    assert found.tokens == 64 and [form.name for form in found.forms] == ["rounded"]
    assert again.fetch("acme", IDS[:65]) == 0 and again.fetch("acme", IDS[:65], bound=bound) == 64
    assert again.match("acme", IDS[:65]) is None
    match = again.match("acme", IDS[:65], bound=bound)
    assert match is not None and match.lost is rounded
    # What was computed over it is in memory alone, and the exact KV takes its place.
    match.exact = torch.cat([match.exact, kv_of(IDS[:96])[:, :, :, 64:]], 3)
    match.pack(0)
    again.insert("acme", IDS[:96], match, lost=match.lost)
    match.release()
    assert again.match("acme", IDS[:97]) is None
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.safetensors")}
    again.save("acme", IDS[:96], mass)
    again._pool().device.allocate(12)
    again.close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.safetensors")}.keys() == before.keys()
    exact = PackedSession.of(kv_of(IDS[:32]), store._pool(), keep=0)
    store.clear()
    store.insert("acme", IDS[:32], exact)
    assert read(store, IDS[:33]).tokens == 32


def test_small_forms_are_made_of_exact_pages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="raw pages"):
        KVStore(form("q4"), BlockPool(form("q4"), 64), form=Rounded())
    with pytest.raises(UsageError, match="a pool, a folder"):
        KVStore(form("raw"))


def test_a_disk_that_fails_costs_kv_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path, blocks=4)
    with monkeypatch.context() as patch:
        patch.setattr(kv_folder, "KVFileWriter", raising(MemoryError()))
        for n in range(3):
            keep(store, [n, *IDS[:63]])
        store.drain()
    assert store.stats().tiers["disk"].failed and read(store, [2, *IDS[:64]]).tokens == 64


CHILD = """
import os, sys
from pathlib import Path
from tests.kv.store.conftest import cut_of, store_of

store = store_of(Path(sys.argv[1]), blocks=0, disk=1 << 30)
for number in range(200):
    ids = [number, *range(1023)]
    store.keep("acme", ids, cut_of(ids))
while not store.folder.written:
    pass
os._exit(0)
"""


def test_a_killed_process_leaves_whole_files_that_the_next_one_finds(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    store = store_of(tmp_path, blocks=0, disk=1 << 30)
    found = [read(store, [number, *range(1024)]).tokens for number in range(200)]
    assert set(found) <= {0, 1024} and sum(map(bool, found)) == len(list(tmp_path.glob("*/*.safetensors"))) >= 1
    assert store.stats().tiers["disk"].damaged == 0


def test_threads_get_the_kv_of_their_ids_and_no_block_is_lost(tmp_path: Path) -> None:
    """Any calls at once, in tiers that are too small for all."""
    store = store_of(tmp_path, blocks=14, host=8, disk=40_000, queue_bytes=20_000)
    pool = store._pool()
    assert pool.host is not None

    def call(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(400):
            ids = [draw.randrange(3), *range(draw.randrange(16, 90))]
            match draw.choice(("keep", "read", "fetch", "save", "match", "release", "discard", "erase")):
                case "keep":
                    keep(store, ids)
                case "read":
                    read(store, ids)
                case "fetch":
                    store.fetch("acme", ids)
                case "save":
                    store.save("acme", ids)
                case "release":
                    store.release("acme", ids)
                case "match" if (found := store.match("acme", ids)) is not None:
                    assert torch.equal(found.kv(), kv_of(ids)[:, :, :, : found.tokens])
                    found.release()
                case "discard" if draw.random() < 0.2:
                    store.discard("acme", ids)
                case "erase" if draw.random() < 0.2:
                    store.erase(store.name("acme", ids))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(call, range(4)))
    store.close()
    assert store.stats().failed == store.stats().tiers["disk"].damaged == 0
    store.clear()
    assert (pool.device.free, pool.host.free, len(store._own)) == (14, 8, 0)
