"""Bundles added to the user's folder (models/bundle/user_bundles.py): whole and checked, or refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle import locations
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.bundle.user_bundles import add
from pltz.plt_codec.errors import BundleMismatch, ModelError, UsageError
from tests.files import flip


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder; nothing is embedded or installed."""
    monkeypatch.setattr(locations, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setattr(locations, "GROUP", "pltz.bundles.of.the.tests")
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> Path:
    place, weights = tmp_path / "source/tiny", random_weights(1, vocab=512)
    write_bundle(place, "tiny", weights, tiny_tokenizer_json(512), b"words", {"note": "x"})
    (place / "CARD.md").write_text("# tiny\n")
    (place / "unrelated.bin").write_bytes(b"not of the bundle")
    return place


def test_what_is_added_is_found(folder: Path, user: Path) -> None:
    given = Bundle.load(folder)
    assert add(folder, bundle_id=given.id.hex().upper()) == locations.BundleLocation("tiny", user / "tiny", "user")
    assert Bundle.load("tiny").id == Bundle.find(given.id).id == given.id
    assert Bundle.load("tiny").card == {"note": "x"} and (user / "tiny/CARD.md").read_text() == "# tiny\n"
    assert not (user / "tiny/unrelated.bin").exists()
    assert sorted(path.name for path in user.iterdir()) == [".lock", "tiny"]


def test_a_name_belongs_to_one_bundle(
    folder: Path, user: Path, tiny_tokenizer_json: Callable[[int], bytes], tmp_path: Path
) -> None:
    add(str(folder))
    write_bundle(tmp_path / "b", "tiny", random_weights(2, vocab=512), tiny_tokenizer_json(512), b"", {})
    with pytest.raises(UsageError, match=r"another bundle has the name tiny .* --name"):
        add(str(tmp_path / "b"))
    assert add(str(tmp_path / "b"), name="other").name == "other" and Bundle.names() == ["other", "tiny"]


@pytest.mark.parametrize("name", ["../x", ".x", "a/b", "", "x" * 65, "a\0b"])
def test_bad_names_are_refused(folder: Path, user: Path, name: str) -> None:
    head = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**head, "name": name}))
    with pytest.raises(UsageError, match="no name for a bundle"):
        add(str(folder))
    assert [path.name for path in user.iterdir()] == [".lock"]


def test_another_fingerprint_is_refused(folder: Path, user: Path) -> None:
    with pytest.raises(BundleMismatch, match="expected bundle 0000"):
        add(str(folder), bundle_id="0" * 32)
    with pytest.raises(UsageError, match="32 hexadecimal digits"):
        add(str(folder), bundle_id="xyz")
    assert Bundle.names() == []


@pytest.mark.parametrize("damage", ["flip", "gone", "no head", "larger than allowed", "negative"])
def test_damage_is_refused(folder: Path, user: Path, damage: str) -> None:
    weights, head = folder / "weights-0.safetensors", folder / "bundle.json"
    tree = json.loads(head.read_text())
    if damage == "flip":
        flip(weights, -1)
    elif damage == "gone":
        weights.unlink()
    elif damage == "no head":
        head.unlink()
    else:
        tree["files"][weights.name]["size"] = 1 << 60 if damage == "larger than allowed" else -1
        head.write_text(json.dumps(tree))
    with pytest.raises(ModelError):
        add(str(folder))
    assert [path.name for path in user.iterdir()] == [".lock"]


def test_a_killed_add_leaves_nothing_that_counts(folder: Path, user: Path) -> None:
    code = (
        "import os, sys\n"
        "from pltz.models.bundle import user_bundles\n"
        "user_bundles.publish = lambda part, final: os._exit(9)\n"
        "user_bundles.add(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert done.returncode == 9 and Bundle.names() == [] and len(list(user.glob(".part-*"))) == 1
    add(str(folder))
    assert Bundle.names() == ["tiny"] and not list(user.glob(".part-*"))
