"""A session is coded after the earlier one that is most like it where that is shorter, and is read without others."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pltz.coding import neighbours
from pltz.coding.codec import Codec
from pltz.coding.neighbours import LONGEST, Earlier, Grams, Neighbours
from pltz.models.session.session import Session
from pltz.plt_codec import repeats
from pltz.plt_codec.container.file import Reader, pack
from pltz.plt_codec.container.frame import MOST_CONTEXTS, Kind, Method, content_check
from pltz.plt_codec.errors import CorruptError, ModelError
from pltz.plt_codec.repeats import Copy
from tests.coding.fake_coder import FakeBundle, NeighbourCoder

RANDOM = np.random.default_rng(11)
TEMPLATES = [RANDOM.integers(300, 1000, 120) for _ in range(3)]


def session(template: int, end: int) -> Session:
    return Session("ids", np.concatenate([TEMPLATES[template], RANDOM.integers(0, 300, end)]))


@pytest.fixture
def codec(bundle: FakeBundle) -> Codec:
    return Codec(bundle, NeighbourCoder())


@pytest.fixture
def sessions() -> list[Session]:
    """Three templates, each used by several sessions, among texts that are like none."""
    rows = [session(number % 3, 10 + number) for number in range(20)]
    rows[5:5] = [Session("text", b"words that no other session has"), Session("text", bytes(range(256)) * 40)]
    return rows


def contexts(reader: Reader) -> list[int | None]:
    return [reader.info(number).context for number in range(len(reader))]


def line(reader: Reader, number: int) -> list[int]:
    """A session's number, and those of the contexts behind it."""
    context = reader.info(number).context
    return [number] if context is None else [number, *line(reader, context)]


def test_a_session_follows_the_last_of_its_template_with_room_behind(codec: Codec, sessions: list[Session]) -> None:
    data = codec.compress(sessions)
    expected = [None, None, None, 0, 1, None, None, 2, 3, 4, 7, 8, 9, *([10, 8, 9] * 3)]
    assert contexts(Reader(data)) == expected
    alone = codec.compress(sessions, independent=True)
    assert contexts(Reader(alone)) == [None] * 22 and len(data) < 0.6 * len(alone)
    assert codec.decompress(data) == codec.decompress(alone) == sessions


def proposed(earlier: Neighbours, *rows: np.ndarray, number: int = 0, run: int = 0) -> list[Earlier]:
    return earlier.propose([(number + n, row, Grams.of(row)) for n, row in enumerate(rows)], run)


