"""measure_writers: two writers of one bucket, all that they acknowledged read back, and neither waits for an upload."""

import json

from click.testing import CliRunner

from pltz.benchmarks.archive import measure_writers


def test_each_acknowledged_session_is_read_back() -> None:
    done = CliRunner().invoke(measure_writers.main, ["--writers", "2", "--puts", "3", "--latency", "0", "--stall", "6"])
    assert done.exit_code == 0, done.output
    [run] = json.loads(done.stdout)["runs"]
    assert (run["acknowledged"], run["readable"], run["refused"], run["lists"]) == (6, 6, 0, 0)
    assert run["requests"]["write packs"] == 6 and run["requests_per_put"] >= 4
    assert run["seconds"] > 6 > run["slowest_put"]  # a busy machine takes a second for a put
