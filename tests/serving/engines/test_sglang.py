"""The storage backend for SGLang's HiCache: pages come back as they were, to the same weights and arrangement alone.

With SGLang installed (0.5.23, without its requirements for GPUs) its own base class, factory and pool of pages are
used. Without it the contract is that of tests/serving/engines/fake_sglang.py.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pltz.plt_codec.errors import ModelError, UsageError
from pltz.serving.engines.sglang_settings import SglangSettings
from tests.serving.engines import fake_sglang
from tests.serving.engines.fake_sglang import PAGE, Pool, config

TARGET = "ab" * 16


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_sglang.install(monkeypatch)


def pool(pages: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Pool:
    found = Pool(pages, dtype)
    found.kv_buffer = torch.randn(found.kv_buffer.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return found


def backend(module: Any, folder: Path, of: Any, *, extra: dict[str, Any] | None = None, **changes: Any) -> Any:
    given = {"folder": str(folder), "bytes": 1 << 20, "target": TARGET, "backend_name": "pltz", **(extra or {})}
    made = module.PltzHiCache(config(given, **changes), {})
    made.register_mem_pool_host(of)
    return made


def places(pages: int) -> torch.Tensor:
    return torch.arange(pages * PAGE)


KEYS = [f"{n:064x}" for n in range(4)]


def test_pages_of_a_pool_come_back_to_the_bit(module: Any, tmp_path: Path) -> None:
    source, copy = pool(4), Pool(4)
    first = backend(module, tmp_path, source)
    assert first.batch_set_v1(KEYS, places(4)) == [True] * 4
    second = backend(module, tmp_path, copy)
    assert second.batch_exists([*KEYS, "more"]) == 4 and not second.exists("more")
    assert second.batch_get_v1(KEYS, places(4)) == [True] * 4
    assert torch.equal(copy.kv_buffer.view(torch.int16), source.kv_buffer.view(torch.int16))


def test_single_pages_and_lists_of_them(module: Any, tmp_path: Path) -> None:
    source = pool(4)
    storage = backend(module, tmp_path, source)
    pages = [source.get_data_page(n * PAGE) for n in range(4)]
    assert storage.set(KEYS[0], pages[0]) and storage.batch_set(KEYS, pages)
    room = [source.get_dummy_flat_data_page() for _ in KEYS]
    found = storage.batch_get([*KEYS[:3], "missing"], room)
    assert all(torch.equal(page, want) for page, want in zip(found[:3], pages, strict=False)) and found[3] is None
    assert storage.get(KEYS[0], room[0]) is room[0] and storage.get(KEYS[0]) is None
    turned = torch.zeros((2, len(pages[0])), dtype=torch.bfloat16).T[:, 0]  # not contiguous
    assert storage.get(KEYS[1], turned) is turned and torch.equal(turned, pages[1])
    assert not storage.set("nothing") and not storage.batch_set(["nothing"])


def test_a_damaged_page_ends_the_beginning_that_is_served(module: Any, tmp_path: Path) -> None:
    source, copy = pool(4), Pool(4)
    storage = backend(module, tmp_path, source)
    assert all(storage.batch_set_v1(KEYS, places(4)))
    path = storage._pages._path(module._name(KEYS[2]))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    reader = backend(module, tmp_path, copy)
    assert reader.batch_get_v1(KEYS, places(4)) == [True, True, False, False]
    assert not copy.kv_buffer[:, :, 2 * PAGE :].any()  # no byte of it reached the pool
    assert reader.batch_exists(KEYS) == 2


@pytest.mark.parametrize(
    ("extra", "changes", "dtype"),
    [
        ({"target": "cd" * 16}, {}, torch.bfloat16),
        ({"variant": "rope_theta=1e6"}, {}, torch.bfloat16),
        ({"kv_dtype": "fp8_e4m3"}, {}, torch.bfloat16),
        ({}, {"tp_size": 2, "tp_rank": 1}, torch.bfloat16),
        ({}, {"pp_size": 2}, torch.bfloat16),
        ({}, {"model_name": "model-tag"}, torch.bfloat16),
        ({}, {}, torch.float16),
    ],
)
def test_nothing_crosses_weights_ranks_or_types(
    module: Any, tmp_path: Path, extra: dict[str, Any], changes: dict[str, Any], dtype: torch.dtype
) -> None:
    assert all(backend(module, tmp_path, pool(4)).batch_set_v1(KEYS, places(4)))
    other = backend(module, tmp_path, Pool(4, dtype), extra=extra, **changes)
    assert other.batch_exists(KEYS) == 0 and other.batch_get_v1(KEYS, places(4)) == [False] * 4


@pytest.mark.parametrize(
    "changes", [{"dtype": torch.float16}, {"temporal_dtype": torch.float16}, {"temporal_state_shape": (3, 8)}]
)
def test_nothing_crosses_the_forms_of_pools_beside_the_kv(
    module: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Numbers of another type, in a page of the same size, are other numbers."""
    classes: Any = sys.modules[fake_sglang.STORAGE]
    transfer = classes.PoolTransfer(name="mamba", host_indices=places(4), keys=KEYS)
    found = []
    for changed in ({}, {}, changes):
        storage, side = backend(module, tmp_path, pool(4)), pool(4, seed=3)
        vars(side).update(changed)
        storage.register_mem_host_pool_v2(side, "mamba")
        found.append(storage.batch_get_v2([transfer])["mamba"] == [True] * 4)
        assert all(storage.batch_set_v1(KEYS, places(4)))
        assert storage.batch_exists_v2(KEYS, [transfer]).kv_hit_pages == (4 if found[-1] else 0)
        assert storage.batch_set_v2([transfer]) == {"mamba": [True] * 4}
    assert found == [False, True, False]


