"""bench neighbours: the nearest earlier session is found and helps, in a real file, and nothing drifts."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.experiments.neighbours.nearest import TenantSessions, measure
from pltz.models.session.session import Session
from pltz.plt_codec import repeats
from pltz.plt_codec.errors import ModelError
from tests.cli.commands import Run, ok

WORDS = [f"word{n} " for n in range(400)]


def write(path: Path) -> Path:
    """Write two sources: in one every second session is a variant of the one before, in the other none is."""
    dice, lines = random.Random(3), []
    for number in range(16):
        text = dice.choices(WORDS, k=60)
        for source, other in (("twins", [*text[:30], "changed ", *text[30:]]), ("alone", dice.choices(WORDS, k=60))):
            for one in (text, other) if source == "twins" else (other,):
                messages = [{"role": "user", "content": "".join(one)}]
                lines.append(json.dumps({"id": f"{source}-{number}", "messages": messages}))
    path.write_text("\n".join(lines))
    return path


def test_twins_gain_and_others_lose_nothing(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "r.jsonl")
    *table, last = ok(run("neighbours", "--data", data, "--sessions", 24)).stdout.splitlines()
    found = json.loads(last)
    alone, twins = found["sources"]
    assert (alone["source"], twins["source"]) == ("alone", "twins")
    for row in (alone, twins, found["all"]):
        assert row["best"] <= row["nearest"] <= row["alone"] and row["eight"] <= row["alone"]
        assert row["patched"] <= row["zstd"] and row["dictionary"] <= row["zstd"]
        assert row["file"]["with"]["bytes"] <= row["file"]["without"]["bytes"]
    assert twins["sessions"] == 24 and twins["patched"] < 0.8 * twins["zstd"]
    assert found["all"]["alone"] == alone["alone"] + twins["alone"]
    assert found["all"]["file"]["with"]["bytes"] == sum(r["file"]["with"]["bytes"] for r in (alone, twins))
    assert any(line.startswith("twins") and f"{twins['alone']:,}" in line for line in table)


@pytest.mark.parametrize("damaged", [False, True])
def test_copies_from_the_neighbour_count_and_are_read_back(monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    dice = np.random.default_rng(2)
    first, own = dice.integers(1, 4096, 300), dice.integers(1, 4096, 20)
    tokens = [first, np.concatenate([first[:150], own, first[150:]])]
    tenant = TenantSessions("s", [Session("ids", t) for t in tokens], tokens, [b"", b""], [1])
    codec = Codec.load(None)
    if damaged:
        monkeypatch.setattr(repeats, "expand", lambda rest, copies, past: np.concatenate([past, rest]))
        with pytest.raises(ModelError, match="no figure"):
            measure(codec, tenant, [[0]], 1)
        return
    found = measure(codec, tenant, [[0]], 1)
    monkeypatch.setattr(repeats, "candidates", lambda *given: [])
    seen = measure(codec, tenant, [[0]], 1)
    assert found.alone == seen.alone and found.after[0][0] < 0.7 * seen.after[0][0] < 0.4 * seen.alone[0]
