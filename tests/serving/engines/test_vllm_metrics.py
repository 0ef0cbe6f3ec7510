"""The hook's figures reach vLLM's metrics, and models are found by folder and by hub name. vLLM is a fake."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from pltz.models.target.checkpoint import fingerprint_of, resolve
from pltz.plt_codec.errors import UsageError
from tests.failing import raising
from tests.serving.engines import fake_vllm
from tests.serving.engines.test_vllm import request
from tests.serving.eviction.opened import eventually

MODEL = str(resolve("mini-llama"))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_vllm.install(monkeypatch)


def shown(module: Any, registry: CollectorRegistry) -> Any:
    types = {Gauge: partial(Gauge, registry=registry), Counter: partial(Counter, registry=registry)}
    return module.PltzConnector.build_prom_metrics(None, types, ["model_name", "engine"], {0: ["m", "0"]})


def test_figures_and_refusals_stand_in_vllms_metrics(module: Any, tmp_path: Path) -> None:
    config = fake_vllm.config(MODEL, journal=str(tmp_path), target="", flush_seconds=0.005)
    connector = module.PltzConnector(config, fake_vllm.Role.SCHEDULER, None)
    connector._watch._interval = 0.01
    registry = CollectorRegistry()
    metrics = shown(module, registry)
    seen: list[Any] = []

    def value(name: str, **more: str) -> float | None:
        stats = connector.get_kv_connector_stats()
        if stats is not None:
            assert not stats.is_empty() and stats.reduce()
            seen.append(stats)
            metrics.observe(module.PltzConnector.build_kv_connector_stats(stats.data).data, 0)
        return registry.get_sample_value(f"vllm:pltz_hook_{name}", {"model_name": "m", "engine": "0", **more})

    connector.request_finished_all_groups(request(), ())
    long = {"pltz": {"session": "n" * 3000}}
    connector.request_finished_all_groups(request(kv_transfer_params=long), ())
    try:
        assert eventually(lambda: value("durable_total") == 1.0)
        assert eventually(lambda: value("refused_total", reason="name too long") == 1.0)
        assert value("worker_up") == 0.0 and (value("journal_bytes") or 0) > 0
        connector.request_finished(request(), [])  # as without hybrid memory
        assert eventually(lambda: value("durable_total") == 2.0)
    finally:
        connector.shutdown()
    assert b"vllm:pltz_hook_failing" in generate_latest(registry) and seen[0].aggregate(seen[-1]).data == seen[-1].data


def test_a_multi_connector_finds_the_class_of_the_figures(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the connector by its name: a server with a MultiConnector ended at the first figures."""
    again = fake_vllm.install(monkeypatch)  # a second import registers it no second time
    assert fake_vllm.Factory.registered["PltzConnector"] == (again.__name__, module.PltzConnector.__name__)


def test_a_hook_that_was_opened_anew_goes_on_counting(module: Any) -> None:
    registry = CollectorRegistry()
    metrics = shown(module, registry)
    for count in (5, 7, 2, 3):  # opened anew before the third
        metrics.observe({"figures": {"accepted": count, "unknown": 1}}, 0)
    labels = {"model_name": "m", "engine": "0"}
    assert registry.get_sample_value("vllm:pltz_hook_accepted_total", labels) == 10.0


def test_a_model_may_be_a_hub_name(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def fetch(name: str, *, revision: str | None, **_: Any) -> str:
        asked.append((name, revision))
        return MODEL

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    model = SimpleNamespace(model="acme/m", tokenizer="acme/t", revision="v1", tokenizer_revision="v2")
    assert module._target(None, model) == fingerprint_of(MODEL)
    assert module._tokenizer(None, model) == (Path(MODEL) / "tokenizer.json").read_bytes()
    assert asked == [("acme/m", "v1"), ("acme/t", "v2")]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(OSError("no network")))
    assert module._target(None, model) is None and "any_target" in caplog.text
    with pytest.raises(UsageError, match="kv_connector_extra_config"):
        module._tokenizer(None, model)
