"""The requests between vLLM's connector and the hook (serving/engines/vllm_request.py), and all of it in a real vLLM.

The second needs an environment with vLLM and what pltz imports:
PLTZ_VLLM_PYTHON=/path/to/bin/python python -m pytest -m vllm
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.archive.errors import NotFound
from pltz.archive.format.ids import target_of, tenant_of
from pltz.models.target.checkpoint import resolve
from pltz.plt_codec.errors import TargetMismatch, UsageError
from pltz.serving.engines.vllm_request import VllmEngine
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.journal.entry import MAX_PREFIXES
from pltz.serving.eviction.worker import drain
from tests.archive.towers import SessionArchive
from tests.serving.engines.live_vllm import needs_vllm, run_in_vllm
from tests.serving.engines.served_models import write_peft_lora

IDS = list(range(100, 140))


def request(**changes: Any) -> Any:
    """A finished request, with the fields that vLLM 0.32 gave one (the live test builds real ones)."""
    fields: dict[str, Any] = {
        "request_id": "cmpl-1", "session_id": None,
        "kv_transfer_params": {"pltz": {"session": "chat", "tenant": "acme"}}, "sampling_params": object(),
        "status": SimpleNamespace(name="FINISHED_STOPPED"), "all_token_ids": tuple(IDS), "cache_salt": None,
        "lora_request": None, "mm_features": [], "prompt_embeds": None,
    }
    return SimpleNamespace(**{**fields, **changes})


def test_a_request_that_names_its_session_is_archived() -> None:
    found = VllmEngine().evicted(request(cache_salt="s3cret"))
    assert found is not None and (found.session, found.tenant, found.salt) == ("chat", "acme", "s3cret")
    assert list(found.token_ids) == IDS


def test_vllms_own_session_id_is_a_name() -> None:
    found = VllmEngine().evicted(request(kv_transfer_params=None, session_id="s-9"), tenant="house")
    assert found is not None and (found.session, found.tenant) == ("s-9", "house")


@pytest.mark.parametrize(
    "params", [None, {}, {"pltz": None}, {"pltz": "chat"}, {"pltz": {}}, {"other": {"session": "x"}}]
)
def test_without_a_name_it_is_left_alone_unless_asked_for(params: Any) -> None:
    assert VllmEngine().evicted(request(kv_transfer_params=params)) is None
    found = VllmEngine(unnamed=True).evicted(request(kv_transfer_params=params))
    assert found is not None and found.session == "cmpl-1"


def test_what_was_not_served_is_no_session() -> None:
    assert VllmEngine().evicted(request(status=SimpleNamespace(name="FINISHED_ERROR"))) is None
    assert VllmEngine().evicted(request(status=SimpleNamespace(name="FINISHED_IGNORED"))) is None
    assert VllmEngine().evicted(request(sampling_params=None)) is None  # an embedding
    assert (
        VllmEngine().evicted(request(status=SimpleNamespace(name="FINISHED_ABORTED"))) is not None
    )  # who was cut off may come back


@pytest.mark.parametrize(("changes", "reason"), [
    ({"mm_features": ["image"]}, "multimodal"),
    ({"prompt_embeds": np.zeros(3)}, "prompt embeddings"),
    ({"lora_request": SimpleNamespace(lora_name="")}, "adapter not named"),
])
def test_what_ids_do_not_bring_back_is_refused_and_counted(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with EvictionHook.open(tmp_path) as hook:
        found = VllmEngine().evicted(request(**changes))
        assert found is not None and hook.on_evict(found) == 0 and hook.status()["refused"] == {reason: 1}


def test_a_salt_never_crosses_tenants_nor_is_it_kept(tmp_path: Path) -> None:
    cold = SessionArchive.open(tmp_path / "cold", create=True)
    with EvictionHook.open(tmp_path / "journal") as hook:
        for tenant, salt in (("acme", "s3cret"), ("beta", "s3cret"), ("acme", "another")):
            found = VllmEngine().evicted(
                request(
                    kv_transfer_params={"pltz": {"session": f"of {tenant} {salt[0]}", "tenant": tenant}},
                    cache_salt=salt,
                )
            )
            assert found is not None and hook.on_evict(found)
    assert drain(tmp_path / "journal", cold.cold).stored == 3
    assert cold.get_ids("of acme s", "acme", salt="s3cret").ids.tolist() == IDS
    others: list[tuple[str, str, str | None]] = [
        ("of acme s", "acme", None), ("of acme s", "acme", "another"), ("of acme s", "beta", "s3cret"),
        ("of beta s", "acme", "s3cret"),
    ]
    for name, whose, with_salt in others:
        with pytest.raises(NotFound):
            cold.get_ids(name, whose, salt=with_salt)
    segments = [{s for s, _ in cold.archive.tower(v).segments} for v in cold.archive.ls()]
    assert len(set.union(*segments)) == sum(map(len, segments)) == 3  # the same ids, and nothing shared
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"s3cret" not in path.read_bytes()


def test_a_client_cannot_share_under_a_salt_nor_pass_for_another() -> None:
    shared = {"pltz": {"session": "chat", "base": "everyone's", "prefixes": [8]}}
    salted, plain = (
        VllmEngine().evicted(request(kv_transfer_params=shared, cache_salt="s")),
        VllmEngine().evicted(request(kv_transfer_params=shared)),
    )
    assert salted is not None and plain is not None and (salted.base, plain.base) == (None, "everyone's")
    forged = {"pltz": {"session": "chat", "tenant": tenant_of("acme", "s3cret")}}
    with pytest.raises(UsageError, match="give the salt"):
        VllmEngine().evicted(request(kv_transfer_params=forged))


def test_a_client_cannot_make_the_scheduler_copy_a_million_hints() -> None:
    given = {"pltz": {"session": "chat", "prefixes": [*range(1, 10**6)]}}
    found = VllmEngine().evicted(request(kv_transfer_params=given))
    assert found is not None and found.prefixes == [*range(1, MAX_PREFIXES + 1)]


@pytest.mark.parametrize("prefixes", [7, "x", {"a": 1}, [None], [10**9], [-1]])
def test_odd_hints_of_a_client_lose_no_session_and_stop_nothing(tmp_path: Path, prefixes: Any) -> None:
    found = VllmEngine().evicted(request(kv_transfer_params={"pltz": {"session": "chat", "prefixes": prefixes}}))
    with EvictionHook.open(tmp_path / "journal") as hook:
        assert found is not None and hook.on_evict(found)
    cold = SessionArchive.open(tmp_path / "cold", create=True)
    assert drain(tmp_path / "journal", cold.cold).stored == 1 and cold.get_ids("chat").ids.tolist() == IDS


def test_a_prompt_is_the_ids_and_the_salt() -> None:
    ids = np.array(IDS)
    assert VllmEngine().thaw(ids, any_target=True) == {"prompt_token_ids": IDS}
    assert VllmEngine().thaw(ids, salt="s3cret", any_target=True) == {"prompt_token_ids": IDS, "cache_salt": "s3cret"}
    assert all(
        type(i) is int for i in VllmEngine().thaw(ids, any_target=True)["prompt_token_ids"]
    )  # JSON takes no numpy


def test_a_prompt_for_other_weights_or_adapters_is_refused() -> None:
    ids, weights = np.array(IDS), b"w" * 16
    frozen: dict[str | None, bytes] = {None: target_of(weights), "style": target_of(weights, "style")}
    for lora, frozen_for in frozen.items():
        assert VllmEngine(weights).thaw(ids, frozen_for=frozen_for, lora=lora)
        with pytest.raises(UsageError, match="name the model"):
            VllmEngine().thaw(ids, frozen_for=frozen_for, lora=lora)
        with pytest.raises(TargetMismatch, match=weights.hex()):
            VllmEngine(weights).thaw(ids, frozen_for=frozen_for, lora="other")
        with pytest.raises(TargetMismatch):
            VllmEngine(b"v" * 16).thaw(ids, frozen_for=frozen_for, lora=lora)
        assert VllmEngine(b"v" * 16).thaw(ids, frozen_for=frozen_for, any_target=True)
    with pytest.raises(TargetMismatch, match="expected no adapter"):
        VllmEngine().thaw(ids, lora="style")
    with pytest.raises(UsageError, match=r"not known.*any_target"):
        VllmEngine(weights).thaw(ids)


@pytest.mark.vllm
@needs_vllm
def test_a_real_vllm_freezes_at_the_finish_and_thaws_by_ids(tmp_path: Path) -> None:
    """Serve two tenants with salts, an adapter and prompt embeddings; make all cold, and thaw one session.

    One more grows turn by turn, is joined, and is thawed by its ids. The program is vllm_program.py.
    """
    arguments = [resolve("mini-llama"), write_peft_lora(tmp_path / "lora"), tmp_path / "journal", tmp_path / "cold"]
    printed = run_in_vllm("vllm_program", *arguments, tmp_path / "result.json")
    out = json.loads((tmp_path / "result.json").read_text())
    print(json.dumps(out))
    salted = [name.partition("#salt=")[0] for name, _ in out["names"]]
    assert sorted(zip(salted, (name for _, name in out["names"]), strict=True)) == [
        ("acme", "chat"), ("acme", "styled"), ("beta", "chat"),
    ]
    assert out["ids"] and out["styled"] and out["target"] and "evictions are refused: prompt embeddings" in printed
    assert (out["other salt"], out["no salt"], out["adapter left out"]) == ("NotFound", "NotFound", "TargetMismatch")
    blocks = out["frozen"]["tokens"] // 32 * 32  # vLLM shares full blocks
    assert (out["hot"], out["cold"], out["thawed"], out["beta's"]) == (blocks, 0, blocks, 0)
    assert out["same before"] and out["same"]
    grown = out["grown"]
    assert grown["runs"] and grown["records"] < 8  # turns
    assert grown["ids"] and grown["hot"] == grown["tokens"] // 32 * 32 and grown["same"]
    assert (out["multimodal"], out["unnamed"]) == (True, True)
