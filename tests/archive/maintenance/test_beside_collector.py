"""Join and verify beside a collector: packs vanish at the beginning of any of their steps, and nothing is lost."""

import shutil
import types
from pathlib import Path
from typing import Any

import pytest

from pltz import Archive
from pltz.archive.maintenance.join import TurnJoiner
from pltz.archive.maintenance.verify import Verifier
from tests.archive.towers import inside

TICKET = "Ticket %d. The customer of Bonn reports that the lamp does not start after the update of last week, and asks."


def steps(of: type) -> list[str]:
    return [name for name, what in vars(of).items() if isinstance(what, types.FunctionType) and name != "__init__"]


def build(place: Path) -> dict[str, Any]:
    """Make an archive whose packs are condemned: the next collector deletes them."""
    archive, sessions = Archive.open(place, create=True), {}
    for number in range(4):
        messages = [{"role": "user", "content": TICKET % number}]
        for turn in range(3):
            said = [("assistant", f"ok {number} {turn} and so on"), ("user", f"what about {turn} then? please tell")]
            messages = messages + [{"role": role, "content": text} for role, text in said]
            sessions[f"s{number}"] = {"messages": messages}
            archive.put(f"s{number}", sessions[f"s{number}"], tenant=f"t{number % 2}", base="bot")
    inside(archive).collect(grace=0)
    return sessions


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Build an archive once."""
    place = tmp_path_factory.mktemp("condemned")
    return place, build(place)


@pytest.fixture
def sessions(template: tuple[Path, dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
    """Copy the archive to where the test works."""
    shutil.copytree(template[0], tmp_path, dirs_exist_ok=True)
    return template[1]


@pytest.mark.parametrize("step", steps(TurnJoiner))
def test_packs_vanish_when_a_step_begins(
    step: str, sessions: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive.open(tmp_path)
    archive.codecs  # noqa: B018  (loaded before the collector runs)
    inner, fired = vars(TurnJoiner)[step], list[int]()

    def wrapped(self: Any, *words: Any, **named: Any) -> Any:
        if not fired:
            fired.append(1)
            Archive.open(tmp_path).collect(grace=0)
        return inner(self, *words, **named)

    monkeypatch.setattr(TurnJoiner, step, wrapped)
    joined = archive.joiner().sessions((f"t{int(name[1:]) % 2}", name, "") for name in sessions)
    assert joined or all("again" in problem.what for problem in inside(archive).catalog.damage.problems)
    after = Archive.open(tmp_path)
    assert after.verify(decode=True).sound
    for name, value in sessions.items():
        tenant = f"t{int(name[1:]) % 2}"
        assert after.get(name, tenant=tenant).value == value and len(after.history(name, tenant=tenant)) == 3


@pytest.mark.parametrize("step", ["_walk", "_check_parity", "_astray", "_index_faults"])
def test_verify_calls_no_pack_damaged_that_a_collector_deletes(
    step: str, sessions: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive.open(tmp_path)
    inside(archive).write_index()
    inner, fired = vars(Verifier)[step], list[int]()

    def wrapped(self: Any, *words: Any, **named: Any) -> Any:
        if not fired:
            fired.append(1)
            Archive.open(tmp_path).collect(grace=0)
        return inner(self, *words, **named)

    monkeypatch.setattr(Verifier, step, wrapped)
    report = archive.verify()
    assert report.sound, report.problems
