"""The shadow of a pool: the same bytes, metadata and pins after a kill, and misses for what is damaged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pltz.experiments.three_tiers.block_metadata import MetadataTable, PrefixPins, PromptSection
from pltz.experiments.three_tiers.shadow import MANIFEST, Shadow
from pltz.kv.errors import MemoryFailed
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.prefix_tree import PrefixTree
from pltz.plt_codec.errors import UsageError
from tests.failing import NO_SPACE, raising
from tests.kv.pool.pages import form, random_kv

TOKENS = 64
ROOT = Path(__file__).resolve().parents[3]


class Memory:
    """A pool with its tree, metadata, pins and shadow."""

    def __init__(self, folder: Path, *, blocks: int = 60, host: int = 60, target: bytes = b"t" * 16) -> None:
        self.folder, self.recovered = folder, 0
        self.pool = BlockPool(form("q4"), blocks * 16, host_tokens=host * 16)
        self.tree = PrefixTree(self.pool)
        self.table, self.pins = MetadataTable(self.tree), PrefixPins(self.tree)
        self.now = 0.0
        self.shadow = Shadow(folder, target, self.table, self.pins, clock=lambda: self.now)

    def add(self, number: int, *, cold: bool = True) -> torch.Tensor:
        """Put a session of 64 tokens into the tree, cold or not, and return its KV."""
        session = PackedSession.of(random_kv(TOKENS, seed=number), self.pool, keep=0)
        self.tree.insert("acme", ids(number), session)
        kv = session.kv()
        session.release()
        sections = [PromptSection("rules", 0, 20, 0.7), PromptSection("chat", 20, 64)]
        names = self.table.describe("acme", ids(number), sections)
        if cold:
            assert self.tree.move(names, to_host=True) == 4
        return kv

    def kv(self, number: int) -> torch.Tensor | None:
        found = self.tree.match("acme", [*ids(number), 0])
        return None if found is None else found.kv()

    def holds(self, number: int, expected: torch.Tensor) -> bool:
        found = self.kv(number)
        return found is not None and torch.equal(found, expected)

    def reopened(self, *, write: bool = True, **options: Any) -> Memory:
        """Return what another process finds in the shadow, after a pass of this one unless it is left out."""
        if write:
            self.shadow.write()
        self.shadow.close()
        after = Memory(self.folder, **options)
        after.recovered = after.shadow.recover()
        return after


def ids(number: int) -> list[int]:
    return [number, *range(100, 100 + TOKENS - 1)]


def test_cold_blocks_metadata_and_pins_come_back(tmp_path: Path) -> None:
    before = Memory(tmp_path)
    expected = [before.add(n) for n in range(4)]
    expected.append(before.add(4, cold=False))  # on the device, and pinned
    before.add(5, cold=False)
    name = before.pins.pin("acme", ids(4)[:32])
    assert name is not None
    after = before.reopened()
    assert after.recovered == 4 * 4 + 2
    assert after.pins.pins == {name: 1} and after.shadow.stats.missed == 0
    for n in range(4):
        assert after.holds(n, expected[n])
    pinned = after.kv(4)
    assert pinned is not None and torch.equal(pinned, expected[4][:, :, :, :32])
    assert after.kv(5) is None
    kept = {step.name: before.table.blocks[step.name] for step in after.tree.steps()}
    assert after.table.blocks == kept
    one = kept[name]
    assert (one.source, one.importance, one.tokens, one.tenant) == ("rules", 0.7, (16, 32), "acme")


def test_a_segment_stays_until_all_that_lives_in_it_was_copied(tmp_path: Path) -> None:
    """A pass of little room copies one step of eight. The others are in the old segment alone."""
    memory = Memory(tmp_path)
    expected = [memory.add(n) for n in range(6)]
    memory.shadow.write()
    for n in range(4):
        memory.tree.clear("acme", ids(n)[:16])
    memory.shadow._rate, memory.now = 1.0, 61.0
    assert memory.shadow.tick()
    memory.shadow.wait()
    assert memory.shadow.stats.left == 7 and len(memory.shadow._files()) == 2
    after = memory.reopened(write=False)
    for n in (4, 5):
        assert after.holds(n, expected[n])


def test_a_file_is_synced_whole_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves a name without its bytes, in place of the file before."""
    sync, rename, done = os.fsync, Path.rename, list[tuple[str, int]]()

    def synced(handle: int) -> None:
        done.append(("sync", 0 if os.path.isdir(f"/proc/self/fd/{handle}") else os.fstat(handle).st_size))
        sync(handle)

    def renamed(self: Path, target: Path) -> Path:
        done.append(("rename", self.stat().st_size))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    size = MANIFEST.write(tmp_path / "one", {}, {"state": torch.zeros(1000, dtype=torch.uint8)})
    assert done == [("sync", size), ("rename", size), ("sync", 0)]