def test_a_context_in_an_earlier_batch(codec: Codec, sessions: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.coding.pipeline.GROUP", 4)
    monkeypatch.setattr("pltz.coding.pipeline.BATCH_BYTES", 2000)
    monkeypatch.setattr("pltz.coding.decoder.BATCH_TOKENS", 300)
    data = codec.compress(sessions)
    assert sum(context is not None for context in contexts(Reader(data))) == 17 and codec.decompress(data) == sessions


@pytest.mark.parametrize("settled", [1 << 20, 100])
def test_neighbours_do_not_depend_on_batches(codec: Codec, monkeypatch: pytest.MonkeyPatch, settled: int) -> None:
    """A trial that gains nothing leaves room for one more behind it once it is settled, some runs of sessions later."""
    monkeypatch.setattr(neighbours, "RUN", settled)
    pieces = [(RANDOM.integers(0, 300, 5), TEMPLATES[0][at : at + 20]) for at in range(0, 120, 20)]
    shifted = np.concatenate([part for pair in pieces for part in pair])  # near the first, and not shorter after it
    more = [RANDOM.integers(0, 1000, 40) for _ in range(5)]
    rows = [TEMPLATES[0], *(np.concatenate([shifted, *more[:count]]) for count in range(6))]
    sessions = [Session("ids", row) for row in rows]
    together = codec.compress(sessions)
    assert contexts(Reader(together))[:5] == [None, None, 1, 2, 3 if settled == 100 else 2]
    monkeypatch.setattr("pltz.coding.pipeline.GROUP", 1)
    for tokens in (1, 300, 700):
        monkeypatch.setattr("pltz.coding.pipeline.BATCH_BYTES", 4 * tokens)
        assert codec.compress(sessions) == together


def test_a_damaged_context_takes_all_that_follow_it_and_no_others(
    codec: Codec, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.plt_codec.container.block.PIECE", 1)  # a check for each session
    data = bytearray(codec.compress(sessions))
    data[Reader(bytes(data)).info(1).offset + 20] ^= 1
    reader = Reader(bytes(data))
    assert reader.damaged() == [1]
    lost = [number for number in range(len(reader)) if 1 in line(reader, number)]
    assert len(lost) == 7
    for number, expected in enumerate(sessions):
        if number in lost:
            with pytest.raises(CorruptError, match="session 1:"):
                codec.decompress(reader, [number])
        else:
            assert codec.decompress(reader, [number]) == [expected]


def test_a_follower_that_does_not_decode_is_not_acknowledged(bundle: FakeBundle) -> None:
    class Forgetful(NeighbourCoder):
        def _decode(self, item):  # type: ignore[no-untyped-def]
            return super()._decode(item if item.context is None else replace(item, context=item.context[::-1]))

    short = [Session("ids", np.concatenate([TEMPLATES[n % 3][:30], RANDOM.integers(0, 300, 20)])) for n in range(9)]
    with pytest.raises(ModelError, match="session 3 does not come back"):  # its beginning is too short for a copy
        Codec(bundle, Forgetful()).compress(short)


def test_only_what_is_worth_trying_is_proposed() -> None:
    near = np.concatenate([TEMPLATES[0][:60], TEMPLATES[1][:60]])
    for row, expected in ((near, True), (TEMPLATES[1], False), (near[:4], False), (np.resize(near, 6000), False)):
        found = proposed(Neighbours(), TEMPLATES[0], row)
        assert [one.context for one in found] == [None, found[0] if expected else None]


def test_long_sessions_and_ends_of_lines_are_no_contexts() -> None:
    known, long = Neighbours(), np.resize(TEMPLATES[0], LONGEST + 1)
    assert [one.context for one in proposed(known, long, TEMPLATES[0][:90])] == [None, None]
    line = [*proposed(known, TEMPLATES[0], *[TEMPLATES[0]] * (MOST_CONTEXTS - 1))]
    assert [one.depth for one in line] == [1, 2, 3]
    last = proposed(known, TEMPLATES[0])[0]
    assert last.context is line[1] and last.depth == MOST_CONTEXTS


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "KEPT", 5000)
    known = Neighbours()
    rows = [RANDOM.integers(0, 1000, 120) for _ in range(100)]
    for number, row in enumerate(rows):
        [one, again] = proposed(known, row, row, number=number)
        assert sum(len(one.tokens) for one in known._sessions) <= 5000 and one.context is None and again.context is one
    assert proposed(known, rows[0])[0].context is None
    for number in range(300):
        proposed(known, np.arange(5), number=number)
    assert len(known._sessions) <= 5000 // neighbours.LEAST_KEPT


class Seeing(NeighbourCoder):
    """Notes the context of each call of `_encode` and `_decode`."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: list[list[int] | None] = []
        self.frames: list[bytes] = []

    def _decode(self, item):  # type: ignore[no-untyped-def]
        self.frames.append(item.data)
        self.contexts.append(None if item.context is None else item.context.tolist())
        return super()._decode(item)


def test_the_contexts_behind_a_context_count_as_far_as_they_fit(bundle: FakeBundle) -> None:
    rows = [RANDOM.integers(300, 1000, 300)]
    for size in (600, 400, 900):
        rows.append(np.concatenate([rows[-1][:size], RANDOM.integers(300, 1000, 60)])[: size + 60])
    data = Codec(bundle, NeighbourCoder()).compress([Session("ids", row) for row in rows])
    assert contexts(Reader(data)) == [None, 0, 1, 2]
    assert Codec(bundle, coder := Seeing()).decompress(data, [3]) == [Session("ids", rows[3])]
    first, second, third, _ = (row.tolist() for row in rows)
    lines = [[], [*first, 0], [*first, *second, 0], [*first, *second, *third, 0]]
    fits = [line if len(line) <= 1024 else [*second, *third, 0] for line in lines]
    assert coder.contexts == fits


def test_no_context_is_decoded_twice(codec: Codec, sessions: list[Session]) -> None:
    data = codec.compress(sessions)
    last = line(Reader(data), 10)
    assert len(last) > 2
    for numbers in ([10, last[-1]], [last[1], 10], list(range(22)), [*range(10, 22), 0]):
        reading = Codec(codec.bundle, coder := NeighbourCoder())
        assert reading.decompress(data, numbers) == [sessions[number] for number in numbers]
        needed = {one for number in numbers for one in line(Reader(data), number)}
        needed = {one for one in needed if Reader(data).info(one).by_model}
        assert sum(coder.decoded) == len(needed)


def test_contexts_stay_at_hand_from_batch_to_batch(
    codec: Codec, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.coding.decoder.BATCH_TOKENS", 300)
    data = codec.compress(sessions)
    assert Codec(codec.bundle, coder := Seeing()).decompress(data) == sessions
    assert max(Counter(coder.frames).values()) == 2  # with the batch of a follower, and with its own


# ---- copies from a context

PASSAGES = [RANDOM.integers(300, 1000, 90) for _ in range(2)]


def with_passages() -> list[Session]:
    """Sessions that have two passages in other places, the first of them before anything else was coded."""
    own = [RANDOM.integers(0, 300, 20) for _ in range(6)]
    return [
        Session("ids", np.concatenate([own[0], PASSAGES[0], own[1], PASSAGES[1]])),
        Session("ids", np.concatenate([own[2], PASSAGES[1], own[3], PASSAGES[0], own[4]])),
        Session("ids", np.concatenate([own[5], PASSAGES[0], PASSAGES[1]])),
    ]


def test_copies_that_no_context_has_are_refused(codec: Codec) -> None:
    """Each bit of the copies flipped, and copies beyond a context of 221 tokens: an error, never another session."""
    rows = with_passages()[:2]
    reader = Reader(codec.compress(rows))
    first, second = reader
    whole = (
        content_check(Kind.IDS, Method.MODEL, first.count, rows[0].value),
        content_check(Kind.IDS, Method.MODEL, second.count, rows[1].value),
    )
    first, second = replace(first, check=whole[0]), replace(second, check=whole[1])
    assert codec.decompress(pack(reader.header, [first, second])) == rows
    size = repeats.end_of(second.data, 0)
    for place in range(size):
        for bit in range(8):
            bad = bytearray(second.data)
            bad[place] ^= 1 << bit
            with pytest.raises(CorruptError):
                codec.decompress(pack(reader.header, [first, replace(second, data=bytes(bad))]))
    far = repeats.pack([Copy(20, 90, 20 + 222), Copy(20, 90, 331)])
    beyond = replace(second, data=far + second.data[size:])
    with pytest.raises(CorruptError, match="goes beyond its sequence"):
        codec.decompress(pack(reader.header, [first, beyond]))
    with pytest.raises(CorruptError, match="goes beyond its sequence"):
        codec.decompress(pack(reader.header, [first, replace(second, context=None)]))
