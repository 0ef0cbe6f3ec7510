"""The commands repair and erase of ``pltz archive``: reports, exit codes, secrets that never show."""

import json
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from pltz.archive.archive import Archive
from pltz.archive.codec import BytesCodec
from pltz.archive.keys import Secret
from pltz.archive.new_session import NewSession
from pltz.cli.groups import RootGroup

LAZY = {"repair": "pltz.cli.archive_repair:repair", "erase": "pltz.cli.archive_erase:erase"}
Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    group = RootGroup(name="archive", lazy=LAZY)

    def invoke(*args: object, input: str | None = None) -> Result:
        return CliRunner().invoke(group, [str(a) for a in args], input=input)

    return invoke


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"the-secret-of-16-bytes")
    return path


@pytest.fixture
def cold(tmp_path: Path, key: Path) -> Path:
    """Sealed; three sessions of two tenants."""
    archive = Archive.create(tmp_path / "cold", [BytesCodec()], key=Secret.file(key))
    dice = np.random.default_rng(0)
    rows = [("a", "acme"), ("b", "acme"), ("a", "other")]
    archive.put([NewSession(n, [dice.integers(0, 256, 6000)], t) for n, t in rows])
    archive.write_index()
    return tmp_path / "cold"


def names(cold: Path, key: Path) -> list[tuple[str, str]]:
    return [(v.tenant, v.name) for v in Archive.open(cold, [BytesCodec()], key=Secret.file(key)).ls()]


def damage(cold: Path, begin: int, size: int) -> Path:
    pack = next((cold / "packs").iterdir())
    data = bytearray(pack.read_bytes())
    data[begin : begin + size] = bytes(size)
    pack.write_bytes(data)
    return pack


def test_repair_restores_and_says_so(cold: Path, run: Run) -> None:
    before = next((cold / "packs").iterdir()).read_bytes()
    pack = damage(cold, 500, 600)
    dry = run("repair", cold, "--dry-run")
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


def test_calls_that_are_refused(cold: Path, key: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"not-the-key-of-it-at-all")
    for args, code, words in (
        (("erase", cold, "--tenant", "t", "--all", "--key-file", other, "--yes"), 4, "not the key"),
        (("erase", cold, "--tenant", "t", "--all", "--yes"), 2, "without any"),
        (("erase", cold, "--tenant", "t", "--all"), 2, "without any"),  # said before it is asked about
        (("erase", cold, "--tenant", "t", "--all", "--key-file", key), 8, "no tenant"),
        (("erase", cold, "--tenant", "t", "--yes"), 2, "--name NAME or --all"),
        (("erase", cold, "--tenant", "t", "--all", "--key-file", key, "--passphrase"), 2, "one of"),
        (("repair", tmp_path / "nothing"), 2, "no archive"),
    ):
        done = run(*args)
        assert done.exit_code == code and words in done.output, (args, done.output)
        assert "the-secret" not in done.output and "not-the-key-of" not in done.output


def test_help_and_examples() -> None:
    for name in LAZY:
        command = RootGroup(name="archive", lazy=LAZY).get_command(click.Context(click.Command("x")), name)
        assert command is not None and command.help
        for example in command.examples:  # type: ignore[attr-defined]
            command.make_context("pltz", example.split()[3:])
