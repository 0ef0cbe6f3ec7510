"""The measurement of first tokens, of a tiny shape on a CPU."""

import json
from pathlib import Path

from click.testing import CliRunner

from pltz.benchmarks import plots
from pltz.benchmarks.kv import measure_first_token
from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.kv.predictive.calibration import KVShape
from tests.cli.commands import ok
from tests.kv.engines.test_streams import drawn


def test_every_way_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "small.kv.safetensors"
    random_calibration(bytes(16), KVShape(2, 2, 16, 64), 0, drawn(1, 2, 64)[2]).save(file)
    words = ["llama-tiny", "--lengths", "40", "--turns", "3", "--calibration", str(file), "--rank", "0"]
    done = ok(CliRunner().invoke(measure_first_token.main, [*words, "--rounds", "1", "--warm-up", "0"]))
    found = [json.loads(line) for line in done.output.splitlines()]
    assert [one["tokens"] for one in found] == [40]
    for one in found:
        rows = {row["way"]: row for row in one["rows"]}
        archived = ["archive", "archive, 3 turns"]
        assert list(rows) == ["cold", *archived, "warm", "warm, small", "hot"]
        assert all(row["s"] > 0 and row["cold_over"] > 0 for row in rows.values())
        assert 0 < rows["archive"]["bytes"] < rows["warm, small"]["bytes"] < rows["warm"]["bytes"]
        assert rows["warm"]["bytes"] > rows["hot"]["bytes"] >= 32 * 2 * 2 * 2 * 16 * 2  # in full blocks
    assert found[0]["rows"][0]["all_s"] and plots.draw("first_token", found).startswith(b"<?xml")
