"""Towers that were put or read last are not decoded again, and nothing else of a put changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.format.ids import Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.sessions import Item, SessionArchive
from pltz.archive.writing.recent_towers import RecentTowers
from pltz.models.session.session import Session


def tower(*leaves: int, tokens: int = 10) -> list[tuple[bytes, Tokens]]:
    return [(bytes([leaf]) * 16, np.full(tokens, leaf, np.uint32)) for leaf in leaves]


def test_a_tower_takes_the_place_of_those_it_extends() -> None:
    recent = RecentTowers(1000)
    recent.add(tower(1, 2))
    recent.add(tower(1, 2, 3))
    recent.add(tower(1, 4))
    assert recent.get(bytes([2]) * 16) is None
    assert [segment[0] for segment, _ in recent.get(bytes([3]) * 16) or []] == [1, 2, 3]
    assert [segment[0] for segment, _ in recent.get(bytes([4]) * 16) or []] == [1, 4]
    recent.clear()
    assert recent.get(bytes([3]) * 16) is None


def test_the_least_recently_used_goes_first() -> None:
    recent = RecentTowers(3 * 40)  # bytes of three segments
    for leaf in (1, 2, 3):
        recent.add(tower(leaf))
    assert recent.get(bytes([1]) * 16)
    recent.add(tower(4))
    assert [leaf for leaf in (1, 2, 3, 4) if recent.get(bytes([leaf]) * 16)] == [1, 3, 4]
    recent.add(tower(5, tokens=1000))
    assert [leaf for leaf in (1, 2, 3, 4, 5) if recent.get(bytes([leaf]) * 16)] == [], "larger than the budget"
    recent.add(tower(6, 7, 8))
    assert recent.get(bytes([8]) * 16), "the budget is whole again"


def chat(turns: int) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": f"Turn {n}: " + "so it goes. " * 20} for n in range(turns)]}


def grown(folder: Path, *, remember: bool) -> tuple[SessionArchive, list[tuple[int, int]]]:
    """Put a chat turn by turn; return segments and bytes that each put added."""
    cold = SessionArchive.create(folder)
    added = []
    for turns in (2, 4, 6):
        if not remember:
            cold.archive._writer.recent.clear()
        [stored] = cold.put([Item("chat", Session("chat", chat(turns)))])
        assert stored.receipt is not None
        added.append((stored.receipt.new, stored.receipt.size))
    return cold, added


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of segments of each call of a decoder."""
    from pltz.archive.codecs.codec import BundleCodec

    counts: list[int] = []
    decode = BundleCodec.decode

    def count(self: BundleCodec, batch: Any) -> Any:
        counts.append(len(batch))
        return decode(self, batch)

    monkeypatch.setattr(BundleCodec, "decode", count)
    return counts


def test_a_put_of_a_turn_decodes_that_turn_alone(tmp_path: Path, decoded: list[int]) -> None:
    cold, with_memory = grown(tmp_path / "a", remember=True)
    assert sum(decoded) == sum(new for new, _ in with_memory), "each new segment once, to verify it"
    remembered = sum(decoded)
    decoded.clear()
    _, without = grown(tmp_path / "b", remember=False)
    assert with_memory == without and sum(decoded) > remembered
    assert cold.get("chat").value == chat(6)


def test_a_stored_segment_that_is_damaged_is_not_relied_on(tmp_path: Path) -> None:
    """The tokens are remembered, but the place of a segment is looked at, as ever."""
    cold, added = grown(tmp_path / "a", remember=True)
    at = cold.archive.catalog.lookup.find(SEGMENTS, cold.archive.tower(cold.archive.version("chat")).segments[0][0])
    path = next((tmp_path / "a" / "packs").rglob(f"*{at[0].location.pack.hex()}*"))
    data = bytearray(path.read_bytes())
    data[at[0].location.offset + 20] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    [stored] = cold.put([Item("chat", Session("chat", chat(8)))])
    assert stored.receipt is not None and stored.receipt.new > added[-1][0], "the damaged one is written anew"
    assert SessionArchive.open(tmp_path / "a").get("chat").value == chat(8)
