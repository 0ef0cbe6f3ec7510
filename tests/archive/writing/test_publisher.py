"""A segment that does not decode to its tokens is not written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format.context import Context
from pltz.archive.format.ids import TENANT, U32, Tokens
from pltz.archive.format.pack import MANY_CHILDREN, Damage, Pack, RecordPlace
from pltz.archive.format.parity import Parity
from pltz.archive.format.record import Record
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.publisher import BEHIND, depended_on_first, shared_places
from pltz.coding.codecs.codec import BytesCodec, Coded, SegmentCodec
from pltz.plt_codec.identity import NONE
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive

DICE = np.random.default_rng(6)


class Forgetful(BytesCodec):
    """Decodes one segment wrong, of so many in all."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.left = wrong

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        found: list[Tokens] = [row.astype(U32) for row in super().decode(batch)]
        if 0 <= self.left < len(found):
            found[self.left] = found[self.left] ^ 1
        self.left -= len(found)
        return found


@pytest.mark.parametrize("wrong", [0, 70, 150, 199])
def test_nothing_is_written_of_several_batches(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr("pltz.archive.writing.batch.BATCH_TOKENS", 50 * 60)
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [Forgetful(wrong)])
    before = disk.seen.files()
    with pytest.raises(ArchiveError, match="does not decode"):
        archive.put([NewSession(f"s{n}", [DICE.integers(0, 256, 60)]) for n in range(200)])
    assert disk.seen.files() == before


def test_many_children_get_more_parity() -> None:
    context = Context(TENANT, bytes(16), "acme", bytes(16), bytes(16), 1)
    head = Record(0, NONE, b"h" * 16, 4, b"coded")
    below = [Record(0, head.id or NONE, bytes([n]) * 16, 1, b"x") for n in range(1, 1 + MANY_CHILDREN)]
    for records, expected in (([head, *below], [RecordPlace(0, 0)]), ([head, *below[1:]], [])):
        places = [RecordPlace(0, row) for row in range(len(records))]
        assert shared_places([context] * len(records), records, places) == expected


@pytest.mark.parametrize("count", [BEHIND - 2, BEHIND - 1])
def test_segments_that_many_depend_on_come_first_with_those_above_them(count: int) -> None:
    context = Context(TENANT, bytes(16), "acme", bytes(16), bytes(16), 1)
    first = Record(0, NONE, b"first" + bytes(11), 4, b"coded")
    above, other = (first._replace(id=name + bytes(15)) for name in (b"a", b"o"))
    head = first._replace(parent=above.id or NONE, id=b"h" + bytes(15))
    below = [Record(0, head.id or NONE, bytes([n]) * 16, 1, b"x", name=f"s{n}") for n in range(1, count)]
    rows = [(context, r) for r in (other, above, head, *below)]
    found, front = depended_on_first(rows)
    assert front == (2 if count == BEHIND - 1 else 0)
    assert [r for _, r in found] == ([above, head, other, *below] if front else [other, above, head, *below])


def test_a_prompt_has_a_block_of_its_own_and_its_parity_is_as_large(codec: SegmentCodec) -> None:
    """It comes back from the parity file alone, however much else is lost."""
    disk, prompt = SimDisk(), DICE.integers(0, 256, 200)
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    archive.put([NewSession(f"s{n}", [prompt, DICE.integers(0, 256, 60)]) for n in range(300)])
    [(path, data)] = [item for item in disk.seen.files().items() if item[0].startswith("packs/")]
    pack = Pack.of(data)
    rows, *others = [item[1] for item in pack.blocks() if not isinstance(item, Damage)]
    assert len(rows) == 1 and sum(map(len, others)) == 300
    parity = Parity.decode(disk.seen.files()[path.replace("packs", "parity")])
    shared = parity.groups[1]
    assert shared.size < 800 and len(data) > 15_000
    left, lost = parity.restore([bytes(len(data))])
    assert lost and all(left[r.offset : r.offset + r.size] == data[r.offset : r.offset + r.size] for r in shared.ranges)


def test_rows_of_several_packs_keep_those_that_many_depend_on_in_the_first(
    codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.archive.format.pack.TARGET_SIZE", 8000)
    disk, prompts = SimDisk(), [DICE.integers(0, 256, 200) for _ in range(3)]
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    sessions = [NewSession(f"s{n}", [prompts[n % 3], DICE.integers(0, 256, 60)]) for n in range(120)]
    archive.put(sessions)
    assert len(archive.catalog.listing.packs) > 2 and archive.verify(decode=True).sound
    for session in sessions:
        assert archive.get(session.name).tokens.tolist() == [t for part in session.segments for t in part]
