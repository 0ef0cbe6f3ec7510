"""demo: the whole command, with the tiny bundle and target, and slowly with those that ship."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
COUNT = 4


def test_the_whole_way(run: Run, tiny: Path, tmp_path: Path) -> None:
    done = run("demo", "--sessions", COUNT, "--thaws", 2, "-o", tmp_path / "sample.pltz")
    assert done.exit_code == 0, done.output
    for words in ("compared equal", "bits per byte", "KV on mini-llama", "KV on Llama-3.1-8B", "prefill", "assistant:"):
        assert words in done.stdout
    inspected = json.loads(run("inspect", tmp_path / "sample.pltz", "--json").stdout)
    assert inspected["sessions"] == COUNT


@pytest.mark.slow
def test_with_what_ships(run: Run) -> None:
    from pltz.models.bundle.bundle import DEFAULT, Bundle

    assert DEFAULT in Bundle.names()
    found = json.loads(run("demo", "--sessions", 10, "--thaws", 2, "--json").stdout)
    assert found["bits_per_byte"] < 1.5, "the shipped bundle is trained"
