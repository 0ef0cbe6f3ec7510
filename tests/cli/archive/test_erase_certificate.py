"""pltz archive erase --certificate: one document says what went, when, by whom, why, and how that was proved."""

import json
from pathlib import Path

import pytest

from pltz.archive.archive import Archive
from pltz.archive.format.ids import tenant_of
from tests.cli.commands import Run, chat, lines
from tests.files import key_file

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_what_stays_under_salts_of_a_tenant_is_told(run: Run, tmp_path: Path) -> None:
    cold = Archive.open(tmp_path / "cold", create=True, passphrase="battery staple")
    for salt in (None, "pepper"):
        cold.put("a", "hello", tenant="acme", salt=salt)
    sealed, paper = ("-r", tmp_path / "cold", "--passphrase-env", "WORDS"), tmp_path / "erased.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORDS", "battery staple")
        get = run("archive", "get", *sealed, "--tenant", "acme", "-o", f"{tmp_path}/out/", "--inventory", paper)
        [other] = json.loads(paper.read_text())["other_tenants"]
        assert get.exit_code == 0 and other == tenant_of("acme", "pepper")
        paper.unlink()
        erase = "archive", "erase", *sealed, "--all", "--yes", "--tenant"
        done = run(*erase, "acme", "--certificate", paper)
        assert done.exit_code == 0 and f"not erased: tenant {other}" in done.stderr and other in paper.read_text()
        assert run(*erase, other).exit_code == 0 and not list(cold.list())


def test_a_certificate_has_what_a_lawyer_files(run: Run, tmp_path: Path) -> None:
    key = key_file(tmp_path / "key", b"k" * 32)
    sealed = "-r", tmp_path / "cold", "--key-file", key
    assert run("archive", "init", *sealed).exit_code == 0
    for name in "ab":
        line = json.dumps(chat(2)).encode()
        words = "-", "--format", "jsonl", "--name", name, "--tenant", "acme"
        assert run("archive", "put", *sealed, *words, input=line).exit_code == 0
    paper = tmp_path / "erased.txt"
    who = "--actor", "alice", "--reason", "request nine"
    erase = "archive", "erase", *sealed, "--tenant", "acme"
    assert run(*erase, "--name", "nobody", "--yes", "--certificate", paper).exit_code == 8 and not paper.exists()
    assert run(*erase, "--name", "a", "--dry-run", "--certificate", paper).exit_code == 0 and not paper.exists()
    assert run(*erase, "--name", "a", "--yes", "--certificate", paper, *who).exit_code == 0
    text = paper.read_text()
    [*_, last] = lines(run("audit", *sealed, "--json"))
    for word in ("session 'a' of tenant 'acme'", "alice", "request nine", "1 version", last["digest"], "backups"):
        assert word in text, word
    assert "read from the raw packs" in text and last["verb"] == "erased" and "a" not in last["names"].values()
    again = run(*erase, "--name", "b", "--yes", "--certificate", paper)
    assert again.exit_code == 2 and "there already" in again.stderr and paper.read_text() == text
    assert [row["name"] for row in lines(run("archive", "ls", *sealed, "--json"))] == ["b"]
    both = tmp_path / "matching.txt"
    assert run(*erase, "--matching", "bicycle", "--yes", "--certificate", both).exit_code == 0
    assert both.read_text().count("CERTIFICATE OF ERASURE") == 1