def test_a_step_that_came_again_is_written_again(tmp_path: Path) -> None:
    """Its KV may differ by float noise from the one that was given up."""
    memory = Memory(tmp_path)
    memory.add(0)
    memory.shadow.write()
    memory.tree.clear("acme", ids(0)[:16])
    session = PackedSession.of(random_kv(TOKENS, seed=77), memory.pool, keep=0)
    memory.tree.insert("acme", ids(0), session)
    expected = session.kv()
    session.release()
    memory.tree.move(memory.tree.names("acme", ids(0)), to_host=True)
    after = memory.reopened()
    assert after.holds(0, expected)


def test_steps_that_find_no_room_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long session in less memory took a walk to its beginning for each step: the square of its steps."""
    memory = Memory(tmp_path, blocks=260, host=260)
    long = [7, *range(200 * 16 - 1)]
    session = PackedSession.of(random_kv(len(long), seed=1), memory.pool, keep=0)
    memory.tree.insert("acme", long, session)
    session.release()
    assert memory.tree.move(memory.tree.names("acme", long), to_host=True) == 200
    memory.shadow.write()
    memory.shadow.close()
    looked = list[bytes]()
    line = Shadow._line

    def noted(self: Shadow, *args: Any) -> list[bytes]:
        looked.extend(found := line(self, *args))
        return found

    monkeypatch.setattr(Shadow, "_line", noted)
    after = Memory(tmp_path, host=20)
    assert 0 < after.shadow.recover() < 20 and len(looked) == 200


def test_steps_without_their_parents_are_misses(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.shadow._rate = 0.0  # a step per pass
    memory.add(0)
    for minute in range(1, 5):
        memory.now = 60.0 * minute
        memory.shadow.tick()
        memory.shadow.wait()
        memory.shadow._rate = 0.0
    memory.shadow.close()
    files = memory.shadow._files()
    assert len(files) == 4
    after = Memory(tmp_path)
    middle = list(memory.tree.steps())[2]  # a beginning is used last
    segment = memory.shadow._written[middle.name][0]
    files[segment].unlink()
    assert 0 < after.shadow.recover() < 4
    assert after.shadow.stats.missed == 3 - len(after.tree)


def test_less_room_other_pages_and_other_targets(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for n in range(4):
        memory.add(n)
    memory.pins.pin("acme", ids(0))
    memory.shadow.write()
    memory.shadow.close()
    assert Memory(tmp_path, target=b"u" * 16).shadow.recover() == 0
    small = Memory(tmp_path, host=7)
    assert 4 <= small.shadow.recover() < 8
    assert small.kv(0) is not None  # pinned ones first
    with pytest.raises(UsageError, match="another process"):
        Memory(tmp_path)
    with pytest.raises(UsageError, match="empty tree"):
        memory.shadow.recover()
    with pytest.raises(UsageError, match="host_tokens"):
        Memory(tmp_path / "other", host=0)


def test_the_manifest_of_a_pass_that_failed_is_written_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing changed in between, so it would be taken for written."""
    memory = Memory(tmp_path)
    memory.add(0)
    memory.shadow.write()
    name = memory.pins.pin("acme", ids(0))
    with monkeypatch.context() as patch, pytest.raises(MemoryFailed):
        patch.setattr(os, "fsync", raising(NO_SPACE))
        memory.shadow.write()
    after = memory.reopened()
    assert after.pins.pins == {name: 1}


def test_a_prefix_that_two_pinned_stays_pinned_by_one_after_a_restart(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.add(0)
    name = memory.pins.pin("acme", ids(0))
    assert name is not None and memory.pins.pin("acme", ids(0)) == name
    after = memory.reopened()
    after.pins.unpin(name)
    assert after.pins.pins == {name: 1} and all(step.pins for step in after.tree.steps())
    after.pins.unpin(name)
    assert not after.pins.pins and not any(step.pins for step in after.tree.steps())


CHILD = """
import sys
from pathlib import Path
from tests.experiments.three_tiers.test_shadow import Memory, ids
memory = Memory(Path(sys.argv[1]))
for number in range(10_000):
    if number >= 8 and number != 11:
        memory.tree.clear("acme", ids(number - 8)[:16])
    memory.add(number)
    if number == 3:
        memory.pins.pin("acme", ids(3)[:32])
    memory.shadow.write()
    print(number, flush=True)
"""


def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    draw = random.Random(2)
    for run in range(2):
        folder = tmp_path / str(run)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert child.stdout is not None
        for _ in range(draw.randrange(5, 12)):
            last = int(child.stdout.readline())
        time.sleep(draw.random() * 0.02)
        os.kill(child.pid, signal.SIGKILL)
        last = max([last, *map(int, child.stdout.read().split())])
        child.wait()
        after = Memory(folder)
        after.shadow.recover()
        assert len(after.pins.pins) == 1
        for number in range(max(last - 6, 0), last + 1):
            expected = PackedSession.of(random_kv(TOKENS, seed=number), after.pool, keep=0)
            found = after.kv(number)
            assert found is not None and torch.equal(found, expected.kv()), number
            expected.release()
        after.shadow.close()
