"""Settings of the storage backend for SGLang, checked by name and type when it starts.

This module does not import SGLang.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "pltz",
        "module_path": "pltz.serving.engines.sglang_storage", "class_name": "PltzHiCache",
        "folder": "/nvme/pages", "bytes": 1099511627776}'

    folder    where pages are kept (required); processes may share it
    bytes     that all pages in it may take (required)
    target    fingerprint of the weights, 32 hex digits; default: of the model, a folder or a hub name
    kv_dtype  type of the KV, where the pool does not tell: one that keeps bytes ("fp8_e4m3")
    variant   any text: whatever else changes the KV, such as overridden settings of the model

The keys of SGLang's own (``backend_name``, ``module_path``, ``class_name``, ``interface_v1`` and those of prefetching)
may stand beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.settings import check_fingerprint, check_type

WHERE = "hicache-storage-backend-extra-config"
SGLANGS = {
    "backend_name", "module_path", "class_name", "interface_v1", "prefetch_threshold", "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token", "prefetch_timeout_max", "hicache_storage_pass_prefix_keys",
}  # fmt: skip


@dataclass(frozen=True)
class SglangSettings:
    """The settings of a backend (see the top of this file). Raises UsageError for a value that cannot be."""

    folder: str
    bytes: int
    target: str | None = None
    kv_dtype: str = ""
    variant: str = ""

    def __post_init__(self) -> None:
        for name in ("folder", "kv_dtype", "variant"):
            check_type(name, getattr(self, name), str)
        check_type("bytes", self.bytes, int)
        if not self.folder or self.bytes <= 0:
            raise UsageError("name a folder, and the bytes that its pages may take, above 0")
        if self.target is not None:
            check_fingerprint("target", self.target)

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> SglangSettings:
        """Read the settings. Raises UsageError that names an unknown key, a missing one or a bad value."""
        given = {name: value for name, value in (given or {}).items() if name not in SGLANGS}
        own = {one.name for one in fields(cls)}
        try:
            if unknown := sorted(map(str, given.keys() - own)):
                raise UsageError(f"expected {', '.join(sorted(own))}, found {unknown[0]!r}")
            if missing := sorted({"folder", "bytes"} - given.keys()):
                raise UsageError(f"{missing[0]} is missing")
            return cls(**given)
        except UsageError as exc:
            raise UsageError(f"{WHERE}: {exc}") from exc
