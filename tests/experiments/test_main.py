"""``python -m pltz.experiments``: its commands are there, and a disk that is not there is said."""

from pathlib import Path

import pytest

from pltz.experiments.__main__ import COMMANDS
from tests.cli.commands import Run


@pytest.mark.parametrize("name", ["archive", "thaw"])
def test_a_disk_that_is_not_there(run: Run, tmp_path: Path, name: str) -> None:
    done = run(name, "--where", tmp_path / "absent")
    assert done.exit_code == 2 and "absent does not exist" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_has_a_help(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.exit_code == 0 and done.stdout.startswith(f"Usage: python -m pltz.experiments {name}")
