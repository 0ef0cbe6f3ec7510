"""The commands of ``pltz archive`` where damage may hide a session: they never say that there is none."""

import json
from pathlib import Path

import pytest

from tests.archive.towers import TowerArchive
from tests.cli.commands import Put, Run
from tests.files import flip

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


@pytest.fixture
def hurt(run: Run, cold: Path, put: Put) -> Path:
    """Make an archive of three packs with one session each and no index, and damage the record of "b"."""
    for name in ("a", "b", "c"):
        put(f"a text of {name}", "--name", name)
    spoil(cold, "b")
    return cold


def spoil(cold: Path, name: str) -> Path:
    """Flip a byte in the record of a session and return its pack."""
    at = TowerArchive.open(cold, []).version(name).location
    pack = cold / "packs" / at.pack.hex()
    flip(pack, at.offset + 12)
    return pack


def test_where_packs_are_gone(run: Run, cold: Path, put: Put, tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(f"a text of {name}", "--name", name)
    (cold / "packs" / TowerArchive.open(cold, []).version("b").location.pack.hex()).unlink()
    assert run("archive", "get", "-r", cold, "a").exit_code == 0
    done = run("archive", "get", "-r", cold, "b")
    assert done.exit_code == 7 and "damaged or gone: see pltz archive repair" in done.stderr, done.output
    for command in ("ls", "stat"):
        done = run("archive", command, "-r", cold)
        assert done.exit_code == 7 and "sessions may be missing: 1 pack" in done.stderr, done.output
    done = run("archive", "get", "-r", cold, "-o", tmp_path / "all.jsonl")
    assert done.exit_code == 7 and "went through 1 session, but" in done.stderr, done.output
    assert run("archive", "repair", "-r", cold).exit_code == 0 and run("archive", "get", "-r", cold, "b").exit_code == 0
    done = run("archive", "ls", "-r", cold)
    assert len(done.stdout.splitlines()) == 2 and not done.stderr


def test_get_and_copy_do_what_they_can_and_do_not_say_that_it_is_all(run: Run, hurt: Path, tmp_path: Path) -> None:
    done = run("archive", "get", "-r", hurt, "-o", tmp_path / "all.jsonl")
    assert done.exit_code == 7 and "went through 2 sessions, but" in done.stderr, done.output
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 2
    assert run("archive", "init", "-r", tmp_path / "to").exit_code == 0
    done = run("archive", "copy", "-r", hurt, tmp_path / "to")
    assert done.exit_code == 7 and "may be missing" in done.stderr, done.output
    assert sorted(v.name for v in TowerArchive.open(tmp_path / "to", []).ls()) == ["a", "c"]
    assert run("archive", "get", "-r", hurt, "a", "-o", tmp_path / "a.jsonl").exit_code == 0
    assert run("archive", "get", "-r", hurt, "b", "-o", tmp_path / "b.jsonl").exit_code == 3


@pytest.mark.parametrize("words", [[], ["--redact"]])
def test_a_session_that_cannot_be_read_stops_no_other(
    run: Run, cold: Path, put: Put, tmp_path: Path, words: list[str]
) -> None:
    if words:
        pytest.importorskip("detect_secrets", reason="needs the extra secrets")
    for name in ("a", "b", "c"):
        put(f"a text of {name}", "--name", name)
    archive = TowerArchive.open(cold, [])
    version = archive.version("b")
    pack, bits = cold / "packs" / version.location.pack.hex(), archive.record(version.leaf).record.bitstring
    flip(pack, pack.read_bytes().index(bits))
    (cold / "parity" / pack.name).unlink()
    done = run("archive", "get", "-r", cold, "-o", f"{tmp_path}/out/", *words)
    assert done.exit_code in (3, 7) and "refused: session 'b': segment" in done.stderr, done.output
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"a.json", "c.json"}
    run("archive", "init", "-r", tmp_path / "to")
    done = run("archive", "copy", "-r", cold, tmp_path / "to", "--json", *words)
    rows = {row["name"]: row.get("lost", "") for row in map(json.loads, done.stdout.splitlines())}
    assert done.exit_code in (3, 7) and (rows["a"], rows["c"]) == ("", "") and "session 'b': segment" in rows["b"]
    assert sorted(v.name for v in TowerArchive.open(tmp_path / "to", []).ls()) == ["a", "c"]


def test_a_loss_is_reported_until_it_is_acknowledged(run: Run, cold: Path, put: Put) -> None:
    for name in ("a", "b"):
        put(f"a text of {name}", "--name", name)
    archive = TowerArchive.open(cold, [])
    archive.write_index()
    pack = archive.version("b").location.pack.hex()
    for folder in ("packs", "parity"):
        (cold / folder / pack).unlink()
    assert run("archive", "repair", "-r", cold).exit_code == 3
    done = run("archive", "repair", "-r", cold)
    assert done.exit_code == 3 and f"not acknowledged: pack {pack}" in done.stdout
    assert run("archive", "get", "-r", cold, "b").exit_code == 3
    done = run("archive", "ls", "-r", cold)
    assert done.exit_code == 7 and "repair gave up" in done.stderr, done.output
    assert run("archive", "verify", "-r", cold).exit_code == 3
    assert json.loads(run("archive", "stat", "-r", cold, "--json").stdout)["losses"] == 1
    dry = run("archive", "repair", "-r", cold, "--acknowledge", "--dry-run")
    assert dry.exit_code == 0 and f"would be acknowledged: pack {pack}" in dry.stdout
    [row] = json.loads(run("archive", "repair", "-r", cold, "--acknowledge", "--json").stdout)["acknowledged"]
    assert row["pack"] == pack and len(row["sessions"]) == 1 and row["complete"]
    assert "0 losses acknowledged" in run("archive", "repair", "-r", cold, "--acknowledge").stdout
    for command in ("ls", "verify", "repair"):
        assert run("archive", command, "-r", cold).exit_code == 0
    done = run("archive", "get", "-r", cold, "b")
    assert done.exit_code == 8 and "was lost" in done.stderr and "acknowledged at" in done.stderr
