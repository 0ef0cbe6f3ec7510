"""Towers that were put or read last are not decoded again, and nothing else of a put changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz import PutRequest
from pltz.archive.errors import LostError
from pltz.archive.format.ids import Tokens
from pltz.archive.format.index_file import Location
from pltz.archive.writing.segments import RecentTowers
from pltz.datasets import sample_sessions
from pltz.models.session.session import Session
from tests.archive.towers import SessionArchive
from tests.files import flip
from tests.watch import noted


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
    messages = [message for session in sample_sessions()[:6] for message in session.value["messages"][1:]]
    return {"messages": messages[:turns]}


def grown(folder: Path, *, remember: bool) -> tuple[SessionArchive, list[tuple[int, int]]]:
    """Put a chat turn by turn; return segments and bytes that each put added."""
    cold = SessionArchive.create(folder)
    added = []
    for turns in (2, 4, 6):
        if not remember:
            cold.archive.parts.writer.recent.clear()
        [stored] = cold.put([PutRequest("chat", Session("chat", chat(turns)))])
        added.append((stored.segments, stored.size))
    return cold, added


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of segments of each call of a decoder."""
    from pltz.coding.codecs.codec import BundleCodec
    return noted(monkeypatch, BundleCodec, "decode", lambda _, batch: len(batch))


def test_a_put_of_a_turn_decodes_that_turn_alone(tmp_path: Path, decoded: list[int]) -> None:
    cold, with_memory = grown(tmp_path / "a", remember=True)
    assert sum(decoded) == sum(new for new, _ in with_memory), "each new segment once, to verify it"
    remembered = sum(decoded)
    decoded.clear()
    _, without = grown(tmp_path / "b", remember=False)
    assert with_memory == without and sum(decoded) > remembered and cold.get("chat").value == chat(6)


def damage(folder: Path, at: Location) -> None:
    """Flip a bit of the record at a place."""
    [path] = (folder / "packs").rglob(f"*{at.pack.hex()}*")
    flip(path, at.offset + 8)


def test_remembered_ids_whose_records_are_damaged_are_put_again(tmp_path: Path) -> None:
    """A put of the same ids is unchanged only while the archive still has them."""
    cold = SessionArchive.open(tmp_path / "a", create=True)
    item = PutRequest("ids", Session("ids", np.arange(100, 300)), prefixes=(100,))
    assert not next(cold.put([item])).unchanged and next(cold.put([item])).unchanged
    damage(tmp_path / "a", cold.archive.version("ids").location)
    again = next(cold.put([item]))
    assert not again.unchanged
    fresh = SessionArchive.open(tmp_path / "a")
    with pytest.raises(LostError, match=f"left by its id: {again.id[:4].hex()}"):
        fresh.get_ids("ids")
    assert fresh.get_ids("ids", version=again.id).ids.tolist() == [*range(100, 300)]
