"""bench neighbours: the nearest earlier session is found and helps, and no source gets larger."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from click.testing import Result

from pltz.benchmarks.neighbours import together

Run = Callable[..., Result]
WORDS = [f"word{n} " for n in range(400)]


def write(path: Path) -> Path:
    """Write two sources: in one every second session is a variant of the one before, in the other none is."""
    dice, lines = random.Random(3), []
    for number in range(16):
        text = dice.choices(WORDS, k=60)
        for source, other in (("twins", [*text[:30], "changed ", *text[30:]]), ("alone", dice.choices(WORDS, k=60))):
            for one in (text, other) if source == "twins" else (other,):
                message = {"role": "user", "content": "".join(one)}
                lines.append(json.dumps({"id": f"{source}-{number}", "messages": [message]}))
    path.write_text("\n".join(lines))
    return path


def test_twins_gain_and_others_lose_nothing(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "r.jsonl")
    done = run("bench", "neighbours", "--data", data, "--sessions", 32)
    assert done.exit_code == 0, done.output
    *table, last = done.stdout.splitlines()
    found = json.loads(last)
    alone, twins = found["sources"]
    assert (alone["source"], twins["source"]) == ("alone", "twins")
    for row in (alone, twins, found["all"]):
        assert row["bits"] <= row["file"] <= row["alone"] and row["bits"] <= row["first"]
        assert row["together"] <= row["archive"] <= row["alone"] and row["eight"] <= row["alone"]
        assert row["patched"] <= row["zstd"] and row["dictionary"] <= row["zstd"]
    assert twins["sessions"] == 32 and twins["patched"] < 0.8 * twins["zstd"]
    assert found["all"]["alone"] == alone["alone"] + twins["alone"]
    assert any(line.startswith("twins") and f"{twins['alone']:,}" in line for line in table)


def test_earlier_sessions_may_come_from_another_file(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "r.jsonl")
    done = run("bench", "neighbours", "--data", data, "--earlier", data, "--sessions", 4, "--json")
    assert done.exit_code == 0, done.output
    [line] = done.stdout.splitlines()
    for row in json.loads(line)["sources"]:  # each session is among those at hand
        assert row["patched"] <= 0.1 * row["zstd"] or row["bits"] == row["alone"]


def test_a_length_that_no_session_has_is_refused(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "r.jsonl")
    done = run("bench", "neighbours", "--data", data, "--least", 100_000, "--most", 200_000)
    assert done.exit_code == 2 and "--least" in done.output


def test_eight_neighbours_are_one_context_with_the_nearest_last() -> None:
    rows = [np.full(400, number) for number in (1, 2, 3, 4)]
    found = together(rows)
    assert found is not None and found.tolist() == [*[3] * 223, *[2] * 400, *[1] * 400, 0]
    assert together([]) is None
