"""The commands repair and erase of ``pltz archive``: reports, exit codes, secrets that never show."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pltz.archive.encryption.keys import Secret
from pltz.archive.writing.new_session import NewSession
from pltz.cli.root import cli
from pltz.coding.codecs.codec import BytesCodec
from tests.archive.towers import TowerArchive
from tests.cli.commands import Run
from tests.files import key_file


@pytest.fixture
def run() -> Run:
    def invoke(name: str, place: Path, *words: object, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, ["archive", name, "-r", *map(str, (place, *words))], input=input)

    return invoke


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_file(tmp_path / "key", b"the-secret-of-16-bytes")


@pytest.fixture
def cold(tmp_path: Path, key: Path) -> Path:
    """Make a sealed archive with three sessions of two tenants."""
    archive = TowerArchive.create(tmp_path / "cold", [BytesCodec()], key=Secret.file(key))
    dice = np.random.default_rng(0)
    rows = [("a", "acme"), ("b", "acme"), ("a", "other")]
    archive.put([NewSession(n, [dice.integers(0, 256, 6000)], t) for n, t in rows])
    archive.write_index()
    return tmp_path / "cold"


def names(cold: Path, key: Path) -> list[tuple[str, str]]:
    return [(v.tenant, v.name) for v in TowerArchive.open(cold, [BytesCodec()], key=Secret.file(key)).ls()]


def damage(cold: Path, begin: int, size: int) -> Path:
    pack = next((cold / "packs").iterdir())
    data = bytearray(pack.read_bytes())
    data[begin : begin + size] = bytes(size)
    pack.write_bytes(data)
    return pack


def test_repair_restores_and_says_so(cold: Path, run: Run) -> None:
    before = next((cold / "packs").iterdir()).read_bytes()
    pack, dry = damage(cold, 500, 600), run("repair", cold, "--dry-run")
    assert dry.exit_code == 0 and f"would be restored: packs/{pack.name}" in dry.output
    done = run("repair", cold, "--json")
    assert done.exit_code == 0 and pack.read_bytes() == before
    report = json.loads(done.output)
    assert report["whole"] and report["restored"] == [f"packs/{pack.name}"] and len(report["aside"]) == 1
    assert "nothing is lost" in run("repair", cold).output


def test_repair_beyond_the_budget_names_the_lost_and_exits_with_3(cold: Path, key: Path, run: Run) -> None:
    damage(cold, 5000, 4000)
    done = run("repair", cold)
    assert done.exit_code == 3 and "of which no record is left" in done.output and "acme" not in done.output
    assert len(names(cold, key)) == 1


def test_erase_asks_and_proves(cold: Path, key: Path, run: Run) -> None:
    call = ("erase", cold, "--tenant", "acme", "--name", "a", "--key-file", key)
    asked = run(*call, input="n\n")
    assert asked.exit_code == 1 and "versions: 1?" in asked.output and len(names(cold, key)) == 3
    assert "1 version would be erased" in run(*call, "--dry-run").output
    done = run(*call, "--yes")
    assert done.exit_code == 0 and "proof: 1 record read" in done.output
    assert names(cold, key) == [("acme", "b"), ("other", "a")]
    done = run("erase", cold, "--tenant", "acme", "--all", "--key-command", f"cat {key}", "--yes", "--json")
    assert json.loads(done.output)["versions"] == 1 and names(cold, key) == [("other", "a")]
    assert run(*call, "--yes").exit_code == 8


@pytest.fixture
def based(tmp_path: Path, key: Path) -> Path:
    """Make a sealed archive with sessions of two tenants, below a base prompt of both and one of acme alone."""
    archive = TowerArchive.create(tmp_path / "based", [BytesCodec()], key=Secret.file(key))
    prompt, turn = np.arange(200), np.arange(50)
    rows = [("a", "acme", "both"), ("b", "other", "both"), ("c", "acme", "its own")]
    archive.put([NewSession(n, [prompt, turn], t, shared=1, base=base) for n, t, base in rows])
    return tmp_path / "based"


def test_erase_says_which_bases_stay_and_how_to_erase_them(based: Path, key: Path, run: Run) -> None:
    call = ("erase", based, "--tenant", "acme", "--all", "--key-file", key)
    base = ("erase", based, "--base", "its own", "--key-file", key)
    refused = run(*base, "--yes")
    assert refused.exit_code == 7 and "1 session of 1 tenant stand on base 'its own'" in refused.output
    done = run(*call, "--yes")
    assert done.exit_code == 0 and "base 'both' stays readable, as tenants share it" in done.output
    assert "once no session uses it: pltz archive erase --base 'its own'" in done.output
    asked = run(*base, input="n\n")
    assert asked.exit_code == 1 and "Erase base 'its own', segments: 1?" in asked.output
    done = run(*base, "--yes", "--json")
    report = json.loads(done.output)
    assert (report["base"], report["tenant"], report["segments"], report["records"]) == ("its own", None, 1, 1)
    assert run(*base, "--yes").exit_code == 8 and run(*call, "--yes").exit_code == 8


def test_an_unfinished_erase_is_told_and_finished(cold: Path, key: Path, run: Run) -> None:
    before = {path: path.read_bytes() for path in (cold / "keys").iterdir()}
    run("erase", cold, "--tenant", "acme", "--name", "a", "--key-file", key, "--yes")
    older = sorted(path for path in before if not path.exists())
    assert len(older) == 2
    for state in (before[older[0]], bytes(len(before[older[0]])), before[older[0]][:40], b""):
        for number, path in enumerate(older[:2]):
            path.write_bytes(state if number else before[path])
        found = run("verify", cold)
        assert found.exit_code == 10 and "sound, but with 1 unfinished erase" in found.output, found.output
        assert older[1].name in found.output and "repair" in found.output
        lines = [json.loads(line) for line in run("verify", cold, "--json").stdout.splitlines()]
        assert lines[0]["unfinished"] == "erase" and lines[-1]["sound"] and lines[-1]["unfinished"] == 1
        dry = run("repair", cold, "--dry-run")
        assert dry.exit_code == 0 and f"would be overwritten and deleted: keys/{older[0].name}" in dry.output
        assert older[0].exists()
        if state:
            assert sorted(json.loads(run("repair", cold, "--json").output)["finished"]) == [
                f"keys/{p.name}" for p in older
            ]
        else:
            done = run("erase", cold, "--tenant", "other", "--all", "--key-file", key, "--yes")
            assert "finished an erase that was cut off before: 2 older key files" in done.output
        assert run("verify", cold, "--key-file", key).exit_code == 0 and not older[0].exists()


def test_calls_that_are_refused(cold: Path, key: Path, tmp_path: Path, run: Run) -> None:
    other = key_file(tmp_path / "other", b"not-the-key-of-it-at-all")
    for args, code, words in (
        (("erase", cold, "--tenant", "t", "--all", "--key-file", other, "--yes"), 4, "not the key"),
        (("erase", cold, "--tenant", "t", "--all", "--yes"), 2, "without any"),
        (("erase", cold, "--tenant", "t", "--all"), 2, "without any"),  # refused before the question
        (("erase", cold, "--tenant", "t", "--all", "--key-file", key), 8, "no tenant"),
        (("erase", cold, "--tenant", "t", "--yes"), 2, "--name NAME or --all"),
        (("erase", cold, "--tenant", "t", "--all", "--key-file", key, "--passphrase"), 2, "one of"),
        (("erase", cold, "--yes"), 2, "or --base NAME"),
        (("erase", cold, "--base", "b", "--tenant", "t", "--yes"), 2, "stands alone"),
        (("erase", cold, "--base", "b", "--key-file", key, "--yes"), 8, "no base 'b'"),
        (("repair", tmp_path / "nothing"), 2, "no archive"),
    ):
        done = run(*args)
        assert done.exit_code == code and words in done.output, (args, done.output)
        assert "the-secret" not in done.output and "not-the-key-of" not in done.output
