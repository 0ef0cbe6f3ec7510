"""pltz archive shrink: its report, its forecast, and its parts."""

import json
from pathlib import Path

import pytest

from tests.archive.maintenance.test_shrink import log
from tests.cli.commands import Run

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


@pytest.fixture
def filled(run: Run, cold: Path, tmp_path: Path) -> Path:
    """Return an archive with two logs in a fast form."""
    for number in range(2):
        (tmp_path / f"{number}.txt").write_bytes(log(50, number))
        assert run("archive", "put", "-r", cold, tmp_path / f"{number}.txt", "--json").exit_code == 0
    return cold


def test_it_says_what_it_would_do_and_what_it_did(run: Run, filled: Path) -> None:
    dry = json.loads(run("archive", "shrink", "-r", filled, "--dry-run", "--json").stdout)
    assert (dry["fresh"], dry["left"], dry["shrunk"], dry["dry_run"]) == (2, 2, 0, True)
    assert 0 < dry["expected"] < dry["fresh_bytes"]
    ended = run("archive", "shrink", "-r", filled, "--for", "0s")
    assert ended.exit_code == 0 and "0 shrunk" in ended.stdout and "no time for 2 packs" in ended.stdout
    done = json.loads(run("archive", "shrink", "-r", filled, "--json").stdout)
    assert done["shrunk"] + done["kept"] == 2 and done["left"] == done["unread"] == 0
    assert done["after"] <= done["before"]


def test_a_duration_that_is_none(run: Run, filled: Path) -> None:
    assert run("archive", "shrink", "-r", filled, "--for", "soon").exit_code == 2
