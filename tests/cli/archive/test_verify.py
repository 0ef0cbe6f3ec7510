"""pltz archive verify: damage and lost sessions are reported."""

import json
from pathlib import Path

import pytest

from pltz.archive.storage.seen import PLACES
from pltz.models.bundle.bundle import Bundle
from tests.cli.commands import Put, Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def flip(pack: Path) -> None:
    """Damage a byte of a pack's first record."""
    from pltz.archive.format.pack import Pack

    data = bytearray(pack.read_bytes())
    data[Pack.of(bytes(data)).head.size + 30] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)


def test_verify_says_what_is_lost(trained: None, run: Run, cold: Path, put: Put) -> None:
    put(chat(1), "--name", "t")
    [pack] = (cold / "packs").iterdir()
    assert "all of it: 1 pack, 2 records, 0 decoded" in run("archive", "verify", "-r", cold).stdout
    put(chat(8), "--name", "s")
    sound = lines(run("archive", "verify", "-r", cold, "--decode", "--json"))
    assert len(sound) == 1 and sound[0]["sound"] and sound[0]["complete"] and sound[0]["decoded"] == 3
    flip(pack)
    done = run("archive", "verify", "-r", cold, "--json")
    assert done.exit_code == 3
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("problem" in row for row in rows) and not rows[-1]["sound"]
    lost = [row["lost_session"]["name"] for row in rows if "lost_session" in row]
    assert "s" in lost, "its base is gone; the record of t points at the damaged one and may not be read at all"
    assert "DAMAGED" in run("archive", "verify", "-r", cold).stdout


def test_missing_copies_have_an_exit_code_of_their_own(run: Run, cold: Path, put: Put) -> None:
    put({"messages": [{"role": "user", "content": "Hi"}]})
    (cold / "parity" / "archive.json").unlink()
    done = run("archive", "verify", "-r", cold, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 9 and found[0] == {"missing_copy": "parity/archive.json"}
    assert found[-1]["missing_copies"] == 1 and found[-1]["sound"]
    text = run("archive", "verify", "-r", cold)
    assert text.exit_code == 9 and "sound, but 1 redundant copy is missing: run repair" in text.stdout
    assert run("archive", "repair", "-r", cold).exit_code == 0
    again = run("archive", "verify", "-r", cold)
    assert again.exit_code == 0 and "missing" not in again.stdout


def test_a_token_that_put_printed_tells_of_a_rollback(
    run: Run, cold: Path, put: Put, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = put({"messages": [{"role": "user", "content": "Hi"}]}, "--name", "a")[-1]["token"]
    before = {path: path.read_bytes() for path in cold.rglob("*") if path.is_file()}
    last = put({"messages": [{"role": "user", "content": "Ho"}]}, "--name", "b")[-1]["token"]
    verified = lines(run("archive", "verify", "-r", cold, "--expect", last, "--json"))
    assert run("archive", "audit", "-r", cold, "--expect", last).exit_code == 2  # no digest: nobody tampered
    assert verified[-1]["sound"] and verified[-1]["token"] == last
    for path in {path for path in cold.rglob("*") if path.is_file()} - before.keys():
        path.unlink()
    for path, data in before.items():
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))  # a machine that saw nothing
    PLACES.clear()
    done = run("archive", "verify", "-r", cold, "--expect", last)
    assert done.exit_code == 3 and "rolled back" in done.stdout, done.output
    assert "token" not in done.stderr  # a script that keeps the last token would take the damage for good
    told = run("archive", "verify", "-r", cold, "--expect", last, "--json").stdout.splitlines()[-1]
    assert json.loads(told)["token"] is None and run("archive", "verify", "-r", cold, "--expect", first).exit_code == 0


def test_verify_never_says_all_of_it_over_segments_that_it_could_not_decode(
    trained: None, run: Run, cold: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(chat(1), "--name", "s", "--bundle", "nano")
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles/mini").symlink_to(Bundle.load("mini").path)
    monkeypatch.setattr("pltz.models.bundle.locations.EMBEDDED", tmp_path / "bundles")
    monkeypatch.setattr("pltz.models.bundle.bundle.DEFAULT", "mini")
    text = run("archive", "verify", "-r", cold, "--decode").stdout
    assert "not decoded, whose bundle or key is not here" in text and "a part of it" in text
