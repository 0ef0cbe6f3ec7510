"""Agents keep their KV: over phases, restarts and a full pool, and apart from each other."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from pltz.kv.errors import MemoryFailed, MemoryMismatch, PoolFull
from pltz.kv.memory.agent_memory import AgentMemory
from pltz.kv.memory.prefix_match import ends_of
from pltz.kv.memory.remembered import Remembered, name_of
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.store.kv_folder import AGENT, CENTRE
from pltz.kv.store.store import KVStore
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ContentError, CorruptError, ModelError, UsageError
from tests.failing import NO_SPACE, raising
from tests.loaded import module_at

EXAMPLE = Path(__file__).parents[3] / "examples" / "agent_memory.py"
STORY = "Once there was a small town by the sea, and in it lived a man who repaired clocks. " * 6
FIRST, SECOND = STORY + "Go on:", "\nAnd then, what did the woman say?\n"
NEW = {"new_tokens": 20, "min_new_tokens": 20}


def opened(folder: Path, target: Target, kind: str = "q4", tokens: int = 2048, host: int = 0) -> AgentMemory:
    return AgentMemory.open(folder, target, kind, tokens, host_tokens=host, keep=16)


def file_of(memory: AgentMemory, agent: str) -> Path:
    assert memory.folder is not None
    return memory.folder.path(name_of(agent), AGENT)


def again(memory: AgentMemory, target: Target, kind: str = "q4") -> AgentMemory:
    """Close a memory, and open it as the next process does."""
    assert memory.folder is not None
    memory.close()
    return opened(memory.folder.root, target, kind)


def test_phases_say_what_a_target_without_memory_says(target: Target, tmp_path: Path) -> None:
    memory = opened(tmp_path, target, "raw")
    first = memory.phase("ann", FIRST, **NEW)
    second = memory.phase("ann", SECOND, **NEW)
    assert (first.match, first.reused) == (None, 0) and second.match is not None and second.match.kind == "extend"
    assert second.reused + second.prefilled == len(memory._agents["ann"].ids) - 20
    assert second.prefilled < 20 < second.reused
    ids = [*target.tokenize(FIRST), *first.ids, *target.tokenize(SECOND)]
    assert memory._agents["ann"].ids.tolist() == [*ids, *second.ids]
    whole = torch.tensor([ids])
    found = target.model.generate(whole, max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0)
    assert found[0, len(ids) :].tolist() == list(second.ids)
    assert memory.text("ann") == FIRST + first.text + SECOND + second.text


CHILD = """
import sys
from pltz.models.target.target import Target
from tests.kv.memory.test_agent_memory import SECOND, opened
memory = opened(sys.argv[1], Target.load("mini-llama", dtype="float32"))
while True:
    memory.phase("ann", SECOND, new_tokens=4)
    print(len(memory.text("ann")), flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_every_reply_that_it_returned(target: Target, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert child.stdout is not None
    for _ in range(5):
        returned = int(child.stdout.readline())
    time.sleep(random.Random().random() * 0.05)
    child.kill()
    returned = max([returned, *map(int, child.stdout.read().split())])
    child.wait()
    memory = opened(tmp_path, target)
    text = memory.text("ann")
    assert text.startswith(SECOND) and len(text) >= returned
    memory.phase("ann", SECOND, **NEW)
    assert memory.text("ann").startswith(text)


def test_agents_of_one_batch_say_what_they_say_alone(target: Target, tmp_path: Path) -> None:
    texts = {"ann": FIRST, "bob": "Hello. " * 9, "eve": "A"}
    together, alone = opened(tmp_path / "one", target), opened(tmp_path / "two", target)
    for phase in range(2):
        both = together.many(texts, **NEW)
        for agent, text in texts.items():
            assert both[agent] == alone.phase(agent, text, **NEW), phase
    blocks = [set(memory.session.blocks) for memory in together._agents.values() if memory.session is not None]
    assert not blocks[0] & blocks[1]
    together.forget("ann")
    assert together.agents() == ["bob", "eve"] and together.text("ann") == ""
    assert together.phase("bob", "!", **NEW) == alone.phase("bob", "!", **NEW)
    together.close()
    assert together.pool.device.free == together.pool.device.blocks


def test_ids_agent_generated_stay_where_tokenizer_would_spell_them_otherwise(target: Target, tmp_path: Path) -> None:
    """Two ids for a word that the tokenizer writes as one: a match of ids would end there."""
    memory = opened(tmp_path, target)
    assert memory.folder is not None
    apart = [one for letter in " the" for one in target.tokenize(letter)]
    assert len(apart) > len(target.tokenize(" the"))
    ids, text = [*target.tokenize(FIRST), *apart], FIRST + " the"
    session = PackedSession.of(target.prefill(ids)[0], memory.pool, keep=16)
    memory._agents["ann"] = Remembered(text, np.array(ids, np.int32), ends_of(target, ids, text), session)
    memory.save()
    memory = again(memory, target)
    reply = memory.phase("ann", " end of it.", **NEW)
    assert reply.reused == len(ids) and memory._agents["ann"].ids[: len(ids)].tolist() == ids


def test_a_full_pool_gives_up_the_agent_used_least_recently(target: Target, tmp_path: Path) -> None:
    roomy, small = opened(tmp_path / "one", target), opened(tmp_path / "two", target, tokens=320)
    hosted = opened(tmp_path / "three", target, tokens=320, host=320)
    for agent in ("ann", "bob", "eve", "ann", "bob"):
        expected = roomy.phase(agent, FIRST if agent not in roomy.agents() else SECOND, **NEW)
        for memory in (small, hosted):
            assert memory.phase(agent, FIRST if agent not in memory.agents() else SECOND, **NEW) == expected
    for memory in (small, hosted):
        assert sum(kept.session is not None for kept in memory._agents.values()) == 2
    assert hosted.store.stats().spilled and not small.store.stats().dropped
    with pytest.raises(PoolFull):
        small.phase("ann", STORY * 4, **NEW)
    assert small.text("ann") == roomy.text("ann")
    assert small.phase("bob", SECOND, **NEW) == roomy.phase("bob", SECOND, **NEW)


# ---- files


def test_agents_whose_batch_is_refused_give_back_what_they_held_for_it(target: Target, tmp_path: Path) -> None:
    memory = opened(tmp_path, target)
    memory.phase("ann", FIRST, new_tokens=4)
    with pytest.raises(ContentError):
        memory.many({"ann": SECOND, "bob": STORY * 200}, new_tokens=4)
    memory.forget("ann")
    assert memory.pool.device.free == memory.pool.device.blocks


def test_an_agent_that_leaves_a_full_pool_keeps_its_text_without_a_file(target: Target) -> None:
    memory = AgentMemory(target, KVStore.open(target, 176), keep=16)
    reply = memory.phase("ann", FIRST, new_tokens=4)
    memory.phase("bob", FIRST, new_tokens=4)
    assert memory._agents["ann"].session is None and memory.text("ann") == FIRST + reply.text
    assert memory.phase("ann", SECOND, new_tokens=4).match is not None


def test_kv_that_is_in_no_file_any_more_is_run_again(target: Target, tmp_path: Path) -> None:
    memory = opened(tmp_path, target)
    first = memory.phase("ann", FIRST, **NEW)
    memory.close()
    for path in file_of(memory, "ann").parent.glob("*.q4-*.safetensors"):
        path.unlink()
    memory = opened(tmp_path, target)
    second = memory.phase("ann", SECOND, **NEW)
    assert second.match is not None and second.reused == 0 and memory.text("ann").startswith(FIRST + first.text)


def test_the_memory_of_another_agent_is_refused(target: Target, tmp_path: Path) -> None:
    memory = opened(tmp_path, target)
    memory.phase("ann", FIRST, **NEW)
    shutil.copy(file_of(memory, "ann"), file_of(memory, "bob"))
    with pytest.raises(CorruptError, match="another form, target or name"):
        memory.phase("bob", SECOND, **NEW)
    memory.forget("bob")
    assert memory.phase("bob", SECOND, **NEW).match is None


def test_what_is_forgotten_is_in_no_file(target: Target, tmp_path: Path) -> None:
    memory = opened(tmp_path, target)
    for agent in ("ann", "bob"):
        memory.phase(agent, FIRST, **NEW)
    memory.store.drain()
    count = len(list(tmp_path.glob("*/*.safetensors")))
    ids = memory._agents["ann"].ids[:16].tobytes()  # of bob, too
    assert sum(ids in path.read_bytes() for path in tmp_path.glob("*/*.safetensors")) == 4
    memory.forget("ann")
    left = list(tmp_path.glob("*/*.safetensors"))
    assert len(left) == count - 2 and sum(ids in path.read_bytes() for path in left) == 2
    assert opened_text(memory, target, "bob").startswith(FIRST) and not opened_text(memory, target, "ann")


def opened_text(memory: AgentMemory, target: Target, agent: str) -> str:
    assert memory.folder is not None
    memory.close()
    return opened(memory.folder.root, target).text(agent)


def test_the_centre_of_a_folder_is_used_and_checked(target: Target, tmp_path: Path) -> None:
    """One that is computed again may differ by float noise, and rows of another mean other numbers."""
    memory = opened(tmp_path, target)
    memory.phase("ann", FIRST, **NEW)
    memory.close()
    assert memory.folder is not None
    file = memory.folder.get(bytes(32), CENTRE)
    assert file is not None
    file.head["centre"].add_(1e-3)
    memory.folder.put(file)
    second = opened(tmp_path, target).phase("ann", SECOND, **NEW)
    assert second.match is not None and second.reused == 0
    path = memory.folder.path(bytes(32), CENTRE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match="damaged or foreign"):
        opened(tmp_path, target)


def test_write_that_fails_leaves_file_before(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose sync fails is tried again."""
    memory = opened(tmp_path, target)
    memory.phase("ann", FIRST, **NEW)
    before = file_of(memory, "ann").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("pltz.kv.store.kv_file.KVFileWriter.fill", raising(NO_SPACE))
        with pytest.raises(MemoryFailed, match="No space left"):
            memory.phase("ann", SECOND, **NEW)
    folder = file_of(memory, "ann").parent
    assert file_of(memory, "ann").read_bytes() == before and not list(folder.glob("*.part"))
    with monkeypatch.context() as patched:
        patched.setattr("pltz.kv.store.kv_folder._sync", raising(OSError(5, "Input/output error")))
        with pytest.raises(MemoryFailed, match="Input/output"):
            memory.save()
    text = memory.text("ann")
    assert memory.save("ann") > 0 and again(memory, target).text("ann") == text


def test_an_agent_in_use_is_refused_to_others(target: Target, tmp_path: Path) -> None:
    ours, theirs = opened(tmp_path, target), opened(tmp_path, target)
    ours.phase("ann", FIRST, **NEW)
    theirs.phase("bob", "Hello. ", **NEW)
    kept = file_of(ours, "ann").read_bytes()
    for call in (lambda: theirs.phase("ann", SECOND, **NEW), lambda: theirs.text("ann"), lambda: theirs.forget("ann")):
        with pytest.raises(MemoryMismatch, match="another process uses the agent 'ann'"):
            call()
    assert file_of(ours, "ann").read_bytes() == kept and theirs.agents() == ["ann", "bob"]
    text = ours.text("ann")
    ours.close()
    assert theirs.text("ann") == text
    theirs.forget("bob")
    assert opened(tmp_path, target).text("bob") == ""


def test_a_target_that_computes_no_numbers_changes_no_memory(target: Target, tmp_path: Path) -> None:
    """A file with NaN could not be loaded again."""
    memory = opened(tmp_path, target, "raw")
    memory.phase("ann", FIRST, **NEW)
    before, text = file_of(memory, "ann").read_bytes(), memory.text("ann")
    weight = target.model.get_parameter("model.layers.1.self_attn.v_proj.weight")
    sound = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
        try:
            with pytest.raises(ModelError, match="no numbers"):
                memory.phase("ann", SECOND, **NEW)
        finally:
            weight.copy_(sound)
    assert file_of(memory, "ann").read_bytes() == before and memory.text("ann") == text
    memory.phase("ann", SECOND, **NEW)
    text = memory.text("ann")
    assert again(memory, target, "raw").text("ann") == text


def test_a_batch_of_agents_of_which_one_fails_changes_none(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(tmp_path, target, "raw")
    memory.many({"ann": FIRST, "bob": FIRST + " Bob says:"}, **NEW)
    texts, free = [memory.text(agent) for agent in ("ann", "bob")], memory.pool.device.free
    answers = iter([True, False])
    monkeypatch.setattr("pltz.kv.memory.agent_memory.finite", lambda tensor: next(answers))
    with pytest.raises(ModelError, match="'bob'"):
        memory.many({"ann": SECOND, "bob": SECOND}, **NEW)
    assert [memory.text(agent) for agent in ("ann", "bob")] == texts and memory.pool.device.free == free


def test_calls_that_make_no_sense(target: Target, tmp_path: Path) -> None:
    memory = opened(tmp_path, target)
    memory.phase("ann", FIRST, **NEW)
    for call in (
        lambda: memory.phase("ann", "x", 0), lambda: memory.respond("ann", "", 5),
        lambda: memory.phase("ann", "x", 5, num_beams=3), lambda: AgentMemory(target, KVStore.open(target, 64)).save(),
    ):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(ContentError, match="at most 8192 tokens"):
        memory.phase("ann", "x", 9000)
    assert memory.text("ann").startswith(FIRST)


# ---- the example


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return module_at(EXAMPLE)


def test_the_example_says_the_same_with_a_restart(target: Target, tmp_path: Path, example: ModuleType) -> None:
    found = example.run(target, tmp_path / "one", "q4", 12)
    through = example.run(target, tmp_path / "two", "q4", 12, restart=False)
    assert found["said"] == through["said"]
    assert [agent for _, agent, _ in found["said"]] == ["ann", "bob", "ann", "bob", "warden", "ann", "bob"]
    assert found["reused"] > found["run"] / 2
