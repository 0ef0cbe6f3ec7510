"""A segment's bytes, whatever they are: what holds is found, what does not is told, nothing else comes out."""

import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.plt_codec.errors import ContentError, CorruptError, VersionError
from pltz.serving.eviction.journal.entry import MAX_BODY, JournalEntry
from pltz.serving.eviction.journal.segment import ALIGN, FRAME, HEAD_SIZE, MARK, EntryFrame, Gap, Name, scan
from tests.examples import examples

NAME = Name(bytes(range(16)), 3)
quick = settings(deadline=None, max_examples=examples(200))
bodies = st.lists(st.binary(max_size=60), max_size=6)
texts = st.text(st.characters(codec="utf-8"), max_size=30)


def segment(rows: list[bytes]) -> bytes:
    return NAME.head() + NAME.frames(HEAD_SIZE, rows)


def frames(data: bytes, start: int = 0) -> list[bytes]:
    return [piece.body for piece in scan(NAME, data, start) if isinstance(piece, EntryFrame)]


@quick
@given(bodies)
def test_what_was_written_is_read(rows: list[bytes]) -> None:
    found = list(scan(NAME, segment(rows), 0))
    assert [f.body for f in found if isinstance(f, EntryFrame)] == rows and len(found) == len(rows)


@quick
@given(bodies, st.data())
def test_a_torn_tail_loses_only_itself(rows: list[bytes], data: st.DataObject) -> None:
    whole = segment(rows)
    cut = data.draw(st.integers(0, len(whole)))
    found = list(scan(NAME, whole[:cut], 0))
    ends = [f.end for f in scan(NAME, whole, 0) if isinstance(f, EntryFrame)]
    assert [f.body for f in found if isinstance(f, EntryFrame)] == rows[: sum(end <= cut for end in ends)]
    rest = [f for f in found if isinstance(f, Gap)]
    assert all(gap.last and gap.end == cut for gap in rest) and len(rest) <= 1
    assert bool(rest) == (cut not in (0, HEAD_SIZE, *ends))


@quick
@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6), st.data())
def test_a_flipped_bit_costs_one_entry_and_is_told(rows: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(segment(rows))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    found = list(scan(NAME, bytes(whole), 0))
    hit = [n for n, f in enumerate(scan(NAME, segment(rows), 0)) if isinstance(f, EntryFrame) and f.start <= at < f.end]
    assert [f.body for f in found if isinstance(f, EntryFrame)] == [row for n, row in enumerate(rows) if n not in hit]
    assert any(isinstance(f, Gap) and f.start <= at < f.end for f in found)


@quick
@given(st.integers(0, 2**32 - 1), st.binary(min_size=8, max_size=8))
def test_hostile_lengths_are_checked_before_use(size: int, check: bytes) -> None:
    data = segment([b"one"]) + FRAME.pack(MARK, size, check) + bytes(64) + segment([])[:0]
    assert frames(data) == [b"one"]


def test_entries_after_damage_are_found() -> None:
    rows = [bytes([n]) * 40 for n in range(5)]
    data = bytearray(segment(rows))
    first = next(f for f in scan(NAME, bytes(data), 0) if isinstance(f, EntryFrame))
    data[first.end : first.end + 4] = b"\xff" * 4  # the second frame's mark
    assert frames(bytes(data)) == [rows[0], *rows[2:]]


def test_a_frame_of_another_place_does_not_hold() -> None:
    """Old blocks that a file system gives back: right in themselves, but not here."""
    one, two = NAME.frames(HEAD_SIZE, [b"first"]), NAME.frames(HEAD_SIZE + 24, [b"second"])
    assert frames(NAME.head() + one + two) == [b"first", b"second"] and frames(NAME.head() + two + one) == []
    other = Name(NAME.owner, NAME.number + 1)
    assert frames(other.head() + other.frames(HEAD_SIZE, [b"first"])) == []


def test_a_newer_version_is_refused() -> None:
    from pltz.serving.eviction.journal.segment import HEAD, _hash

    head = HEAD.pack(b"pltzjrnl", 2, 0, NAME.number, NAME.owner)
    with pytest.raises(VersionError):
        list(scan(NAME, head + _hash(head), 0))


def test_looking_for_frames_is_bounded() -> None:
    """Every place claims a frame as long as the rest of the file: hashing all of them would be quadratic."""
    size, data = 1 << 20, bytearray(NAME.head())
    while len(data) < size:
        rest = min(MAX_BODY, (size - len(data)) // ALIGN * ALIGN)
        data += FRAME.pack(MARK, rest, bytes(8))
    start = time.process_time()
    assert frames(bytes(data)) == [] and time.process_time() - start < 5


@quick
@given(st.lists(st.integers(0, 2**40), max_size=6), st.integers(0, 15), st.binary(max_size=15))
def test_done_takes_the_largest_row_that_holds(offsets: list[int], cut: int, tail: bytes) -> None:
    rows = b"".join(map(NAME.row, offsets))
    assert NAME.done_of(rows + tail) == max(offsets, default=0)
    assert NAME.done_of(rows[: len(rows) - cut]) == max(offsets[: len(offsets) - (1 if cut else 0)], default=0)
    assert Name(NAME.owner, 0).done_of(b"".join(map(NAME.row, offsets))) == 0


# ---- what a frame holds


@quick
@given(
    texts.filter(len), texts, texts, texts, st.lists(st.integers(0, 2**31 - 1), max_size=30),
    st.dictionaries(texts, texts, max_size=3), st.integers(0, 2**40 - 1), st.data(),
)
def test_an_entry_comes_back(
    name: str, tenant: str, base: str, parent: str, ids: list[int], tags: dict[str, str], time: int, data: st.DataObject
) -> None:
    ends = tuple(sorted(data.draw(st.sets(st.integers(1, len(ids))) if ids else st.just(set()))))
    fingerprints = (data.draw(st.binary(min_size=16, max_size=16)), data.draw(st.binary(min_size=16, max_size=16)))
    one = JournalEntry(name, np.array(ids, np.int64), time, tenant, *fingerprints, tags, ends, base, parent)
    two = JournalEntry.decode(one.encode())
    assert two.ids.tolist() == ids and [getattr(one, f) for f in FIELDS] == [getattr(two, f) for f in FIELDS]


FIELDS = ("name", "time", "tenant", "tokenizer", "target", "tags", "prefixes", "base", "parent")


@quick
@given(st.binary(max_size=300))
def test_hostile_bodies_are_refused(noise: bytes) -> None:
    with pytest.raises(CorruptError):
        JournalEntry.decode(noise[:36] + b"\xff" * 5 + noise[36:])


@pytest.mark.parametrize("bad", [
    JournalEntry("n", np.array([-1]), 0), JournalEntry("n", np.array([1 << 31]), 0),
    JournalEntry("n", np.array([0.5]), 0), JournalEntry("n", np.array([[1]]), 0),
    JournalEntry("n" * 1025, np.array([1]), 0), JournalEntry("\ud800", np.array([1]), 0),
    JournalEntry("n", np.array([1]), -1), JournalEntry("n", np.array([1]), 0, target=b"short"),
    JournalEntry("n", np.array([1]), 0, prefixes=(2,)), JournalEntry("n", np.array([1, 2]), 0, prefixes=(2, 1)),
    JournalEntry("n", np.array([1]), 0, tags={"a": "b" * 20000}),
])
def test_what_does_not_fit_is_not_written(bad: JournalEntry) -> None:
    with pytest.raises(ContentError):
        bad.encode()
