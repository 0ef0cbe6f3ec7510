"""measure_split: a file and an archive of the same sessions, with and without neighbours, both read back."""

import json
from pathlib import Path

from click.testing import CliRunner

from pltz.benchmarks.sizes import measure_split
from tests.cli.commands import ok


def write(path: Path) -> Path:
    lines = []
    for number in range(12):
        text = " ".join(f"word{(n * 7 + number % 2) % 90}" for n in range(60))
        message = {"role": "user", "content": f"{text} and {number}"}
        lines.append(json.dumps({"id": f"source{number % 3}-{number}", "messages": [message]}))
    path.write_text("\n".join(lines))
    return path


def test_neighbours_make_a_file_smaller_and_each_session_comes_back(tmp_path: Path) -> None:
    data = write(tmp_path / "chats.jsonl")
    done = ok(CliRunner().invoke(measure_split.main, [str(data), "--commit", "2"]))
    found = json.loads(done.stdout)
    assert (found["sessions"], found["tenants"]) == (12, 3)
    alone, after = found["file"]
    assert after["bytes"] < alone["bytes"] and alone["after_another"] == 0 and alone["decoded_for_one"] == 1
    assert after["after_another"] > 6 and 1 < after["decoded_for_one"] <= 4
    for row in found["archive"]:
        assert row["bytes"] == row["packs"] + row["indexes"] - row["names"] and row["names"] == 14
    together, in_twos = (row["packs"] for row in found["archive"])
    assert together < in_twos and found["zstd_dictionary"] > 0
