"""serve: what it refuses before it loads a model."""

import socket
from pathlib import Path

import pytest

from tests.cli.commands import Run

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")


def test_an_address_that_is_taken_is_told_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", tmp_path / "no-model", "--archive", tmp_path / "cold", "--port", port)
    assert done.exit_code == 2 and f"127.0.0.1, port {port}: Address already in use" in done.stderr
    host = ["--host", "no.such.invalid", "--insecure"]
    done = run("serve", tmp_path / "no-model", "--archive", tmp_path / "cold", *host)
    assert done.exit_code == 2 and "cannot listen on no.such.invalid" in done.stderr


def test_others_are_let_in_with_a_key_or_on_purpose(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    words = ["serve", tmp_path / "no-model", "--archive", tmp_path / "cold", "--host", "no.such.invalid"]
    done = run(*words)
    assert done.exit_code == 2 and "--api-key FILE or $PLTZ_API_KEY, or say --insecure" in done.stderr
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    key.chmod(0o640)
    assert f"chmod 600 {key}" in run(*words, "--api-key", key).stderr
    key.chmod(0o600)
    for more in (["--insecure"], ["--api-key", key]):
        assert "cannot listen on no.such.invalid" in run(*words, *more).stderr
    monkeypatch.setenv("PLTZ_API_KEY", "0123456789abcdef")
    assert "cannot listen on no.such.invalid" in run(*words).stderr
    for wrong in ("short", "0123456789 abcdef", "0123456789abcdé"):
        monkeypatch.setenv("PLTZ_API_KEY", wrong)
        assert "at least 16 ASCII characters" in run(*words).stderr


def test_no_journal_is_made_beside_no_archive(run: Run, tmp_path: Path) -> None:
    done = run("serve", "mini-llama", "--archive", tmp_path / "cold")
    assert done.exit_code == 2 and "no archive at" in done.stderr and not list(tmp_path.iterdir())
