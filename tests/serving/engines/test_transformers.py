"""The serving loop of examples/ with real transformers: evicted and thawed sessions go on as if they had stayed."""

from pathlib import Path
from types import ModuleType

import pytest

from pltz.models.target.target import Target
from tests.archive.towers import SessionArchive
from tests.loaded import module_at

EXAMPLE = Path(__file__).parents[3] / "examples" / "transformers_serving.py"


@pytest.fixture
def example() -> ModuleType:
    return module_at(EXAMPLE)


@pytest.mark.slow
def test_an_evicted_session_goes_on_as_one_that_stayed(example: ModuleType, tmp_path: Path) -> None:
    target = Target.load(
        "mini-llama", dtype="float32"
    )  # in bfloat16 a tie may go either way, however the prefill is cut
    found = example.run(target, tmp_path, hot=1, sessions=3, turns=3, length=16)
    assert found["same"] and found["replies"] == 9
    assert (found["evictions"], found["thaws"]) == (8, 6) and found["refused"] == {}
    cold = SessionArchive.open(tmp_path / "cold")
    first, second = (cold.get_ids(f"customer/{n}", version=1) for n in (0, 1))
    assert first.segments[0][0] == second.segments[0][0]  # one system prompt
    assert first.target == target.fingerprint and found["archive_bytes"] * 50 < found["kv_bytes"]
