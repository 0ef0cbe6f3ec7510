"""The nights of `measure_peers`, on two small logs."""

import json
from pathlib import Path

from click.testing import CliRunner

from pltz.benchmarks.archive import measure_peers


def test_every_log_comes_back_after_each_night(tmp_path: Path) -> None:
    lines = [json.dumps({"type": "user", "message": {"role": "user", "content": f"Say {n}."}}) for n in range(20)]
    logs = [{"kind": "claude-code", "text": "\n".join(lines[: 10 + n]) + "\n"} for n in range(2)]
    data = tmp_path / "logs.jsonl"
    data.write_text("".join(json.dumps(log) + "\n" for log in logs), "utf8")
    done = CliRunner().invoke(measure_peers.main, [str(data), "--peer", "zstd"], catch_exceptions=False)
    found = json.loads(done.output.splitlines()[-1])["zstd"]
    assert found["unchanged"]["bytes"] == 0 < found["copy"]["bytes"] < found["first"]["bytes"]
