"""The conformance suite of the Claude Agent SDK, where that is installed (178 MB, so no test needs it)."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pltz.models.bundle.bundle import Bundle
from pltz.serving.live.store import LiveStore


class FrozenAtOnce(LiveStore):
    async def append(self, key: Mapping[str, Any], entries: Any) -> None:
        await super().append(key, entries)
        await asyncio.to_thread(self.freeze)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LiveStore, FrozenAtOnce])
def test_the_suite_of_the_sdk_passes(kind: type[LiveStore], tmp_path: Path) -> None:
    run: Callable[..., Any] = pytest.importorskip("claude_agent_sdk.testing").run_session_store_conformance
    bundle, number, made = Bundle.load(), itertools.count(), list[LiveStore]()

    def make() -> LiveStore:
        folder = tmp_path / str(next(number))
        made.append(kind.open(folder / "live", folder / "cold", bundle=bundle))
        return made[-1]

    asyncio.run(run(make))
    for store in made:
        store.close()
        assert not store.failure
