"""Records of repositories hold their code and documents, and no line that a held-out split has."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from pltz.benchmarks.records import repository_text

HELD = "a long line that the test split has, word for word"


def clone(folder: Path, files: dict[str, str]) -> str:
    """Make a repository, and return the first digits of its commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.check_output([*git, "rev-parse", "--short=10", "HEAD"], text=True).strip()


def test_held_out_lines_and_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "".join(f"a line of the repository itself, with number {n}\n" for n in range(10))
    files = {"a.c": own + HELD + "\n", "b.c": own[:200] + 4 * f"\n  {HELD}", "c.py": own}
    code = clone(tmp_path / "libuv/libuv", files)
    pages = clone(tmp_path / "fastapi/fastapi", {"docs/de/docs/a.md": own, "docs/en/docs/a.md": own})
    licences = tmp_path / "licences.md"
    licences.write_text(
        f"| code | libuv/libuv @ {code} | MIT |\n| other languages | fastapi/fastapi @ {pages} | CC0-1.0 |\n"
        "| agent logs | one/other @ 0123456789 | MIT |\n"
    )
    monkeypatch.setattr(repository_text, "LICENCES", licences)
    split, target = tmp_path / "test.jsonl", tmp_path / "made.jsonl"
    split.write_text(json.dumps({"messages": [{"role": "user", "content": f"short\n{HELD}"}]}) + "\n")
    options = [str(tmp_path), str(target), str(split)]
    CliRunner().invoke(repository_text.main, options, catch_exceptions=False)
    assert [json.loads(line) for line in target.read_text().splitlines()] == [
        {"id": "code-c-0", "license": "MIT", "text": own},
        {"id": "lang-de-1", "license": "CC0-1.0", "text": own},
    ]
    licences.write_text("| code | libuv/libuv @ 0123456789 | MIT |\n")
    assert "expected a clone that has commit" in str(CliRunner().invoke(repository_text.main, options).exception)
