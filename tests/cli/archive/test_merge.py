"""pltz archive merge: sessions that grew are rewritten, and read as before."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Put, Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


@pytest.fixture
def grown(cold: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a session of four turns, turn by turn, at different times."""
    monkeypatch.setattr("pltz.archive.maintenance.merge.TABLES", 0)  # merge whatever the contexts cost
    for turns in (1, 2, 3, 4):
        put(chat(turns), "--name", "s", "--time", turns)
    return cold


def listed(run: Run, place: Path) -> list[dict[str, Any]]:
    """Return all versions without their age, which grows."""
    return [v | {"age": 0} for v in lines(run("archive", "ls", place, "--history", "--json"))]


def test_versions_read_as_before(run: Run, grown: Path) -> None:
    [dry] = lines(run("archive", "merge", grown, "--dry-run", "--json"))
    assert dry["sessions"] == 1 and dry["dry_run"]
    before = listed(run, grown)
    [done] = lines(run("archive", "merge", grown, "--json"))
    assert done == dry | {"dry_run": False} and done["after"] <= done["before"]
    assert listed(run, grown) == before
    for turns in (1, 2, 3, 4):
        assert json.loads(run("archive", "get", grown, "s", "--version", turns).stdout) == chat(turns)
    assert run("archive", "verify", grown, "--decode").exit_code == 0
    [again] = lines(run("archive", "merge", grown, "--json"))
    assert again["merged"] == 0


def test_sessions_that_are_not_cold_or_of_others_stay(run: Run, grown: Path) -> None:
    [done] = lines(run("archive", "merge", grown, "--cold", "100y", "--json"))
    assert done["sessions"] == 0
    [done] = lines(run("archive", "merge", grown, "--tenant", "other", "--json"))
    assert done["sessions"] == 0
    assert "0 sessions of 0 cold merged" in run("archive", "merge", grown, "--tenant", "other").stdout


@pytest.mark.parametrize("words", [["--cold", "soon"], ["--cold"]])
def test_it_refuses(run: Run, grown: Path, words: list[str]) -> None:
    assert run("archive", "merge", grown, *words).exit_code == 2


def test_it_stops_where_a_pack_is_gone(run: Run, grown: Path) -> None:
    for pack in (grown / "packs").iterdir():
        pack.unlink()
    done = run("archive", "merge", grown)
    assert done.exit_code == 7 and "repair" in done.stderr
