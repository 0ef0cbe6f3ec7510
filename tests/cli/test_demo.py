"""demo: the whole command, with the tiny bundle and target, and slowly with those that ship."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import Run, ok

COUNT = 4


def test_the_whole_way(run: Run, tiny: Path, tmp_path: Path) -> None:
    done = ok(run("demo", "--sessions", COUNT, "--thaws", 2, "-o", tmp_path / "sample.pltz"))
    for words in ("compared equal", "bits per byte", "KV on mini-llama", "KV on Llama-3.1-8B", "prefill", "assistant:"):
        assert words in done.stdout
    assert json.loads(run("inspect", tmp_path / "sample.pltz", "--json").stdout)["sessions"] == COUNT


@pytest.mark.slow
def test_with_what_ships(run: Run) -> None:
    from pltz.models.bundle.bundle import DEFAULT, Bundle

    assert DEFAULT in Bundle.names()
    found = json.loads(run("demo", "--sessions", 10, "--thaws", 2, "--json").stdout)
    assert found["bits_per_byte"] < 1.5, "the shipped bundle is trained"
