"""The commands of ``pltz archive`` where the key files of one tenant are gone: none of them says that all is well."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import Run, ok
from tests.files import key_file

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_file(tmp_path / "key")


@pytest.fixture
def sealed(run: Run, tmp_path: Path, key: Path) -> Path:
    """Make a sealed archive of two tenants, and remove the key files of acme."""
    place = tmp_path / "sealed"
    assert run("archive", "init", "-r", place, "--key-file", key).exit_code == 0
    before = set[Path]()
    for tenant in ("other", "acme"):
        before = set((place / "keys").iterdir())
        one = tmp_path / f"{tenant}.jsonl"
        one.write_text(json.dumps({"messages": [{"role": "user", "content": f"hello {tenant}"}]}) + "\n")
        ok(run("archive", "put", "-r", place, one, "--tenant", tenant, "--name", "s", "--key-file", key))
    for path in set((place / "keys").iterdir()) - before:
        path.unlink()
    return place


def test_each_command_tells_that_keys_are_gone(run: Run, sealed: Path, key: Path, tmp_path: Path) -> None:
    with_key, out = ("--key-file", key), tmp_path / "out"
    for code, command in (
        (7, ("get", sealed, "s", "--tenant", "acme", *with_key)),
        (0, ("get", sealed, "s", "--tenant", "other", *with_key)), (7, ("ls", sealed, *with_key)), (7, ("ls", sealed)),
        (7, ("ls", sealed, "--tenant", "acme", *with_key)), (0, ("ls", sealed, "--tenant", "other", *with_key)),
        (3, ("verify", sealed, *with_key)), (3, ("verify", sealed)), (3, ("verify", sealed, "--decode", *with_key)),
        (7, ("get", sealed, "-o", f"{out}.jsonl", *with_key)),
        (0, ("get", sealed, "--tenant", "other", "-o", f"{out}-other.jsonl", *with_key)),
        (7, ("put", sealed, tmp_path / "acme.jsonl", "--tenant", "acme", "--name", "new", *with_key)),
        (3, ("repair", sealed)), (7, ("collect", sealed)),
    ):
        done = run("archive", command[0], "-r", *command[1:])
        assert done.exit_code == code, (command, done.output)
        assert code == 0 or "key" in done.output
    assert run("archive", "init", "-r", tmp_path / "second").exit_code == 0
    assert run("archive", "copy", "-r", sealed, tmp_path / "second", *with_key).exit_code == 7
    assert len(Path(f"{out}.jsonl").read_text().splitlines()) == 1, "the other tenant is there"