def test_ranks_that_replicate_their_kv_share_it(module: Any, tmp_path: Path) -> None:
    mla: dict[str, Any] = {"is_mla_model": True, "tp_size": 2}
    writer = backend(module, tmp_path, pool(4), **mla)
    reader = backend(module, tmp_path, Pool(4), tp_rank=1, **mla)
    for storage in (writer, reader):
        storage.register_mem_host_pool_v2(pool(4, seed=7), "mamba")
    assert all(writer.batch_set_v1(KEYS, places(4))) and all(reader.batch_get_v1(KEYS, places(4)))
    transfer = sys.modules[fake_sglang.STORAGE].PoolTransfer(
        name="mamba", host_indices=places(4), keys=KEYS
    )
    assert writer.batch_set_v2([transfer]) == {"mamba": [True] * 4}
    assert reader.batch_get_v2([transfer]) == {"mamba": [False] * 4}  # a state of each rank


def test_pools_beside_the_kv_bound_what_can_be_restored(module: Any, tmp_path: Path) -> None:
    classes: Any = sys.modules[fake_sglang.STORAGE]
    storage = backend(module, tmp_path, pool(4))
    side = pool(4, seed=3)
    storage.register_mem_host_pool_v2(side, "swa")
    assert all(storage.batch_set_v1(KEYS, places(4)))
    some = classes.PoolTransfer(name="swa", host_indices=places(2), keys=KEYS[1:3])
    assert storage.batch_set_v2([some]) == {"swa": [True, True]}
    trailing = classes.PoolTransfer(name="swa", keys=["x"], hit_policy=classes.PoolHitPolicy.TRAILING_PAGES)
    found = storage.batch_exists_v2(KEYS, [trailing])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [2, 3])
    assert found.extra_pool_hit_pages == {"kv": 4, "swa": 3}
    every = classes.PoolTransfer(name="swa", keys=KEYS)
    assert storage.batch_exists_v2(KEYS, [every]).kv_hit_pages == 0
    assert storage.batch_exists_v2(KEYS).kv_hit_pages == 4
    back = pool(4, seed=9)
    reader = backend(module, tmp_path, Pool(4))
    reader.register_mem_host_pool_v2(back, "swa")
    assert reader.batch_get_v2([some]) == {"swa": [True, True]}
    assert torch.equal(back.kv_buffer[:, :, : 2 * PAGE], side.kv_buffer[:, :, : 2 * PAGE])


