"""The port of an engine: sessions of any of them leave by their ids, come back by them, and only to their weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.format.ids import Tokens
from pltz.kv.thaw.thawed import Thawed
from pltz.models.target.checkpoint import resolve
from pltz.models.target.target import Target
from pltz.plt_codec.errors import TargetMismatch, UsageError
from pltz.serving.engines.llama_server import Completion, Hot, LlamaServer
from pltz.serving.engines.protocol import Engine, check_served
from pltz.serving.engines.transformers_engine import TransformersEngine
from pltz.serving.engines.vllm_request import Prompt, VllmEngine
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.worker import drain

IDS = np.arange(100, 140)


class Shelf:
    """An engine of the tests: a finished turn is a list of ids, and a session is hot once it is on the shelf."""

    def __init__(self, target: bytes | None) -> None:
        self.target = target
        self.hot: list[list[int]] = []

    def evicted(self, finished: list[int], session: str, *, tenant: str = "default") -> EvictionRequest | None:
        return EvictionRequest(session, finished, tenant=tenant, target=self.target) if finished else None

    def thaw(self, ids: Tokens, *, frozen_for: bytes | None = None, any_target: bool = False) -> list[int]:
        if not any_target:
            check_served(frozen_for, self.target, None)
        self.hot.append(ids.tolist())
        return self.hot[-1]


def vllm_request() -> Any:
    return SimpleNamespace(
        request_id="cmpl-1", session_id=None, kv_transfer_params=None, sampling_params=object(),
        status=SimpleNamespace(name="FINISHED_STOPPED"), all_token_ids=tuple(IDS.tolist()), cache_salt=None,
        lora_request=None, mm_features=[], prompt_embeds=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(resolve("mini-llama"))


@pytest.fixture(params=["shelf", "vllm", "transformers"])
def engine(request: pytest.FixtureRequest) -> tuple[Engine[Any, Any], Any]:
    """Return an engine and a finished turn of it, of IDS."""
    if request.param == "shelf":
        shelf: Engine[list[int], list[int]] = Shelf(bytes(range(16)))
        return shelf, IDS.tolist()
    if request.param == "vllm":
        vllm: Engine[Any, Prompt] = VllmEngine(bytes(range(16)))
        return vllm, vllm_request()
    transformers: Engine[Any, Thawed] = TransformersEngine(request.getfixturevalue("target"))
    return transformers, IDS


def ids_of(hot: Any) -> list[int]:
    if isinstance(hot, Thawed):
        assert hot.cache.get_seq_length() == len(hot.token_ids)
        return [*hot.token_ids.tolist()]
    return [*hot["prompt_token_ids"]] if isinstance(hot, dict) else [*hot]


def test_a_session_leaves_and_comes_back(engine: tuple[Engine[Any, Any], Any], tmp_path: Path) -> None:
    serving, finished = engine
    cold = Archive.open(tmp_path / "cold", create=True)
    with EvictionHook.open(tmp_path / "journal", worker="none") as hook:
        evicted = serving.evicted(finished, "chat-7", tenant="acme")
        assert evicted is not None and hook.on_evict(evicted)
    assert drain(tmp_path / "journal", cold).stored == 1
    found = cold.get("chat-7", tenant="acme")
    assert ids_of(serving.thaw(found.ids, frozen_for=found.target)) == IDS.tolist()


def test_it_comes_back_to_its_own_weights_only(engine: tuple[Engine[Any, Any], Any]) -> None:
    serving, _ = engine
    with pytest.raises(TargetMismatch):
        serving.thaw(IDS, frozen_for=b"other weights...")
    with pytest.raises(UsageError, match="not known"):
        serving.thaw(IDS)
    assert ids_of(serving.thaw(IDS, any_target=True)) == IDS.tolist()


def test_what_is_no_session_is_left_alone() -> None:
    assert Shelf(None).evicted([], "chat") is None
    failed = vllm_request()
    failed.status = SimpleNamespace(name="FINISHED_ERROR")
    assert VllmEngine().evicted(failed, "chat") is None


def test_llama_server_is_an_engine() -> None:
    """Its thaw needs a server: see test_llama_server.py."""
    server: Engine[Completion, Hot] = LlamaServer("http://127.0.0.1:1")
    assert isinstance(server, LlamaServer)
    server.__dict__["target"] = bytes(range(16))
    done = Completion(IDS, 3, "so", 0, 0, False, "style.gguf:0.5")
    evicted = server.evicted(done, "chat-7", tenant="acme")
    assert evicted == EvictionRequest(
        "chat-7", IDS, tenant="acme", target=bytes(range(16)), adapter="style.gguf:0.5"
    )
