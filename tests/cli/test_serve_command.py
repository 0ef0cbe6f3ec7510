"""serve: what it refuses before it loads a model."""

import socket
from pathlib import Path

import pytest

from tests.cli.commands import Run

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")


def test_an_address_that_is_taken_is_told_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    assert run("archive", "init", tmp_path / "cold").exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", tmp_path / "no-model", "--archive", tmp_path / "cold", "--port", port)
    assert done.exit_code == 2 and f"127.0.0.1, port {port}: Address already in use" in done.stderr
    done = run("serve", tmp_path / "no-model", "--archive", tmp_path / "cold", "--host", "no.such.invalid")
    assert done.exit_code == 2 and "cannot listen on no.such.invalid" in done.stderr


def test_no_journal_is_made_beside_no_archive(run: Run, tmp_path: Path) -> None:
    done = run("serve", "mini-llama", "--archive", tmp_path / "cold")
    assert done.exit_code == 2 and "no archive at" in done.stderr and not list(tmp_path.iterdir())
