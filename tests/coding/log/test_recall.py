"""Passages that come again far behind: left out, put back, and refused where they are crafted."""

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pltz.coding.log import recall
from pltz.coding.log.recall import Passages, Recalled, filled, own_of, padded, passage
from pltz.plt_codec.errors import CorruptError

WORDS = 'a "quoted" word', "C:\\dir\\", "\\\\", "line\nline", 'in {"json": "in json"}', "plain", "\u00e4" * 9


def parts(seed: int, count: int = 4) -> list[bytes]:
    """Return the parts of a log whose strings come again."""
    dice = random.Random(seed)
    strings = [" ".join(dice.choices(WORDS, k=dice.randrange(1, 30))) for _ in range(12)]
    lines = [json.dumps({"id": n, "t": dice.choice(strings), "l": [1, dice.choice(strings)]}) for n in range(count * 9)]
    return [("\n".join(lines[n::count]) + "\n").encode() for n in range(count)]


def taken_out(log: Sequence[bytes], near: int = 0) -> list[Recalled | None]:
    seen, found, begin = Passages(b"".join(log)), list[Recalled | None](), 0
    for part in log:
        found.append(seen.recalled(part, begin, begin - near))
        begin += len(part)
    return found


@given(st.integers(0, 10_000))
def test_passages_come_back(seed: int) -> None:
    log = parts(seed)
    whole, found = b"".join(log), taken_out(log)
    assert found[0] is None
    for one in filter(None, found):
        assert filled(one.own, one.recalls, len(one.content), Passages(whole).source) == one.content
        assert own_of(one.content, one.recalls) == one.own
        more = padded(one.recalls, 999)
        assert len(more) >= 999 and own_of(one.content, more) == one.own
        assert [json.loads(line)["id"] for line in one.own.splitlines()] == [
            json.loads(line)["id"] for line in one.content.splitlines()
        ]


def test_what_stands_near_or_often_is_left_to_the_table() -> None:
    text, long = b'"' + b"forty characters, which are enough to count" + b'"', b'"' + bytes(range(48, 91)) * 30 + b'"'
    assert taken_out([text, text])[1] == Recalled(text, b'""', bytes([1, *[0] * 11]))
    assert taken_out([text, text + text])[1] is None and taken_out([text, b"", text], near=len(text))[2] is None
    found = taken_out([long, b" " * 50, long + long], near=50)[2]
    assert found and found.own == b'""""'


def test_the_shortest_are_forgotten_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "MOST", 120)
    dice = random.Random(1)
    strings = [bytes(dice.choices(b"abcdefgh", k=size)) for size in range(33, 233)]
    log = b"".join(b'"' + text + b'"\n' for text in strings)
    [_, found] = taken_out([log, log])
    assert found and 0 < len(found.own) < len(log) and strings[0] in found.own and strings[-1] not in found.own


def crafted(*rows: tuple[int, int]) -> bytes:
    gaps = np.array([gap for gap, _ in rows], "<u4").view(np.uint8).reshape(-1, 4)
    deltas = np.array([delta for _, delta in rows], "<i8").view(np.uint8).reshape(-1, 8)
    return np.concatenate([gaps, deltas], axis=1).T.tobytes()


@pytest.mark.parametrize("rows", [
    [(1, 0)], [(1, 5), (1, 0)], [(9, 0)], [((1 << 32) - 1, 0)] * 3, [(1, 1 << 62)], [(1, -(1 << 62))], [(1, 20)],
    [(0, 5)],
], ids=str)
def test_crafted_recalls_are_refused(rows: list[tuple[int, int]]) -> None:
    log, own = b'{"a": "pictures", "b": "x\\"', b'{"a": ""}'
    count = len(own) + 8
    assert filled(own, crafted((3, 0)), count, Passages(log).source) == b'{"a": "pictures"}'
    with pytest.raises(CorruptError):
        filled(own, crafted(*rows), count, Passages(log).source)


def test_a_passage_has_an_end() -> None:
    assert passage(b'a longer one\\", ', 2, 99) == b"longer one" and passage(b"x" * 999 + b'"', 0, 999) == b"x" * 999
    for size in range(recall.STEP - 3, recall.STEP + 3):
        for end in (b'"', b'\\"'):
            assert passage(b"x" * size + end, 0, size) == b"x" * size
            with pytest.raises(CorruptError, match="has no end"):
                passage(b"x" * size + end, 0, size - 1)
    for log in (b"without end", b"x" * 1000 + b'"'):
        with pytest.raises(CorruptError, match="has no end"):
            passage(log, 0, 999)