def test_a_policy_that_is_not_known_is_a_miss_and_no_error(
    module: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error would reach SGLang's threads, which serve every other request."""
    classes: Any = sys.modules[fake_sglang.STORAGE]
    storage = backend(module, tmp_path, pool(4))
    assert all(storage.batch_set_v1(KEYS, places(4)))
    groups = classes.PoolTransfer(name="swa", keys=KEYS, hit_policy=classes.PoolHitPolicy.BLOCK_GROUPS)
    for _ in range(2):
        found = storage.batch_exists_v2(KEYS, [groups])
        assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
        assert found.extra_pool_hit_pages == {"kv": 4}
    assert [one.message.count("another storage backend") for one in caplog.records] == [1]
    assert storage.batch_exists_v2(KEYS).kv_hit_pages == 4


def test_places_that_do_not_fit_move_nothing(module: Any, tmp_path: Path) -> None:
    storage = backend(module, tmp_path, pool(4))
    assert storage.batch_set_v1(KEYS, places(3)) == [False] * 4
    missing = sys.modules[fake_sglang.STORAGE].PoolTransfer(name="swa", keys=KEYS)
    assert storage.batch_get_v2([missing]) == {"swa": [False] * 4}


def test_clear_and_close(module: Any, tmp_path: Path) -> None:
    storage = backend(module, tmp_path, pool(4))
    other = backend(module, tmp_path, pool(4), tp_rank=1, tp_size=2)
    assert all(storage.batch_set_v1(KEYS, places(4))) and all(other.batch_set_v1(KEYS, places(4)))
    storage.clear()
    assert storage.batch_exists(KEYS) == 0 and other.batch_exists(KEYS) == 4
    storage.close()
    assert storage.batch_set_v1(KEYS, places(4)) == [False] * 4 and not storage.exists(KEYS[0])


def test_a_server_does_not_start_with_what_cannot_be(module: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fp8_e4m3"):
        backend(module, tmp_path, Pool(1, torch.uint8))
    assert backend(module, tmp_path, Pool(1, torch.uint8), extra={"kv_dtype": "fp8_e5m2"})
    with pytest.raises(UsageError, match="tp_lcm_size"):
        backend(module, tmp_path, Pool(1), should_split_heads=True)
    with pytest.raises(ModelError, match="fingerprint"):
        module.PltzHiCache(config({"folder": str(tmp_path), "bytes": 1}, model_name=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "bytes is missing"),
        ({"folder": "x"}, "bytes is missing"),
        ({"folder": "", "bytes": 1}, "name a folder"),
        ({"folder": "x", "bytes": 0}, "above 0"),
        ({"folder": "x", "bytes": "1"}, "expected bytes"),
        ({"folder": "x", "bytes": 1, "budget": 2}, "'budget'"),
        ({"folder": "x", "bytes": 1, "target": "xy"}, "32 hex digits"),
        ({"folder": "x", "bytes": 1, "variant": 3}, "expected variant"),
    ],
)
def test_settings_are_checked(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"extra-config: .*{message}"):
        SglangSettings.parse(given)


@pytest.mark.skipif(not fake_sglang.REAL, reason="needs SGLang's package")
@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_sglangs_factory_makes_it_and_its_pool_moves_through_it(module: Any, tmp_path: Path, layout: str) -> None:
    """Keep and read pages of SGLang's own host pool, through the backend that SGLang's factory loads."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    extra = {
        "backend_name": "pltz", "module_path": "pltz.serving.engines.sglang_storage", "class_name": "PltzHiCache",
        "interface_v1": 1, "folder": str(tmp_path), "bytes": 1 << 20, "target": TARGET,
    }  # fmt: skip
    pools = []
    for _ in range(2):
        host = MHATokenToKVPoolHost.__new__(MHATokenToKVPoolHost)  # its own constructor needs a pool on a device
        host.layout, host.page_size, host.layer_num, host.head_num, host.head_dim = layout, PAGE, 3, 2, 4
        host.dtype, host.device, host.pin_memory, host.size = torch.bfloat16, "cpu", False, 4 * PAGE
        shape = {
            "layer_first": (2, 3, 4 * PAGE, 2, 4),
            "page_first": (2, 4 * PAGE, 3, 2, 4),
            "page_first_direct": (2, 4, 3, PAGE, 2, 4),
        }[layout]
        host.kv_buffer = torch.randn(shape).to(torch.bfloat16)
        pools.append(host)
    made = [StorageBackendFactory.create_backend("dynamic", config(dict(extra)), host) for host in pools]
    for storage, host in zip(made, pools, strict=True):
        storage.register_mem_pool_host(host)
        storage.on_host_pools_registered()
        assert isinstance(storage, HiCacheStorage) and storage.get_stats() is None
    assert made[0].batch_set_v1(KEYS, places(4)) == [True] * 4
    assert made[1].batch_get_v1(KEYS, places(4)) == [True] * 4
    assert torch.equal(pools[0].kv_buffer, pools[1].kv_buffer)


@pytest.mark.skipif(not fake_sglang.REAL, reason="needs SGLang's package")
def test_every_call_takes_what_sglangs_own_class_takes(module: Any) -> None:
    """Compare names and defaults of all arguments with those of SGLang's base class."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    for name, method in vars(module.PltzHiCache).items():
        if not name.startswith("_") and hasattr(HiCacheStorage, name):
            ours, theirs = (
                [(p.name, p.default) for p in inspect.signature(f).parameters.values()]
                for f in (method, getattr(HiCacheStorage, name))
            )
            assert ours == theirs, name
