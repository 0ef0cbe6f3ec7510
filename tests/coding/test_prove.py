"""Segments are decoded and compared before anything is written, whatever the type of their tokens."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.coding.codecs.codec import NO_MARK, Coded, unproved
from pltz.coding.drafts import DraftCoder, Proof, ProofSegment
from pltz.coding.workers import Later, WhenAsked, Workers
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import MAX_POSITION
from pltz.plt_codec.lanes import Tokens

DICE = np.random.default_rng(6)
KINDS = pytest.mark.parametrize("kind", [np.uint32, np.int64])


def rows(count: int) -> list[Tokens]:
    return [DICE.integers(0, MAX_POSITION + 1, int(n), np.uint32) for n in DICE.integers(0, 90, count)]


def wrong(found: Sequence[Tokens], wanted: Sequence[Tokens]) -> list[int]:
    return unproved(lambda _: found, [Coded(b"", len(row), NO_MARK) for row in wanted], wanted)


@KINDS
def test_the_row_that_differs_is_named(kind: type[np.integer]) -> None:
    wanted = [*rows(32), np.arange(5, dtype=np.uint32), *rows(32)]
    for other in ([0, 1, 2, 3, 5], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], []):
        found = [row.astype(kind) for row in wanted]
        found[32] = np.array(other, kind)
        assert wrong(found, wanted) == [32] and wrong(found, [row.astype(np.int64) for row in wanted]) == [32]
    assert wrong([], wanted) == [*range(2 * 32 + 1)]


def test_rows_that_differ_in_their_cuts_alone() -> None:
    whole = np.arange(9, dtype=np.uint32)
    assert wrong([whole[:4], whole[4:]], [whole[:5], whole[5:]]) == [0, 1]


def test_a_damaged_bitstring_is_found_among_others() -> None:
    def decode(wanted: Sequence[Tokens], batch: Sequence[Coded]) -> list[Tokens]:
        if any(one.data == b"damaged" for one in batch):
            raise CorruptError("damaged")
        return [wanted[one.count] for one in batch]

    wanted = rows(5)
    coded = [Coded(b"damaged" if n in (1, 4) else b"", n, NO_MARK) for n in range(5)]
    assert unproved(partial(decode, wanted), coded, wanted) == [1, 4]


class Held:
    """An executor that proves by a decoder of 1 to 4, and notes how many segments each call has."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def submit(self, method: str, segments: Sequence[ProofSegment], progress: Any) -> Later:
        assert method == "prove" and progress is None
        self.calls.append(len(segments))
        decoder: Any = SimpleNamespace(model=SimpleNamespace(decode=self._decode))
        return WhenAsked(DraftCoder(decoder, Workers(None)).prove, (segments, None))

    def _decode(self, coded: Sequence[Coded], progress: object) -> list[Tokens]:
        return [np.arange(one.count, dtype=np.uint32) for one in coded]


def test_segments_of_several_batches_are_proved_together_and_once() -> None:
    proof = Proof(held := Held(), None)
    for number in range(5):
        proof.segments += [
            ProofSegment(number, Coded(b"", 4, NO_MARK), np.arange(4)),
            ProofSegment(10 + number, Coded(b"", 4, NO_MARK), np.arange(4 - number % 2)),
        ]
    assert not held.calls and not proof.sent
    proof.send()
    for _ in range(2):
        assert proof.result().result() == {11, 13}
    assert held.calls == [10]
