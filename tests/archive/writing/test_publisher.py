"""A segment that does not decode to its tokens is not written."""

from collections.abc import Sequence

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import U32, Tokens
from pltz.coding.codecs.codec import BytesCodec, Coded
from tests.archive.kit import DirectoryStore, NewSession, SimDisk, TowerArchive

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
