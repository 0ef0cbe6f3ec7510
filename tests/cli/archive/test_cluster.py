"""archive cluster, and put --neighbours: sessions are coded after others, read back, and erased without harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import Result

from pltz.archive.archive import Archive
from pltz.archive.maintenance import bulk_ray
from pltz.archive.maintenance.bulk_shards import OneProcess
from pltz.plt_codec.identity import NONE
from tests.archive.peek import peek
from tests.archive.towers import inside

Run = Callable[..., Result]
TEXT = "The bell of copper rings at nine when Zacharias opens his shop in Quellenweg, and seven grey geese run by. " * 2


pytestmark = pytest.mark.usefixtures("trained")


def chats(path: Path, first: int, count: int) -> Path:
    rows = [{"messages": [{"role": "user", "content": f"{TEXT}It was day {n}."}]} for n in range(first, first + count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def coded_after(archive: Archive, name: str) -> bytes:
    """Return the neighbour of a session's last segment."""
    return peek(archive, name)[-1].record.neighbour


def test_sessions_of_another_process_serve_once_they_are_chosen(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    assert run("archive", "init", place).exit_code == 0
    assert run("archive", "put", place, chats(tmp_path / "a.jsonl", 0, 3)).exit_code == 0
    put = ("archive", "put", place, chats(tmp_path / "b.jsonl", 7, 1), "--neighbours")
    done = run("archive", "cluster", place, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert {k: json.loads(done.stdout)[k] for k in ("tenants", "sessions", "medoids")} == {
        "tenants": 1,
        "sessions": 3,
        "medoids": 3,
    }
    done = run("archive", "cluster", place)
    assert done.exit_code == 0 and done.stdout.startswith("3 sessions chosen, 3 looked at, 1 tenant")
    assert run(*put).exit_code == 0
    archive = Archive.open(place)
    assert coded_after(archive, "b/0") in {inside(archive).version(f"a/{n}").leaf for n in range(3)}
    assert coded_after(archive, "a/0") == NONE
    assert archive.get("b/0").value["messages"][0]["content"] == f"{TEXT}It was day 7."
    assert run("archive", "verify", place, "--decode").exit_code == 0


def test_workers_choose_what_one_machine_chooses(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_ray, "cluster", lambda address: nullcontext())
    monkeypatch.setattr(bulk_ray, "RayWorkers", lambda ray: OneProcess())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cold, twin = tmp_path / "cold", tmp_path / "twin"
    run("archive", "init", cold)
    for tenant, first, count in (("a", 0, 5), ("b", 20, 2)):
        run("archive", "put", cold, chats(tmp_path / f"{tenant}.jsonl", first, count), "--tenant", tenant)
    shutil.copytree(cold, twin)
    for words, kept in (("--dry-run",), 0), ((), 0), ((), 2):
        one, spread = (
            run("archive", "cluster", place, "--medoids", 3, "--json", *words, *ray)
            for place, ray in ((cold, ()), (twin, ("--ray",)))
        )
        assert one.exit_code == spread.exit_code == 0 and one.stdout == spread.stdout, spread.output
        done = json.loads(one.stdout)
        assert (done["tenants"], done["medoids"], done["kept"]) == (2, 5, kept)
        files = [{file.name for file in (place / "index").glob("candidates-*")} for place in (cold, twin)]
        assert files[0] == files[1] and len(files[0]) == (not words)


def test_in_the_fast_layout_sessions_with_a_neighbour_are_not_chosen(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    assert run("archive", "init", place).exit_code == 0
    put = ("archive", "put", place, chats(tmp_path / "a.jsonl", 0, 3), "--neighbours", "--layout", "fast")
    assert run(*put).exit_code == 0
    archive = Archive.open(place)
    near = [coded_after(archive, f"a/{n}") for n in range(3)]
    assert near.count(NONE) == 1 and len(set(near)) == 2
    for layout, chosen in (("default", 3), ("fast", 1)):
        done = run("archive", "cluster", place, "--dry-run", "--json", "--layout", layout)
        assert json.loads(done.stdout)["medoids"] == chosen, layout


def test_an_erase_loads_the_bundle_that_codes_others_anew(tmp_path: Path) -> None:
    cold = Archive.open(tmp_path / "cold", create=True, passphrase="correct horse", neighbours=True)
    for name in ("first", "second"):
        cold.put(name, f"{TEXT}{name}")
    assert coded_after(cold, "second") == inside(cold).version("first").leaf
    other = Archive.open(tmp_path / "cold", passphrase="correct horse")
    assert other.erase("first", tenant="default").recoded == 1
    for archive in (other, Archive.open(tmp_path / "cold", passphrase="correct horse")):
        assert archive.get("second").value == f"{TEXT}second".encode()
        assert coded_after(archive, "second") == NONE


def test_a_copy_codes_sessions_anew_that_were_put_one_at_a_time(run: Run, tmp_path: Path) -> None:
    place, sizes = tmp_path / "cold", {}
    assert run("archive", "init", place).exit_code == 0
    for number in range(3):
        path = chats(tmp_path / f"s{number}.jsonl", number, 1)
        assert run("archive", "put", place, path).exit_code == 0
    for options in ([], ["--neighbours"]):
        other = tmp_path / f"other{len(options)}"
        assert run("archive", "init", other).exit_code == 0
        done = run("archive", "copy", place, other, "--json", *options)
        assert done.exit_code == 0, done.output
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        sizes[len(options)] = sum(row["bytes"] for row in rows)
        archive = Archive.open(other)
        alone = [name for name in ("s0/0", "s1/0", "s2/0") if coded_after(archive, name) == NONE]
        assert len(alone) == (1 if options else 3)
        assert [archive.get(f"s{n}/0").value["messages"][0]["content"][-2:] for n in range(3)] == ["0.", "1.", "2."]
        assert run("archive", "verify", other, "--decode").exit_code == 0
    assert sizes[1] < 0.7 * sizes[0]
