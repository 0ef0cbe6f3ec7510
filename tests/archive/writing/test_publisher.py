"""A segment that does not decode to its tokens is not written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format.context import Context
from pltz.archive.format.ids import TENANT, U32, Tokens
from pltz.archive.format.pack import MANY_CHILDREN, RecordPlace
from pltz.archive.format.record import Record
from pltz.archive.storage.simulated_disk import SimDisk
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.publisher import shared_places
from pltz.coding.codecs.codec import BytesCodec, Coded
from pltz.plt_codec.identity import NONE
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


def test_many_children_get_more_parity_and_followers_do_not() -> None:
    context = Context(TENANT, bytes(16), "acme", bytes(16), bytes(16), 1)
    head = Record(0, NONE, b"h" * 16, 4, b"coded")
    below = [Record(0, head.id or NONE, bytes([n]) * 16, 1, b"x") for n in range(1, 1 + MANY_CHILDREN)]
    after = [r._replace(parent=NONE, neighbour=r.parent) for r in below]
    for records, expected in (([head, *below], [RecordPlace(0, 0)]), ([head, *after], [])):
        places = [RecordPlace(0, row) for row in range(len(records))]
        assert shared_places([context] * len(records), records, places) == expected
