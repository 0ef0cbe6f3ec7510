"""The parts of vLLM that the connector imports, for machines without vLLM. The live test uses the real one."""

import enum
import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from prometheus_client import Counter, Gauge

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
METRICS = BASE.replace("base", "metrics")
FACTORY = BASE.replace("v1.base", "factory")


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Connector:
    def __init__(self, vllm_config: Any, role: Role, kv_cache_config: Any) -> None:
        """Take the arguments that vLLM 0.32 passes."""
        self._connector_metadata: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata

    def has_connector_metadata(self) -> bool:
        return self._connector_metadata is not None

    def _get_connector_metadata(self) -> Any:
        return self._connector_metadata


@dataclass
class Stats:
    data: dict[str, Any] = field(default_factory=dict)


class PromMetrics:
    def __init__(self, config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any) -> None:
        """Take what vLLM 0.32 passes: classes of metrics by those of prometheus_client."""
        self._gauge_cls, self._counter_cls = metric_types[Gauge], metric_types[Counter]


class Factory:
    """Takes a name once, as vLLM's does."""

    registered: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls.registered:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls.registered[name] = module_path, class_name


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put the fakes into sys.modules and return the connector's module, loaded with them."""
    names = BASE.split(".")
    for name in [".".join(names[: n + 1]) for n in range(len(names))] + ["vllm.logger", METRICS, FACTORY]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm"].__version__ = "fake"  # type: ignore[attr-defined]
    base: Any = sys.modules[BASE]
    base.KVConnectorBase_V1, base.KVConnectorRole = Connector, Role
    base.KVConnectorMetadata = base.KVConnectorWorkerMetadata = type("Empty", (), {})
    base.SupportsHMA = type("SupportsHMA", (), {})
    sys.modules[FACTORY].KVConnectorFactory = Factory  # type: ignore[attr-defined]
    sys.modules[METRICS].KVConnectorStats = Stats  # type: ignore[attr-defined]
    sys.modules[METRICS].KVConnectorPromMetrics = PromMetrics  # type: ignore[attr-defined]
    sys.modules["vllm.logger"].init_logger = logging.getLogger  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "pltz.serving.engines.vllm_connector", raising=False)
    import importlib

    module = importlib.import_module("pltz.serving.engines.vllm_connector")
    monkeypatch.delitem(sys.modules, "pltz.serving.engines.vllm_connector")
    return module


def config(model: str, **settings: Any) -> Any:
    """Return vLLM's configuration, with the fields that the connector reads."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=settings),
        model_config=SimpleNamespace(model=model, tokenizer=model),
    )
