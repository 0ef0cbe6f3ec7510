"""Garbage collection: its cost grows with the archive and no faster."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.archive.maintenance.live_set import LiveSet
from pltz.archive.tower_archive import TowerArchive
from pltz.archive.writing.new_session import NewSession


@pytest.mark.parametrize("packs", [2, 9])
def test_packs_are_weighed_once(archive: TowerArchive, packs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query reads every record. Asked once per pack, it took 150 s of 100,000 sessions in 400 packs."""
    for n in range(packs):
        archive.put([NewSession(f"chat-{n}", [np.arange(n, n + 9)])])
    asked: list[LiveSet] = []
    weights = LiveSet.weights

    def counted(census: LiveSet) -> dict[bytes, tuple[int, int]]:
        asked.append(census)
        return weights(census)

    monkeypatch.setattr(LiveSet, "weights", counted)
    assert archive.collect().condemned == packs
    assert len(asked) == 1
