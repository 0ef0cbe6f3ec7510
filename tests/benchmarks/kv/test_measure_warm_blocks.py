"""measure_warm_blocks: blocks that come back are compared with those that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pltz.benchmarks.kv.measure_warm_blocks import measure
from pltz.plt_codec.errors import CorruptError
from pltz.serving.engines.cache_rows import CacheRows


def test_blocks_are_saved_and_loaded_beside_steps(tmp_path: Path) -> None:
    found = measure(tmp_path, "cpu", 2, 96, 64)
    assert found["bytes"] == 96 * 2 * 2 * 8 * 128 * 2 and len(found["steps_that_save_ms"]) == 2
    assert len([*tmp_path.rglob("*.page")]) == 6
    assert all(found[source]["steps"] > 0 for source in ("disk", "page cache"))


def test_blocks_that_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = CacheRows.put

    def wrong(rows: CacheRows, blocks: Any, room: Any, after: Any) -> None:
        puts(rows, blocks, room.flip(0), after)

    monkeypatch.setattr(CacheRows, "put", wrong)
    with pytest.raises(CorruptError, match="not those that were saved"):
        measure(tmp_path, "cpu", 1, 64, 64)
