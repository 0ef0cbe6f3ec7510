"""bundle: list the bundles, show one, and check it."""

import json
import shutil
from pathlib import Path

from tests.cli.commands import Run


def test_add_list_and_show(run: Run, tiny: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny / "bundles/mini", tmp_path / "copy")
    done = json.loads(run("bundle", "add", copy, "--name", "mine", "--json").stdout)
    place = tmp_path / "user-bundles/mine"
    assert done["name"] == "mine" and done["source"] == "user" and done["path"] == str(place)
    found = json.loads(run("bundle", "show", "--json").stdout)
    assert [(each["name"], each["source"]) for each in found] == [("mini", "pltz"), ("mine", "user")]
    assert f"user, {place}" in run("bundle", "show", "mine").stdout
    assert json.loads(run("bundle", "show", copy, "--json").stdout)["source"] == "folder"


def test_a_damaged_bundle_is_listed_as_such(run: Run, tiny: Path, tmp_path: Path) -> None:
    assert run("bundle", "add", tiny / "bundles/mini", "--name", "mine").exit_code == 0
    (tmp_path / "user-bundles/mine/bundle.json").write_text("{")
    assert "not a bundle description" in run("bundle", "show").stdout
    found = json.loads(run("bundle", "show", "--json").stdout)
    assert "problem" not in found[0] and found[1]["name"] == "mine" and "problem" in found[1]


def test_show(run: Run, tiny: Path) -> None:
    found = json.loads(run("bundle", "show", "mini", "--json").stdout)
    assert found["vocabulary"] == 1024 and found["shape"]["block"] == 256 and found["card"] == {"licence": "none"}
    assert "licence" in run("bundle", "show", tiny / "bundles/mini").stdout


def test_unknown(run: Run, tiny: Path) -> None:
    done = run("bundle", "show", "nope")
    assert done.exit_code == 2 and "nope" in done.stderr and "mini" in done.stderr
