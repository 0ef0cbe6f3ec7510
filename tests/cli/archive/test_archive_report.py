"""pltz archive report: one page that tells the state, the sizes and the newest sessions of an archive."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pltz.archive.humanize import size
from tests.cli.commands import Put, Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def words(page: Path) -> str:
    return " ".join(ET.fromstring(page.read_text("utf8").removeprefix("<!DOCTYPE html>\n")).itertext())


def test_an_archive_has_a_page(run: Run, cold: Path, put: Put, tmp_path: Path) -> None:
    page = tmp_path / "cold.html"
    assert run("archive", "report", cold, "-o", page).exit_code == 0  # an empty one has a page, too
    assert "OK" in words(page)
    for number in range(3):
        put(chat(2), "--name", f"<b>{number}", "--tenant", "acme", "--time", f"2026-01-0{number + 1}")
    assert run("archive", "report", cold, "-o", page).exit_code == 2  # it is there
    done = run("archive", "report", cold, "-o", page, "--force", "--content", "--json")
    assert json.loads(done.stdout) == {"page": str(page)}
    text = words(page)
    assert "saved by sharing" in text and "<b>1" in text and "acme" in text and "3 versions" in text
    assert "times the bytes on disk" in text and "Largest" not in text
    files = sum(path.stat().st_size for path in cold.rglob("*") if path.is_file())
    assert lines(run("archive", "stat", cold, "--json"))[0]["disk_bytes"] == files and size(files) in text
    assert "method" in text
    assert "content" in text and "ratio" in text
    assert "<script" not in page.read_text("utf8")
    pytest.importorskip("matplotlib")
    assert "versions by frozen size" in text and "2026-01-02" in text


def test_a_damaged_archive_says_so(run: Run, cold: Path, put: Put, tmp_path: Path) -> None:
    put(chat(2), "--name", "a")
    put(chat(4), "--name", "b")
    next((cold / "packs").iterdir()).unlink()
    done = run("archive", "report", cold, "-o", tmp_path / "cold.html")
    text = words(tmp_path / "cold.html")
    assert done.exit_code == 7 and "DAMAGED" in text and "pltz archive repair" in text
